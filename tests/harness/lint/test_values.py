"""What a flag or a key does not take is told, with what it does take."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.lint import values
from fixtures.lint.values import Objection
from tests.harness.lint.made import rows, table

CHOICES = {"choices": ["auto", "fp8", "fp8_e4m3"]}
KEYS = {
    "--config": {"takes": "one", "type": "json", "extra": "forbid"},
    "--config.mode": {"choices": ["0", "1"]},
    "--config.level": {"choices": ["0", "1"], "type": "int"},
    "--config.count": {"type": "int", "null": True},
    "--config.name": {},
    "--config.ops": {"type": "json"},
    "--config.on": {"type": "bool"},
    "--config.pass_config": {"type": "json", "extra": "ignore"},
    "--config.pass_config.fuse": {"type": "bool"},
    "--config.connector": {"known": ["Lmcache", "Nixl"], "open": True},
    "--config.seen": {"type": "json", "free": True},
    "--config.seen_mode": {"choices": ["fast", "slow"], "free": True},
    "--config.seen_class": {"type": "json", "extra": "forbid", "free": True},
    "--config.seen_class.size": {"type": "int"},
    "--free": {"takes": "one", "type": "json", "extra": "allow"},
    "--free.size": {"type": "int"},
    "--late": {"takes": "one", "type": "json", "extra": "forbid", "late": True},
    "--late.size": {"type": "int"},
    "--plain": {"takes": "one", "type": "json"},
}


@pytest.fixture(scope="module")
def objections(tmp_path_factory):
    made = table("vllm", tmp_path_factory.mktemp("keys"), {"0.20.0": rows(flag=KEYS)})
    return lambda flag, given: dict(values.object_to_keys(made.release("0.20.0"), flag, given))


class TestValue:
    @pytest.mark.parametrize(
        ("facts", "value"),
        [
            ({}, "anything"),
            ({"type": "int"}, "-1"),
            ({"type": "float"}, "1e-3"),
            ({"type": "code"}, "?"),
            ({"type": "json"}, '{"a": [1]}'),
            ({"type": "json"}, '{"bytes": 80G, "text": "80G"}'),
            ({"type": "size"}, "4096"),
            ({"type": "size"}, "-1"),
            ({"type": "size"}, "1.5k"),
            ({"type": "size"}, "8K"),
            ({"type": "size"}, "auto"),
            *(
                ({"type": "bool"}, word)
                for word in ("True", "false", "1", "0", "yes", "NO", "on", "off", "t", "f", "y", "n")
            ),
            ({"type": "int", "null": True}, "None"),
            (CHOICES | {"null": True}, ""),
            (CHOICES, "fp8"),
            (CHOICES | {"lower": "case"}, "FP8"),
            (CHOICES | {"lower": "case and dashes"}, "FP8-e4m3"),
            ({"known": ["NGRAM", "EAGLE"], "lower": "case"}, "eagle"),
        ],
    )
    def test_what_is_taken_meets_no_objection(self, facts, value):
        assert values.object_to(facts, value) is None

    @pytest.mark.parametrize(
        ("facts", "value", "objection"),
        [
            ({"type": "int"}, "4.0", Objection("it takes a whole number")),
            ({"type": "int"}, "None", Objection("it takes a whole number")),
            ({"type": "int", "null": True}, "none", Objection("it takes a whole number")),
            ({"type": "float"}, "half", Objection("it takes a number")),
            ({"type": "bool"}, "perhaps", Objection("it takes true or false")),
            (CHOICES, "fp8_e5m2", Objection("it takes auto, fp8, fp8_e4m3", "fp8_e4m3")),
            (CHOICES, "FP8", Objection("it takes auto, fp8, fp8_e4m3")),
            (CHOICES | {"lower": "case"}, "fp8-e4m3", Objection("it takes auto, fp8, fp8_e4m3", "fp8_e4m3")),
            (CHOICES, "None", Objection("it takes auto, fp8, fp8_e4m3")),
            ({"known": ["a"]}, "b", Objection("it takes a", late=True)),
            ({"known": ["a"], "open": True}, "b", Objection("it takes a (plugins may add more)", late=True)),
            (CHOICES | {"open": True}, "?", Objection("it takes auto, fp8, fp8_e4m3")),
        ],
    )
    def test_what_is_not_taken_comes_with_what_is(self, facts, value, objection):
        assert values.object_to(facts, value) == objection

    @pytest.mark.parametrize("value", ["large", "1.5", "1.5K", "-8k", "8 k", "8kb", ""])
    def test_a_size_is_a_number_with_a_letter(self, value):
        text = "it takes a number of tokens or bytes, such as 4096, 8k or 16G"
        assert values.object_to({"type": "size"}, value) == Objection(text)

    def test_json_that_is_none_comes_with_the_place(self):
        assert values.object_to({"type": "json"}, "{").text.startswith("it takes JSON (Expecting")

    def test_a_long_list_is_cut(self):
        names = [f"parser{number:02}" for number in range(15)]
        assert values.object_to({"choices": names}, "?").text.endswith("parser11 and 3 more")


class TestKeys:
    @pytest.mark.parametrize(
        ("flag", "given"),
        [
            ("--config", {}),
            ("--config", None),
            ("--config", {"mode": 1, "count": 3, "name": "x", "ops": ["+a"], "on": True}),
            ("--config", {"count": None, "pass_config": None, "level": 1}),
            ("--config", {"pass_config": {"fuse": False}, "name": ["any", "thing"]}),
            ("--free", {"anything": {"at": "all"}, "size": 1}),
            ("--config", {"seen": "a,b"}),
            ("--config", {"seen_mode": "FAST"}),
            ("--config", {"seen_mode": 3}),
            ("--config", {"seen_class": "all"}),
            ("--config", {"seen_class": {"size": 1}}),
            ("--plain", {"anything": 1}),
            ("--plain", [1]),
        ],
    )
    def test_what_is_taken_meets_no_objection(self, objections, flag, given):
        assert objections(flag, given) == {}

    @pytest.mark.parametrize(
        ("flag", "given", "expected"),
        [
            ("--config", {"mod": 1}, {"mod": Objection("no such key", "mode")}),
            ("--config", {"zzz": 1}, {"zzz": Objection("no such key")}),
            ("--config", [1], {"": Objection("it takes a JSON object")}),
            ("--config", "x", {"": Objection("it takes a JSON object")}),
            ("--config", {"count": "many"}, {"count": Objection("it takes a whole number")}),
            ("--config", {"count": "None"}, {"count": Objection("it takes a whole number")}),
            ("--config", {"count": [1]}, {"count": Objection("it takes a whole number")}),
            ("--config", {"on": "perhaps"}, {"on": Objection("it takes true or false")}),
            ("--config", {"level": "1"}, {"level": Objection("it takes a number, not a text")}),
            ("--config", {"mode": None}, {"mode": Objection("it takes no null")}),
            ("--config", {"mode": 2, "count": 0}, {"mode": Objection("it takes 0, 1")}),
            ("--config", {"connector": "Nixi"},
             {"connector": Objection("it takes Lmcache, Nixl (plugins may add more)", "Nixl", late=True, sure=False)}),
            ("--config", {"seen_mode": "slw"},
             {"seen_mode": Objection("it takes fast, slow", "slow", sure=False)}),
            ("--config", {"seen_class": {"size": "x"}}, {"seen_class.size": Objection("it takes a whole number")}),
            ("--config", {"pass_config": {"fusee": True}},
             {"pass_config.fusee": Objection("nothing reads this key", "fuse", code="ignored-key")}),
            ("--config", {"pass_config": {"fuse": 2}}, {"pass_config.fuse": Objection("it takes true or false")}),
            ("--config", {"pass_config": 1}, {"pass_config": Objection("it takes a JSON object")}),
            ("--config.pass_config", {"fuse": 2}, {"fuse": Objection("it takes true or false")}),
            ("--free", {"size": "x"}, {"size": Objection("it takes a whole number")}),
            ("--late", {"sizes": 1, "size": "x"},
             {"sizes": Objection("no such key", "size", late=True),
              "size": Objection("it takes a whole number", late=True)}),
        ],
    )  # fmt: skip
    def test_what_is_not_taken_is_told_for_each_key(self, objections, flag, given, expected):
        assert objections(flag, given) == expected


class TestReading:
    @given(st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ))  # fmt: skip
    def test_json_is_read_as_it_is(self, value):
        assert values.load(json.dumps(value)) == value

    @given(st.text(), st.sampled_from("kKmMgGtT"))
    def test_letters_behind_numbers_are_left_out_but_not_in_strings(self, text, letter):
        written = f'{{"size": 80{letter}, "text": {json.dumps(text + " 80G")}}}'
        assert values.load(written) == {"size": 80, "text": f"{text} 80G"}

    @pytest.mark.parametrize(
        ("key", "text", "expected"),
        [
            ("mode", "3", {"mode": 3}),
            ("a.b", "true", {"a": {"b": True}}),
            ("backend", "ray", {"backend": "ray"}),
            ("ops", '["+a"]', {"ops": ["+a"]}),
            ("size", "80G", {"size": 80}),
            ("path", "", {"path": ""}),
        ],
    )
    def test_a_dotted_key_is_nested(self, key, text, expected):
        assert values.nested(key, text) == expected

    @pytest.mark.parametrize(("value", "text"), [("fp8", "fp8"), (True, "true"), (3, "3"), ([1], "[1]")])
    def test_a_value_is_shown_as_it_is_written(self, value, text):
        assert values.shown(value) == text
