"""Nodes that train adapters catch up in adapters: some of the weights travel, onto the same frozen ones only."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from swarmd.config import LoraConfig
from swarmd.core.events import WeightsAdopted, WeightsRefused
from swarmd.core.values import PeerWeights
from swarmd.files import make_directory
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.weights.adopting import adopt
from swarmd.training.weights.offering import digest_policy
from swarmd.weights.manifest import WeightsManifest
from tests.training.conftest import order
from tests.training.models.test_adapters import frozen, same
from tests.training.weights.test_adopting import measured, scored, start, with_weights
from tests.training.weights.test_offering import offered

Maker = Callable[..., TrainingEngine]
LORA = LoraConfig(rank=4)


@pytest.fixture
def taught(make_engine: Maker, tmp_path: Path) -> tuple[TrainingEngine, WeightsManifest, Path]:
    """A node that has trained adapters, what it offers, and the file."""
    engine = make_engine("a", lora=LORA, steps=1, learning_rate=3e-3)
    manifest = offered(engine, engine.train(order(0), Cancellation()), tmp_path / "w")
    return engine, manifest, tmp_path / "w" / f"{manifest.whole.digest}.safetensors"


def told_of(manifest: WeightsManifest) -> PeerWeights:
    return PeerWeights("them", 0, manifest.whole.digest, manifest.whole.size_bytes, 1.0)


def test_a_newcomer_begins_from_anothers_adapters_on_its_own_frozen_weights(
    make_engine: Maker, taught: tuple[TrainingEngine, WeightsManifest, Path]
) -> None:
    one, manifest, path = taught
    other = make_engine("b", lora=LORA, steps=1, learning_rate=1e-9)
    base = frozen(other.policy)
    assert manifest.architecture == digest_policy(other.policy)
    assert manifest.whole.size_bytes < other.policy.parameters / 4, "adapters alone travel"
    make_directory(other._peers._directory)
    shutil.copy(path, other._peers._directory)
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
) -> None:
    _, manifest, path = taught
    other = make_engine("c", steps=1, **settings)
    assert manifest.architecture != digest_policy(other.policy)
    if settings.get("lora", LoraConfig()).alpha == 64:
        return  # the same tensors with another factor: the digest alone tells
    before = other.weights_digest
    parts = (with_weights(8, told_of(manifest)), path, other.policy)
    event = adopt(*parts, measured(0.25), {}, lambda: pytest.fail("nothing is measured"))
    assert isinstance(event, WeightsRefused) and event.cause == "unfit" and other.weights_digest == before
