"""Completions that are drawn while the step before is trained: with which weights, each once, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import torch

from swarmd.errors import SwarmError, TrainingDiverged
from swarmd.swarms.plan import Question, Score, decode_scored_groups
from swarmd.training import drawing_copy
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.engine import TrainingEngine
from swarmd.training.sampling import SampledTokens, Sampler, SamplingRequest
from swarmd.training.stage import Stage
from tests.log_capture import capture_logs
from tests.training.conftest import order, train_stage

Maker = Callable[..., TrainingEngine]
STEPS = 4
PROMPT_S = 10.0  # for what must not wait for completions
LATE_S = 20.0  # longest time that a step takes


@pytest.fixture
def make(make_engine: Maker) -> Maker:
    """Makes engines that have the same questions and draws, whatever their directory."""

    def make(peer: str = "a", **settings: Any) -> TrainingEngine:
        engine = make_engine(peer, **{"steps": STEPS, "held_out_questions": 0, "overlap": 1, **settings})
        engine._peer = "a"
        return engine

    return make


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No thread outlives its stage, and torch computes with as many threads as before."""
    threads = torch.get_num_threads()
    yield
    assert not [each.name for each in threading.enumerate() if each.name.startswith("drawing")]
    assert torch.get_num_threads() == threads


def in_drawing_thread() -> bool:
    return threading.current_thread().name.startswith("drawing")


