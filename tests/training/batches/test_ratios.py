"""Foreign completions weighed by the probabilities under which they were drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.grpo_trainer import GRPOTrainer

from swarmd.config import PeerLoss
from swarmd.swarms.rollouts import pack_logprobs, unpack_logprobs
from swarmd.training.batches.corroborate import DOUBT_KEY, PEER_KEY
from swarmd.training.batches.objective import FOREIGN_KEY, weigh_foreign
from swarmd.training.batches.ratios import (
    GAP_MAX,
    LOGPROB_KEY,
    RatioSums,
    Weighing,
    find_known,
    mark_logprobs,
    scale_gradient,
    weigh_tokens,
)
from swarmd.training.engine import TrainingEngine
from tests.training.test_trainer import batch_of

GROUP = 4
numbers = st.floats(-8, 0, width=32)


@pytest.fixture
def trainer(make_engine: Callable[..., TrainingEngine]) -> Any:
    """A real trainer with the embedded model, within a step."""
    trainer = make_engine(peer_tokens="all", held_out_questions=0)._trainer
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def make_pass(trainer: Any) -> dict[str, Any]:
    """Part of a batch as TRL's loss takes it; all completions are a peer's."""
    made = batch_of(trainer.model.config.vocab_size, group=GROUP)
    width = made["input_ids"].size(1) - made["logits_to_keep"]
    torch.manual_seed(3)
    return {
        "prompt_ids": made["input_ids"][:, :width],
        "prompt_mask": made["attention_mask"][:, :width],
        "completion_ids": made["input_ids"][:, width:],
        "completion_mask": made["mask"],
        "advantages": torch.randn(len(made["mask"])),
        "num_items_in_batch": made["mask"].sum(),
        PEER_KEY: torch.ones(len(made["mask"]), dtype=torch.long),
        DOUBT_KEY: torch.zeros_like(made["mask"], dtype=torch.bool),
    }


def measure_now(trainer: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Log-probabilities under the policy as it is."""
    rows = torch.arange(len(batch["advantages"]))
    measured: torch.Tensor = trainer._measure_rows(batch, rows)
    return measured


def gradients(trainer: Any, batch: dict[str, Any], loss: Any) -> list[torch.Tensor]:
    trainer.model.zero_grad()
    loss(trainer.model, batch).backward()
    return [weight.grad.clone() for weight in trainer.model.parameters()]


def weighed_gradients(trainer: Any, batch: dict[str, Any], drawn: torch.Tensor, kind: PeerLoss) -> list[torch.Tensor]:
    """Gradients of the trainer's own loss where all completions were drawn under these log-probabilities."""
    trainer.peer_loss = kind
    foreign = torch.ones(len(drawn), dtype=torch.bool)
    marked = {**batch, LOGPROB_KEY: drawn, FOREIGN_KEY: foreign}
    weighed = weigh_foreign(marked, kind, 0.0, lambda *_: torch.zeros(0))
    return gradients(trainer, weighed, trainer._compute_loss)


def plain_gradients(trainer: Any, batch: dict[str, Any]) -> list[torch.Tensor]:
    """TRL's own, on-policy."""
    return gradients(trainer, batch, lambda model, part: GRPOTrainer._compute_loss(trainer, model, part))


def check_close(ours: list[torch.Tensor], theirs: list[torch.Tensor], share: float) -> None:
    """The difference is at most so large a share of what there is."""
    difference = sum(float((a - b).square().sum()) for a, b in zip(ours, theirs, strict=True)) ** 0.5
    size = sum(float(b.square().sum()) for b in theirs) ** 0.5
    assert size > 0 and difference <= share * size


@pytest.mark.parametrize("kind", ["token-ratio", "sequence-ratio"])
def test_peers_with_this_nodes_own_policy_give_exactly_on_policy_grpo(trainer: Any, kind: PeerLoss) -> None:
    batch = make_pass(trainer)
    now = measure_now(trainer, batch)
    expected = plain_gradients(trainer, batch)
    check_close(weighed_gradients(trainer, batch, now, kind), expected, 1e-5)
    travelled = torch.tensor([unpack_logprobs(pack_logprobs(row)) for row in now.tolist()])
    check_close(weighed_gradients(trainer, batch, travelled, kind), expected, 5e-4)


def test_ratios_of_tokens_are_those_of_trls_correction_of_vllms_samples(trainer: Any) -> None:
    batch = make_pass(trainer)
    now = measure_now(trainer, batch)
    drawn = (now + torch.randn_like(now)).clamp(max=0)
    trainer.peer_ratio_max = 1.5
    ours = weighed_gradients(trainer, batch, drawn, "token-ratio")
    corrected = {**batch, "importance_sampling_ratio": (now - drawn).exp().clamp(max=1.5)}
    trainer.peer_loss, trainer.use_vllm, trainer.vllm_importance_sampling_correction = "as-is", True, True
    check_close(ours, plain_gradients(trainer, corrected), 1e-4)


