"""A trained stage's weights are offered, and two nodes with one model offer weights that fit each other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from swarmd.core.events import StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.errors import ModelError, RecordRejected
from swarmd.training import peer_weights as offering_module
from swarmd.training.checkpoints import WEIGHTS
from swarmd.training.engine import TrainingEngine
from swarmd.training.models.model import Policy
from swarmd.training.peer_weights import WeightsOffering, read_announced, write_announced
from swarmd.weights.manifest import WeightsManifest, decode_manifest
from swarmd.weights.offered import OfferedWeights
from tests.log_capture import capture_logs
from tests.training.conftest import train_stage
from tests.weights.making import bfloat16
from tests.weights.test_offered import offer

Maker = Callable[..., TrainingEngine]


def offered(engine: TrainingEngine, event: StageTrained, directory: Path) -> WeightsManifest:
    offering, shelf = WeightsOffering(1, 1, directory), OfferedWeights(directory)
    assert offering.is_due(event) and offering.keep_weights(engine.checkpoint_directory(event))
    assert not offering.is_due(event)  # while these are on their way
    offering.publish_offer(event, engine.policy)
    offer = shelf.current()
    assert offer is not None and (offer.round, offer.accuracy) == (event.round, event.held_out)
    return decode_manifest(shelf.get(offer.manifest.hex()), offer.manifest.hex())


def test_a_model_with_nan_is_not_offered_and_leaves_the_earlier_offer(make_engine: Maker, tmp_path: Path) -> None:
    engine = make_engine("a", steps=1)
    event = train_stage(engine, 0)
    offered(engine, event, tmp_path / "w")
    before = OfferedWeights(tmp_path / "w").current()
    path = engine.checkpoint_directory(event) / "model.safetensors"
    save_file({name: torch.full_like(weight, float("nan")) for name, weight in load_file(path).items()}, path)
    offering = WeightsOffering(1, 1, tmp_path / "w")
    assert offering.keep_weights(engine.checkpoint_directory(event))
    offering.publish_offer(event, engine.policy)
    assert OfferedWeights(tmp_path / "w").current() == before
    assert not list((tmp_path / "w").glob("*.tmp"))


def trained(round: int = 0, stage: int = 0) -> StageTrained:
    return StageTrained("train/0/0", round, stage, 0.0, RolloutsRef("a", 0, 0, "", 4, 0))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    save_file({"w": torch.ones(8)}, directory / WEIGHTS)
    return directory


def test_a_full_disk_as_safetensors_reports_it_ends_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **named: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("swarmd.training.peer_weights.save_file", full)
    offering = WeightsOffering(1, 1, tmp_path / "w")
    assert offering.keep_weights(checkpoint)
    offering.publish_offer(trained(), cast(Policy, None))
    assert not list((tmp_path / "w").iterdir()) and offering.is_due(trained())


def test_a_disk_that_is_nearly_full_stays_so(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = (checkpoint / WEIGHTS).stat().st_size
    monkeypatch.setattr(
        "swarmd.training.peer_weights.save_file", lambda *args, **named: pytest.fail("there is no room")
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size_bytes + 99))
    offering = WeightsOffering(1, 1, tmp_path / "w", free_bytes_min=100)
    assert offering.keep_weights(checkpoint)
    with capture_logs() as told:
        offering.publish_offer(trained(), cast(Policy, None))
    assert [each["event"] for each in told] == ["weights are not offered"] and "no room" in told[0]["reason"]
    assert not list((tmp_path / "w").iterdir())


@pytest.mark.parametrize(("given", "again"), [(1, False), (1 << 40, True)])
def test_weights_stay_offered_as_long_as_it_takes_to_fetch_them(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int, again: bool
) -> None:
    monkeypatch.setattr(offering_module, "SERVED_BYTES_PER_S", given)
    monkeypatch.setattr(offering_module, "describe_architecture", lambda policy: {})
    monkeypatch.setattr(offering_module, "digest_tokenizer", lambda tokenizer: "00" * 32)
    offering = WeightsOffering(1, 1, tmp_path / "w")
    assert offering.keep_weights(checkpoint)
    offering.publish_offer(trained(), cast(Policy, SimpleNamespace(tokenizer=None, fixed={})))
    assert OfferedWeights(tmp_path / "w").current() is not None
    assert offering.is_due(trained(1)) == again


@pytest.mark.parametrize("every", [0, 2])
def test_what_was_offered_stays_only_where_weights_are_to_be_offered(tmp_path: Path, every: int) -> None:
    shelf = OfferedWeights(tmp_path / "weights")
    offer(shelf, bfloat16(1000, 0), 1)
    WeightsOffering(every, 1, tmp_path / "weights").withdraw_if_off()
    assert (OfferedWeights(tmp_path / "weights").current() is not None) == bool(every)


def test_it_is_due_after_the_last_stage_of_every_so_manieth_round(tmp_path: Path) -> None:
    due = [
        (round, stage)
        for round in range(6)
        for stage in range(2)
        if WeightsOffering(3, 2, tmp_path).is_due(trained(round, stage))
    ]
    assert due == [(2, 1), (5, 1)]
    assert not WeightsOffering(0, 1, tmp_path).is_due(trained())


OWN = {"b": torch.randn(40, 30, generator=torch.Generator().manual_seed(0)), "a": torch.arange(5)}


def test_each_value_is_off_by_a_256th_of_itself_at_most(tmp_path: Path) -> None:
    write_announced(OWN, tmp_path / "w")
    read = read_announced(tmp_path / "w", OWN)
    assert {name: weight.dtype for name, weight in read.items()} == {"a": torch.int64, "b": torch.bfloat16}
    assert torch.equal(read["a"], OWN["a"])
    assert bool(((read["b"] - OWN["b"]).abs() <= OWN["b"].abs() / 256).all()) and not torch.equal(read["b"], OWN["b"])


def test_values_beyond_what_the_own_weights_can_hold_are_refused(tmp_path: Path) -> None:
    write_announced({"a": torch.tensor([1.0, 1e5])}, tmp_path / "w")
    assert float(read_announced(tmp_path / "w", {"a": torch.zeros(2)})["a"][1]) == pytest.approx(1e5, rel=1 / 256)
    with pytest.raises(RecordRejected, match="not finite as") as refused:
        read_announced(tmp_path / "w", {"a": torch.zeros(2, dtype=torch.float16)})
    assert refused.value.reason == "non-finite"


@pytest.mark.parametrize(
    "other", [{"b": OWN["b"]}, {**OWN, "c": OWN["a"]}, {**OWN, "b": OWN["b"].T}, {"a": OWN["a"], "c": OWN["b"]}]
)
def test_another_models_weights_are_not_read(tmp_path: Path, other: dict[str, torch.Tensor]) -> None:
    write_announced(other, tmp_path / "w")
    with pytest.raises(ModelError):
        read_announced(tmp_path / "w", OWN)
