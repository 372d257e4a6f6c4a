"""A node that comes late begins from the coordinator's weights: real daemons, real p2pd, a real trainer."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from swarmd.config import TrainingConfig
from swarmd.core.events import Event, StageTrained, WeightsAdopted, WeightsFetched, WeightsRefused
from swarmd.observe.words import describe_weights_event
from swarmd.training.models.model import load_policy
from swarmd.training.models.source import MODELS_DIR
from swarmd.training.peer_weights import DTYPE, digest_policy_architecture, digest_tokenizer, write_announced
from swarmd.weights.offered import OfferedWeights
from tests.e2e.audit import events_of
from tests.e2e.conftest import PATIENCE_S, Swarm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
JOINS_AT = 3


def unlearnt(directory: Path) -> Path:
    """The embedded model with weights of chance: it answers nothing."""
    shutil.copytree(MODELS_DIR / "embedded", directory)
    path, generator = directory / "model.safetensors", torch.Generator().manual_seed(0)
    noise = {name: 0.02 * torch.randn(value.shape, generator=generator) for name, value in load_file(path).items()}
    save_file(noise, path, metadata={"format": "pt"})
    return directory


def offer_embedded(directory: Path) -> None:
    """What the coordinator's trainer would offer, had it a model: the embedded one."""
    policy, shelf = load_policy(TrainingConfig(device="cpu")), OfferedWeights(directory)
    write_announced(policy.trained_weights(), shelf.announced_path)
    shelf.offer(digest_policy_architecture(policy), digest_tokenizer(policy.tokenizer), 2, DTYPE, 0.9)


@pytest.mark.nodes(2, trained=(2,))
def test_who_comes_late_begins_from_the_coordinators_weights(swarm: Swarm, tmp_path: Path) -> None:
    settings = {"coordinator.min_peers": 1, "training.catch_up": "weights", "training.held_out_questions": 16}
    swarm.prepare(0, "", **settings, **{"training.model": str(unlearnt(tmp_path / "unlearnt"))})
    offer_embedded(swarm.places[0].weights)
    swarm.daemons[0].start()
    swarm.wait_round(1, JOINS_AT)
    swarm.daemons[1].start()
    log = swarm.places[1].events

    def told() -> list[Event]:
        kinds = (WeightsFetched, WeightsAdopted, WeightsRefused, StageTrained)
        return [event for event in events_of(log) if isinstance(event, kinds)] if log.is_dir() else []

    swarm.wait_until(lambda: len(told()) >= 4, PATIENCE_S, "two stages", every_s=0.5)
    fetched, adopted, first, second = told()[:4]
    assert isinstance(fetched, WeightsFetched) and isinstance(adopted, WeightsAdopted), (fetched, adopted)
    assert isinstance(first, StageTrained) and isinstance(second, StageTrained), "they are taken once"
    assert fetched.weights == adopted.weights and fetched.received_bytes > fetched.weights.size_bytes
    assert adopted.held_out_before == first.held_out_before == 0.0 < adopted.held_out
    assert (adopted.round, adopted.stage) == (first.round, first.stage) and first.round >= JOINS_AT
    assert first.round <= int(fetched.command.split("/")[1]) + 1, "it skipped the round of the fetch at most"
    words = swarm.places[1].output.read_text()
    assert describe_weights_event(fetched) in words and describe_weights_event(adopted) in words


@pytest.mark.nodes(2, trained=(2,))
def test_a_node_begins_from_the_mean_with_the_coordinators_weights(swarm: Swarm) -> None:
    """The same as its own, so that no mean of them is worse beyond chance."""
    settings = {
        "training.average_weights_every": 1, "training.held_out_questions": 16, "training.learning_rate": 1e-9,
    }  # fmt: skip
    swarm.prepare(0, "", **settings)
    offer_embedded(swarm.places[0].weights)
    for daemon in swarm.daemons:
        daemon.start()
    log = swarm.places[1].events

    def adopted() -> list[WeightsAdopted]:
        return [event for event in events_of(log) if isinstance(event, WeightsAdopted)] if log.is_dir() else []

    swarm.wait_until(lambda: bool(adopted()), PATIENCE_S, "a mean that is begun from", every_s=0.5)
    first = adopted()[0]
    assert first.weights.averaged
    assert describe_weights_event(first) in swarm.places[1].output.read_text()