def test_each_group_is_drawn_one_step_ahead_and_trained_once(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn ahead waits here until the step has changed the weights."""
    engine = make(learning_rate=1e-2, warmup_steps=0)
    begun: list[dict[str, torch.Tensor]] = []  # weights with which each step begins
    drawn: list[tuple[bool, dict[str, torch.Tensor], list[list[int]]]] = []
    batches: list[list[list[int]]] = []
    sample, next_batch = Sampler.sample, Stage.next_batch

    def draw_late(sampler: Sampler, *given: Any) -> list[SampledTokens]:
        deadline = time.monotonic() + LATE_S
        while in_drawing_thread() and engine.steps < len(batches) and time.monotonic() < deadline:
            time.sleep(0.01)
        completions = sample(sampler, *given)
        drawn.append((in_drawing_thread(), copy_weights(sampler._model), [each.tokens for each in completions]))
        return completions

    def keep_batch(stage: Stage) -> dict[str, Any]:
        begun.append(copy_weights(engine.policy.model))
        batch = next_batch(stage)
        batches.append(batch["completion_ids"])
        return batch

    monkeypatch.setattr(Sampler, "sample", draw_late)
    monkeypatch.setattr(Stage, "next_batch", keep_batch)
    event = train_stage(engine, 0)
    assert [ahead for ahead, _, _ in drawn] == [False, True, True, True]
    for (_, copied, completions), step, batch in zip(drawn, (0, 0, 1, 2), batches, strict=True):
        assert all(torch.equal(weight, begun[step][name]) for name, weight in copied.items())
        assert any(not torch.equal(weight, begun[step + 1][name]) for name, weight in copied.items())
        assert sorted(batch) == sorted(completions)
    assert event.staleness == 1 and event.tokens == sum(len(each) for _, _, rows in drawn for each in rows)
    monkeypatch.undo()
    for place, each in enumerate((event, train_stage(engine, 1))):
        told = {group.steps - STEPS * place for group in decode_scored_groups(engine._blobs.get(each.scored))}
        assert told and told <= {0, 1, 2}


def test_what_is_measured_after_the_last_step_is_what_was_trained(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(held_out_questions=4, learning_rate=1e-2, warmup_steps=0)
    measured: list[dict[str, torch.Tensor]] = []
    draw = Sampler._draw_completions

    def record(sampler: Sampler, wanted: SamplingRequest) -> list[SampledTokens]:
        if engine.steps == STEPS:
            measured.append(copy_weights(sampler._model))
        return draw(sampler, wanted)

    monkeypatch.setattr(Sampler, "_draw_completions", record)
    train_stage(engine, 0)
    trained = copy_weights(engine.policy.model)
    assert measured and all(torch.equal(trained[name], each[name]) for each in measured for name in trained)


def copy_weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_what_is_drawn_does_not_depend_on_how_fast(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drawing thread is the slower one in one run, the training one in the other."""
    draw = Sampler._draw_completions

    def draw_slowly(sampler: Sampler, wanted: SamplingRequest) -> list[SampledTokens]:
        time.sleep(0.2)
        return draw(sampler, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "_draw_completions", draw_slowly)
        one = make("a")
        first = train_stage(one, 0)
    other = make("b")
    compute = other._trainer.compute_loss

    def compute_slowly(*given: Any) -> Any:
        time.sleep(0.2)
        return compute(*given)

    monkeypatch.setattr(other._trainer, "compute_loss", compute_slowly)
    second = train_stage(other, 0)
    untimed = {"seconds": 0, "times": None}
    assert msgspec.structs.replace(first, **untimed) == msgspec.structs.replace(second, **untimed)
    assert one.policy.digest_current_weights() == other.policy.digest_current_weights()


def test_without_overlap_nothing_is_drawn_ahead(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the first step of a stage, which nothing trains before, is drawn and trained alike with and without."""
    events = [train_stage(make(peer, overlap=overlap, steps=1), 0) for peer, overlap in (("a", 0), ("b", 1))]
    assert events[0].rollouts == events[1].rollouts and events[0].tokens == events[1].tokens
    assert [event.staleness for event in events] == [0, 0]
    monkeypatch.setattr(Stage, "draw_ahead", None)
    monkeypatch.setattr(Sampler, "freeze", None)
    engine = make("c", overlap=0)
    assert train_stage(engine, 0).staleness == 0 and engine._sampler._copy is None


def test_the_loss_corrects_for_the_step_between(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(learning_rate=1e-2, warmup_steps=0)
    differences: list[float] = []

    def log(_: int, figures: dict[str, float]) -> None:
        if "sampling/sampling_logp_difference/mean" in figures:
            differences.append(figures["sampling/sampling_logp_difference/mean"])

    monkeypatch.setattr(engine.trackers, "log", log)
    train_stage(engine, 0)
    assert len(differences) == STEPS and differences[0] < 1e-4 < 1e-2 < min(differences[1:])


def test_figures_of_a_step_are_those_of_its_own_batch(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[int, list[float]] = {}
    for overlap in (0, 1):
        engine = make("ab"[overlap], overlap=overlap, learning_rate=0.0)
        rewards = logged[overlap] = []

        def log(_: int, figures: dict[str, float], rewards: list[float] = rewards) -> None:
            rewards.extend([figures["step/reward"]] if "step/reward" in figures else [])

        monkeypatch.setattr(engine.trackers, "log", log)
        train_stage(engine, 0)
    assert len(logged[0]) == STEPS and logged[1] == logged[0], "with a rate of 0 the weights are always the same"


def test_what_fails_while_drawing_ahead_ends_the_stage_with_its_own_error(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    train_stage(engine, 0)
    before = engine.policy.digest_current_weights()
    score = engine._plan.score

    def fail(question: Question, completions: Sequence[str]) -> Sequence[Score]:
        if in_drawing_thread():
            raise SwarmError("the judge is not at home", "Ring later")
        return score(question, completions)

    with monkeypatch.context() as patch:
        patch.setattr(engine._plan, "score", fail)
        with pytest.raises(SwarmError, match="not at home"):
            train_stage(engine, 1)
    assert engine.policy.digest_current_weights() == before and engine.steps == STEPS
    assert train_stage(engine, 1).staleness == 1, "the next one is trained in the same process"


def draw_for_ever(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Have drawing ahead end only by a cancellation. Returns what is set when it has begun."""
    draw, begun = Sampler._draw_completions, threading.Event()

    def draw_on(sampler: Sampler, wanted: SamplingRequest) -> list[SampledTokens]:
        while in_drawing_thread():
            begun.set()
            wanted.cancellation.raise_if_requested()
            time.sleep(0.01)
        return draw(sampler, wanted)

    monkeypatch.setattr(Sampler, "_draw_completions", draw_on)
    return begun


def test_a_cancellation_does_not_wait_for_what_is_drawn_ahead(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, cancellation = make(), Cancellation()
    before = engine.policy.digest_current_weights()
    begun = draw_for_ever(monkeypatch)
    threading.Thread(target=lambda: begun.wait() and cancellation.request()).start()
    started = time.monotonic()
    with pytest.raises(Cancelled):
        engine.train(order(0), cancellation)
    assert (
        time.monotonic() - started < PROMPT_S and engine.policy.digest_current_weights() == before and engine.steps == 0
    )
    monkeypatch.undo()
    assert train_stage(engine, 0).steps == STEPS


def test_a_step_that_fails_gives_up_what_is_drawn_ahead(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    draw_for_ever(monkeypatch)
    cleared = "swarmd.training.trainer.clear_zero_variance_advantages"
    monkeypatch.setattr(cleared, lambda advantages, *_: advantages * torch.nan)
    started = time.monotonic()
    with pytest.raises(TrainingDiverged):
        train_stage(engine, 0)
    assert time.monotonic() - started < PROMPT_S
    monkeypatch.undo()
    assert train_stage(engine, 0).staleness == 1


def test_without_room_for_a_copy_nothing_is_drawn_ahead_which_is_told(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing_copy, "ROOM_SHARE", 0.0)
    with capture_logs() as logs:
        engine = make()
    assert [each["event"] for each in logs if "nothing is drawn ahead" in each["event"]]
    assert train_stage(engine, 0).staleness == 0
