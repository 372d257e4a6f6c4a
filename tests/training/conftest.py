"""Small real models and nodes' data directories."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmd.config import Config, StorageConfig, SwarmConfig, TaskConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import make_plan
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.footprint import freeze_loaded_objects
from swarmd.training.library_logging import silence_libraries
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.progress import ProgressSink
from swarmd.worker.messages import ProgressMessage
from tests.e2e.models import make_model
from tests.training.trainer_process import Worker

silence_libraries()
StartWorker = Callable[[Config], Worker]
SMALL: dict[str, Any] = {"steps": 2, "questions": 4, "generations": 4, "peer_questions": 1, "held_out_questions": 4}


def make_config(tasks: tuple[TaskConfig, ...] = (), free_bytes_min: int = 0, **training: Any) -> Config:
    """A node with tiny stages; `training` changes that table."""
    return Config(
        SwarmConfig(id="test", kind="reasoning-gym" if tasks else "digits", tasks=tasks),
        role="coordinator",
        training=TrainingConfig(**{**SMALL, **training}),
        storage=StorageConfig(free_bytes_min=free_bytes_min),
    )


def order(round: int, rollouts: tuple[RolloutsRef, ...] = (), stage: int = 0) -> Train:
    return Train(f"train/{round}/{stage}", round, stage, rollouts)


def train_stage(engine: TrainingEngine, round: int = 0, rollouts: tuple[RolloutsRef, ...] = ()) -> StageTrained:
    return engine.train(order(round, rollouts), Cancellation())


def after_a_step(cancellation: Cancellation) -> ProgressSink:
    """A sink that asks for a cancellation as soon as the stage has taken a step."""

    def look(progress: ProgressMessage) -> None:
        if progress.what == "training" and progress.done:
            cancellation.request()

    return look


@pytest.fixture(autouse=True, scope="module")
def loaded_set_aside() -> None:
    """As in a trainer worker, so that the collections of every stage do not walk through all imported modules."""
    freeze_loaded_objects()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed passes are used however long they take: on a busy machine a few milliseconds say nothing."""
    monkeypatch.setattr("swarmd.training.trainer.SLOWER_MAX", math.inf)


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[..., TrainingEngine]]:
    """Makes engines; for the same peer in the same data directory, after the engine before has written everything."""
    made: dict[str, TrainingEngine] = {}

    def make(peer: str = "a", **settings: Any) -> TrainingEngine:
        if peer in made:
            made[peer].wait_until_saved()
        config = make_config(**settings)
        made[peer] = TrainingEngine(config, NodeDirectory(tmp_path / peer), peer, make_plan(config.swarm))
        return made[peer]

    yield make
    for engine in made.values():
        engine.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartWorker]:
    """Starts trainer workers of one node, whose data are in `data`; the rest are ended afterwards with their ranks."""
    workers: list[Worker] = []

    def make(config: Config) -> Worker:
        workers.append(Worker(config, tmp_path / "data", tmp_path / "errors"))
        return workers[-1]

    yield make
    for worker in workers:
        if worker.process.poll() is None:
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait(10)


@pytest.fixture(scope="session")
def policy() -> Policy:
    return load_policy(TrainingConfig(device="cpu"))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"))
