"""The words of a shell script are what a shell would make of them, as far as that is known without running it."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.lint.inputs import Word, from_text

ARGV = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00\r{"), max_size=12), max_size=6)


def only(text):
    (start,), _ = from_text(text, "run.sh")
    return start


def words(text):
    return [word.text for word in only(text).args]


def opened(text):
    return [word.text for word in only(text).args if word.open]


class TestWords:
    def test_each_word_has_the_line_where_it_begins(self):
        start = only("#!/bin/sh\n\nvllm serve some/model \\\n  --port 8000 \\\n  --dtype 'float16'\n")
        assert start.args == (
            Word("some/model", 3),
            Word("--port", 4),
            Word("8000", 4),
            Word("--dtype", 5),
            Word("float16", 5),
        )
        assert (start.engine, start.program, start.where) == ("vllm", "vllm serve", "run.sh:3")

    @given(ARGV)
    def test_quoted_words_come_back(self, argv):
        assert words(f"vllm serve {shlex.join(argv)}") == argv

    @given(ARGV)
    def test_quoted_words_come_back_from_a_script_in_a_script(self, argv):
        assert words(shlex.join(["bash", "-c", shlex.join(["vllm", "serve", *argv])])) == argv

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            (r"a\ b", ["a b"]),
            (r'"a \"b\" \x $(date)"', [r'a "b" \x $(date)']),
            ("'it'\\''s'", ["it's"]),
            ("$'tab\\tquote\\''", ["tab\tquote'"]),
            ("a'b'\"c\"d", ["abcd"]),
            ("'' \"\"", ["", ""]),
            ("a#b # c d", ["a#b"]),
            ("--x={1,2}", ["--x={1,2}"]),
            ("--a \\\n\\\n --b", ["--a", "--b"]),
            ('$"translated" $', ["translated", "$"]),
        ],
    )
    def test_quotes_and_escapes(self, written, read):
        assert words(f"vllm serve {written}") == read

    def test_a_comment_ends_a_continued_command(self):
        assert words("vllm serve m \\\n  --a \\\n  # --b \\\n  --c\n") == ["m", "--a"]

    def test_windows_line_ends(self):
        assert words("vllm serve m \\\r\n  --a\r\n") == ["m", "--a"]

    @pytest.mark.parametrize(
        "tail",
        [
            "> log 2>&1 &",
            "2>/dev/null",
            "&> log",
            "| tee log",
            "|& tee log",
            "; wait",
            "&& x",
            "<<< x",
            "< in",
        ],
    )
    def test_the_command_ends_where_the_shell_ends_it(self, tail):
        assert words(f"vllm serve m --port 2 {tail}") == ["m", "--port", "2"]

    def test_a_redirection_to_a_command_is_no_argument(self):
        assert words("vllm serve m > >(tee log) 2>&1") == ["m"]


class TestOpenWords:
    @pytest.mark.parametrize(
        "word",
        [
            '"$MODEL"',
            "$1",
            "$(nproc)",
            '"$(cat "a b")"',
            "`nproc`",
            "${A%/}",
            "$((1 + (2)))",
            "{{ model }}",
            "<model>",
        ],
    )
    def test_what_only_a_run_tells_is_open_and_stays_one_word(self, word):
        assert opened(f"vllm serve --model {word} --port 1") == [word.strip('"')]

    @pytest.mark.parametrize("word", ["'$MODEL'", r"\$MODEL", "'<think>'", "'`nproc`'", r'"\$MODEL"'])
    def test_what_is_quoted_is_as_it_stands(self, word):
        assert opened(f"vllm serve {word}") == []

    def test_a_word_left_out_is_open(self):
        assert opened("vllm serve m ...") == ["..."]

    def test_part_of_a_word_makes_it_open(self):
        assert opened("PORT=80\nvllm serve --port=${PORT}$N --url=x$PORT") == ["--port=80$N"]


class TestVariables:
    @pytest.mark.parametrize(
        ("before", "word", "read"),
        [
            ("MODEL=a/b", "$MODEL", ["a/b"]),
            ("MODEL='a b'", '"${MODEL}"', ["a b"]),
            ("ARGS='--a 1  --b'", "$ARGS", ["--a", "1", "--b"]),
            ("ARGS='--a'\nARGS=\"$ARGS --b\"", "$ARGS", ["--a", "--b"]),
            ("ARGS=--a\nARGS+=' --b'", "$ARGS", ["--a", "--b"]),
            ("EMPTY=", "$EMPTY", []),
            ("EMPTY=", '"$EMPTY"', [""]),
            ("", "${PORT:-8000}", ["8000"]),
            ("PORT=1", "${PORT:-8000}", ["1"]),
            ("PORT=", "${PORT:-8000}", ["8000"]),
            ("PORT=", "a${PORT-8000}", ["a"]),
            ("A=1", "${PORT:-${A}0}", ["10"]),
            ("", "${FLAGS:---a 1}", ["--a", "1"]),
            ("", '${FLAGS:-"a b"}', ["a b"]),
            ("", '"${MSG:-it\'s}"', ["it's"]),
            ("A=1", "${A:+--a}", ["--a"]),
            ("A=", "${A:+--a}", []),
            ("ARGS=(--a 'b c')\nARGS+=(--d)", '"${ARGS[@]}"', ["--a", "b c", "--d"]),
            ("ARGS=(\n  --a # why\n  1\n)", "${ARGS[@]}", ["--a", "1"]),
            ("ARGS=()", '"${ARGS[@]}"', []),
            ("local A=1; readonly B=2; declare -r C=3", "$A$B$C", ["123"]),
            ("if x; then A=1; fi", "$A", ["1"]),
        ],
    )
    def test_what_the_script_sets_is_filled_in(self, before, word, read):
        assert words(f"{before}\nvllm serve {word}") == read
        assert opened(f"{before}\nvllm serve {word}") == []

    @pytest.mark.parametrize("before", ["A=1; unset A", "A=1\nfor A in 1 2; do", "A=1 true"])
    def test_what_is_no_longer_known_is_open(self, before):
        assert opened(f"{before}\nvllm serve $A") == ["$A"]

    def test_a_word_from_a_variable_has_the_line_where_its_text_stands(self):
        assert only("ARGS='--a\n--b'\nvllm serve m $ARGS").args == (
            Word("m", 3),
            Word("--a", 1),
            Word("--b", 2),
        )
