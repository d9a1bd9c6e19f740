"""The suite keeps its own rules: proofs, faults, names, and known failures that point at something."""

import ast
import re
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from fixtures import expect
from fixtures.engines import rules
from fixtures.faux.faults import FAULTS

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "tests" / "features").glob("test_*.py"))
KNOWN = expect.load(ROOT / "tests" / "expectations")
CHECKS = [*MODULES, *sorted((ROOT / "tests" / "accuracy").glob("test_*.py"))]
SOURCES = {path: path.read_text() for folder in ("fixtures", "ci") for path in (ROOT / folder).rglob("*.py")}
JUDGES = sorted((ROOT / "fixtures" / "judge").glob("[a-z]*.py"))


def checks_of(path):
    """Yield each test function of a module with the names of its decorators."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node, {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list}


def parameters(path):
    """The names that a module parametrises tests with, and those of settings in rows of them."""
    text = path.read_text()
    return set(re.findall(r"""parametrize\(\s*\(?["'](\w+)""", text)) | set(re.findall(r'"(\w+)": ', text))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_feature_module_proves_that_the_feature_was_on(path):
    assert any("proves" in decorators for _, decorators in checks_of(path))


@pytest.mark.parametrize("path", CHECKS, ids=lambda path: path.stem)
def test_each_check_names_faults_that_it_must_notice(path):
    assert [node.name for node, decorators in checks_of(path) if "catches" not in decorators] == []


def caught():
    """The names that checks give to `catches`."""
    return {
        name.value
        for path in CHECKS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "catches"
        for name in node.args
    }


def test_every_fault_is_caught_by_a_check_and_every_check_names_faults_that_exist():
    assert caught() == set(FAULTS)
    assert len(FAULTS) >= 40


def test_a_fault_is_kept_under_its_own_name_and_says_what_is_wrong():
    assert [name for name, fault in FAULTS.items() if fault.name != name] == []
    assert [name for name, fault in FAULTS.items() if not re.fullmatch(r"[A-Z].{15,}\.", fault.what)] == []


@pytest.mark.parametrize("path", JUDGES, ids=lambda path: path.stem)
def test_every_judge_is_used(path):
    users = [text for other, text in SOURCES.items() if other != path] + [
        check.read_text() for check in CHECKS
    ]
    public = [
        node.name
        for node in ast.parse(SOURCES[path]).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    inside = re.sub(r"def (\w+)", "", SOURCES[path])
    used = "\n".join([*users, inside])
    assert [name for name in public if not re.search(rf"\b{name}\b", used)] == []


@pytest.mark.parametrize("path", CHECKS, ids=lambda path: path.stem)
def test_a_module_begins_with_its_promise_and_names_state_behaviour(path):
    tree = ast.parse(path.read_text())
    assert (ast.get_docstring(tree) or "").splitlines()[0].endswith(".")
    vague = re.compile(r"_(should|works?|basic|simple|correctly|properly)(_|$)")
    assert [node.name for node, _ in checks_of(path) if vague.search(node.name)] == []


@pytest.mark.parametrize("known", KNOWN, ids=[f"{known.engine}{n}" for n, known in enumerate(KNOWN)])
def test_a_known_failure_points_at_a_test_and_at_a_report(known):
    file, _, name = known.test.partition("::")
    path = ROOT / "tests" / file
    assert name in {node.name for node, _ in checks_of(path)}
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", known.upstream)
    assert known.where.keys() <= set(rules.table(known.engine)["knobs"]) | parameters(path)
    SpecifierSet(known.when)
    re.compile(known.match)


def test_no_module_of_the_harness_is_long():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "fixtures").rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 260
    }
    assert long == {}
