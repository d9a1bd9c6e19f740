from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.evidence.results import STATES, Engine, Feature, Kill, Results
from fixtures.report import kills, words
from fixtures.report.matrix import Column, Row, matrix, module, natural, together
from tests.harness.report.values import VLLM, result, run, small

LAW = settings(max_examples=60, deadline=None)
CACHE = Feature(number="25a", title="Prefix caching")
states = st.sampled_from(STATES)
features = st.none() | st.sampled_from(["3", "24", "25", "25a"]).map(
    lambda n: Feature(number=n, title=f"F{n}")
)
results = st.builds(
    result,
    test=st.sampled_from(
        ["features/test_a.py::test_x", "features/test_b.py::test_y", "accuracy/test_c.py::test_z"]
    ),
    state=states,
    item=st.sampled_from(["", "1", "2"]),
    engine=st.sampled_from(["vllm", "sglang", None]),
    version=st.sampled_from(["0.9.1", "0.31.0"]),
    feature=features,
    proves=st.booleans(),
    server=st.sampled_from(["vllm:a", "vllm:b", None]),
    at=st.integers(0, 3).map(float),
)
runs = st.lists(results, max_size=12).map(lambda found: run(*found))
merged = st.lists(runs, min_size=1, max_size=3).map(lambda found: Results(runs=tuple(found)))


def held(told):
    return [one for cell in told.cells.values() for case in cell.cases for one in case.runs]


def only(*found, **more):
    """Return the one cell of a matrix."""
    (cell,) = matrix(small(*found, **more)).cells.values()
    return cell


class TestLaws:
    @LAW
    @given(merged)
    def test_every_result_is_in_exactly_one_cell(self, told):
        given_once = {one.model_dump_json() for each in told.runs for one in each.results}
        assert Counter(one.model_dump_json() for one in held(matrix(told))) == Counter(given_once)

    @LAW
    @given(merged)
    def test_merging_a_run_again_changes_nothing(self, told):
        assert matrix(Results(runs=told.runs + told.runs)) == matrix(told)

    @LAW
    @given(merged, st.randoms())
    def test_the_order_of_runs_changes_no_cell(self, told, dice):
        mixed = list(told.runs)
        dice.shuffle(mixed)
        one, other = matrix(told), matrix(Results(runs=tuple(mixed)))
        said = [{key: (c.state, c.counts) for key, c in each.cells.items()} for each in (one, other)]
        assert said[0] == said[1]

    @LAW
    @given(merged)
    def test_a_cell_is_the_worst_of_its_tests_unless_its_feature_was_not_shown_to_be_on(self, told):
        for cell in matrix(told).cells.values():
            worst = min((case.state for case in cell.cases), key=STATES.index)
            assert cell.state == worst or (cell.state, worst, cell.feature) == ("inconclusive", "pass", True)
            assert bool(cell.note) == (cell.state != worst)
            assert (cell.state == "not_applicable") == all(c.state == "not_applicable" for c in cell.cases)
            assert sum(cell.counts.values()) == len(cell.cases)

    @LAW
    @given(merged)
    def test_rows_and_columns_are_those_of_the_cells(self, told):
        shown = matrix(told)
        assert {row for row, _ in shown.cells} == set(shown.rows)
        assert {column for _, column in shown.cells} <= set(shown.columns)
        assert len(set(shown.columns)) == len(shown.columns)

    @LAW
    @given(st.lists(states, min_size=1), st.lists(states, min_size=1))
    def test_states_together_do_not_depend_on_order_or_number(self, some, more):
        assert together(some + more) == together(more + some + more)
        assert together([some[0]] * 3) == some[0]

    @LAW
    @given(merged)
    def test_the_verdict_is_one_sentence_and_never_better_than_a_cell(self, told):
        shown = matrix(told)
        overall = words.overall(told, shown)
        assert all(STATES.index(overall) <= STATES.index(cell.state) for cell in shown.cells.values())
        assert words.verdict(told, shown).endswith(".")


class TestTogether:
    @pytest.mark.parametrize(
        ("seen", "state"),
        [
            (["pass", "fail"], "flaky"),
            (["pass", "known"], "flaky"),
            (["flaky", "fail"], "flaky"),
            (["fail", "known"], "fail"),
            (["pass", "error"], "error"),
            (["pass", "inconclusive"], "inconclusive"),
            (["pass", "fail", "error"], "error"),
            (["pass", "not_applicable"], "pass"),
        ],
    )
    def test_of_several_runs(self, seen, state):
        assert together(seen) == state

    def test_the_run_that_explains_is_the_last_of_the_worst(self):
        found = [
            result(state=state, at=at, sentence=f"{at}") for at, state in enumerate(["fail", "pass", "fail"])
        ]
        (case,) = only(*found).cases
        assert (case.state, case.shown.sentence, len(case.runs)) == ("flaky", "2", 3)

    def test_versions_devices_builds_and_fakes_are_never_mixed(self):
        builds = [
            VLLM,
            VLLM.model_copy(update={"version": "0.31.0"}),
            VLLM.model_copy(update={"device": "cuda"}),
            VLLM.model_copy(update={"digest": None}),
            VLLM.model_copy(update={"fake": True}),
        ]
        told = [
            run(result(state="fail" if place else "pass", version=one.version), engines=(one,))
            for place, one in enumerate(builds)
        ]
        shown = matrix(Results(runs=tuple(told)))
        assert len(shown.columns) == len(builds)
        assert not any(cell.state == "flaky" for cell in shown.cells.values())
        assert [column.fake for column in shown.columns] == [False] * 4 + [True]
        assert len({(words.column(c), words.build(c, shown.columns)) for c in shown.columns}) == len(builds)


