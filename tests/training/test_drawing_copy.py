"""Drawing from a copy in bfloat16: it follows the policy, returns log-probabilities, and the loss corrects for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmd.config import LoraConfig, TrainingConfig
from swarmd.training import drawing_copy as subject
from swarmd.training.cancellation import Cancellation
from swarmd.training.drawing_copy import SamplingCopy, make_sampling_copy
from swarmd.training.engine import TrainingEngine
from swarmd.training.models import device
from swarmd.training.models.device import Precision, can_sample_in_bfloat16
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.sampling import Sampler
from tests.training.conftest import train_stage

PROMPTS = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]


@pytest.fixture(params=[0, 4])
def policy(request: pytest.FixtureRequest, llama: Path) -> Policy:
    return load_policy(TrainingConfig(model=str(llama), device="cpu", lora=LoraConfig(rank=request.param)))


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that is fast in bfloat16, and has small models drawn so, too."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(device, "LIGHT_PARAMETERS_MAX", 0)
    monkeypatch.setattr(subject, "FASTER", float("inf"))


@pytest.mark.parametrize("released", [False, True])
def test_the_copy_follows_what_is_trained(policy: Policy, released: bool) -> None:
    copy = SamplingCopy(policy)
    assert {weight.dtype for weight in copy.model.parameters()} == {torch.bfloat16}
    assert len(list(copy.model.parameters())) == len(list(policy.model.parameters()))  # tied ones stay tied
    trained = [weight for weight in policy.model.parameters() if weight.requires_grad]
    with torch.no_grad():
        for weight in trained:
            weight += 0.5
    if released:
        copy.release()
        assert not any(weight.numel() for weight in copy.model.parameters())
    copy.refresh()
    theirs = dict(copy.model.named_parameters())
    for name, weight in policy.model.named_parameters():
        assert torch.equal(theirs[name], weight.detach().bfloat16())
        assert weight.dtype == torch.float32


def test_a_copy_in_the_policys_own_dtypes_shares_what_is_not_trained(policy: Policy) -> None:
    copy = SamplingCopy(policy, is_short=False)
    theirs, before = dict(copy.model.named_parameters()), policy.copy_weights()
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            assert weight.requires_grad != (theirs[name] is weight)
            weight += weight.requires_grad
    assert policy.copy_weights().keys() == before.keys()
    for refreshed in (False, True):
        if refreshed:
            copy.release()
            copy.refresh()
        for name, weight in policy.model.named_parameters():
            assert torch.equal(theirs[name], weight) == (refreshed or not weight.requires_grad)
            assert theirs[name].dtype == weight.dtype


def test_each_token_comes_with_the_log_probability_that_it_was_drawn_by(policy: Policy) -> None:
    copy = SamplingCopy(policy)
    sampler = Sampler(policy, copy=copy)
    drawn = sampler.sample(PROMPTS, 2, 12, 0.7, torch.Generator().manual_seed(0), Cancellation())
    assert sampler.can_share_prefill and len(drawn) == 6
    for row, each in enumerate(drawn):
        ids = torch.tensor([PROMPTS[row // 2] + each.tokens])
        with torch.no_grad():
            logits = copy.model(input_ids=ids).logits[0, -len(each.tokens) - 1 : -1].float() / 0.7
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(each.tokens)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(each.logps), expected, atol=0.1)


def test_the_cache_is_tried_in_the_numbers_of_the_policy(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model in bfloat16 gives other logits with a cache than without, by its rounding alone."""
    monkeypatch.setattr("swarmd.training.sampling.SHORT_TOLERANCE", 0.0)
    assert Sampler(policy, copy=SamplingCopy(policy)).can_share_prefill


def test_what_the_policy_draws_itself_comes_without(policy: Policy) -> None:
    drawn = Sampler(policy).sample(PROMPTS, 2, 12, 1.0, torch.Generator(), Cancellation())
    assert not any(each.logps for each in drawn)


@pytest.mark.parametrize(
    ("settings", "numbers", "parameters", "expected"),
    [
        ({}, Precision("float32"), 1 << 30, True),
        ({}, Precision("float32"), 1 << 20, False),
        ({"dtype": "float32"}, Precision("float32"), 1 << 30, False),
        ({"processes": 2}, Precision("float32"), 1 << 30, False),
        ({}, Precision("float32", quantization="4bit"), 1 << 30, False),
    ],
)
def test_a_copy_is_made_where_it_may_serve(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, int | str],
    numbers: Precision,
    parameters: int,
    expected: bool,
) -> None:
    training = TrainingConfig(**settings)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert can_sample_in_bfloat16(training, "cpu", numbers, parameters) == expected
    assert not can_sample_in_bfloat16(training, "cuda", numbers, parameters), "not where passes are in float32"
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert not can_sample_in_bfloat16(training, "cpu", numbers, parameters)


@pytest.mark.parametrize(("name", "value"), [("FASTER", 0.0), ("DIVERGENCE_MAX", -1.0), ("ROOM_SHARE", 0.0)])
def test_a_copy_that_is_no_faster_or_another_distribution_is_not_used(
    able: None, policy: Policy, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    assert make_sampling_copy(policy, TrainingConfig()) is not None
    monkeypatch.setattr(subject, name, value)
    assert make_sampling_copy(policy, TrainingConfig()) is None
    assert policy.model.training


def test_a_stage_is_trained_on_what_the_copy_drew(
    able: None, make_engine: Callable[..., TrainingEngine], llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(model=str(llama), device="cpu", held_out_questions=0, learning_rate=1e-3)
    logged: dict[str, float] = {}
    monkeypatch.setattr(engine.trackers, "log", lambda _, figures: logged.update(figures))
    copy = engine._sampler._copy  # type: ignore[attr-defined]
    held: list[int] = []  # weights of the copy while gradients are computed
    compute_loss = engine._trainer.compute_loss

    def compute(*given: Any) -> Any:
        held.append(sum(weight.numel() for weight, _ in copy._pairs))
        return compute_loss(*given)

    monkeypatch.setattr(engine._trainer, "compute_loss", compute)
    event = train_stage(engine, 0)
    assert event.steps == 2
    assert logged["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=0.05)
    assert 0 < logged["sampling/sampling_logp_difference/mean"] < 0.1
    assert held and not any(held)
    copy.refresh()
    for shorter, weight in copy._pairs:
        assert torch.equal(shorter, weight.detach().bfloat16())
