"""Requirements made up here, as the metadata of a release writes them."""

from __future__ import annotations

import pytest

from fixtures.census import pins
from fixtures.census.archive import Source
from fixtures.errors import HarnessError


def rows(*lines, torch="Requires-Dist: torch==2.11.0"):
    """Return the rows of a release with some lines of metadata, without torch."""
    metadata = "\n".join(["Name: vllm", *([torch] if torch else []), *lines, "", "Requires-Dist: text>=1"])
    found = pins.rows(Source("vllm", "1.0", "", "", "", {"METADATA": metadata}))
    return {name: facts for name, facts in found.items() if name not in ("torch", "python")}


def test_what_names_a_version_is_listed_by_its_one_spelling():
    found = rows(
        "Requires-Dist: Flashinfer_Python[cu13]==0.7.2",
        "Requires-Dist: numpy",
        "Requires-Dist: xgrammar>=0.1,<1",
    )
    assert found == {"flashinfer-python": {"requires": "==0.7.2"}, "xgrammar": {"requires": "<1,>=0.1"}}


def test_a_marker_stands_beside_it():
    found = rows('Requires-Dist: six>=1.16; python_version > "3.11"')
    assert found == {"six": {"requires": ">=1.16", "marker": 'python_version > "3.11"'}}


def test_several_lines_of_a_package_are_lists():
    found = rows("Requires-Dist: av>=9", 'Requires-Dist: av==16.1.0; sys_platform == "linux"')
    assert found == {"av": {"requires": [">=9", "==16.1.0"], "marker": ["", 'sys_platform == "linux"']}}


def test_extras_and_lines_that_are_no_requirements_are_left_out():
    extra = 'Requires-Dist: av==1; (sys_platform == "linux") and extra == "video"'
    assert rows(extra, "Requires-Dist: ==3", "Provides-Extra: video") == {}


@pytest.mark.parametrize(
    ("line", "requires"), [("Requires-Python: >=3.10,<3.14", "<3.14,>=3.10"), ("Version: 1", "")]
)
def test_the_python_it_runs_on_is_a_row(line, requires):
    metadata = f"Name: vllm\nRequires-Dist: torch>=2\n{line}\n"
    found = pins.rows(Source("vllm", "1.0", "", "", "", {"METADATA": metadata}))
    assert found == {"torch": {"requires": ">=2"}, "python": {"requires": requires}}


@pytest.mark.parametrize("torch", ["", "Requires-Dist: torch", 'Requires-Dist: torch==1; extra == "gpu"'])
def test_a_release_that_pins_no_torch_is_read_incompletely(torch):
    with pytest.raises(HarnessError, match=r"census of vllm 1\.0 found no requirement of torch"):
        rows("Requires-Dist: av==1", torch=torch)
