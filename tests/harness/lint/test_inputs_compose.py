"""Compose files are read as compose would fill them in."""

import pytest

from fixtures.errors import HarnessError
from fixtures.lint.inputs import Setting, Word, from_text


def starts(text):
    return from_text(text, "compose.yaml")[0]


def service(body):
    """The start of one service whose keys are given."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    (start,) = starts(f"services:\n  engine:\n{lines}\n")
    return start


def words(body):
    return [word.text for word in service(body).args]


class TestCommand:
    def test_a_list_has_the_lines_of_its_items(self):
        start = service(
            "image: vllm/vllm-openai:v0.24.0\ncommand:\n  - --model\n  - some/model\n  - --port\n  - 8000"
        )
        assert start.args == (Word("--model", 5), Word("some/model", 6), Word("--port", 7), Word("8000", 8))
        assert (start.program, start.where) == ("vllm serve", "compose.yaml:3, service engine")

    def test_a_folded_string_has_the_lines_of_its_words(self):
        start = service(
            "image: vllm/vllm-openai\ncommand: >\n  --model some/model\n\n  --name 'a b'\n  --x \"\""
        )
        assert [(word.text, word.line) for word in start.args] == [
            ("--model", 5),
            ("some/model", 5),
            ("--name", 7),
            ("a b", 7),
            ("--x", 8),
            ("", 8),
        ]

    def test_a_plain_string_over_two_lines(self):
        start = service("image: vllm/vllm-openai\ncommand: --a 1\n  --b 2 # no")
        assert start.args == (Word("--a", 4), Word("1", 4), Word("--b", 5), Word("2", 5))

    def test_a_quoted_string_with_escapes(self):
        start = service('image: vllm/vllm-openai\ncommand: "--a {\\"b\\":1}\n  \'{\\"c\\": 2}\'"')
        assert start.args == (Word("--a", 4), Word("{b:1}", 4), Word('{"c": 2}', 5))

    def test_a_block_with_continued_lines(self):
        start = service("command: |\n  sglang serve \\\n  --model-path a\\ b \\\n  --tp 2")
        assert [(word.text, word.line) for word in start.args] == [
            ("--model-path", 5),
            ("a b", 5),
            ("--tp", 6),
            ("2", 6),
        ]

    @pytest.mark.parametrize(
        "body",
        [
            "command: vllm serve m",
            "entrypoint: vllm\ncommand: serve m",
            "entrypoint: [vllm, serve]\ncommand: [m]",
            "entrypoint: python3 -m vllm.entrypoints.cli.main serve\ncommand: m",
            "image: vllm/vllm-openai\ncommand: m",
            "image: vllm/vllm-openai\ncommand: vllm serve m",
            "image: vllm/vllm-openai\nentrypoint: []\ncommand: vllm serve m",
            "image: vllm/vllm-openai\nentrypoint: ''\ncommand: vllm serve m",
            "image: ${IMAGE:-vllm/vllm-openai:latest}\ncommand: m",
            "command: bash -c 'vllm serve m'",
            'entrypoint: ["sh", "-c"]\ncommand: ["sleep 1; exec vllm serve m"]',
            'command: ["bash", "-lc", "export A=1 && vllm serve m"]',
        ],
    )
    def test_where_the_program_comes_from(self, body):
        assert (service(body).program, words(body)) == ("vllm serve", ["m"])

    def test_an_image_without_a_command_runs_as_it_is(self):
        assert words("image: vllm/vllm-openai") == []

    def test_services_of_other_kinds_are_left_out(self):
        text = "services:\n  db: {image: postgres}\n  one: {command: sglang serve}\n  two: {command: vllm serve m}\n"
        assert [start.where for start in starts(text)] == [
            "compose.yaml:3, service one",
            "compose.yaml:4, service two",
        ]

    def test_a_script_keeps_its_lines(self):
        start = service(
            "command:\n  - bash\n  - -c\n  - |\n    export A=1\n    vllm serve $$A \\\n      --b 2"
        )
        assert start.args == (Word("1", 7), Word("--b", 9), Word("2", 9))


class TestVariables:
    @pytest.mark.parametrize(
        ("written", "read", "unknown"),
        [
            ("$MODEL", "$MODEL", True),
            ("${MODEL}", "${MODEL}", True),
            ("${MODEL:?not set}", "${MODEL:?not set}", True),
            ("${PORT:-8000}", "8000", False),
            ("x${PORT-80}y", "x80y", False),
            ("${A:-${B:-c}}", "c", False),
            ("${A:-}", "", False),
            ('${A:-{"b": {"c": 1}}}', '{"b": {"c": 1}}', False),
            ("$$HOME", "$HOME", False),
            ("cost: 1$", "cost: 1$", False),
        ],
    )
    def test_in_a_list(self, written, read, unknown):
        (word,) = service(f"image: vllm/vllm-openai\ncommand:\n  - '{written}'").args
        assert (word.text, word.open) == (read, unknown)

    def test_in_a_string(self):
        start = service("image: vllm/vllm-openai\ncommand: --a ${A B} '${C:-d e}' --p=${P:-1}")
        assert [(word.text, word.open) for word in start.args] == [
            ("--a", False),
            ("${A B}", True),
            ("d e", False),
            ("--p=1", False),
        ]

    @pytest.mark.parametrize("environment", ["{A: 1, B: , C: '${D:-x}'}", "[A=1, B, 'C=${D:-x}']"])
    def test_environment_as_mapping_and_list(self, environment):
        assert service(f"command: vllm serve m\nenvironment: {environment}").env == (
            Setting("A", "1", 4),
            Setting("B", "$B", 4, open=True),
            Setting("C", "x", 4),
        )

    def test_values_are_as_they_are_written(self):
        env = service("command: vllm serve m\nenvironment:\n  A: true\n  B: 010\n  C: 1e3\n  D: ''").env
        assert [setting.value for setting in env] == ["true", "010", "1e3", ""]


class TestAnchors:
    TEXT = (
        "x-base: &base\n  image: vllm/vllm-openai\n  environment: &env\n    A: 1\n    B: 2\n"
        "services:\n"
        "  one:\n    <<: *base\n    command: [m]\n"
        "  two:\n    <<: [*base]\n    image: other\n    command: vllm serve n\n"
        "    environment:\n      <<: *env\n      B: 3\n"
    )

    def test_merged_keys_are_there_and_own_keys_win(self):
        one, two = starts(self.TEXT)
        assert [word.text for word in one.args + two.args] == ["m", "n"]
        assert one.env == (Setting("A", "1", 4), Setting("B", "2", 5))
        assert two.env == (Setting("A", "1", 4), Setting("B", "3", 16))


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("services:\n  a: [\n", r"^compose.yaml:3: this is no valid YAML or JSON \(.*\); correct it\.$"),
            ("services:\n\ta: 1\n", r"^compose.yaml:2: this is no valid YAML"),
            ("services:\n  a:\n    command: vllm serve 'm\n", r"^compose.yaml:3: a quote \('\) opens here"),
            ("services:\n  a:\n    command: \x00\n", r"^compose.yaml: this is no valid YAML"),
        ],
    )
    def test_each_is_one_sentence_with_its_line(self, text, message):
        with pytest.raises(HarnessError, match=message):
            starts(text)
