"""Two processes that each hold a part of the model, over gloo on the CPU, compared with two that hold all of it."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch

from swarmd.config import LoraConfig, encode
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import make_plan
from swarmd.training.cancellation import Cancellation
from swarmd.training.checkpoints import Checkpoint, CheckpointStore
from swarmd.training.engine import TrainingEngine
from swarmd.training.ranks import make_rank_environment
from tests.forked import ALL, Forked, order_fork, start_server
from tests.training.conftest import make_config, order, train_stage
from tests.training.forked_ranks import Facts, Job

REPLICAS, PARTS = "ddp", ("fsdp", "zero2", "zero3")
ROUNDING = 1e-5
SHORT = "bfloat16 over float32"
LIFE_S = 200.0
APART, ZERO_SHORT_APART = 1e-4, 0.1  # largest distance, as a share; DeepSpeed holds the weights themselves in bfloat16
SETTINGS: dict[str, Any] = {
    "processes": 2,
    "device": "cpu",
    "share_groups": 16,
    "micro_questions": 1,
    "held_out_questions": 0,
}
TAKEN_UP = {"fsdp": REPLICAS, "zero2": "fsdp", "zero3": "zero2"}  # whose checkpoint


Train = Callable[..., Facts]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """One life of two ranks that train these rounds; `settings` among the rest change the configuration."""
    errors = tmp_path_factory.mktemp("ranks") / "errors"

    def run(directory: Path, file: str, rounds: list[int], **rest: Any) -> Facts:
        config = make_config(**{**SETTINGS, "accelerate": file, **rest.pop("settings", {})})
        job = Job(encode(config), str(directory), rounds, **rest)
        environment = os.environ | make_rank_environment(config.training)
        ranks: list[Forked] = []
        try:
            for rank in ("0", "1"):
                own = environment | {"RANK": rank, "LOCAL_RANK": rank}
                with errors.open("ab") as told:
                    pipes = order_fork(start_server(*ALL), "tests.training.forked_ranks", (), own, None, told.fileno())
                ranks.append(Forked(pipes))
                ranks[-1].stdin.write(msgspec.json.encode(job))
                ranks[-1].stdin.close()
            for forked in ranks[:1] if job.cancelled else ranks:  # the others may fail as soon as the first is gone
                assert forked.wait(LIFE_S) == 0, errors.read_text()[-3000:]
            return msgspec.json.decode(ranks[0].stdout.read(), type=Facts)
        finally:
            for forked in ranks:
                forked.kill()

    return run


def read(directory: Path, round: int) -> Checkpoint:
    found = CheckpointStore(NodeDirectory(directory).checkpoints, 9).find(round, 0)
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


def copy_until(directory: Path, copy: Path, round: int) -> Path:
    """A node's data as it was when this round was its last."""
    shutil.copytree(directory, copy)
    for checkpoint in NodeDirectory(copy).checkpoints.iterdir():
        if checkpoint.name > f"r{round:09d}-s0000":
            shutil.rmtree(checkpoint)
    return copy


