"""Two processes of which each holds a part of the model, over gloo on the CPU, beside two that hold the whole."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch

from swarmd.config import LoraConfig, encode
from swarmd.core.events import StageTrained, TrainerReady
from swarmd.eventlog.blobs import Blobs
from swarmd.paths import DataPaths
from swarmd.swarms.registry import make_plan
from swarmd.training.cancellation import Cancellation
from swarmd.training.checkpoint import Checkpoint, Checkpoints
from swarmd.training.engine import Engine
from swarmd.worker.messages import Perform, Stop
from tests.training.conftest import make_config, order
from tests.training.test_worker import LOAD_S, Worker

REPLICAS, PARTS = "ddp", ("fsdp", "zero2", "zero3")
ROUNDING = 1e-5
SHORT = "bfloat16 over float32"
IMPAIRED = {"PYTHONPATH": str(Path(__file__).parent / "impaired"), "SHORT_NUMBERS": "1"}
APART, ZERO_SHORT_APART = 1e-4, 0.1  # largest distance, as a share; DeepSpeed holds the weights themselves in bfloat16
SETTINGS: dict[str, Any] = {"processes": 2, "device": "cpu", "share_groups": 16, "steps": 3, "micro_questions": 1}
KEPT = {"checkpoints_kept": 3, "held_out_questions": 2}


@contextlib.contextmanager
def living(directory: Path, file: str, **settings: Any) -> Iterator[Callable[[int], StageTrained]]:
    """One life of a trainer of two ranks; gives what has it train a round."""
    config = make_config(accelerate=file, **{**SETTINGS, **settings})
    worker = Worker(config, directory, directory.with_suffix(".errors"))

    def train(round: int) -> StageTrained:
        worker.send(Perform(order(round)))
        return worker.expect(StageTrained, LOAD_S)

    try:
        worker.expect(TrainerReady, 2 * LOAD_S)
        yield train
        worker.send(Stop(5.0))
        assert worker.process.wait(60) == 0
    finally:
        worker.process.kill()
        worker.process.wait()


def read(directory: Path, round: int) -> Checkpoint:
    found = Checkpoints(DataPaths(directory).checkpoints, 9).find(round, 0)
    assert found is not None
    return found


def assert_alike(ours: Checkpoint, theirs: Checkpoint) -> None:
    """Weights, moments and step counts are the same but for rounding."""
    a, b = ours.read_weights(), theirs.read_weights()
    assert a.keys() == b.keys()
    torch.testing.assert_close(a, b, rtol=0, atol=ROUNDING)
    ours_moments, theirs_moments = (each.read_optimizer()["optimizer"] for each in (ours, theirs))
    assert ours_moments["param_groups"] == theirs_moments["param_groups"]
    torch.testing.assert_close(ours_moments["state"], theirs_moments["state"], rtol=0, atol=ROUNDING)


def measure_apart(ours: Checkpoint, theirs: Checkpoint, before: Checkpoint) -> dict[str, float]:
    """How far two checkpoints are apart: weights as a share of the way since `before`, moments as one of theirs."""

    def flatten(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([tensors[name].flatten() for name in sorted(tensors)])

    a, b, start = (flatten(each.read_weights()) for each in (ours, theirs, before))
    apart = {"weights": float((a - b).norm() / (b - start).norm())}
    ours_moments, theirs_moments = (each.read_optimizer()["optimizer"]["state"] for each in (ours, theirs))
    for name in ("exp_avg", "exp_avg_sq"):
        a, b = (flatten({str(key): each[name] for key, each in m.items()}) for m in (ours_moments, theirs_moments))
        apart[name] = float((a - b).norm() / b.norm())
    return apart


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks that hold the whole model wrote in two rounds; beside it, as `begun`, what in the first."""
    directory = tmp_path_factory.mktemp("replicas") / "whole"
    with living(directory, REPLICAS, **KEPT) as train:
        train(0)
        shutil.copytree(directory, directory.with_name("begun"))
        train(1)
    return directory


