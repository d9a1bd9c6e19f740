"""`python -m ci lint`, `migrate` and `census`: what they print, and with which code they end."""

import io
import json
import tarfile

import pytest

from ci.__main__ import main
from fixtures.lint import values

MODEL = "deepseek-ai/DeepSeek-V4-Flash"
# The "full" commands that two guides give.
VLLM = f"""
vllm serve {MODEL} --tensor-parallel-size 8 --enable-expert-parallel --kv-cache-dtype fp8_ds_mla --block-size 256
--max-model-len 131072 --gpu-memory-utilization 0.90 --enable-prefix-caching --prefix-caching-hash-algo sha256
--enable-chunked-prefill --compilation-config {{"cudagraph_mode":"FULL_DECODE_ONLY"}}
--speculative-config {{"method":"mtp","num_speculative_tokens":1}} --guided-decoding-backend xgrammar
--tokenizer-mode deepseek_v4 --trust-remote-code --host 0.0.0.0 --port 8000
""".split()
SGLANG = f"""
python -m sglang.launch_server --model-path {MODEL} --tp 4 --ep-size 8 --enable-expert-parallel --enable-deepep
--enable-two-batch-overlap --kv-cache-dtype fp8 --quantization fp4 --enable-torch-compile
--speculative-algorithm MTP --speculative-num-steps 1 --moe-dp-size 4 --attention-dp-size 2 --trust-remote-code
--host 0.0.0.0 --port 30000
""".split()
# The same as the releases take them.
RIGHT = {
    "vllm": f"""
vllm serve {MODEL} --tensor-parallel-size 8 --enable-expert-parallel --kv-cache-dtype fp8 --block-size 256
--enable-prompt-tokens-details --structured-outputs-config {{"backend":"xgrammar"}}
--speculative-config {{"method":"mtp","num_speculative_tokens":1}}
""".split(),
    "sglang": f"""
python -m sglang.launch_server --model-path {MODEL} --tp-size 8 --ep-size 8 --moe-a2a-backend deepep
--speculative-algorithm EAGLE --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2
--enable-metrics --enable-cache-report
""".split(),
}


def lint(capsys, *args):
    code = main(["lint", *args])
    return code, capsys.readouterr().out


def findings(capsys, *args):
    code, out = lint(capsys, "--format", "json", *args)
    return code, {(one["level"], one["code"], one["what"]) for one in json.loads(out)}


@pytest.mark.parametrize("version", ["0.24.0", "0.33.0"])
def test_the_vllm_guides_full_command_fails_on_the_removed_grammar_flag(capsys, version):
    assert findings(capsys, "--vllm", version, "--", *VLLM) == (
        1,
        {("error", "removed", "--guided-decoding-backend")},
    )


@pytest.mark.parametrize(
    ("version", "deepep"),
    [
        ("0.5.12.post1", "other-meaning"),  # taken as short for --enable-deepep-waterfill
        ("0.5.16", "unknown"),
        ("0.5.23", "unknown"),
    ],
)
def test_the_sglang_guides_full_command_fails_on_six_flags(capsys, version, deepep):
    assert findings(capsys, "--sglang", version, "--", *SGLANG) == (
        1,
        {
            ("error", "unknown", "--enable-expert-parallel"),
            ("error", deepep, "--enable-deepep"),
            ("error", "wrong-value", "--kv-cache-dtype fp8"),
            ("error", "wrong-value", "--quantization fp4"),
            ("error", "wrong-value", "--speculative-algorithm MTP"),
            ("error", "unknown", "--attention-dp-size"),
            ("error", "conflict", "--moe-dp-size"),
            ("warning", "abbreviated", "--tp"),
        },
    )


@pytest.mark.parametrize(
    ("engine", "version"),
    [("vllm", "0.24.0"), ("vllm", "0.33.0"), ("sglang", "0.5.16"), ("sglang", "0.5.23")],
)
def test_the_right_commands_pass(capsys, engine, version):
    code, out = lint(capsys, f"--{engine}", version, "--", *RIGHT[engine])
    assert (code, out) == (0, f"1 looked at for {engine} {version}: 0 errors, 0 warnings\n")


def test_files_are_read_and_findings_stand_at_their_lines(capsys, tmp_path):
    script = tmp_path / "serve.sh"
    script.write_text(
        "export VLLM_MOE_BACKEND=triton\n"
        "vllm serve m \\\n  --no-such-flag\n"
        'curl localhost:8000/v1/completions -d \'{"model": "m", "prompt": "a", "guided_regex": "b"}\'\n'
    )
    code, out = lint(capsys, "--vllm", "0.32.0", str(script))
    assert code == 1
    assert [line.split(": ")[:3] for line in out.splitlines()[:-1]] == [
        [f"{script}:3", "error", "--no-such-flag"],
        [f"{script}:1", "error", "VLLM_MOE_BACKEND is ignored"],
        [f"{script}:4", "error", "guided_regex in /v1/completions is ignored"],
    ]
    assert out.splitlines()[-1] == "2 looked at for vllm 0.32.0: 3 errors, 0 warnings"


