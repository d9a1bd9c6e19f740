"""A journal is readable whenever its run ends, and merging neither loses nor doubles a run."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fixtures.errors import HarnessError
from fixtures.evidence import journal
from fixtures.evidence.machine import machine
from fixtures.evidence.results import Kill, Result, Results, Run


def run(name, tests=(), **more):
    results = tuple(
        Result(id=test, test=test, folder="features", state="pass", seconds=1, at=n)
        for n, test in enumerate(tests)
    )
    return Run(id=name, began=1, command=("pytest",), suite="0", machine=machine(), results=results, **more)


def write(path, one):
    book = journal.Journal(path)
    book.note("run", one.model_dump(mode="json", exclude={"results", "kills", "launches"}))
    for result in one.results:
        book.note("result", result)
    return book


def test_a_journal_gives_what_was_noted(tmp_path):
    one = run("a", ["x", "y"])
    book = write(tmp_path, one)
    assert journal.read(tmp_path / journal.JOURNAL) == Results(runs=(one,))
    book.note("end", {"ended": 5.0, "exit_code": 0})
    assert journal.read(book.assemble()).runs[0].ended == 5.0


@given(cut=st.integers(0, 400))
def test_a_journal_cut_anywhere_gives_all_whole_lines(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("cut")
    write(folder, run("a", ["x", "y", "z"]))
    path = folder / journal.JOURNAL
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    lines = whole[: len(whole) - cut].count(b"\n")
    (seen,) = journal.read(path).runs
    assert len(seen.results) in {lines - 1, lines}  # a last line may be whole but for its end
    assert seen.unreadable in {0, 1}
    assert seen.ended is None


def test_a_broken_line_in_the_middle_loses_only_itself(tmp_path):
    write(tmp_path, run("a", ["x", "y"]))
    path = tmp_path / journal.JOURNAL
    first, second, third = path.read_text().splitlines()
    path.write_text("\n".join([first, second[:20], third, "[]", "7"]) + "\n")
    (seen,) = journal.read(path).runs
    assert [result.id for result in seen.results] == ["y"]
    assert seen.unreadable == 3


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("journal.jsonl", "", "does not say which run it is of"),
        ("journal.jsonl", '{"planned": 3}\n', "does not say which run it is of"),
        ("results.json", "", "does not hold results of the form"),
        ("results.json", '{"format": "another/1", "runs": []}', "does not hold results of the form"),
        ("results.json", '{"runs": [{"id": "x"}]}', r"runs\.0\."),
    ],
)
def test_what_is_no_result_is_one_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_text(content)
    with pytest.raises(HarnessError, match=sentence):
        journal.read(tmp_path / name)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(HarnessError, match="No such file"):
        journal.read(tmp_path / "results.json")


RUNS = st.lists(
    st.builds(run, st.sampled_from("abc"), st.lists(st.sampled_from("xyz"), unique=True)).map(
        lambda r: Results(runs=(r,))
    ),
    max_size=5,
)


@given(parts=RUNS)
def test_merging_keeps_each_run_once_and_merging_again_changes_nothing(parts):
    merged = journal.merge(parts)
    assert {r.id for r in merged.runs} == {part.runs[0].id for part in parts}
    assert len({r.id for r in merged.runs}) == len(merged.runs)
    assert journal.merge([merged, *parts]) == merged
    for one in merged.runs:
        longest = max(len(part.runs[0].results) for part in parts if part.runs[0].id == one.id)
        assert len(one.results) == longest


def test_a_mutant_is_noticed_by_any_of_its_items_and_never_by_an_error():
    def kill(fault, state):
        return Kill(test="t", engine="vllm", fault=fault, state=state, by=f"{fault}-{state}")

    told = journal.kills(
        [
            kill("a", "survived"),
            kill("a", "noticed"),
            kill("a", "error"),
            kill("b", "survived"),
            kill("b", "error"),
        ]
    )
    assert [(k.fault, k.state) for k in told] == [("a", "noticed"), ("b", "error")]


def test_the_schema_of_the_model_admits_what_is_written(tmp_path):
    write(tmp_path, run("a", ["x"]))
    path = journal.Journal(tmp_path).assemble()
    schema = Results.model_json_schema()
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(json.loads(path.read_text()))
