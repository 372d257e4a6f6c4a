"""Completions by vLLM: TRL's own client and engine code, against a double of vLLM around a real model on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swarmd.config import LoraConfig, TrainingConfig, VllmConfig
from swarmd.errors import ConfigError
from swarmd.training.models import adapters
from swarmd.training.models.model import load_policy
from swarmd.training.sampling.generation import Sampler
from swarmd.training.sampling.vllm_sampler import check_vllm, make_sampler

DOUBLE = Path(__file__).parent.parent / "vllm_double"
ROOT = DOUBLE.parents[2]


RANKS = {"server": 4, "colocate": 0}  # of the adapters, by mode


def run_stages(mode: str, directory: Path) -> dict[str, Any]:
    """What a process tells of stages in this mode."""
    paths = os.pathsep.join([str(DOUBLE), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.vllm_double.run", str(directory), json.dumps({mode: RANKS[mode]})],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (told,) = [line.removeprefix("RESULT") for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return json.loads(told)


def check(result: dict[str, Any]) -> None:
    assert result["steps"] == 2 and result["tokens"] > 0 and result["after"] != result["before"]
    assert result["sent_in_all"] == 5, "before each of four steps and for the figures after the last, and not once more"
    assert result["all_agree"], "vLLM has the trainer's weights each time"
    assert len(result["rows"]) == 6 and all(1 <= len(row) <= 6 for row in result["rows"])
    assert [1 <= len(row) <= room for row, room in zip(result["within_rooms"], (2, 5), strict=True)] == [True, True]
    assert result["sent_at_last"] == 5, "what vLLM has is not sent again"


def test_a_server_draws_with_the_weights_of_every_step(tmp_path: Path) -> None:
    """With adapters: what is sent is the whole model with the adapters in it."""
    result = run_stages("server", tmp_path)
    check(result)
    assert result["again"] == result["rows"] == result["after_cancel"], "a server draws by the seed"
    assert "400" in result["error"] and "6 completions" in result["short"] and "this model" in result["foreign"]
    assert result["cancelled_s"] < 5
    assert "/update_weights" in result["calls"] and "/reset_prefix_cache" in result["calls"]


@pytest.mark.soak
def test_a_colocated_engine_draws_with_the_weights_of_every_step(tmp_path: Path) -> None:
    check(run_stages("colocate", tmp_path))


def test_what_vllm_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    training = TrainingConfig(vllm=VllmConfig(mode="server"))
    with pytest.raises(ConfigError, match="vllm") as caught:
        check_vllm(training, "cuda")
    assert "pip install 'vllm" in caught.value.fix
    monkeypatch.setattr(adapters.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(adapters.importlib, "import_module", lambda name: object())
    check_vllm(training, "cuda")
    with pytest.raises(ConfigError, match="CUDA"):
        check_vllm(training, "cpu")
    packed = TrainingConfig(vllm=VllmConfig(mode="server"), quantization="4bit", lora=LoraConfig(rank=4))
    with pytest.raises(ConfigError, match="packing"):
        check_vllm(packed, "cuda")


def test_without_vllm_the_model_draws_itself() -> None:
    policy = load_policy(TrainingConfig(device="cpu"))
    assert isinstance(make_sampler(policy, TrainingConfig(), None, lambda: 0), Sampler)
