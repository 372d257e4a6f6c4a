"""Whether vLLM draws the completions, and how: what the configuration says, or what can be used here."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError
from swarmd.installed import require
from swarmd.training.ranks import find_spread


class VllmMode(NamedTuple):
    """How vLLM is used."""

    mode: Literal["off", "colocate", "server"]
    reason: str = ""  # why "auto" came to "off"


def choose_vllm(training: TrainingConfig, device: str) -> VllmMode:
    """What is configured; for "auto", an engine in the trainer's process if it can be used there, else none."""
    if training.vllm.mode != "auto":
        return VllmMode(training.vllm.mode)
    if device != "cuda":
        return VllmMode("off", f'training.vllm.mode = "auto" takes vLLM on CUDA devices, and this is {device}')
    engine = msgspec.structs.replace(training, vllm=msgspec.structs.replace(training.vllm, mode="colocate"))
    try:
        check_vllm(engine)
    except ConfigError as error:
        return VllmMode("off", error.message)
    return VllmMode("colocate")


def check_vllm(training: TrainingConfig) -> None:
    """Raise ConfigError if vLLM cannot be used as configured: it is not installed, or another setting forbids it."""
    key = f'training.vllm.mode = "{training.vllm.mode}"'
    if training.quantization != "none":
        raise ConfigError(
            f'{key} does not go with training.quantization = "{training.quantization}": vLLM would draw from other '
            "numbers than those that are trained",
            "Set one of the two off",
        )
    find_spread(training)
    if training.vllm.mode == "server":
        return
    require("vllm", "vllm", key)
