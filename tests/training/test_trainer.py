"""What is changed in TRL: packed passes, and flat groups left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from swarmd.swarms.plan import Score
from swarmd.training import trainer as subject
from swarmd.training.engine import TrainingEngine
from swarmd.training.masking import clear_zero_variance_advantages
from swarmd.training.packed import compute_packed_logps
from swarmd.training.trainer import count_informative, drop_zero_variance_groups
from tests.training.conftest import train_stage
from tests.training.test_packed import make_rows


@pytest.mark.parametrize("name", ["embedded", "llama"])
def test_packed_passes_change_nothing(make_engine: Callable[..., TrainingEngine], llama: Path, name: str) -> None:
    """Against TRL's own computation, on models that swarmd loads."""
    settings = {} if name == "embedded" else {"model": str(llama), "prompt_tokens": 500}
    trainer = make_engine(temperature=0.7, **settings)._trainer
    ids, mask, keep = make_rows([6, 2, 4], [[5, 1, 3, 2], [2, 5, 5, 1], [4, 4, 1, 3]])
    assert trainer._is_packing_usable(ids, mask, keep)
    written = mask[:, -keep:].bool()
    weights = torch.randn(written.shape)
    results = []
    for compute in (
        lambda: GRPOTrainer._get_per_token_logps_and_entropies(trainer, trainer.model, ids, mask, keep, None, True)[:2],
        lambda: compute_packed_logps(trainer.model, ids, mask, keep, trainer.temperature),
    ):
        trainer.model.zero_grad()
        logs, entropies = compute()
        (logs * weights)[written].sum().backward()
        gradients = [parameter.grad.clone() for parameter in trainer.model.parameters()]
        results.append((logs[written].detach(), entropies[written].detach(), gradients))
    (logs, entropies, gradients), (packed_logs, packed_entropies, packed_gradients) = results
    torch.testing.assert_close(packed_logs, logs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(packed_entropies, entropies, atol=1e-4, rtol=1e-4)
    for ours, theirs in zip(packed_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("fault", ["wrong", "raises", "slow"])
def test_a_model_that_cannot_be_packed_is_left_to_trl(
    make_engine: Callable[..., TrainingEngine], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def broken(*args: Any) -> Any:
        if fault == "raises":
            raise ValueError("no such attention")
        if fault == "slow":
            time.sleep(2.0)
        logs, entropies = compute_packed_logps(*args)
        return logs + 0.5 * (fault == "wrong"), entropies

    monkeypatch.setattr(subject, "compute_packed_logps", broken)
    monkeypatch.setattr(subject, "SLOWER_MAX", 2.0)
    engine = make_engine()
    event = train_stage(engine, 0)
    assert engine._trainer._packs is False and event.steps == 2
    ids, mask, keep = make_rows([6, 2], [[5, 1], [2, 5]])
    plain = GRPOTrainer._get_per_token_logps_and_entropies(engine._trainer, engine._trainer.model, ids, mask, keep)[0]
    torch.testing.assert_close(
        engine._trainer._get_per_token_logps_and_entropies(engine._trainer.model, ids, mask, keep)[0], plain
    )


def scored(advantages: list[list[float]]) -> dict[str, Any]:
    flat = torch.tensor(advantages).flatten()
    lengths = torch.arange(1, len(flat) + 1)
    return {
        "advantages": flat,
        "completion_mask": (torch.arange(40)[None] < lengths[:, None]).long(),
        "completion_ids": torch.arange(len(flat))[:, None],
        "num_items_in_batch": lengths.sum(),
        "old": None,
    }


def test_flat_groups_leave_the_batch() -> None:
    kept = drop_zero_variance_groups(scored([[0, 0], [1, -1], [0, 0], [-1, 1]]), 2, 1)
    assert kept["completion_ids"].flatten().tolist() == [2, 3, 6, 7]
    assert kept["advantages"].tolist() == [1, -1, -1, 1]
    assert int(kept["num_items_in_batch"]) == 3 + 4 + 7 + 8
    assert kept["old"] is None


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
@pytest.mark.parametrize("informative", range(5))
def test_what_is_left_splits_evenly(informative: int, chunks: int) -> None:
    groups = [[1.0, -1.0]] * informative + [[0.0, 0.0]] * (4 - informative)
    left = drop_zero_variance_groups(scored(groups), 2, chunks)["advantages"]
    assert len(left) % chunks == 0
    assert max(2 * informative, chunks) <= len(left) < max(2 * informative, chunks) + chunks
    assert int((left > 0).sum()) == informative


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_equal_rewards_of_any_size_teach_nothing(
    make_engine: Callable[..., TrainingEngine], monkeypatch: pytest.MonkeyPatch, beta: float
) -> None:
    """Eight rewards of 1.2 have a mean in float32 that is off by a bit: TRL's advantages are not 0."""
    engine = make_engine(steps=3, generations=8, beta=beta, held_out_questions=0)
    monkeypatch.setattr(engine._plan, "score", lambda question, texts: [Score(1.2) for _ in texts])
    weighed: list[dict[str, Any]] = []
    told = engine._trainer._compute_loss

    def look(model: Any, batch: dict[str, Any]) -> Any:
        weighed.append(batch)
        return told(model, batch)

    monkeypatch.setattr(engine._trainer, "_compute_loss", look)
    before = {name: tensor.clone() for name, tensor in engine.policy.model.state_dict().items()}
    train_stage(engine, 0)
    assert len(weighed) == 3
    for batch in weighed:
        assert not batch["advantages"].any()
        assert len(batch["advantages"]) == (32 if beta else 1), "with a KL term they stay, else one for TRL's sake"
    if not beta:
        assert all(torch.equal(tensor, before[name]) for name, tensor in engine.policy.model.state_dict().items())


@pytest.mark.parametrize("group", [5, 6, 7, 8, 10, 12, 16])
@pytest.mark.parametrize("reward", [0.1, 0.2, 0.7, 1.2, 1.3])
def test_a_telling_group_beside_flat_ones_keeps_what_trl_gave_it(group: int, reward: float) -> None:
    rewards = torch.tensor([reward] * 3 * group)
    rewards[group] += 1.0
    spread = rewards.view(3, group)
    given = ((spread - spread.mean(1, keepdim=True)) / (spread.std(1, keepdim=True) + 1e-4)).flatten()
    silenced = clear_zero_variance_advantages(
        given, [reward] * group + [reward + 1.0] + [reward] * (2 * group - 1), group
    )
    assert torch.equal(silenced[group : 2 * group], given[group : 2 * group])
    assert count_informative({"advantages": silenced}, group) == group
