"""Log-probabilities equal what TRL computes and what a plain forward pass gives, however a batch is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from swarmd.config import TrainingConfig
from swarmd.training.engine import TrainingEngine
from swarmd.training.reference import scoring
from swarmd.training.reference.scoring import ReferenceScorer, load_reference
from tests.training.reference.conftest import batch_of


def forward(reference: ReferenceScorer, ids: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of all tokens but the first, by one plain forward pass."""
    logits = reference.model(ids).logits[:, :-1].float() / temperature
    return logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)


def test_they_are_those_of_a_plain_forward_pass(embedded: ReferenceScorer) -> None:
    ids = torch.randint(0, embedded.vocabulary_size, (5, 12))
    got = embedded.log_probabilities(ids, torch.ones_like(ids), 7, 0.8)
    torch.testing.assert_close(got, forward(embedded, ids, 0.8)[:, -7:], atol=1e-5, rtol=1e-5)


def check_like_trl(engine: TrainingEngine, reference: ReferenceScorer) -> None:
    batch = batch_of(reference.vocabulary_size, prompts=5)
    mask = batch.pop("mask")
    trainer = engine._trainer
    with torch.no_grad():
        expected = GRPOTrainer._get_per_token_logps_and_entropies(trainer, trainer.model, **batch)[0]
    got = reference.log_probabilities(batch["input_ids"], batch["attention_mask"], 5, trainer.temperature)
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], atol=1e-4, rtol=1e-4)
    assert not got[~mask.bool()].any()


def test_they_are_those_of_trl(
    embedded: ReferenceScorer, make_engine: Callable[..., TrainingEngine], llama: Path
) -> None:
    check_like_trl(make_engine("embedded", temperature=0.7), embedded)
    reference = load_reference(TrainingConfig(model=str(llama)))
    check_like_trl(make_engine("llama", model=str(llama), prompt_tokens=500), reference)


@pytest.mark.parametrize(("tokens", "logits"), [(1, 1 << 30), (1 << 20, 1), (30, 1 << 30), (1 << 20, 8000)])
def test_how_a_batch_is_cut_changes_nothing(
    embedded: ReferenceScorer, tokens: int, logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(embedded.vocabulary_size, prompts=4)
    arguments = batch["input_ids"], batch["attention_mask"], 5
    whole = embedded.log_probabilities(*arguments)
    monkeypatch.setattr(scoring, "BATCH_TOKENS_MAX", tokens)
    monkeypatch.setattr(scoring, "BATCH_LOGITS_MAX", logits)
    sizes: list[int] = []
    embedded.model.register_forward_pre_hook(
        lambda model, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    torch.testing.assert_close(embedded.log_probabilities(*arguments), whole, atol=1e-5, rtol=1e-5)
    assert len(sizes) > 2
