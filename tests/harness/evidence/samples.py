"""Kept tests, made by hand as the recorder makes them."""

import json

from fixtures.evidence import kept
from fixtures.model import Exchange

ARGV = ["/opt/py/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
ARGV += ["--model", "/home/jo/.cache/dsv4/models/chain-1", "--port", "21234"]


def about(**changes):
    result = {
        "id": "tests/features/test_a.py::test_it[vllm-chain]",
        "test": "features/test_a.py::test_salts_keep_apart",
        "folder": "features",
        "state": "fail",
        "seconds": 1.0,
        "at": 100.0,
        "version": "0.32.0",
        "sentence": "one is not two",
        "detail": "assert 1 == 2\n```\nin /home/jo/suite/tests/features/test_a.py",
    }
    told = {
        "result": result,
        "engine": {
            "name": "vllm",
            "target": "venv:0.32.0",
            "version": "0.32.0",
            "label": "vLLM 0.32.0, CPU build",
            "device": "cpu",
            "origin": "default",
        },
        "launch": {
            "server": "vllm-chain",
            "engine": "vllm",
            "why": "first use",
            "seconds": 20.0,
            "at": 50.0,
            "argv": ARGV,
            "env": {"DO_NOT_TRACK": "1"},
        },
        "machine": {
            "system": "Linux 6",
            "processor": "x86",
            "cores": 2,
            "memory_gib": 8.0,
            "python": "3.11.7",
        },
        "suite": "0.1.0",
        "spec": {"model": "chain", "knobs": {"mtp": 1, "prefix_cache": True}, "extra": {}},
        "served": "oracle",
        "url": "http://127.0.0.1:21234",
    }
    return told | changes


def exchange(body="{}", started=100.0, **changes):
    told = {
        "method": "POST",
        "path": "/v1/completions",
        "request": {"prompt": "it's"},
        "status": 200,
        "body": body,
        "events": (),
        "started": started,
        "elapsed": 0.5,
    }
    return Exchange(**told | changes)


def keep(folder, *exchanges, log="", told=None):
    """Keep a test in a folder, and return the folder."""
    folder.mkdir(exist_ok=True)
    (folder / kept.TEST).write_text(json.dumps(told or about()))
    kept.write_exchanges(folder, exchanges or [exchange()])
    (folder / kept.BEFORE).write_text("a 1\n")
    (folder / kept.LOG).write_text(log)
    return folder
