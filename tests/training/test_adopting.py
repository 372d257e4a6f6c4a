"""A stage begins from a peer's weights only if they are better here, whatever the peer claims."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from swarmd.config import LoraConfig
from swarmd.core.commands import Train
from swarmd.core.events import Event, WeightsAdopted, WeightsRefused
from swarmd.core.values import PeerWeights
from swarmd.files import hash_file, make_directory
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.engine import TrainingEngine
from swarmd.training.evaluation import Accuracy
from swarmd.training.peer_weights import (
    SHARES,
    adopt_peer_weights,
    combine,
    digest_policy_architecture,
    explain_regression,
    write_announced,
)
from swarmd.weights.manifest import WeightsManifest
from swarmd.weights.tensors import read_tensors
from tests.training.conftest import order, train_stage
from tests.training.models.test_adapters import frozen, same
from tests.training.test_offering import offered
from tests.weights.making import write_raw

Maker = Callable[..., TrainingEngine]


def place(engine: TrainingEngine, weights: dict[str, torch.Tensor], **changes: Any) -> PeerWeights:
    """Write weights as the network worker does. Returns what the log says about them."""
    path = engine._peer_weights / "fetched"
    make_directory(path.parent)
    write_announced(weights, path)
    return settle(path, **changes)


def settle(path: Path, **changes: Any) -> PeerWeights:
    told = PeerWeights("them", 7, hash_file(path), path.stat().st_size, 1.0)
    path.rename(path.with_name(f"{told.digest}.safetensors"))
    return msgspec.structs.replace(told, **changes)


def scored(engine: TrainingEngine, *accuracies: float) -> list[float]:
    """Held-out accuracies that the engine finds, one after another; the last for ever. Returns those still to come."""
    left = list(accuracies)

    def measure(cancellation: Cancellation) -> dict[str, Accuracy]:
        return measured(left.pop(0) if len(left) > 1 else left[0])

    engine._measure_accuracy = measure  # type: ignore[method-assign]
    return left


def measured(accuracy: float) -> dict[str, Accuracy]:
    return {"all": Accuracy(accuracy, 1.0, 64)}


def with_weights(round: int, weights: PeerWeights) -> Train:
    return msgspec.structs.replace(order(round), weights=weights)


def start(engine: TrainingEngine, weights: PeerWeights) -> Event:
    """The trainer's event about the weights, in a stage that it trains in any case."""
    told: list[Event] = []
    trained = engine.train(with_weights(8, weights), Cancellation(), observe=told.append)
    assert trained.round == 8 and len(told) == 1
    return told[0]


def moved(engine: TrainingEngine) -> dict[str, torch.Tensor]:
    return {name: weight * 1.5 for name, weight in engine.policy.copy_weights().items()}


def test_better_weights_are_begun_from_and_the_claim_counts_for_nothing(make_engine: Maker) -> None:
    engine = make_engine("a", steps=1, learning_rate=1e-9)
    theirs = moved(engine)
    scored(engine, 0.25, 0.5)
    event = start(engine, place(engine, theirs, accuracy=0.0))
    assert isinstance(event, WeightsAdopted) and (event.held_out_before, event.held_out) == (0.25, 0.5)
    for name, weight in engine.policy.trained_weights().items():
        assert torch.allclose(weight, theirs[name].to(torch.bfloat16).to(weight.dtype), atol=1e-6), name


def test_the_rate_is_warmed_up_again_after_weights_that_are_begun_from_and_a_restart_knows(make_engine: Maker) -> None:
    engine = make_engine("a", steps=2, learning_rate=1e-9)
    scored(engine, 0.25)
    train_stage(engine, 7)
    scored(engine, 0.5)
    start(engine, place(engine, moved(engine)))
    assert (engine._step_callback.fresh_from, engine.steps) == (2, 4)
    assert make_engine("a", steps=2)._step_callback.fresh_from == 2


@pytest.mark.parametrize("theirs", [0.25, 0.1])
def test_weights_that_are_no_better_here_are_refused_whatever_they_claim(make_engine: Maker, theirs: float) -> None:
    engine = make_engine("a", steps=1, learning_rate=1e-9)
    own = engine.policy.copy_weights()
    scored(engine, 0.25, theirs)
    event = start(engine, place(engine, moved(engine), accuracy=1.0))
    assert isinstance(event, WeightsRefused)
    assert (event.cause, event.peer, event.held_out_before, event.held_out) == ("no-better", "them", 0.25, theirs)
    for name, weight in engine.policy.trained_weights().items():
        assert torch.allclose(weight, own[name], atol=1e-6), name