@pytest.mark.parametrize("file", PARTS)
def test_parts_train_to_the_same_whole_as_replicas_do(
    tmp_path: Path, replicas: Path, make_engine: Callable[..., Engine], file: str
) -> None:
    """And each takes up what the other wrote, one process too: a checkpoint does not show how many wrote it."""
    parts, again = tmp_path / "a", tmp_path / "again"
    shutil.copytree(replicas.with_name("begun"), parts)
    with living(parts, file, **KEPT) as train:
        trained = train(1)
        shutil.copytree(parts, again)
        train(2)
    assert trained.steps == 3 and trained.held_out is not None
    assert_alike(read(parts, 1), read(replicas, 1))
    with living(again, file, **KEPT) as train:
        train(2)
    assert_alike(read(again, 2), read(parts, 2))
    assert read(again, 2).read_rollouts() == read(parts, 2).read_rollouts()
    alone = make_engine("a", checkpoints_kept=3)
    assert alone.steps == 9
    torch.testing.assert_close(alone.policy.trained_weights(), read(parts, 2).read_weights(), rtol=0, atol=0)
    assert alone.train(order(3), Cancellation()).steps == 2


KINDS: dict[str, dict[str, Any]] = {
    "all weights, a KL term, a gate": {
        "beta": 0.02,
        "peer_loss": "gate",
        "gradient_checkpointing": "on",
        "questions": 8,
        "peer_questions": 2,
    },
    "adapters": {"lora": LoraConfig(rank=4)},
    SHORT: {},
}


class Told(NamedTuple):
    """What `first_rank.py` told of two stages, and where they lie."""

    directory: Path
    facts: dict[str, Any]


@pytest.fixture(scope="module")
def run_first(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Told]:
    """Has two ranks train two stages of a kind, the first with a peer's groups."""
    root = tmp_path_factory.mktemp("first")
    config = make_config(held_out_questions=0)
    peer = Engine(config, DataPaths(root / "b"), "b", make_plan(config.swarm))
    ref = peer.train(order(0), Cancellation()).rollouts
    body = Blobs(DataPaths(root / "b").blobs).get(ref.digest)

    @functools.cache
    def run(file: str, kind: str) -> Told:
        directory = root / file / kind
        settings = {**SETTINGS, "held_out_questions": 0, "accelerate": file, **KINDS[kind]}
        Blobs(DataPaths(directory / "data").blobs).put(body)
        (directory / "config.msgpack").write_bytes(encode(make_config(**settings)))
        refs = msgspec.json.encode([ref]).decode()
        run = subprocess.run(
            [sys.executable, "-m", "tests.training.first_rank", str(directory), "2", refs],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(IMPAIRED if kind == SHORT else {})},
            timeout=2 * LOAD_S,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        return Told(directory / "data", json.loads(run.stdout.splitlines()[-1]))

    return run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", PARTS)
def test_each_rank_holds_its_part(run_first: Callable[[str, str], Told], file: str, kind: str) -> None:
    (whole_at, whole), (parts_at, parts) = run_first(REPLICAS, kind), run_first(file, kind)
    assert whole["parameters_here"] == whole["parameters"] == parts["parameters"]
    assert parts["parameters_here"] <= (1.0 if file == "zero2" else 0.51) * parts["parameters"]
    assert parts["moments_here"] <= 0.51 * whole["moments_here"]
    assert parts["numbers"] == whole["numbers"] == (SHORT if kind == SHORT else parts["numbers"])
    assert parts["gradient_norm"] == pytest.approx(whole["gradient_norm"], rel=0.05 if kind == SHORT else 1e-3)
    assert parts["peer_groups"] == whole["peer_groups"] > 0
    apart = measure_apart(read(parts_at, 2), read(whole_at, 2), read(whole_at, 1))
    is_shortened = kind == SHORT and file != "fsdp"
    assert max(apart.values()) <= (ZERO_SHORT_APART if is_shortened else APART), apart
    if not is_shortened:
        for round in (1, 2):
            assert_alike(read(parts_at, round), read(whole_at, round))
