"""Training with a KL term: the reference is the model the node began with, wherever it is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from swarmd.bounds import Backoff
from swarmd.config import LoraConfig, ReferenceConfig, TrainingConfig
from swarmd.errors import ConfigError, ReferenceFailed
from swarmd.training.batches.corroborate import DOUBT_KEY, PEER_KEY
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.kl import REFERENCE_KEY, FrozenCopy, make_reference
from swarmd.training.reference import client
from swarmd.training.reference.scoring import ReferenceScorer, load_frozen
from swarmd.training.sampling.generation import pad_left
from tests.training.conftest import order
from tests.training.reference.conftest import TOKEN, Serving, some_batch
from tests.training.test_trainer import batch_of

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
        DOUBT_KEY: torch.zeros_like(made["mask"], dtype=torch.bool),
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


def weights_of(engine: TrainingEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in engine.policy.model.state_dict().items()}


def train(engine: TrainingEngine, rounds: int = 1, first: int = 0) -> dict[str, torch.Tensor]:
    for round in range(first, first + rounds):
        engine.train(order(round), Cancellation())
    return weights_of(engine)


def check_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, atol=1e-5, rtol=1e-4)


def sampled_batch(engine: TrainingEngine) -> dict[str, Any]:
    """Held-out questions with completions that the policy draws, padded as TRL does."""
    questions = [question for task in engine._plan.tasks for question in engine._plan.hold_out(task, 32)]
    prompts = [engine.policy.encode_prompt(question.messages) for question in questions]
    drawn = engine._sampler.sample(prompts, 1, 10, 1.0, torch.Generator().manual_seed(0), Cancellation())
    pad, keep = engine.policy.tokenizer.pad_token_id, max(map(len, drawn))
    ids, mask = pad_left(prompts, pad, "cpu")
    rest = torch.tensor([tokens + [pad] * (keep - len(tokens)) for tokens in drawn])
    kept = torch.tensor([[1] * len(tokens) + [0] * (keep - len(tokens)) for tokens in drawn])
    return {"ids": torch.cat([ids, rest], 1), "mask": torch.cat([mask, kept], 1), "keep": keep}


def divergence(engine: TrainingEngine, reference: ReferenceScorer) -> float:
    """Mean of TRL's estimate of the KL divergence, over completions of the policy itself."""
    batch = sampled_batch(engine)
    with torch.no_grad():
        model = engine._trainer.model
        own = GRPOTrainer._get_per_token_logps_and_entropies(
            engine._trainer, model, batch["ids"], batch["mask"], batch["keep"]
        )[0]
    difference = reference.log_probabilities(**batch) - own
    kept = batch["mask"][:, -batch["keep"] :].bool()
    return float((difference.exp() - difference - 1)[kept].mean())


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


def test_the_term_holds_the_policy_near_the_reference(make_engine: MakeEngine, embedded: ReferenceScorer) -> None:
    settings: dict[str, Any] = {"steps": 12, "learning_rate": 1e-3} | QUICK
    free, held = make_engine("a", **settings), make_engine("b", beta=2.0, **settings)
    held._peer = "a"
    for engine in (free, held):
        train(engine)
    assert 0 < divergence(held, embedded) < divergence(free, embedded) / 2


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
    torch.testing.assert_close(reference.log_probabilities(**batch), embedded.log_probabilities(**batch))
    check_same(train(restarted, first=1), before)
    torch.testing.assert_close(reference.log_probabilities(**batch), embedded.log_probabilities(**batch))


def test_trl_is_given_the_references_log_probabilities(make_engine: MakeEngine, embedded: ReferenceScorer) -> None:
    trainer = make_engine("a", beta=BETA)._trainer
    assert trainer.beta == BETA and trainer.args.beta == 0
    batch = batch_of(embedded.frozen.vocabulary)
    batch.pop("mask")
    got, entropies, loss = trainer._get_per_token_logps_and_entropies(trainer.ref_model, **batch, batch_size=4)
    expected = embedded.log_probabilities(batch["input_ids"], batch["attention_mask"], batch["logits_to_keep"])
    torch.testing.assert_close(got, expected)
    assert (entropies, loss) == (None, None)


def test_flat_groups_stay_where_there_is_a_term(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their advantages are zero, their KL gradient is not."""
    seen: dict[float, set[int]] = {}
    inner = GRPOTrainer._compute_loss

    def watch(trainer: Any, model: Any, inputs: dict[str, Any]) -> Any:
        seen.setdefault(trainer.beta, set()).add(len(inputs["advantages"]))
        return inner(trainer, model, inputs)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", watch)
    flat: dict[str, Any] = {"completion_tokens": 1, "format_reward": 0.0} | QUICK
    for peer, beta in (("a", 0.0), ("b", BETA)):
        train(make_engine(peer, beta=beta, **flat))
    assert seen[BETA] == {16} and max(seen[0.0]) < 16


def test_a_server_that_is_away_fails_the_stage_and_the_next_try_succeeds(
    make_engine: MakeEngine, serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    engine = make_engine("a", beta=BETA, reference=ReferenceConfig(server.url), **QUICK)
    before = weights_of(engine)
    monkeypatch.setattr(client, "BACKOFF", Backoff(0.01, 0.01))
    server.reference.failures += [RuntimeError("away")] * client.ATTEMPTS_MAX
    with pytest.raises(ReferenceFailed, match="gave no log-probabilities"):
        engine.train(order(0), Cancellation())
    check_same(weights_of(engine), before)
    assert engine.train(order(0), Cancellation()).steps == 2


def test_no_term_costs_nothing(make_engine: MakeEngine, embedded: ReferenceScorer) -> None:
    engine = make_engine("a", reference=ReferenceConfig("http://127.0.0.1:9"), **QUICK)
    assert engine._trainer.ref_model is None and engine._trainer.beta == 0
    assert train(engine)


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
        beta=BETA,
        quantization="4bit",
        lora=LoraConfig(rank=4),
        reference=ReferenceConfig("http://127.0.0.1:9"),
    )
    with pytest.raises(ConfigError, match="quantised"):
        make_reference(policy, training, tmp_path, "a", Cancellation)


def test_a_token_that_others_may_read_is_refused(make_engine: MakeEngine, tmp_path: Path) -> None:
    policy = make_engine("a").policy
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    (tmp_path / "token").chmod(0o644)
    training = TrainingConfig(beta=BETA, reference=ReferenceConfig("http://127.0.0.1:9", "token"))
    with pytest.raises(ConfigError, match="chmod 600"):
        make_reference(policy, training, tmp_path, "a", Cancellation)


def test_a_copy_is_no_part_of_the_policy(make_engine: MakeEngine) -> None:
    engine = make_engine("a")
    copy = FrozenCopy(engine.policy, 1.0)
    batch = some_batch(ReferenceScorer(load_frozen(TrainingConfig())))
    before = copy.log_probabilities(**batch)
    with torch.no_grad():
        for parameter in engine.policy.model.parameters():
            parameter.mul_(1.5)
    assert torch.equal(copy.log_probabilities(**batch), before)


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
