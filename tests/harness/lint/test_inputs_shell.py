"""What starts an engine is found in a shell script, with the environment that it is given."""

import pytest

from fixtures.errors import HarnessError
from fixtures.lint.inputs import Setting, Word, from_text, from_words


def starts(text):
    return from_text(text, "run.sh")[0]


def only(text):
    (start,) = starts(text)
    return start


def words(text):
    return [word.text for word in only(text).args]


def env(text):
    return {setting.name: setting.value for setting in only(text).env}


class TestSettings:
    def test_exports_and_prefixes_are_set_in_order(self):
        start = only('export A=1 B="x y"\nC=no\nexport C\nD=2 A=3 vllm serve m')
        assert start.env == (
            Setting("A", "3", 4),
            Setting("B", "x y", 1),
            Setting("C", "no", 2),
            Setting("D", "2", 4),
        )

    def test_a_variable_that_is_not_exported_is_no_setting(self):
        assert env("A=1\nunset B\nvllm serve m") == {}

    def test_an_export_of_an_unknown_variable_is_open(self):
        assert only("export TOKEN\nvllm serve m").env == (Setting("TOKEN", "$TOKEN", 1, open=True),)

    def test_a_prefix_holds_for_its_command_alone(self):
        first, second = starts("A=1 vllm serve m\nvllm serve n")
        assert (len(first.env), len(second.env)) == (1, 0)

    def test_a_shell_in_a_shell_knows_what_is_exported(self):
        text = "A=1\nexport B=2\nC=3 bash -c 'vllm serve $A $B $C'"
        assert words(text) == ["$A", "2", "3"]
        assert env(text) == {"B": "2", "C": "3"}


class TestPrograms:
    @pytest.mark.parametrize(
        ("command", "engine", "program"),
        [
            ("vllm serve", "vllm", "vllm serve"),
            ("/opt/venv/bin/vllm serve", "vllm", "vllm serve"),
            ('"$VENV/bin/vllm" serve', "vllm", "vllm serve"),
            ("python -m vllm.entrypoints.cli.main serve", "vllm", "vllm serve"),
            ("python -m vllm.entrypoints.openai.api_server", "vllm", "vllm.entrypoints.openai.api_server"),
            ("python3.12 -u -X dev -m sglang.launch_server", "sglang", "sglang.launch_server"),
            ("sglang serve", "sglang", "sglang serve"),
            ("exec nohup nice -n 5 vllm serve", "vllm", "vllm serve"),
            ("time vllm serve", "vllm", "vllm serve"),
            ("sudo -E -u me env -u X vllm serve", "vllm", "vllm serve"),
            ("uv run --with vllm==0.24.0 vllm serve", "vllm", "vllm serve"),
            ("uv run -- python -m sglang.launch_server", "sglang", "sglang.launch_server"),
            ("torchrun --nproc-per-node 2 -m sglang.launch_server", "sglang", "sglang.launch_server"),
            ("numactl --cpunodebind=0 timeout 1h sglang serve", "sglang", "sglang serve"),
            ("$LAUNCHER vllm serve", "vllm", "vllm serve"),
            ("docker exec -it box vllm serve", "vllm", "vllm serve"),
            ("(venv) $ vllm serve", "vllm", "vllm serve"),
            ("me@host:~$ vllm serve", "vllm", "vllm serve"),
            ("if ! vllm serve", "vllm", "vllm serve"),
            ("while true; do vllm serve", "vllm", "vllm serve"),
            ("start() { vllm serve", "vllm", "vllm serve"),
            ("cd /x && vllm serve", "vllm", "vllm serve"),
            ("( cd x; vllm serve", "vllm", "vllm serve"),
            ("PID=$(vllm serve m --a & echo $!); true", "vllm", "vllm serve"),
            ('CMD="vllm serve"; $CMD', "vllm", "vllm serve"),
            ("eval vllm serve", "vllm", "vllm serve"),
        ],
    )
    def test_engine_and_program(self, command, engine, program):
        start = only(f"{command} m --a\n")
        assert (start.engine, start.program) == (engine, program)
        assert [word.text for word in start.args] == ["m", "--a"]

    @pytest.mark.parametrize(
        "line",
        [
            "echo vllm serve m",
            'pkill -f "vllm serve"',
            "vllm bench serve --model m",
            "vllm --version",
            "python bench.py vllm serve m",
            "python -m vllm.entrypoints.openai.run_batch -i x",
            "# vllm serve m",
            "pip install vllm",
            "cat <<EOF > run.sh\nvllm serve m\nit's\nEOF",
            "cat <<-'END'\n\tvllm serve \"m\n\tEND\ntrue",
            "(( x << 2 ))\ntrue",
            "case $1 in vllm) true ;; esac",
        ],
    )
    def test_what_starts_no_engine(self, line):
        assert from_text(line, "run.sh") == ([], [])

    def test_env_words_are_settings(self):
        assert env("env A=1 B='x y' vllm serve m") == {"A": "1", "B": "x y"}

    def test_scripts_in_quotes_are_looked_into_and_keep_their_lines(self):
        text = (
            'M=m\nbash -lc "\n  export A=1\n  vllm serve $M \\\n'
            '    --b \'{\\"c\\": \\"d e\\"}\'\n"\nsh -c \'sglang serve\'\n'
        )
        first, second = starts(text)
        assert first.args == (Word("m", 1), Word("--b", 5), Word('{"c": "d e"}', 5))
        assert (first.where, second.where) == ("run.sh:4", "run.sh:7")

    def test_what_is_open_keeps_its_quotes_in_a_script_in_a_variable(self):
        text = "X=$(tr -d '[:space:]' < x)\nCMD=\"vllm serve '$X' --a\"\neval \"$CMD\""
        assert only(text).args == (Word("$(tr -d '[:space:]' < x)", 1, open=True), Word("--a", 2))

    def test_text_after_a_here_document_is_read(self):
        assert words("cat <<A <<'B'\nit's\nA\n$(\nB\nvllm serve m") == ["m"]


class TestCommandLine:
    def test_words_are_taken_as_they_are(self):
        start = from_words(["A=1", "env", "B=x y", "vllm", "serve", "$m", "--x", "a b"])
        assert start.args == (Word("$m", 0), Word("--x", 0), Word("a b", 0))
        assert start.env == (Setting("A", "1", 0), Setting("B", "x y", 0))
        assert start.where == "the command line"

    @pytest.mark.parametrize("words", [["vllm serve m"], ["vllm", "bench"], []])
    def test_other_commands_are_refused(self, words):
        with pytest.raises(HarnessError, match=r"No vllm or sglang command in: .*vllm serve MODEL"):
            from_words(words)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("true\nvllm serve 'm\n\n", 2, "single quote"),
        ('vllm serve \\\n --a "b', 2, "double quote"),
        ("\n\nvllm serve $(nproc", 3, "parenthesis"),
        ("vllm serve ${A", 1, "brace"),
        ("vllm serve `nproc", 1, "backquote"),
        ("vllm serve $'a", 1, "single quote"),
        ("A=(1\n2", 1, "parenthesis"),
        ("x $((1", 1, "parenthesis"),
        ("bash -c '\nvllm serve \"m'", 2, "double quote"),
    ],
)
def test_an_unclosed_quote_is_named_with_its_line(text, line, what):
    with pytest.raises(HarnessError, match=rf"^run.sh:{line}: a {what} opens here"):
        from_text(text, "run.sh")
