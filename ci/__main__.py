"""`python -m ci COMMAND`. A user's mistake is one sentence on stderr and exit code 2."""

from __future__ import annotations

import argparse
import sys

try:
    from ci import engines, kills, lock, record, report, repro, serve
    from fixtures.errors import HarnessError
except ModuleNotFoundError as missing:
    sys.exit(f"error: {sys.executable} has no {missing.name}. Use the Python of the README's .venv.")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code, 0 when it has none of its own; 2 when it cannot do what was asked."""
    parser = argparse.ArgumentParser(
        prog="python -m ci", description="Reports, bundles, engines and models of the suite."
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    engines.add(commands)
    lock.add(commands)
    repro.add(commands)
    record.add(commands)
    serve.add(commands)
    report.add(commands)
    kills.add(commands)
    chosen = parser.parse_args(arguments)
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
