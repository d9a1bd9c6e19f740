"""`docker run` and curl in shell scripts are read with their own options."""

import pytest

from fixtures.errors import HarnessError
from fixtures.lint.inputs import Request, Setting, Word, from_text

IMAGE = "vllm/vllm-openai:v0.24.0"


def only(text):
    (start,), _ = from_text(text, "run.sh")
    return start


def requests(text):
    return from_text(text, "run.sh")[1]


class TestDocker:
    def test_arguments_behind_the_image_are_those_of_vllm_serve(self):
        start = only(
            "docker run -d --name engine \\\n"
            "  --gpus all --ipc=host -p 8000:8000 \\\n"
            "  -e VLLM_LOGGING_LEVEL=DEBUG \\\n"
            f"  {IMAGE} \\\n"
            "  --model some/model \\\n  --port 8000 > log 2>&1\n"
        )
        assert (start.program, start.where) == ("vllm serve", "run.sh:4")
        assert start.args == (Word("--model", 5), Word("some/model", 5), Word("--port", 6), Word("8000", 6))
        assert start.env == (Setting("VLLM_LOGGING_LEVEL", "DEBUG", 3),)

    @pytest.mark.parametrize(
        "options",
        [
            "",
            "--rm -it",
            "-itd --privileged",
            "-dp 8000:8000",
            "-v/x:/y -w /x",
            "--gpus '\"device=0,1\"'",
            "--shm-size 16g --ulimit memlock=-1 --cap-add SYS_PTRACE",
            "--device=/dev/kfd --group-add video",
            "--env-file x.env --network=host --init",
            "--read-only --pull always",
            "$OPTIONS",
            '"${GPUS[@]}" $MORE -v a:b',
        ],
    )
    def test_options_and_their_values_are_no_arguments(self, options):
        assert [word.text for word in only(f"docker run {options} {IMAGE} --a b").args] == ["--a", "b"]

    @pytest.mark.parametrize(
        "command",
        [
            "docker run",
            "sudo docker run",
            "podman run",
            "docker container run",
            "docker create",
            "exec docker run",
        ],
    )
    def test_spellings_of_the_command(self, command):
        assert [word.text for word in only(f"{command} --rm {IMAGE} m").args] == ["m"]

    @pytest.mark.parametrize(
        ("options", "name", "value", "unknown"),
        [
            ("-e A=1", "A", "1", False),
            ("-eA=1", "A", "1", False),
            ("-ite A=1", "A", "1", False),
            ("--env A='x y'", "A", "x y", False),
            ("--env=A=b=c", "A", "b=c", False),
            ("-e A=", "A", "", False),
            ("-e A=$B", "A", "$B", True),
            ("-e TOKEN", "TOKEN", "$TOKEN", True),
            ("-e KNOWN", "KNOWN", "here", False),
        ],
    )
    def test_settings(self, options, name, value, unknown):
        (setting,) = only(f"export KNOWN=here\ndocker run {options} {IMAGE} m").env
        assert (setting.name, setting.value, setting.open) == (name, value, unknown)

    @pytest.mark.parametrize(
        ("image", "serves"),
        [
            (IMAGE, True),
            ("vllm/vllm-openai", True),
            ("docker.io/vllm/vllm-openai-rocm:nightly", True),
            ("vllm/vllm-openai@sha256:0123", True),
            ("vllm/vllm-openai:$TAG", True),
            ("lmsysorg/sglang:latest", False),
            ("mine/vllm:1", False),
            ("vllm-openai/other", False),
        ],
    )
    def test_the_image_decides_the_program(self, image, serves):
        starts, _ = from_text(f"docker run --rm {image} --model m", "run.sh")
        assert [start.program for start in starts] == ["vllm serve"] * serves

    @pytest.mark.parametrize(
        ("rest", "program"),
        [
            (f"{IMAGE} vllm serve m", "vllm serve"),
            (f"{IMAGE} bash -c 'exec vllm serve m'", "vllm serve"),
            (
                f"--entrypoint python3 {IMAGE} -m vllm.entrypoints.openai.api_server m",
                "vllm.entrypoints.openai.api_server",
            ),
            (f"--entrypoint=/bin/bash {IMAGE} -lc 'vllm serve m'", "vllm serve"),
            (f"--entrypoint '' {IMAGE} sglang serve m", "sglang serve"),
            ("lmsysorg/sglang:v0.5.20 python3 -m sglang.launch_server m", "sglang.launch_server"),
            ("$IMAGE sglang serve m", "sglang serve"),
        ],
    )
    def test_a_command_or_entrypoint_of_its_own(self, rest, program):
        start = only(f"docker run --rm {rest}")
        assert (start.program, [word.text for word in start.args]) == (program, ["m"])

    def test_an_entrypoint_that_is_no_engine_takes_the_images_place(self):
        assert from_text(f"docker run --entrypoint bash {IMAGE} --model m", "run.sh") == ([], [])

    @pytest.mark.parametrize(
        "call", ["docker run", "docker run --rm", "docker run --rm -p", "docker ps", "docker"]
    )
    def test_an_incomplete_call_starts_nothing(self, call):
        assert from_text(f"{call}\n", "run.sh") == ([], [])

    def test_what_the_host_exports_does_not_reach_the_container(self):
        assert only(f"export A=1\nB=2 docker run {IMAGE} m").env == ()


