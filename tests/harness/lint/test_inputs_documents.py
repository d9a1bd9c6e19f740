"""Markdown, plain text and files as such."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.errors import HarnessError
from fixtures.lint.inputs import from_file, from_text

README = """\
# It's a guide

vllm serve is what `vllm serve n` runs; don't type it.

```bash
export MODEL=some/model
cd x && VLLM_A=1 vllm serve $MODEL \\
  --port 8000
```

1. Then:

    ```
    $ sglang serve --model-path $MODEL \\
    >   --tp 2 \\
    > > log
    It's up
    $ curl localhost:8000/v1/completions -d '{
      "prompt": "it"}'
    ```

```python
import vllm  # it's no shell
vllm serve n
```

~~~{.console}
$ python3 -m vllm.entrypoints.openai.api_server --model m
```
~~~
"""


def found(text, name):
    starts, _ = from_text(text, name)
    return [(start.where.split(":")[1], [word.text for word in start.args]) for start in starts]


class TestMarkdown:
    def test_fences_of_shells_are_read(self):
        assert found(README.replace("vllm serve is", "It is"), "README.md") == [
            ("7", ["some/model", "--port", "8000"]),
            ("14", ["--model-path", "some/model", "--tp", "2"]),
            ("28", ["--model", "m"]),
        ]

    def test_requests_are_found_as_well(self):
        (request,) = from_text(README, "README.md")[1]
        assert (request.path, request.body, request.where, request.line) == (
            "/v1/completions",
            {"prompt": "it"},
            "README.md:18",
            18,
        )

    def test_output_in_a_fence_of_a_shell_does_not_matter(self):
        assert found("```sh\nvllm serve m\nIt's up\nvllm serve n\n```\n", "a.md") == [
            ("2", ["m"]),
            ("4", ["n"]),
        ]

    def test_a_fence_that_is_never_closed_is_read_as_text(self):
        assert found("```bash\nvllm serve m\n\nIt's\n\nvllm serve n \\\n --a", "a.md") == [
            ("2", ["m"]),
            ("6", ["n", "--a"]),
        ]

    def test_commands_outside_of_fences_have_lines_of_their_own(self):
        assert found("Don't:\n\n    vllm serve m\n\nUse `vllm serve n`.\n", "a.md") == [("3", ["m"])]


