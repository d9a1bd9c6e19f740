"""`python -m ci COMMAND`. A user's mistake is one sentence on stderr and exit code 2."""

from __future__ import annotations

import argparse
import importlib
import sys

from fixtures.errors import HarnessError

# The module of each command. Only the wanted one is loaded: a lint has its answer before plots and models are there.
_COMMANDS = {
    "engines": "engines", "lock": "lock", "model": "serve", "command": "serve",
    "reap": "reap", "census": "census", "lint": "lint", "migrate": "migrate", "claims": "claims",
    "report": "report", "repro": "repro", "replay": "repro", "judge": "repro", "record": "record", "kills": "kills",
    "plan": "plan",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code, 0 when it has none of its own; 2 when it cannot do what was asked."""
    words = sys.argv[1:] if arguments is None else arguments
    ours = words.index("--") if "--" in words else len(words)  # what follows belongs to another program
    parser = argparse.ArgumentParser(
        prog="python -m ci", description="Reports, bundles, engines, flags and models of the suite."
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    wanted = _COMMANDS.get(words[0]) if words else None
    try:
        for name in [wanted] if wanted else dict.fromkeys(_COMMANDS.values()):
            importlib.import_module(f"ci.{name}").add(commands)
    except ModuleNotFoundError as missing:
        sys.exit(f"error: {sys.executable} has no {missing.name}. Use the Python of the README's .venv.")
    chosen = parser.parse_args(words[:ours])
    chosen.words = words[ours + 1 :]
    if "run" not in chosen:
        parser.print_help()
        return 0
    try:
        code = chosen.run(chosen)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - this is a command
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)  # noqa: T201
        return 130
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