class TestProof:
    def test_a_pass_without_a_passed_proof_is_inconclusive(self):
        assert only(result(feature=CACHE), result(item="on", feature=CACHE, proves=True)).state == "pass"
        for proof in [(), (result(item="on", state="not_applicable", feature=CACHE, proves=True),)]:
            cell = only(result(feature=CACHE), *proof)
            assert (cell.state, cell.note) == ("inconclusive", "the feature was not shown to be on")

    def test_every_proof_must_pass(self):
        more = result(item="2", state="not_applicable", feature=CACHE, proves=True)
        assert only(result(feature=CACHE, proves=True), more).state == "inconclusive"

    def test_a_configuration_of_which_nothing_applies_needs_no_proof(self):
        absent = {"state": "not_applicable", "feature": CACHE, "server": "vllm:other"}
        more = [result(item="2", proves=True, **absent), result(item="3", **absent)]
        assert only(result(feature=CACHE, proves=True), *more).state == "pass"

    def test_a_module_without_a_feature_needs_no_proof(self):
        assert only(result(test="accuracy/test_logprobs.py::test_a")).state == "pass"

    def test_what_only_a_gpu_could_run_is_told_from_what_a_release_lacks(self):
        gpu = {"state": "not_applicable", "sentence": "vLLM 0.32.0 on cpu has no eplb=32: it needs a GPU"}
        old = {"state": "not_applicable", "sentence": "needs vLLM >=0.33, this is 0.32.0"}
        assert only(result(item="1", **gpu), result(item="2", **gpu)).unrun is True
        assert only(result(item="1", **gpu), result(item="2", **old)).unrun is False
        assert only(result(item="1", **gpu), result(item="2")).unrun is False

    def test_what_does_not_apply_stays_so(self):
        assert only(result(state="not_applicable", feature=CACHE, proves=True)).state == "not_applicable"


class TestOrder:
    def test_features_by_number_then_modules_by_folder(self):
        numbers = ["25a", "100", "3", "24", "x", "25"]
        found = [result(item=n, feature=Feature(number=n, title=n)) for n in numbers]
        found += [
            result(test=f"{name}.py::test_a")
            for name in ("perf/test_b", "accuracy/test_z", "accuracy/test_c")
        ]
        titles = [row.title for row in matrix(small(*found)).rows]
        assert titles == ["3", "24", "25", "25a", "100", "x", "accuracy: c", "accuracy: z", "perf: b"]

    def test_versions_rise_under_their_engine_and_tests_without_a_server_come_last(self):
        engines = [("sglang", "0.5.9"), ("vllm", "0.9.1"), ("vllm", "0.31.0"), ("sglang", "0.5.20")]
        made = [Engine(name=n, target="", version=v, label="", device="cpu", origin="") for n, v in engines]
        shown = matrix(small(result(engine=None, version=None), engines=made))
        assert [(c.engine, c.version) for c in shown.columns] == [
            ("sglang", "0.5.9"),
            ("sglang", "0.5.20"),
            ("vllm", "0.9.1"),
            ("vllm", "0.31.0"),
            (None, None),
        ]

    @given(st.text(), st.text())
    def test_any_text_can_be_sorted(self, one, other):
        assert natural(one) <= natural(other) or natural(other) <= natural(one)

    def test_modules_of_the_same_name_are_told_apart(self):
        assert module("accuracy/test_logprobs.py::test_a", "accuracy") == "logprobs"
        assert module("accuracy/sub/test_logprobs.py::test_a", "accuracy") == "sub/logprobs"

    def test_a_result_of_an_engine_that_its_run_does_not_name_has_a_column_all_the_same(self):
        shown = matrix(small(result(engine="other", version="1")))
        assert shown.cells[Row("", "features: x", "features", "features/test_x.py"), Column("other", "1")]


class TestVerdict:
    def test_of_a_run_that_was_killed(self):
        told = small(result(), ended=None, exit_code=None, planned=12)
        assert words.verdict(told, matrix(told)) == (
            "1 test on vLLM 0.32.0: all pass; the run was cut off after 1 of 12 tests."
        )
        assert words.overall(told, matrix(told)) == "inconclusive"

    def test_of_a_run_that_was_interrupted(self):
        told = small(result(state="fail"), exit_code=2, planned=12)
        said = words.verdict(told, matrix(told))
        assert said.endswith("1 fails; the run ended with exit code 2 after 1 of 12 tests.")

    def test_of_several_runs(self):
        told = Results(runs=(run(result()), run(result(item="2", state="known"), ended=None, planned=3)))
        assert words.verdict(told, matrix(told)) == (
            "2 tests on vLLM 0.32.0: none fails but for 1 known failure; one of 2 runs was cut off after 1 of 3 tests."
        )

    def test_of_nothing(self):
        assert words.verdict(small(), matrix(small())) == "No test has a result."
        assert words.overall(small(), matrix(small())) == "inconclusive"


class TestKills:
    def test_one_run_that_noticed_is_enough_and_errors_are_not_noticed(self):
        def kill(fault, state):
            return Kill(test="features/test_a.py::test_x", engine="vllm", fault=fault, state=state)

        tried = [kill("f", "survived"), kill("f", "noticed"), kill("g", "error"), kill("h", "survived")]
        (found,) = kills.kills(small(kills=tried))
        assert (found.noticed, found.total) == (1, 3)
        assert [one.fault for one in found.missed] == ["g", "h"]
        (table,) = found.tables
        assert (table.checks, table.faults) == (("features/test_a.py::test_x",), ("f", "g", "h"))

    def test_a_share_is_never_rounded_up_to_all(self):
        assert [words.percent(*pair) for pair in [(0, 0), (9999, 10000), (7, 7)]] == [
            "none",
            "99.9 %",
            "100 %",
        ]
