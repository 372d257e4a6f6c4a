"""A mean of a peer's weights and the own ones is begun from where it is worse in nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from hypothesis import strategies as st

from swarmd.core.events import Event, WeightsAdopted, WeightsRefused
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.sampling.evaluation import Accuracy
from swarmd.training.weights.adopting import SHARES, find_worse, mix
from tests.training.conftest import order
from tests.training.weights.test_adopting import moved, place, scored, with_weights

Maker = Callable[..., TrainingEngine]
shares = st.floats(0.0, 1.0)


def by_task(questions: int = 64, **correct: float) -> dict[str, Accuracy]:
    return {task: Accuracy(share, 1.0, questions) for task, share in correct.items()}


@pytest.mark.parametrize("count", [torch.tensor([3]), torch.tensor([True])])
def test_what_is_no_floating_point_number_has_no_mean_and_stays(count: torch.Tensor) -> None:
    own, theirs = {"w": torch.tensor([0.0]), "n": count}, {"w": torch.tensor([8.0]), "n": torch.zeros_like(count)}
    mean = mix(own, theirs, 0.5)
    assert mean["w"].tolist() == [4.0] and torch.equal(mean["n"], count)


@pytest.mark.parametrize(
    ("found", "worse"),
    [
        (by_task(a=0.6, b=0.3), ""),
        (by_task(a=0.5, b=0.4), ""),  # by chance
        (by_task(a=0.3, b=0.9), "a is answered to 0.300"),  # what only this node can is not outvoted
        (by_task(a=0.53, b=0.22), "an accuracy of 0.375"),  # a little of each
    ],
)
def test_what_is_worse_beyond_chance_is_named(found: dict[str, Accuracy], worse: str) -> None:
    assert find_worse(by_task(a=0.6, b=0.3), {}, found).startswith(worse)
    assert bool(find_worse(by_task(a=0.6, b=0.3), {}, found)) == bool(worse)


def test_means_cannot_take_a_skill_little_by_little() -> None:
    """Each a little worse than the last, within chance: below the best by more than that, no more is given."""
    own, best, taken = 0.8, {"a": 0.8}, 0
    while not find_worse(by_task(a=own, b=0.5), best, by_task(a=own - 0.05, b=0.6)):
        own, taken = own - 0.05, taken + 1
    assert 0 < taken <= 3 and own > 0.64


@pytest.mark.parametrize(("found", "worse"), [(0.2, True), (0.25, True), (0.4, False)])
def test_who_is_below_its_best_takes_only_what_is_better_there_beyond_chance(found: float, worse: bool) -> None:
    """As good as now, by a lucky measurement, time and again would end in nothing."""
    assert bool(find_worse(by_task(a=0.2, b=0.5), {"a": 0.9}, by_task(a=found, b=0.6))) == worse


def train(engine: TrainingEngine, theirs: dict[str, torch.Tensor]) -> Event:
    """What the trainer says of a mean with these weights, in the stage that it trains all the same."""
    told: list[Event] = []
    weights = msgspec.structs.replace(place(engine, theirs), averaged=True)
    engine.train(with_weights(8, weights), Cancellation(), observe=told.append)
    assert len(told) == 1
    return told[0]


def shares_taken(engine: TrainingEngine, own: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> list[float]:
    """How much of theirs the engine has, by tensor."""
    now = engine.policy.trained_weights()
    pairs = [(now[name] - own[name], theirs[name].to(torch.bfloat16).to(own[name].dtype) - own[name]) for name in own]
    return [float(ours.norm() / most.norm()) for ours, most in pairs if most.norm() > 0]


@pytest.mark.parametrize(("found", "share"), [((0.5,), SHARES[0]), ((0.1, 0.5), SHARES[1]), ((0.1, 0.1), 0.0)])
def test_the_first_mean_that_is_no_worse_is_begun_from(
    make_engine: Maker, found: tuple[float, ...], share: float
) -> None:
    engine = make_engine("a", steps=1, learning_rate=1e-9)
    own, theirs = engine.policy.copy_weights(), moved(engine)
    scored(engine, 0.5, *found, 0.5)
    event = train(engine, theirs)
    assert isinstance(event, WeightsAdopted if share else WeightsRefused)
    assert (event.held_out_before, event.held_out) == (0.5, found[-1])
    if isinstance(event, WeightsRefused):
        assert (event.cause, event.peer) == ("worse", "them")
    assert shares_taken(engine, own, theirs) == pytest.approx([share] * len(own), abs=0.01)


def test_the_moments_stay_and_what_was_measured_is_not_measured_again(make_engine: Maker) -> None:
    engine = make_engine("a", steps=2, learning_rate=1e-9)
    left = scored(engine, 0.25, 0.5)
    engine.train(order(7), Cancellation())
    assert left == [0.5]
    scored(engine, 0.5, 0.75)
    event = train(engine, moved(engine))
    assert isinstance(event, WeightsAdopted) and (event.held_out_before, event.held_out) == (0.5, 0.5)
    assert (engine._pace.fresh_from, engine.steps) == (0, 4)
