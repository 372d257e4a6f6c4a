"""Training with a KL term: the reference is the model the node began with, wherever it is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmd.bounds import Backoff
from swarmd.config import LoraConfig, ReferenceConfig, TrainingConfig
from swarmd.errors import ConfigError, ReferenceFailed
from swarmd.training import kl
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.kl import REFERENCE_KEY, make_reference
from swarmd.training.masking import DRAWN_KEY, PEER_KEY, UNTRUSTED_KEY
from swarmd.training.reference.scoring import ReferenceScorer
from tests.training.conftest import train_stage
from tests.training.reference.conftest import TOKEN, Serving, batch_of, some_batch

MakeEngine = Callable[..., TrainingEngine]
BETA = 0.5
QUICK: dict[str, Any] = {"held_out_questions": 0, "peer_questions": 0}


def make_pass(trainer: Any) -> dict[str, Any]:
    """Part of a batch as TRL's loss takes it; all completions are a peer's."""
    made = batch_of(trainer.model.config.vocab_size, group=4)
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
        UNTRUSTED_KEY: torch.zeros_like(made["mask"], dtype=torch.bool),
        DRAWN_KEY: torch.full(made["mask"].shape, torch.nan),
    }


def measure_now(trainer: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Log-probabilities under the policy as it is."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    with torch.no_grad():
        measured: torch.Tensor = trainer._compute_logps(trainer.model, ids, mask, batch["completion_ids"].size(1))[0]
    return measured


def gradients(trainer: Any, batch: dict[str, Any], loss: Any) -> list[torch.Tensor]:
    trainer.model.zero_grad()
    loss(trainer.model, batch).backward()
    return [weight.grad.clone() for weight in trainer.model.parameters()]


def check_close(ours: list[torch.Tensor], theirs: list[torch.Tensor], share: float) -> None:
    """The difference is at most so large a share of what there is."""
    difference = sum(float((a - b).square().sum()) for a, b in zip(ours, theirs, strict=True)) ** 0.5
    size = sum(float(b.square().sum()) for b in theirs) ** 0.5
    assert size > 0 and difference <= share * size


def train(engine: TrainingEngine, rounds: int = 1, first: int = 0) -> dict[str, torch.Tensor]:
    for round in range(first, first + rounds):
        train_stage(engine, round)
    return engine.policy.copy_weights()


def check_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, atol=1e-5, rtol=1e-4)


def test_a_server_and_a_copy_in_the_process_train_the_same(
    make_engine: MakeEngine, serve: Callable[..., Serving], tmp_path: Path
) -> None:
    server = serve(token=TOKEN)
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="utf-8")
    token.chmod(0o600)
    settings = {"temperature": 0.8, "learning_rate": 1e-2, "steps": 3} | QUICK
    there = ReferenceConfig(server.url, str(token))
    engines = [
        make_engine("a", beta=BETA, **settings),
        make_engine("b", beta=BETA, reference=there, **settings),
        make_engine("c", **settings),
    ]
    for engine in engines:
        engine._peer = "a"  # the same questions and draws
    copied, served, free = map(train, engines)
    check_same(served, copied)
    assert server.reference.count == 3  # one job a step
    assert any((free[name] - tensor).abs().max() > 1e-4 for name, tensor in copied.items())


def test_the_reference_is_the_first_model_in_every_life_of_a_node(
    make_engine: MakeEngine, embedded: ReferenceScorer
) -> None:
    settings: dict[str, Any] = {"beta": BETA, "learning_rate": 1e-2} | QUICK
    whole = make_engine("a", **settings)
    before = train(whole, rounds=2)
    again = make_engine("b", **settings)
    again._peer = "a"
    train(again)
    restarted = make_engine("b", **settings)  # finds the checkpoint of the first round
    restarted._peer = "a"
    assert restarted.steps == 2
    batch = some_batch(embedded)
    reference = restarted._trainer.ref_model
    torch.testing.assert_close(reference(**batch), embedded.log_probabilities(**batch))
    check_same(train(restarted, first=1), before)
    torch.testing.assert_close(reference(**batch), embedded.log_probabilities(**batch))


def test_a_server_that_is_away_fails_the_stage_and_the_next_try_succeeds(
    make_engine: MakeEngine, serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    engine = make_engine("a", beta=BETA, reference=ReferenceConfig(server.url), **QUICK)
    before = engine.policy.copy_weights()
    monkeypatch.setattr(kl, "BACKOFF", Backoff(0.01, 0.01))
    server.reference.failures += [RuntimeError("away")] * kl.ATTEMPTS_MAX
    with pytest.raises(ReferenceFailed, match="gave no log-probabilities"):
        train_stage(engine, 0)
    check_same(engine.policy.copy_weights(), before)
    assert train_stage(engine, 0).steps == 2


def test_adapters_are_switched_off_for_the_reference(make_engine: MakeEngine, embedded: ReferenceScorer) -> None:
    pytest.importorskip("peft")
    engine = make_engine("a", beta=BETA, lora=LoraConfig(rank=4), learning_rate=1e-2, **QUICK)
    assert engine._trainer.ref_model is None
    assert engine.policy.frozen_digest == embedded.digest  # what a server is asked for
    seen: list[float] = []
    inner = engine._trainer._compute_loss

    def watch(model: Any, inputs: dict[str, Any]) -> Any:
        mask = inputs["completion_mask"]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        expected = embedded.log_probabilities(ids, torch.cat([inputs["prompt_mask"], mask], 1), mask.size(1))
        seen.append(float(((inputs["ref_per_token_logps"] - expected) * mask).abs().max()))
        return inner(model, inputs)

    engine._trainer._compute_loss = watch
    train(engine, rounds=2)
    assert len(seen) == 4 and max(seen) < 1e-3


def test_a_quantised_policy_has_no_server(make_engine: MakeEngine, tmp_path: Path) -> None:
    policy = make_engine("a").policy
    training = TrainingConfig(
        beta=BETA, quantization="4bit", lora=LoraConfig(rank=4), reference=ReferenceConfig("http://127.0.0.1:9")
    )
    with pytest.raises(ConfigError, match="quantised"):
        make_reference(policy, training, tmp_path, "a", Cancellation)


@pytest.mark.parametrize("gap", [25.0, 200.0])
def test_text_that_the_reference_alone_would_write_pulls_no_harder_than_ten_nats(
    make_engine: MakeEngine, gap: float
) -> None:
    """One token of a peer's wrong completion, of which nothing else counts."""
    trainer: Any = make_engine(beta=0.001, **QUICK)._trainer
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = make_pass(trainer)
    now = measure_now(trainer, batch)
    batch["advantages"] = torch.zeros(len(now))

    def pull(gap: float) -> list[torch.Tensor]:
        reference = now.clone()
        reference[0, 1] += gap
        return gradients(trainer, {**batch, REFERENCE_KEY: reference}, trainer._compute_loss)

    check_close(pull(gap), [10 * gradient for gradient in pull(1.0)], 0.01)
