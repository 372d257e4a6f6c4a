"""What accelerate's file says of spreading a model, with what it does not go together, and what it saves."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from swarmd.config import LoraConfig, TrainingConfig, VllmConfig
from swarmd.errors import ConfigError
from swarmd.training.distributed.parallelism import Parallelism, find_spread
from swarmd.training.distributed.ranks import read_environment
from swarmd.training.models.known import TABLE
from swarmd.training.models.memory import estimate_need

CONFIGS = Path(__file__).parents[3] / "configs" / "accelerate"
FSDP = CONFIGS / "fsdp.yaml"
(SEVEN_BILLION,) = (row.shape for row in TABLE if row.name == "Gensyn/Qwen2.5-7B-Instruct")


def configure(accelerate: str = "fsdp", **settings: Any) -> TrainingConfig:
    return TrainingConfig(**{"processes": 4, "accelerate": accelerate, **settings})


def test_the_shipped_files_say_what_they_are_named_after() -> None:
    expected = {
        "fsdp": Parallelism("fsdp", 4, 4, 4),
        "zero2": Parallelism("zero", 1, 4, 4),
        "zero3": Parallelism("zero", 4, 4, 4),
    }
    for name, spread in {**expected, "ddp": Parallelism(), "": Parallelism()}.items():
        assert find_spread(configure(name)) == spread
        assert not name or find_spread(configure(str(CONFIGS / f"{name}.yaml"))) == spread


def test_accelerate_is_not_told_to_cut_the_model_too() -> None:
    environment = read_environment(configure())
    assert not [name for name in environment if "FSDP" in name]
    assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "4"


def test_deepspeed_is_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deepspeed" else find(name))
    with pytest.raises(ConfigError, match="needs the package deepspeed") as caught:
        read_environment(configure("zero3"))
    assert "pip install 'deepspeed==" in caught.value.fix


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("fsdp_version: 2", "fsdp_version: 1", "fsdp_version: 1"),
        ("fsdp_version: 2", "fsdp_version: two", "fsdp_version"),
        ("fsdp_offload_params: false", "fsdp_offload_params: true", "fsdp_offload_params"),
        (
            "fsdp_activation_checkpointing: false",
            "fsdp_activation_checkpointing: true",
            "fsdp_activation_checkpointing",
        ),
        ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "fsdp_auto_wrap_policy"),
        ("distributed_type: FSDP", "distributed_type: [", "no configuration"),
    ],
)
def test_what_swarmd_does_not_do_is_refused(tmp_path: Path, old: str, new: str, named: str) -> None:
    file = tmp_path / "own.yaml"
    text = FSDP.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        find_spread(configure(str(file)))
    assert named in caught.value.message and "own.yaml" in caught.value.message


@pytest.mark.parametrize(
    "settings",
    [
        {"quantization": "4bit", "lora": LoraConfig(rank=8)},
        {"optimizer": "adamw_8bit"},
        {"vllm": VllmConfig(mode="colocate")},
    ],
)
def test_what_needs_the_whole_model_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"training.{next(iter(settings))}.*fsdp"):
        find_spread(configure(**settings))


def test_each_rank_needs_its_part_and_the_whole_weights_to_draw_with() -> None:
    whole = estimate_need(SEVEN_BILLION, configure(""), "cuda", "float32", True)
    parts = estimate_need(SEVEN_BILLION, configure(), "cuda", "float32", True)
    for term in ("weights", "gradients", "optimizer"):
        assert getattr(parts, term) == pytest.approx(getattr(whole, term) / 4, rel=1e-6)
    assert parts.gathered == whole.weights and whole.gathered == whole.layers == 0
    assert 0 < parts.layers < whole.weights / 3
    assert parts.total < 0.6 * whole.total
    adapters = configure(lora=LoraConfig(rank=16))
    assert estimate_need(SEVEN_BILLION, adapters, "cuda", "bfloat16", False).total < parts.total