class TestCurl:
    def test_a_body_over_several_lines(self):
        text = (
            "M=some/model\n"
            "curl -s http://localhost:8000/v1/chat/completions \\\n"
            "  -H 'Content-Type: application/json' \\\n"
            '  -d \'{\n    "model": "\'"$M"\'",\n    "n": 2\n  }\' | jq .\n'
        )
        body = {"model": "some/model", "n": 2}
        assert requests(text) == [Request("/v1/chat/completions", body, "run.sh:2", 4)]

    @pytest.mark.parametrize(
        "call",
        [
            "curl localhost:1/v1/x -d '{}'",
            "curl -X POST -o out 'https://host/v1/x?a=1' --data '{}'",
            'curl "$BASE/v1/x" --data-raw "{}"',
            "curl ${BASE:-http://host:1}/v1/x --json={}",
            "curl -sSfX POST --url http://[::1]:80/v1/x -d'{}'",
            "time curl --max-time 5 -u me:x http://h/v1/x --data-binary '{}'",
            "curl http://h/v1/x -d @- <<'EOF'\n{}\nEOF",
            "X=$(curl -w '%{http_code}' -d '{}' http://h/v1/x)",
            "B='{}'\ncurl http://h/v1/x -d \"$B\"",
        ],
    )
    def test_path_and_body(self, call):
        (request,) = requests(call)
        assert (request.path, request.body) == ("/v1/x", {})

    def test_a_here_document_has_its_variables_filled_in(self):
        (request,) = requests('M=m\ncurl h/generate -d @- <<EOF\n\n{"text": "$M"}\nEOF\n')
        assert (request.body, request.line) == ({"text": "m"}, 3)

    def test_a_variable_in_a_string_stays_in_the_body(self):
        (request,) = requests('curl h/x -d "{\\"model\\": \\"$M\\"}"')
        assert request.body == {"model": "$M"}

    @pytest.mark.parametrize(
        "call",
        [
            "curl http://h/health",
            "curl http://h/x -d a=1",
            "curl http://h/x -d @file.json",
            "curl http://h/x -d '{\"a\": ...}'",
            'curl http://h/x -d "{\\"n\\": $N}"',
            "curl -d '{}'",
            "curl http://h/x -d",
        ],
    )
    def test_what_cannot_be_known_is_no_request(self, call):
        assert requests(call) == []

    def test_a_broken_body_is_named_with_its_line(self):
        with pytest.raises(
            HarnessError, match=r"^run.sh:3: the body of this curl call is no JSON: Expecting"
        ):
            requests('curl h/x -d \'{\n  "a": 1\n  "b": 2\n}\'')