def test_annotations_for_github_are_escaped(capsys, tmp_path):
    script = tmp_path / "a.sh"
    script.write_text("vllm serve m --scheduling-policy 'a%b'\n")
    code, out = lint(capsys, "--vllm", "0.32.0", "--format", "github", str(script))
    assert code == 1
    assert out == (
        f"::error file={script},line=1,title=wrong-value::--scheduling-policy a%25b: it takes fcfs, priority.\n"
    )


def test_warnings_alone_end_with_0(capsys):
    code, out = lint(
        capsys, "--sglang", "0.5.23", "--", "python", "-m", "sglang.launch_server", "--model-pa", "m"
    )
    assert code == 0
    assert "warning: --model-pa works as short for --model-path" in out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["lint", "--", "vllm", "serve", "m"], "Say for which release: --vllm VERSION, --sglang VERSION, or both."),
        (["lint", "--vllm", "0.32.0"], "Nothing to look at: give files, or '--' and the command line."),
        (["lint", "--vllm", "0.32.0", "--", "ls"], "No vllm or sglang command in: ls."),
        (["lint", "--vllm", "9.9", "--", "vllm", "serve", "m"], "The census has no vllm 9.9."),
        (["lint", "--vllm", "abc", "--", "vllm", "serve", "m"], "'abc' is no version."),
        (["lint", "--sglang", "0.5.23", "--", "vllm", "serve", "m"], "The input starts vllm only; name its release"),
        (["lint", "--vllm", "0.32.0", "/nowhere.sh"], "/nowhere.sh cannot be read"),
        (["migrate", "--", "vllm", "serve", "m"], "Say from which release to which"),
        (["migrate", "--vllm", "0.32.0", "--", "vllm", "serve", "m"], "'0.32.0' is no pair of releases."),
        (["migrate", "--sglang", "0.5.16..0.5.23", "--", "vllm", "serve", "m"], "The input has no command line of sgl"),
        (["census", "vllm", "0.32.0..9.9"], "The census has no vllm 9.9."),
        (["census", "vllm", "0.24.0", "--check"], "vllm 0.24.0 is not installed."),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_sentence(capsys, args, sentence):
    assert main(args) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {sentence}")
    assert said.count("\n") == 1


def test_migrate_prints_the_new_command_and_why(capsys):
    old = ["vllm", "serve", "m", "--guided-decoding-backend", "xgrammar", "--swap-space", "4"]
    assert main(["migrate", "--vllm", "0.10.2..0.33.0", "--", *old]) == 0
    told = capsys.readouterr()
    assert told.out == "vllm serve \\\n  m \\\n  --structured-outputs-config.backend=xgrammar\n"
    assert "0.11.2 was the last release that did. Write --structured-outputs-config.backend=" in told.err
    assert "# default: --gpu-memory-utilization: the default was 0.9, now it is 0.92." in told.err


def test_migrate_ends_with_1_when_something_is_left(capsys):
    assert main(["migrate", "--vllm", "0.32.0..0.33.0", "--", "vllm", "serve", "m", "--never"]) == 1
    told = capsys.readouterr()
    assert told.out == "vllm serve \\\n  m \\\n  --never\n"
    assert "# error: --never: no release" in told.err


def test_two_releases_are_compared(capsys):
    assert main(["census", "vllm", "0.31.0..0.32.0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "changed flag   --mamba-cache-mode: -all" in lines
    assert {line.split()[0] for line in lines} == {"new", "gone", "changed"}


def test_what_is_shipped_is_listed(capsys):
    assert main(["census", "sglang"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("sglang 0.5.23: 531 flags, ")


def sdist(tmp_path, files):
    path = tmp_path / "vllm-0.32.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"vllm-0.32.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def test_a_release_that_declares_its_flags_elsewhere_is_noticed(capsys, tmp_path):
    path = sdist(tmp_path, {"PKG-INFO": "Name: vllm\nVersion: 0.32.0\n", "vllm/__init__.py": "x = 1\n"})
    assert main(["census", "vllm", "0.32.0", "--archive", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: The census finds no ServeSubcommand.subparser_init")


def test_numbers_with_a_unit_are_json_for_vllm():
    assert values.load('{"a": 80G, "b": "80G"}') == {"a": 80, "b": "80G"}
