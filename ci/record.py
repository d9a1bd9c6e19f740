"""`python -m ci record RUN_FOLDER`: what of a kept run of a real engine becomes a recording for the fake."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.repro import places
from fixtures.engines.rules import Catalog
from fixtures.errors import HarnessError
from fixtures.evidence import bundle, kept
from fixtures.faux import likeness, recordings
from fixtures.faux.faults import edit
from fixtures.faux.recordings import told
from fixtures.faux.scene import Ask
from fixtures.judge.prefix import common
from fixtures.model import Event

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from fixtures.evidence.case import Case
    from fixtures.evidence.results import Engine
    from fixtures.faux.recordings import Session
    from fixtures.model import Exchange

say = partial(print, flush=True)
_EACH = 3  # sessions of one test on one server: more of them ask the same again
_FEW = 6  # sampled answers in a session: only their shape can be compared
_FLAGS = ("--model", "--model-path")


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    record = commands.add_parser("record", help="make recordings for the fake engine from a kept run")
    record.add_argument("run_folder", type=Path, help="folder of a run with --keep of a real engine")
    record.add_argument(
        "--out", type=Path, default=recordings.FOLDER, metavar="DIR", help="default: where the tests read"
    )
    record.set_defaults(run=_record)


def _record(chosen: argparse.Namespace) -> None:
    folders = sorted(path.parent for path in chosen.run_folder.glob(f"tests/*/{kept.TEST}"))
    if not folders:
        raise HarnessError(f"{chosen.run_folder} holds no kept tests. Name the folder of a run with --keep.")
    cases = [bundle.read(folder) for folder in folders]
    alike: dict[tuple[str, str | None], list[Case]] = {}
    for case in filter(_tells, cases):
        alike.setdefault((case.result.test, case.result.server), []).append(case)
    found: dict[tuple[str, str], list[Session]] = {}
    for case in (case for same in alike.values() for case in _spread(same)):
        engine = case.about.engine
        session = _session(case, _before(case, cases), chosen.run_folder)
        found.setdefault((engine.name, engine.version), []).append(session)
    if not found:
        raise HarnessError(
            f"no test in {chosen.run_folder} can be a recording: it must have passed on a real engine that the suite "
            "started, asked one request after the other, and left little to chance."
        )
    for (name, version), sessions in found.items():
        path = chosen.out / f"{name}-{version}.jsonl.gz"
        size = recordings.write(path, sessions)
        say(f"{path}: {len(sessions)} of {len(folders)} tests, {size} bytes")


def _spread(cases: Sequence[Case]) -> list[Case]:
    """Return at most _EACH cases: the first, the last, and some between."""
    places = {round(step * (len(cases) - 1) / (_EACH - 1)) for step in range(_EACH)}
    return [cases[place] for place in sorted(places)]


def _tells(case: Case) -> bool:
    """Whether a fake can be held to a test's answers: they follow from the requests and from their order alone."""
    about = case.about
    fair = (
        case.result.state == "pass" and about.launch and not about.engine.fake and not about.engine.tampered
    )
    in_turn = sorted(case.exchanges, key=lambda one: one.started)
    apart = all(a.started + a.elapsed <= b.started for a, b in pairwise(in_turn))
    drawn = sum(likeness.is_drawn(one.request) for one in case.exchanges)
    return bool(fair and apart and not case.left_out and case.exchanges) and drawn <= _FEW


def _before(case: Case, cases: Sequence[Case]) -> tuple[Ask, ...]:
    """Return what filled the cache for a test: of the requests that others sent to its server, the most alike."""
    began = min(one.started for one in case.exchanges)
    same = (one for one in cases if one.about.launch == case.about.launch)
    earlier = sorted((e for one in same for e in one.exchanges if e.started < began), key=lambda e: e.started)
    engine = case.about.engine
    reset = Catalog.bound(engine.name, engine.version, engine.device).call("reset_prefix_cache")["path"]
    since = [n for n, one in enumerate(earlier, 1) if one.path.partition("?")[0] == reset.partition("?")[0]]
    known = [one for one in earlier[max(since, default=0) :] if _prompt(one)]
    found = []
    for prompt in filter(None, map(_prompt, case.exchanges)):
        best = max(known, key=lambda one: common(_prompt(one), prompt), default=None)
        if best is not None and common(_prompt(best), prompt):
            found.append(_asked(best))
    return tuple(one for n, one in enumerate(found) if one not in found[:n])


def _prompt(one: Exchange) -> Sequence[Any]:
    """Return what is computed before an answer, in tokens; nothing for other requests."""
    asked = one.request or {}
    return edit.prompt_ids(_asked(one)) if "prompt" in asked or "messages" in asked else ()


def _asked(one: Exchange) -> Ask:
    return Ask(one.method, one.path, one.request)


def _session(case: Case, before: tuple[Ask, ...], run: Path) -> Session:
    about = case.about
    assert about.launch is not None
    engine = about.engine
    flags = list(about.launch.argv[3:])  # after the interpreter, -m and the module
    at = next(place for place, word in enumerate(flags) if word in _FLAGS) + 1
    hidden = bundle.hide(places(run) | {flags[at]: recordings.MODEL})
    flags[at] = recordings.MODEL
    flags[flags.index("--port") + 1] = recordings.PORT
    return recordings.Session(
        test=case.result.id,
        engine=engine.name,
        version=engine.version,
        spec={"model": about.spec.model, "knobs": about.spec.knobs},
        argv=tuple(map(hidden, flags)),
        env={name: hidden(value) for name, value in about.launch.env.items()},
        before=before,
        exchanges=tuple(_plain(one, hidden) for one in _needed(case.exchanges, engine)),
    )


def _plain(one: Exchange, hidden: Callable[[str], str]) -> Exchange:
    """Return an exchange without secrets and paths, its times to the millisecond."""
    events = tuple(Event(round(event.at, 3), hidden(event.data)) for event in one.events)
    body = hidden(one.body)
    return replace(
        one, body=body, events=events, started=round(one.started, 3), elapsed=round(one.elapsed, 3)
    )


def _needed(exchanges: Sequence[Exchange], engine: Engine) -> Iterator[Exchange]:
    """Yield what a recording keeps: of the pages of counters the first and the last, as the others only wait."""
    catalog = Catalog.bound(engine.name, engine.version, engine.device)
    pages = [place for place, one in enumerate(exchanges) if one.path == told.METRICS]
    for place, one in enumerate(exchanges):
        if place not in pages[1:-1]:
            yield replace(one, body=told.kept(one, catalog)) if told.is_page(one, catalog) else one
