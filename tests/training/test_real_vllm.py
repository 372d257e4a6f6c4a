"""Completions by a real vLLM on the CPU: the same tokens as ours, drawn with the trained weights.

Needs an environment that has vLLM: SWARMD_VLLM_PYTHON names its interpreter. See docs/MODELS.md for how to make one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmd.config import LoraConfig, VllmConfig
from swarmd.http_client import HttpFailed, HttpRequest, send_request
from swarmd.training.models.source import EMBEDDED_DIR
from tests.training.real_vllm import train_and_compare

PYTHON = os.environ.get("SWARMD_VLLM_PYTHON", "")
ROOT = Path(__file__).parents[2]
START_S = 300.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not PYTHON, reason="SWARMD_VLLM_PYTHON does not name a Python that has vLLM"),
]

StartServer = Callable[..., str]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Servers, by their options and environment; the fixture ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str, **environment: str) -> str:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        # Not `vllm serve`: vllm-cpu's looks for the version of a package vllm, and fails.
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(EMBEDDED_DIR)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
        with (tmp_path / "vllm.log").open("wb") as log:
            server = subprocess.Popen(
                [*command, "--max-model-len", "600", "--max-num-seqs", "16", *options],
                env={**os.environ, **ENVIRONMENT, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        started.append(server)
        _await(url, server, tmp_path / "vllm.log")
        return url

    yield start
    for server in started:
        server.terminate()
        server.wait(60)


def _await(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            if send_request(HttpRequest("GET", f"{url}/health"), time.monotonic() + 5, 1 << 16)[0] == 200:
                return
        except HttpFailed:
            pass
        time.sleep(1)
    raise AssertionError(f"vLLM does not answer after {START_S} s:\n{log.read_text()[-3000:]}")


def check(result: dict[str, Any]) -> None:
    assert result["before"]["vllm"] == result["before"]["own"], "the same tokens, in float32"
    assert result["after"]["vllm"] == result["after"]["own"], "with the weights that were trained"
    assert result["after"]["own"] != result["before"]["own"] and result["steps"] == 2
    assert result["rows"] == 6 and result["different"] > 1
    assert result["apart"] < 1e-3, "each with the log-probability that it was drawn by"


def test_a_server_draws_with_a_model_that_is_trained(start_server: StartServer, tmp_path: Path) -> None:
    url = start_server(VLLM_SERVER_DEV_MODE="1")
    check(train_and_compare(tmp_path / "node", VllmConfig("server", url), LoraConfig()))


def test_a_server_draws_with_adapters_that_are_trained(start_server: StartServer, tmp_path: Path) -> None:
    url = start_server("--enable-lora", "--max-lora-rank", "8", VLLM_ALLOW_RUNTIME_LORA_UPDATING="True")
    check(train_and_compare(tmp_path / "node", VllmConfig("server", url), LoraConfig(rank=4)))


@pytest.mark.parametrize("rank", [0, 4])
def test_an_engine_draws_with_a_model_that_is_trained(tmp_path: Path, rank: int) -> None:
    """In a process of that environment, which has to have what the trainer needs, too."""
    found = subprocess.run([PYTHON, "-c", "import trl, peft, structlog, reasoning_gym"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"SWARMD_VLLM_PYTHON has not all that a trainer needs: {found.stderr.splitlines()[-1]}")
    done = subprocess.run(
        [PYTHON, "-m", "tests.training.real_vllm", str(tmp_path), str(rank)],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (told,) = [line.removeprefix("RESULT") for line in done.stdout.splitlines() if line.startswith("RESULT")]
    check(json.loads(told))
