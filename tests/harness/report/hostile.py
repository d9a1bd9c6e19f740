"""Texts that would do harm where they are not shown as text, and results made of them."""

from __future__ import annotations

from fixtures.evidence.results import Engine, Feature, Kill, Launched, Measure, Point, Series, Setting
from tests.harness.report.values import MACHINE, result, small

EVIL = {
    "script": "<script>alert(1)</script>",
    "attribute": '"><img src=x onerror=alert(1)>',
    "quote": "' onmouseover='alert(1)",
    "closing": "</style></pre></details></section><h5>gone",
    "svg": "</title></desc></svg>",
    "scheme": "javascript:alert(1)",
    "template": "{{ 7*7 }}{% raw %}",
    "terminal": "\x00\x1b[31mred\x1b]0;title\x07\x9b1m",
    "direction": "\u202egnp.exe\u2066",
    "comment": "]]><!--",
    "surrogate": "\ud800 alone",
    "markdown": "| a | b |\n`code` @someone #12 GH-7 https://evil.example www.evil.example ![x](y)",
    "path": "../../etc/passwd",
}


def hostile(text):
    """Return Results in which every text is this one."""
    engine = Engine(
        name=text, target=text, version=text, label=text, device=text, origin=text, digest=text, fake=True
    )
    points = (
        Point(x=text, y=1.0, low=0.5, high=2.0),
        Point(x=text + "2", y=float("nan")),
        Point(x=text, y=3.0),
    )
    series = [
        Series(title=text, x=text, y=text, kind=kind, points=points, expected=points)
        for kind in ("bars", "line")
    ]
    told = {
        "feature": Feature(number=text, title=text),
        "parameters": {text: text},
        "sentence": text,
        "detail": text,
        "link": text,
        "evidence": text,
        "server": text,
        "engine": text,
        "version": text,
        "measures": (Measure(name=text, value=float("inf"), unit=text, origin=text),),
    }
    test = f"{text}/{text}.py::{text}"
    results = [
        result(test, state, item=state, **told, series=tuple(series) if state == "fail" else ())
        for state in ("fail", "known", "pass", "not_applicable")
    ]
    launch = Launched(
        server=text,
        engine=text,
        why=text,
        seconds=1,
        at=0,
        argv=(text,),
        env={text: text},
        origins={text: text},
        log=text,
    )
    return small(
        *results,
        result(test, "fail", engine=None, version=None),
        id=text,
        command=(text,),
        suite=text,
        machine=MACHINE.model_copy(
            update={"system": text, "processor": text, "gpus": (text,), "driver": text}
        ),
        settings=(Setting(name=text, value=text, origin=text),),
        engines=(engine,),
        launches=(launch,),
        kills=(Kill(test=test, engine=text, fault=text, state="survived", by=text, sentence=text),),
    )