def poison(path: Path) -> None:
    weights = load_file(path)
    save_file({name: torch.full_like(weight, float("nan")) for name, weight in weights.items()}, path)


def rename(path: Path) -> None:
    save_file({f"other.{name}": weight for name, weight in load_file(path).items()}, path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def pickle(path: Path) -> None:
    torch.save({"weights": torch.zeros(4)}, path)


def describe(path: Path) -> None:
    """Metadata that is no text: nothing of the tensors is wrong, and the library reads none of them."""
    save_file(load_file(path), path)  # without any
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    write_raw(path, b'{"__metadata__":{"format":1},' + content[9:end], content[end:])


@pytest.mark.parametrize(
    ("damage", "cause"),
    [(poison, "damaged"), (rename, "unfit"), (cut, "damaged"), (pickle, "damaged"), (describe, "damaged")],
)
def test_what_is_no_model_of_this_architecture_changes_nothing(
    make_engine: Maker, tmp_path: Path, damage: Callable[[Path], None], cause: str
) -> None:
    engine = make_engine("a")
    path = tmp_path / "bad"
    write_announced(engine.policy.copy_weights(), path)
    damage(path)
    told = settle(path)
    before = engine.policy.digest_current_weights()
    parts = (with_weights(8, told), tmp_path, engine.policy)
    event = adopt_peer_weights(*parts, measured(0.25), {}, lambda: pytest.fail("nothing is measured"))
    assert isinstance(event, WeightsRefused) and event.cause == cause
    assert engine.policy.digest_current_weights() == before


def test_a_file_that_is_gone_or_another_is_refused(make_engine: Maker, tmp_path: Path) -> None:
    engine = make_engine("a")
    told = place(engine, moved(engine))
    path = engine._peer_weights / f"{told.digest}.safetensors"
    shutil.copy(path, path.with_name(f"{'0' * 64}.safetensors"))
    for wrong in (msgspec.structs.replace(told, digest="0" * 64), told):
        parts = (with_weights(8, wrong), tmp_path if wrong is told else path.parent, engine.policy)
        event = adopt_peer_weights(*parts, measured(0.25), {}, lambda: measured(1.0))
        assert isinstance(event, WeightsRefused) and event.cause == "damaged"


def test_a_stage_that_is_cancelled_leaves_the_own_weights(make_engine: Maker) -> None:
    """While measuring, and after the weights were taken over: what was adopted counts with its stage, or not at all."""
    engine = make_engine("a", steps=1)
    before = engine.policy.digest_current_weights()
    weights = place(engine, moved(engine))

    def cancelled(*args: object) -> dict[str, Accuracy]:
        raise Cancelled

    scored(engine, 0.25)
    first = engine._measure_accuracy
    calls = iter([first, cancelled])
    engine._measure_accuracy = lambda cancellation: next(calls)(cancellation)  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        engine.train(with_weights(8, weights), Cancellation())
    assert engine.policy.digest_current_weights() == before

    scored(engine, 0.25, 0.5)
    told: list[Event] = []
    engine._open_stage = cancelled  # type: ignore[assignment,method-assign]
    with pytest.raises(Cancelled):
        engine.train(with_weights(8, weights), Cancellation(), observe=told.append)
    assert isinstance(told[0], WeightsAdopted) and engine.policy.digest_current_weights() == before


def test_weights_with_which_stages_fail_are_left_alone_the_third_time(make_engine: Maker) -> None:
    engine = make_engine("a", steps=1)
    before, weights, told = engine.policy.digest_current_weights(), place(engine, moved(engine)), list[Event]()
    opened = engine._open_stage

    def fail(*args: object) -> object:
        raise RuntimeError("the loss is no number")

    engine._open_stage = fail  # type: ignore[assignment,method-assign]
    for _ in range(2):
        scored(engine, 0.25, 0.5)
        with pytest.raises(RuntimeError):
            engine.train(with_weights(8, weights), Cancellation(), observe=told.append)
        assert engine.policy.digest_current_weights() == before
    engine._open_stage = opened  # type: ignore[method-assign]
    assert engine.train(with_weights(8, weights), Cancellation(), observe=told.append).round == 8
    assert [type(event) for event in told] == [WeightsAdopted, WeightsAdopted, WeightsRefused]
    assert isinstance(told[-1], WeightsRefused) and told[-1].cause == "failed"
    scored(engine, 0.75)
    later = engine.train(with_weights(9, weights), Cancellation(), observe=told.append)
    assert later.round == 9 and isinstance(told[-1], WeightsAdopted), "once a stage was trained, nothing is remembered"


LORA = LoraConfig(rank=4)


@pytest.fixture
def taught(make_engine: Maker, tmp_path: Path, llama: Path) -> tuple[TrainingEngine, WeightsManifest, Path]:
    """A node that has trained adapters, what it offers, and the file."""
    engine = make_engine("a", lora=LORA, steps=1, learning_rate=3e-3, model=str(llama))
    manifest = offered(engine, train_stage(engine, 0), tmp_path / "w")
    return engine, manifest, tmp_path / "w" / f"{manifest.whole.digest}.safetensors"


def told_of(manifest: WeightsManifest) -> PeerWeights:
    return PeerWeights("them", 0, manifest.whole.digest, manifest.whole.size_bytes, 1.0)


def test_a_newcomers_adapter_is_the_swarms_after_its_first_round(
    make_engine: Maker, taught: tuple[TrainingEngine, WeightsManifest, Path]
) -> None:
    """On its own frozen weights, whatever its seed; only the matrices that are trained travel, rounded to bfloat16."""
    one, manifest, path = taught
    other = make_engine("b", lora=LORA, steps=1, learning_rate=1e-9, model=one.policy.name, seed=9)
    base = frozen(other.policy)
    assert manifest.architecture == digest_policy_architecture(other.policy)
    assert {each.name for each in read_tensors(path)} == one.policy.trained_weights().keys()
    assert not one.policy.fixed.keys() & one.policy.trained_weights().keys()
    make_directory(other._peer_weights)
    shutil.copy(path, other._peer_weights)
    scored(other, 0.25, 0.5)
    assert isinstance(start(other, told_of(manifest)), WeightsAdopted)
    for name, weight in other.policy.trained_weights().items():
        theirs = one.policy.trained_weights()[name].to(torch.bfloat16).to(weight.dtype)
        assert torch.allclose(weight, theirs, atol=1e-6), name
    assert same(frozen(other.policy), base)


@pytest.mark.parametrize("settings", [{}, {"lora": LoraConfig(rank=2)}, {"lora": LoraConfig(rank=4, alpha=64)}])
def test_adapters_of_another_shape_or_none_are_another_architecture(
    make_engine: Maker,
    taught: tuple[TrainingEngine, WeightsManifest, Path],
    tmp_path: Path,
    settings: dict[str, LoraConfig],
    llama: Path,
) -> None:
    _, manifest, path = taught
    other = make_engine("c", steps=1, model=str(llama), **settings)
    assert manifest.architecture != digest_policy_architecture(other.policy)
    if settings.get("lora", LoraConfig()).alpha == 64:
        return  # the same tensors with another factor: the digest alone tells
    before = other.policy.digest_current_weights()
    parts = (with_weights(8, told_of(manifest)), path.parent, other.policy)
    event = adopt_peer_weights(*parts, measured(0.25), {}, lambda: pytest.fail("nothing is measured"))
    assert (
        isinstance(event, WeightsRefused) and event.cause == "unfit" and other.policy.digest_current_weights() == before
    )


def by_task(questions: int = 64, **correct: float) -> dict[str, Accuracy]:
    return {task: Accuracy(share, 1.0, questions) for task, share in correct.items()}


@pytest.mark.parametrize("count", [torch.tensor([3]), torch.tensor([True])])
def test_what_is_no_floating_point_number_has_no_mean_and_stays(count: torch.Tensor) -> None:
    own, theirs = {"w": torch.tensor([0.0]), "n": count}, {"w": torch.tensor([8.0]), "n": torch.zeros_like(count)}
    mean = combine(own, [theirs])
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
    assert explain_regression(by_task(a=0.6, b=0.3), {}, found).startswith(worse)
    assert bool(explain_regression(by_task(a=0.6, b=0.3), {}, found)) == bool(worse)


def test_means_cannot_take_a_skill_little_by_little() -> None:
    """Each a little worse than the last, within chance: below the best by more than that, no more is given."""
    own, best, taken = 0.8, {"a": 0.8}, 0
    while not explain_regression(by_task(a=own, b=0.5), best, by_task(a=own - 0.05, b=0.6)):
        own, taken = own - 0.05, taken + 1
    assert 0 < taken <= 3 and own > 0.64


@pytest.mark.parametrize(("found", "worse"), [(0.2, True), (0.25, True), (0.4, False)])
def test_who_is_below_its_best_takes_only_what_is_better_there_beyond_chance(found: float, worse: bool) -> None:
    """As good as now, by a lucky measurement, time and again would end in nothing."""
    assert bool(explain_regression(by_task(a=0.2, b=0.5), {"a": 0.9}, by_task(a=found, b=0.6))) == worse


def shares_taken(engine: TrainingEngine, own: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> list[float]:
    """How much of theirs the engine has, by tensor."""
    now = engine.policy.trained_weights()
    pairs = [(now[name] - own[name], theirs[name].to(torch.bfloat16).to(own[name].dtype) - own[name]) for name in own]
    return [float(ours.norm() / most.norm()) for ours, most in pairs if most.norm() > 0]


@pytest.mark.parametrize(("found", "share"), [((0.5,), SHARES[0] / 2), ((0.1, 0.5), SHARES[1] / 2), ((0.1, 0.1), 0.0)])
def test_the_first_mean_that_is_no_worse_is_begun_from(
    make_engine: Maker, found: tuple[float, ...], share: float
) -> None:
    engine = make_engine("a", steps=1, learning_rate=1e-9)
    own, theirs = engine.policy.copy_weights(), moved(engine)
    scored(engine, 0.5, *found, 0.5)
    event = start(engine, place(engine, theirs, averaged=True))
    assert isinstance(event, WeightsAdopted if share else WeightsRefused)
    assert (event.held_out_before, event.held_out) == (0.5, found[-1])
    if isinstance(event, WeightsRefused):
        assert (event.cause, event.peer) == ("worse", "them")
    assert shares_taken(engine, own, theirs) == pytest.approx([share] * len(own), abs=0.01)


def test_the_moments_stay_and_what_was_measured_is_not_measured_again(make_engine: Maker) -> None:
    engine = make_engine("a", steps=2, learning_rate=1e-9)
    left = scored(engine, 0.25, 0.5)
    train_stage(engine, 7)
    assert left == [0.5]
    scored(engine, 0.5, 0.75)
    event = start(engine, place(engine, moved(engine), averaged=True))
    assert isinstance(event, WeightsAdopted) and (event.held_out_before, event.held_out) == (0.5, 0.5)
    assert (engine._step_callback.fresh_from, engine.steps) == (0, 4)


def vector(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values)}


def test_one_of_four_offers_cannot_pull_the_mean_beyond_the_others() -> None:
    own, honest = vector(0.0, 0.0), [vector(1.0, -1.0), vector(2.0, -2.0), vector(3.0, 1.0)]
    for hostile in (vector(1e6, 1e6), vector(-1e6, 3.0), vector(3.0, 1.0)):
        mean = combine(own, [*honest, hostile])["w"]
        assert 0 <= float(mean[0]) <= 3 and -2 <= float(mean[1]) <= 1, hostile
    torch.testing.assert_close(combine(own, [*honest, vector(1e6, 0.0)])["w"][0], torch.tensor(2.0), atol=0.4, rtol=0)


def test_a_long_offer_is_shortened_to_the_median_length_and_a_mean_of_few_is_plain() -> None:
    mean = combine(vector(0.0), [vector(1.0), vector(2.0), vector(1e6)])["w"]
    torch.testing.assert_close(mean, torch.tensor([(1.0 + 2.0 + 2.0) / 4]))
    torch.testing.assert_close(combine(vector(0.0), [vector(8.0)], 0.5)["w"], torch.tensor([2.0]))


def test_a_mean_is_begun_from_all_that_the_order_names_and_that_are_good(make_engine: Maker) -> None:
    engine = make_engine("a", steps=1, learning_rate=1e-9)
    own = engine.policy.copy_weights()
    told = [place(engine, {name: weight * by for name, weight in own.items()}) for by in (1.25, 1.5)]
    path = engine._peer_weights / "bad"
    write_announced(own, path)
    poison(path)
    others = tuple(each.offers[0] for each in (settle(path), *told[1:]))  # of which one is no good
    scored(engine, 0.5)
    event = start(engine, msgspec.structs.replace(told[0], averaged=True, others=others))
    assert isinstance(event, WeightsAdopted)
    for name, weight in engine.policy.trained_weights().items():
        assert torch.allclose(weight, own[name] * (1 + (0.25 + 0.375) / 3), rtol=0.02, atol=1e-3), name