def test_ratios_of_sequences_are_geometric_means_over_tokens_that_a_model_wrote() -> None:
    now, drawn = torch.tensor([[-1.0, -2.0, -9.0, -1.0]]), torch.tensor([[-1.5, -4.5, -1.0, -1.0]])
    batch = {
        "completion_mask": torch.tensor([[1, 1, 1, 0]]),
        "tool_mask": torch.tensor([[1, 1, 0, 1]]),
        LOGPROB_KEY: drawn,
    }
    assert factors(now, batch, "sequence-ratio", 100.0) == pytest.approx([torch.tensor(1.5).exp().item()] * 2 + [1, 1])
    assert factors(now, batch, "sequence-ratio", 2.0) == [2.0, 2.0, 1.0, 1.0]


def factors(now: torch.Tensor, batch: dict[str, Any], weighing: Weighing, most: float) -> list[float]:
    """With what each token's gradient is multiplied."""
    now = now.clone().requires_grad_()
    values, _ = weigh_tokens(now, batch, weighing, most)
    assert torch.equal(values, now), "the values are what they were"
    values.sum().backward()  # type: ignore[no-untyped-call]
    assert now.grad is not None
    return now.grad.flatten().tolist()


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8), st.floats(0.5, 4))
def test_no_ratio_counts_more_than_the_bound(drawn: list[tuple[float, float]], most: float) -> None:
    now, before = (torch.tensor([list(side)]) for side in zip(*drawn, strict=True))
    batch = {"completion_mask": torch.ones_like(now), LOGPROB_KEY: before}
    expected = (now - before).exp().clamp(max=most).flatten().tolist()
    assert factors(now, batch, "token-ratio", most) == pytest.approx(expected, rel=1e-4)
    _, sums = weigh_tokens(now, batch, "token-ratio", most)
    assert sums.tokens == len(drawn) and 0 <= sums.cut <= sums.tokens
    assert 0 < sums.effective_share <= 1 + 1e-9


def test_what_rounding_alone_puts_above_the_bound_is_not_told_as_cut() -> None:
    now = torch.tensor([[-0.3, -1.7, -2.2, -0.9, -3.1, -0.05]])
    batch = {"completion_mask": torch.ones_like(now)}
    cuts = []
    for distance in (0.0, 0.1):
        travelled = unpack_logprobs(pack_logprobs((now - distance)[0].tolist()))
        _, sums = weigh_tokens(now, {**batch, LOGPROB_KEY: torch.tensor([travelled])}, "token-ratio", 1.0)
        cuts.append(sums.cut)
    assert cuts == [0, 6]


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8))
def test_distilled_tokens_are_raised_up_to_what_their_writer_gave_them(drawn: list[tuple[float, float]]) -> None:
    now, before = (torch.tensor([list(side)]) for side in zip(*drawn, strict=True))
    batch = {"completion_mask": torch.ones_like(now), LOGPROB_KEY: before}
    expected = (before - now).clamp(0, GAP_MAX).flatten().tolist()
    assert factors(now, batch, "distill", 1.0) == pytest.approx(expected, abs=1e-5)


def test_tokens_whose_ratio_is_not_known_count_once() -> None:
    batch: dict[str, Any] = {"completion_ids": torch.zeros(3, 2), "advantages": torch.zeros(3)}
    mark_logprobs(batch, [{LOGPROB_KEY: [-1.0, -2.0]}, {}, {LOGPROB_KEY: []}])
    assert find_known(batch).tolist() == [True, False, False]
    batch["completion_mask"] = torch.ones(3, 2)
    now = torch.full((3, 2), -3.0)
    assert factors(now, batch, "token-ratio", 9.0) == pytest.approx(
        [torch.tensor(-2.0).exp().item(), torch.tensor(-1.0).exp().item(), 1, 1, 1, 1]
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token-ratio", [-1.0, 2.0, 0.0, 3.0, -2.0]),
        ("sequence-ratio", [-1.0, 2.0, 0.0, 3.0, -2.0]),
        ("distill", [0.0, 1.0, 0.0, 3.0, -2.0]),
        ("success-gated", [0.0, 2.0, 0.0, 3.0, -2.0]),
    ],
)
def test_without_log_probabilities_only_what_was_right_counts(kind: PeerLoss, expected: list[float]) -> None:
    """Two foreign completions with them, two without, and one of this node's own."""
    known = torch.tensor([[-1.0], [-1.0], [torch.nan], [torch.nan], [torch.nan]])
    batch = {
        "advantages": torch.tensor([-1.0, 2.0, -1.5, 3.0, -2.0]),
        FOREIGN_KEY: torch.tensor([True, True, True, True, False]),
        LOGPROB_KEY: known,
    }
    assert weigh_foreign(batch, kind, 0.0, lambda *_: torch.zeros(0))["advantages"].tolist() == expected


def test_the_effective_share_falls_where_few_tokens_carry_all() -> None:
    alike, unlike = RatioSums(4, 8.0, 16.0), RatioSums(4, 4.0, 16.0)
    assert (alike.effective_share, unlike.effective_share) == (1.0, 0.25)
    assert (RatioSums().mean, RatioSums().effective_share) == (1.0, 1.0)
    alike.add(unlike)
    assert (alike.tokens, alike.mean) == (8, 1.5)


def test_a_gradient_is_scaled_and_a_value_is_not() -> None:
    value = torch.tensor([0.1, -7.3], requires_grad=True)
    scaled = scale_gradient(value, torch.tensor([0.0, 3.0]))
    scaled.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(scaled, value) and value.grad is not None and value.grad.tolist() == [0.0, 3.0]