class TestPlainText:
    @pytest.mark.parametrize(
        "line",
        [
            "vllm serve m",
            "  $ vllm serve m",
            "(venv) $ vllm serve m",
            "A=1 B=2 vllm serve m",
            "sudo nohup /opt/bin/vllm serve m",
            "python -u -m vllm.entrypoints.openai.api_server m",
            "docker run --rm vllm/vllm-openai m",
            "sudo docker run --rm vllm/vllm-openai m",
        ],
    )
    def test_a_line_that_begins_as_a_command_is_read(self, line):
        assert found(f"It's so:\n{line}\nIsn't it?\n", "guide.txt") == [("2", ["m"])]

    @pytest.mark.parametrize(
        "line", ["Use vllm serve m", "`vllm serve m`", "- vllm serve m", "vllm serve, that's", "vllm"]
    )
    def test_prose_is_left_alone(self, line):
        assert found(f"{line}\n", "guide.txt") == []

    def test_variables_hold_for_the_lines_below(self):
        assert found("M=m\nexport N='n'\nO='no\nvllm serve $M $N $O", "guide.txt") == [
            ("4", ["m", "n", "$O"])
        ]

    def test_a_redirection_in_a_continued_line_is_none_of_the_arguments(self):
        assert found("vllm serve m \\\n  > log \\\n  2>&1 &\n", "guide.txt") == [("1", ["m"])]

    def test_an_unclosed_quote_of_a_command_is_named(self):
        with pytest.raises(HarnessError, match=r"^guide.txt:3: a single quote opens here"):
            found("It's\n\nvllm serve 'm\n", "guide.txt")


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("start.sh", "if true; then vllm serve m; fi"),
            ("start", "#!/usr/bin/env bash\ntrue; vllm serve m"),
            ("job.slurm", "#!/bin/bash -l\nif true; then vllm serve m; fi"),
            ("compose", "# x\nservices:\n  a:\n    command: vllm serve m\n"),
            ("pod", "apiVersion: v1\nspec: {args: [vllm, serve, m]}\n"),
            ("pod.json", '{"args": ["vllm", "serve", "m"]}'),
            ("compose.yml", "\ufeffservices: {a: {command: vllm serve m}}"),
            ("notes", "vllm serve m"),
        ],
    )
    def test_the_kind_is_seen_from_name_or_content(self, tmp_path, name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        (start,), requests = from_file(path)
        assert ([word.text for word in start.args], requests) == (["m"], [])
        assert start.where.startswith(f"{tmp_path / name}:")

    def test_requests_alone_are_enough(self, tmp_path):
        path = tmp_path / "call.sh"
        path.write_text("curl h/v1/x -d '{}'", encoding="utf-8")
        assert len(from_file(path)[1]) == 1

    def test_a_file_with_neither_is_refused(self, tmp_path):
        path = tmp_path / "x.sh"
        path.write_text("echo hello", encoding="utf-8")
        with pytest.raises(
            HarnessError, match=r"^No vllm or sglang command found in .*x\.sh\. Shell scripts"
        ):
            from_file(path)

    @pytest.mark.parametrize(
        ("name", "text"),
        [("x.sh", 'A=\'eval "$A"\'\neval "$A"'), ("x.sh", "$(" * 5000), ("x.yaml", "[" * 5000)],
    )
    def test_a_file_without_an_end_to_its_depth_is_refused(self, name, text):
        with pytest.raises(HarnessError, match=rf"^{name} cannot be read: too much"):
            from_text(text, name)

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path):
        (tmp_path / "x.sh").write_bytes(b"\xff\xfe\x00")
        for name, message in (
            ("x.sh", "no text in UTF-8"),
            ("no.sh", "No such file"),
            (".", "Is a directory"),
        ):
            with pytest.raises(HarnessError, match=message):
                from_file(tmp_path / name)


BITS = st.sampled_from(
    [
        *(
            "vllm serve",
            "m",
            "--a",
            " ",
            "\n",
            "\r\n",
            "\t",
            "\x00",
            "é",
            "...",
            "-",
            "#",
            "?",
            "@",
            "\\",
            "'",
            '"',
            "`",
        ),
        *(
            "$",
            "{",
            "}",
            "(",
            ")",
            "[",
            "]",
            "<",
            ">",
            "|",
            "&",
            ";",
            "$(",
            "$((",
            "((",
            "$'",
            "${A:-",
            "{{",
            "}}",
        ),
        *(
            "<<EOF",
            "EOF",
            "A=",
            "export ",
            "curl h/x -d",
            "docker run",
            "-e",
            "vllm/vllm-openai",
            "bash -c",
            "eval ",
        ),
        *("- ", ": ", "services:", "command:", "args:", "image:", "env:", "name:", "&a ", "*a", "<<: "),
        *("FROM ", "CMD ", "ENTRYPOINT ", "ENV ", "ARG ", '["vllm","serve"]', "```", "```sh"),
    ]
)


@given(
    st.lists(BITS, max_size=30).map("".join),
    st.sampled_from(["a.sh", "a.md", "a.txt", "a.yaml", "Dockerfile"]),
)
def test_any_text_is_read_or_refused_in_one_line(text, name):
    refusal, starts = name, []
    try:
        starts, _ = from_text(text, name)
    except HarnessError as error:
        refusal = str(error)
    assert refusal.startswith(name)
    assert "\n" not in refusal
    lines = {value.line for start in starts for value in (*start.args, *start.env)}
    assert lines <= set(range(1, text.count("\n") + 2))
