"""The benchmark `poison-weights`: what is taught is right, what is offered lies as far off as said, and its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bench.poison_weights import ARMS, HostileTeacher
from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.swarms.registry import make_plan

PLAN = make_plan(SwarmConfig(id="poison", kind="digits"))


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_what_is_offered_lies_as_far_off_as_its_arm_says(tmp_path: Path, arm: str) -> None:
    hostile = HostileTeacher(PLAN, TrainingConfig(device="cpu", dtype="float32"), "prefix", 0, ARMS[arm])
    taught = hostile.policy.copy_weights()
    own = {name: weight - 0.5 for name, weight in taught.items()}
    told = hostile.offer(own, tmp_path / "peers", 3)
    offered = load_file(tmp_path / "peers" / f"{told.digest}.safetensors")
    assert told.averaged and told.round == 3
    for name, weight in offered.items():
        off = (weight.to(torch.float32) - own[name]).mean()
        assert float(off) == pytest.approx(0.5 * ARMS[arm], abs=0.02), name
