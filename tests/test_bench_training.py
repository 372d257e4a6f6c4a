"""The training benchmarks' own parts: contestants get the same work, and what is off is off. Nothing is timed."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from bench import worker
from bench.generation import PEER
from bench.half_flat import HalfFlatPlan, is_flat
from swarmd.config import SwarmConfig
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.training.sampling.generation import Sampler
from swarmd.training.trainer import SwarmTrainer


def test_half_of_the_groups_are_flat_whoever_scores_them() -> None:
    plan = HalfFlatPlan(SwarmConfig(id="bench", coordinator=PEER))
    questions = list(islice(plan.draw(StageId(PEER, 0, 0), NO_MATERIAL), 400))
    flat = [question for question in questions if is_flat(question)]
    assert 150 < len(flat) < 250
    texts = [f"<answer>{number}</answer>" for number in range(8)]
    for question in questions[:20]:
        together = [score.reward for score in plan.score(question, texts)]
        assert together == [plan.score(question, [text])[0].reward for text in texts], "TRL's side asks one by one"
        assert len(set(together)) == (1 if is_flat(question) else 8)


def test_parts_of_the_worker_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "shares_prefill", Sampler.shares_prefill)  # put back afterwards, with the others
    monkeypatch.setattr(SwarmTrainer, "_packs", SwarmTrainer._packs)
    monkeypatch.setattr(SwarmTrainer, "_drop_flat_groups", SwarmTrainer._drop_flat_groups)
    for switch_off in worker.PARTS.values():
        switch_off()
    assert Sampler.shares_prefill.fget(None) is False  # type: ignore[attr-defined]
    assert SwarmTrainer._packs is False
    batch = {"advantages": torch.zeros(8)}
    assert SwarmTrainer._drop_flat_groups(None, batch) is batch  # type: ignore[arg-type]
