"""Loads the suite's plugin, and makes sure that `fixtures` is the one of this checkout."""

from pathlib import Path

import fixtures

if Path(fixtures.__file__).parent.parent != Path(__file__).parent:
    raise ImportError(
        f"'fixtures' is {fixtures.__file__}, not this checkout's. Run pytest from the checkout's root."
    )

pytest_plugins = ["fixtures.plugin", "pytester"]