ALL_WEIGHTS = "all weights, a KL term"
KINDS: dict[str, dict[str, Any]] = {
    ALL_WEIGHTS: {
        "beta": 0.02,
        "gradient_checkpointing": "on",
        "held_out_questions": 2,
        "questions": 8,
        "peer_questions": 2,
    },
    "adapters": {"lora": LoraConfig(rank=4)},
    SHORT: {"peer_floor": 0.0},  # or what bfloat16 rounds would decide which tokens count
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[RolloutsRef, bytes]:
    """What a peer published of the round before."""
    paths, config = NodeDirectory(tmp_path_factory.mktemp("b")), make_config(held_out_questions=0)
    ref = TrainingEngine(config, paths, "b", make_plan(config.swarm)).train(order(0), Cancellation()).rollouts
    return ref, BlobStore(paths.blobs).get(ref.digest)


class Told(NamedTuple):
    """What two ranks reported of two stages, and their directory."""

    directory: Path
    facts: Facts


@pytest.fixture(scope="module")
def run_first(
    train: Train, published: tuple[RolloutsRef, bytes], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Told]:
    """Has two ranks train two stages of a kind, with a peer's groups."""
    root = tmp_path_factory.mktemp("first")
    ref, body = published

    @functools.cache
    def run(file: str, kind: str) -> Told:
        directory = root / file / kind
        BlobStore(NodeDirectory(directory).blobs).put(body)
        rest = {"rollouts": (ref,), "computes_bfloat16": kind == SHORT}
        return Told(directory, train(directory, file, [1, 2], settings=KINDS[kind], **rest))

    return run


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("fsdp", ALL_WEIGHTS),
        ("zero3", "adapters"),
        *(
            pytest.param(file, kind, marks=pytest.mark.soak)
            for file in PARTS
            for kind in (ALL_WEIGHTS, "adapters", SHORT)
            if (file, kind) not in (("fsdp", ALL_WEIGHTS), ("zero3", "adapters"))
        ),
    ],
)
def test_each_rank_holds_its_part(run_first: Callable[[str, str], Told], file: str, kind: str) -> None:
    (whole_at, whole), (parts_at, parts) = run_first(REPLICAS, kind), run_first(file, kind)
    assert whole.parameters_here == whole.parameters == parts.parameters
    assert parts.parameters_here <= (1.0 if file == "zero2" else 0.51) * parts.parameters
    assert parts.moments_here <= 0.51 * whole.moments_here
    assert parts.numbers == whole.numbers == (SHORT if kind == SHORT else parts.numbers)
    assert parts.gradient_norm == pytest.approx(whole.gradient_norm, rel=0.05 if kind == SHORT else 1e-3)
    assert parts.peer_groups == whole.peer_groups and whole.peer_groups[0] > 0
    apart = measure_apart(read(parts_at, 2), read(whole_at, 2), read(whole_at, 1))
    is_shortened = kind == SHORT and file != "fsdp"
    assert max(apart.values()) <= (ZERO_SHORT_APART if is_shortened else APART), apart
    if not is_shortened:
        for round in (1, 2):
            assert_alike(read(parts_at, round), read(whole_at, round))


@pytest.mark.parametrize("file", [PARTS[0], *(pytest.param(each, marks=pytest.mark.soak) for each in PARTS[1:])])
def test_each_takes_up_what_another_wrote(
    tmp_path: Path,
    train: Train,
    published: tuple[RolloutsRef, bytes],
    run_first: Callable[[str, str], Told],
    make_engine: Callable[..., TrainingEngine],
    file: str,
) -> None:
    """One process too: a checkpoint does not show how many wrote it, and in which way."""
    here = copy_until(run_first(TAKEN_UP[file], ALL_WEIGHTS).directory, tmp_path / "a", 1)
    told = train(here, file, [2], settings=KINDS[ALL_WEIGHTS], rollouts=published[:1])
    assert told.steps == [2] and None not in told.held_out
    whole = run_first(REPLICAS, ALL_WEIGHTS).directory
    assert_alike(read(here, 2), read(whole, 2))
    assert read(here, 2).read_rollouts() == read(whole, 2).read_rollouts()
    alone = make_engine("a")
    assert alone.steps == 4
    torch.testing.assert_close(alone.policy.trained_weights(), read(here, 2).read_weights(), rtol=0, atol=0)
    assert train_stage(alone, 3).steps == 2


@pytest.mark.parametrize("file", [PARTS[0], *(pytest.param(each, marks=pytest.mark.soak) for each in PARTS[1:])])
def test_a_cancelled_stage_ends_on_the_first_rank_without_the_others(tmp_path: Path, train: Train, file: str) -> None:
    """Nothing that it undoes on its way out waits for them: they are in the middle of a step."""
    told = train(tmp_path / "a", file, [0], cancelled=True)
    assert told.cancelled and told.steps == []
