"""Kubernetes manifests, Helm templates and recorded launches."""

import json

import pytest

from fixtures.errors import HarnessError
from fixtures.lint.inputs import Setting, Word, from_text

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: engine}
spec:
  template:
    spec:
      initContainers:
        - name: wait
          image: busybox
          command: [sh, -c, "sleep 1"]
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.24.0
          args:
            - --model
            - $(MODEL)
            - --served-model-name=$(NAME)-$(MISSING)
            - $$(MODEL)
          env:
            - name: MODEL
              value: some/model
            - name: NAME
              value: "x $(MODEL)"
            - name: TOKEN
              valueFrom: {secretKeyRef: {name: s, key: k}}
            - name: EMPTY
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    workerTemplate:
      spec:
        containers:
          - name: sglang
            image: lmsysorg/sglang:v0.5.20
            command: ["python3", "-m", "sglang.launch_server"]
            args: ["--tp", 8]
          - image: lmsysorg/sglang:v0.5.20
            command:
              - bash
              - -c
              - |
                export B=2
                sglang serve --nnodes $(SIZE) \\
                  --node-rank $A$B
            env:
              - {name: A, value: '1'}
"""


def starts(text, name="engine.yaml"):
    return from_text(text, name)[0]


class TestManifests:
    def test_every_container_of_every_document_is_found(self):
        found = [(start.program, start.where) for start in starts(DEPLOYMENT)]
        assert found == [
            ("vllm serve", "engine.yaml:13, container vllm"),
            ("sglang.launch_server", "engine.yaml:37, container sglang"),
            ("sglang serve", "engine.yaml:45"),
        ]

    def test_references_to_the_containers_own_variables_are_filled_in(self):
        assert starts(DEPLOYMENT)[0].args == (
            Word("--model", 15),
            Word("some/model", 21),
            Word("--served-model-name=x some/model-$(MISSING)", 17, open=True),
            Word("$(MODEL)", 18),
        )

    def test_a_value_from_elsewhere_is_open(self):
        assert starts(DEPLOYMENT)[0].env == (
            Setting("MODEL", "some/model", 21),
            Setting("NAME", "x some/model", 23),
            Setting("TOKEN", "$TOKEN", 24, open=True),
            Setting("EMPTY", "", 26),
        )

    def test_a_shell_in_a_container_has_the_containers_variables(self):
        assert starts(DEPLOYMENT)[2].args == (
            Word("--nnodes", 45),
            Word("$(SIZE)", 45, open=True),
            Word("--node-rank", 46),
            Word("12", len(DEPLOYMENT.splitlines())),
        )

    @pytest.mark.parametrize(
        ("container", "args"),
        [
            ("{image: vllm/vllm-openai, args: [m]}", ["m"]),
            ("{image: vllm/vllm-openai, command: [], args: [m]}", ["m"]),
            ("{image: mine, command: [vllm, serve], args: [m]}", ["m"]),
            ("{image: {repository: vllm/vllm-openai}, command: [vllm, serve, m]}", ["m"]),
            ("{command: [vllm, serve, m]}", ["m"]),
        ],
    )
    def test_command_and_args(self, container, args):
        (start,) = starts(f"kind: Pod\nspec: {{containers: [{container}]}}")
        assert [word.text for word in start.args] == args

    @pytest.mark.parametrize(
        "container", ["{image: vllm/vllm-openai, command: [sleep, inf]}", "{image: x, args: [m]}"]
    )
    def test_containers_that_run_something_else(self, container):
        assert starts(f"kind: Pod\nspec: {{containers: [{container}]}}") == []

    def test_a_container_behind_an_alias_is_one_container(self):
        assert len(starts("a: &a {command: [vllm, serve, m]}\nb: *a\n")) == 1

    def test_a_manifest_that_holds_itself_is_read(self):
        assert len(starts("a: &a\n  - *a\n  - command: [vllm, serve, m]\n")) == 1


class TestHelm:
    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("kind: Pod\n{{- if .Values.x }}\nspec: 1\n{{- end }}\n", 2),
            ("kind: Pod\nspec:\n  image: {{ .Values.image }}\n  args: [m]\n", 3),
        ],
    )
    def test_templates_have_to_be_rendered(self, text, line):
        with pytest.raises(
            HarnessError, match=rf"^engine.yaml:{line}: this file has templates in .*; render it"
        ):
            starts(text)

    def test_templates_in_strings_are_open(self):
        (start,) = starts("args:\n - vllm\n - serve\n - --port={{ .port }}\n - '{{ .Values.a }}'\n")
        assert start.args == (Word("--port={{ .port }}", 4, open=True), Word("{{ .Values.a }}", 5, open=True))


class TestRecordedLaunches:
    ARGV = ("python", "-m", "sglang.launch_server", "--a", '{"b": "\\u00e9"}', "")

    @pytest.mark.parametrize("indent", [None, 2, "\t"])
    def test_argv_and_env_of_a_launch(self, indent):
        text = json.dumps({"launches": [{"argv": self.ARGV, "env": {"A": "$x 1"}}]}, indent=indent)
        (start,) = starts(text, "results.json")
        assert [(word.text, word.open) for word in start.args] == [
            ("--a", False),
            ('{"b": "\\u00e9"}', False),
            ("", False),
        ]
        assert [(setting.name, setting.value, setting.open) for setting in start.env] == [
            ("A", "$x 1", False)
        ]

    def test_words_have_their_lines(self):
        (start,) = starts(json.dumps({"argv": self.ARGV}, indent=1), "launch.json")
        assert [word.line for word in start.args] == [6, 7, 8]
