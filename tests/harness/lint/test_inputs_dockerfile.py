"""A Dockerfile runs what its last stage's ENTRYPOINT and CMD say."""

import pytest

from fixtures.errors import HarnessError
from fixtures.lint.inputs import Setting, Word, from_text


def starts(text, name="Dockerfile"):
    return from_text(text, name)[0]


def only(text):
    (start,) = starts(text)
    return start


class TestCommands:
    @pytest.mark.parametrize(
        ("text", "args"),
        [
            ('ENTRYPOINT ["vllm", "serve"]\nCMD ["m", "--a"]', ["m", "--a"]),
            ('CMD ["m"]\nENTRYPOINT ["vllm", "serve"]', ["m"]),
            ('CMD ["vllm", "serve", "m"]', ["m"]),
            ("CMD vllm serve m --a 'b c'", ["m", "--a", "b c"]),
            ("cmd exec vllm serve m", ["m"]),
            ("ENTRYPOINT vllm serve m\nCMD ignored", ["m"]),
            ('ENTRYPOINT ["bash", "-c"]\nCMD ["vllm serve m && true"]', ["m"]),
            ('CMD ["vllm", "serve", "n"]\nCMD ["vllm", "serve", "m"]', ["m"]),
            ('RUN vllm serve n\nHEALTHCHECK CMD vllm serve n\nCMD ["vllm", "serve"]', []),
        ],
    )
    def test_exec_and_shell_form(self, text, args):
        start = only(f"FROM python:3.12\n{text}\n")
        assert [word.text for word in start.args] == args

    def test_words_have_the_lines_of_a_continued_instruction(self):
        start = only('FROM vllm/vllm-openai\nCMD ["--a", \\\n  # why\n\n  "b\\"c", \\\n  ""]\n')
        assert start.args == (Word("--a", 2), Word('b"c', 5), Word("", 6))

    def test_words_have_the_lines_of_a_continued_shell_command(self):
        start = only("FROM x\nCMD vllm serve m \\\n  --a \\\n  # why\n  --b\n")
        assert start.args == (Word("m", 2), Word("--a", 3), Word("--b", 5))
        assert start.where == "Dockerfile:2"

    def test_the_image_decides_where_there_is_no_entrypoint(self):
        start = only('FROM --platform=linux/amd64 vllm/vllm-openai:v0.24.0 AS last\nCMD ["m"]')
        assert (start.program, start.where, start.args) == ("vllm serve", "Dockerfile:1", (Word("m", 2),))

    def test_the_exec_form_fills_nothing_in(self):
        assert only('FROM vllm/vllm-openai\nENV M=m\nCMD ["$M"]').args == (Word("$M", 3),)


class TestStages:
    def test_the_last_stage_counts(self):
        text = 'FROM a\nCMD ["vllm", "serve", "m"]\nFROM b\nCMD ["sglang", "serve"]\n'
        assert [start.program for start in starts(text)] == ["sglang serve"]
        assert starts('FROM a\nCMD ["vllm", "serve", "m"]\nFROM b\n') == []

    def test_a_stage_goes_on_from_another(self):
        text = 'FROM vllm/vllm-openai AS base\nENV A=1\nCMD ["n"]\nFROM x\nENV B=2\nFROM base\nENV C=3\nCMD ["m"]\n'
        assert [setting.name for setting in only(text).env] == ["A", "C"]
        assert [word.text for word in only(text).args] == ["m"]

    def test_an_entrypoint_takes_away_the_command_of_the_stage_before(self):
        text = 'FROM x AS base\nCMD ["/bin/bash"]\nFROM base\nENTRYPOINT ["vllm", "serve"]\n'
        assert only(text).args == ()


class TestVariables:
    def test_both_spellings_of_env(self):
        text = (
            'FROM x\nENV A=1 B="x y" \\\n  C=a\\ b\nENV D some  words\nENV E=$A-${F:-f}\nCMD vllm serve m\n'
        )
        assert only(text).env == (
            Setting("A", "1", 2),
            Setting("B", "x y", 2),
            Setting("C", "a b", 3),
            Setting("D", "some words", 4),
            Setting("E", "1-f", 2),
        )

    def test_arguments_are_known_while_building_and_not_later(self):
        text = (
            "ARG TAG=v0.24.0\nARG NAME=vllm-openai\nFROM vllm/$NAME:$TAG\n"
            "ARG TAG\nARG M=m\nARG N\nENV A=$TAG B=$M C=$N D=$NAME\n"
            'ENTRYPOINT ["sh", "-c", "vllm serve $A $M"]\n'
        )
        start = only(text)
        assert start.args == (Word("v0.24.0", 1), Word("$M", 8, open=True))
        assert [(setting.value, setting.open) for setting in start.env] == [
            ("v0.24.0", False),
            ("m", False),
            ("$N", True),
            ("$NAME", True),
        ]

    def test_a_shell_command_has_the_variables_of_the_image(self):
        assert only("FROM x\nENV M=m\nCMD vllm serve $M $N").args == (Word("m", 2), Word("$N", 3, open=True))


@pytest.mark.parametrize(
    "name", ["Dockerfile", "Dockerfile.cpu", "engine.dockerfile", "Containerfile", "no-suffix"]
)
def test_names_of_dockerfiles(name):
    assert len(starts("# syntax=docker/dockerfile:1\nARG A\nFROM x\nCMD vllm serve m\n", name)) == 1


@pytest.mark.parametrize("text", ["FROM x\n\nCMD vllm serve 'm\n", "FROM x\nENV A=1\nENV B='1\n"])
def test_an_unclosed_quote_is_named_with_its_line(text):
    with pytest.raises(HarnessError, match=r"^Dockerfile:3: a single quote opens here"):
        starts(text)


def test_an_incomplete_file_starts_nothing():
    assert starts("FROM  \n") == starts("") == starts("CMD\n") == []
