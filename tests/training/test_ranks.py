"""Configurations that spread a model over ranks, and trainer workers with several ranks."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from swarmd.config import LoraConfig, TrainingConfig, VllmConfig, parse_config
from swarmd.core.commands import CancelTraining
from swarmd.core.events import CheckpointWritten, StageTrained, TrainerReady, TrainingCancelled
from swarmd.errors import ConfigError, SwarmdError
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from swarmd.swarms.rollouts import decode_rollouts
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.models.device import select_rank_device
from swarmd.training.models.known import TABLE
from swarmd.training.models.memory import estimate_need
from swarmd.training.models.parallelism import Parallelism, find_parallelism
from swarmd.training.passes import KEPT
from swarmd.training.ranks import RANK, check_equal_rows, check_equal_weights, make_rank_environment
from swarmd.worker.messages import FaultMessage, PerformMessage, ProgressMessage
from tests.training.conftest import StartWorker, make_config, order
from tests.training.trainer_process import LOAD_S, Worker

CONFIGS = Path(__file__).parents[2] / "configs" / "accelerate"
FSDP = CONFIGS / "fsdp.yaml"
(SEVEN_BILLION,) = (row.shape for row in TABLE if row.name == "Gensyn/Qwen2.5-7B-Instruct")


def configure(accelerate: str = "fsdp", **settings: Any) -> TrainingConfig:
    return TrainingConfig(**{"processes": 4, "accelerate": accelerate, **settings})


def test_the_shipped_files_say_what_they_are_named_after() -> None:
    expected = {
        "fsdp": Parallelism("fsdp", 4, 4, 4),
        "zero2": Parallelism("zero", 1, 4, 4),
        "zero3": Parallelism("zero", 4, 4, 4),
    }
    for name, spread in {**expected, "ddp": Parallelism(), "": Parallelism()}.items():
        assert find_parallelism(configure(name)) == spread
        assert not name or find_parallelism(configure(str(CONFIGS / f"{name}.yaml"))) == spread


def test_accelerate_is_not_told_to_cut_the_model_too() -> None:
    environment = make_rank_environment(configure())
    assert not [name for name in environment if "FSDP" in name]
    assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "4"


def test_deepspeed_is_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deepspeed" else find(name))
    with pytest.raises(ConfigError, match="needs the package deepspeed") as caught:
        make_rank_environment(configure("zero3"))
    assert "pip install 'deepspeed==" in caught.value.fix


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("fsdp_version: 2", "fsdp_version: 1", "fsdp_version: 1"),
        ("fsdp_version: 2", "fsdp_version: two", "fsdp_version"),
        ("fsdp_offload_params: false", "fsdp_offload_params: true", "fsdp_offload_params"),
        (
            "fsdp_activation_checkpointing: false",
            "fsdp_activation_checkpointing: true",
            "fsdp_activation_checkpointing",
        ),
        ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "fsdp_auto_wrap_policy"),
        ("distributed_type: FSDP", "distributed_type: [", "not a configuration"),
    ],
)
def test_what_swarmd_does_not_do_is_refused(tmp_path: Path, old: str, new: str, named: str) -> None:
    file = tmp_path / "own.yaml"
    text = FSDP.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        find_parallelism(configure(str(file)))
    assert named in caught.value.message and "own.yaml" in caught.value.message


@pytest.mark.parametrize(
    "settings",
    [
        {"quantization": "4bit", "lora": LoraConfig(rank=8)},
        {"optimizer": "adamw_8bit"},
        {"vllm": VllmConfig(mode="colocate")},
    ],
)
def test_what_needs_the_whole_model_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"training.{next(iter(settings))}.*fsdp"):
        find_parallelism(configure(**settings))


def test_each_rank_needs_its_part_and_the_whole_weights_to_draw_with() -> None:
    whole = estimate_need(SEVEN_BILLION, configure(""), "cuda", "float32", True)
    parts = estimate_need(SEVEN_BILLION, configure(), "cuda", "float32", True)
    for term in ("weights", "gradients", "optimizer"):
        assert getattr(parts, term) == pytest.approx(getattr(whole, term) / 4, rel=1e-6)
    assert parts.gathered == whole.weights and whole.gathered == whole.layers == 0
    assert 0 < parts.layers < whole.weights / 3
    assert parts.minimum_bytes < 0.6 * whole.minimum_bytes
    adapters = configure(lora=LoraConfig(rank=16))
    assert estimate_need(SEVEN_BILLION, adapters, "cuda", "bfloat16", False).minimum_bytes < parts.minimum_bytes


SHORT = Path(__file__).parent / "impaired"


def rank_of(worker: Worker) -> psutil.Process:
    """The other rank's process."""
    children = psutil.Process(worker.process.pid).children()
    (other,) = [child for child in children if child.cmdline()[-1] == RANK]
    return other


def train(worker: Worker, round: int) -> StageTrained:
    worker.send(PerformMessage(order(round)))
    return worker.expect(StageTrained, LOAD_S)


def test_two_ranks_train_stage_after_stage_though_memory_runs_out_on_one(
    start: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one life all cut smaller, those of the next agree and train. For the first rank, see test_memory_pressure.py.

    When one of them is gone, all start anew.
    """
    for name, value in {"PYTHONPATH": SHORT, "SHORT_RANK": 1, "ROWS_THAT_FIT": 4}.items():
        monkeypatch.setenv(name, str(value))
    settings = {"processes": 2, "share_groups": 16, "held_out_questions": 0}
    short = start(make_config(**settings))  # two questions of four completions on each rank
    short.expect(TrainerReady, 2 * LOAD_S)
    short.send(PerformMessage(order(0)))
    short.process.wait(LOAD_S)
    worker = start(make_config(**settings))
    worker.expect(TrainerReady, 2 * LOAD_S)
    digests = []
    for round in range(2):
        worker.send(PerformMessage(order(round)))
        digests.append(worker.expect(CheckpointWritten, LOAD_S).digest)  # all ranks wait for the disk
        event = worker.expect(StageTrained)
        assert event.steps == 2
        groups = decode_rollouts(BlobStore(NodeDirectory(tmp_path / "data").blobs).get(event.rollouts.digest)).groups
        asked = {group.reference for group in groups}
        assert len(asked) == len(groups) > 4, "questions of both ranks, none twice"
    assert len(set(digests)) == 2
    assert (NodeDirectory(tmp_path / "data").checkpoints / KEPT).is_file()
    rank_of(worker).send_signal(signal.SIGKILL)
    assert worker.process.wait(30) != 0
    assert "rank 1 of 2 ended" in worker.errors.read_text()


def test_no_rank_outlives_the_first(start: StartWorker) -> None:
    """Wherever it is killed: here in a stage."""
    worker = start(make_config(processes=2, accelerate="fsdp", held_out_questions=0))
    worker.expect(TrainerReady, 2 * LOAD_S)
    other = rank_of(worker)
    assert train(worker, 0).steps == 2
    worker.send(PerformMessage(order(1)))
    worker.expect(ProgressMessage, LOAD_S)
    worker.process.kill()
    other.wait(30)
    assert not other.is_running()


@pytest.mark.soak
def test_a_cancelled_stage_replaces_all(start: StartWorker) -> None:
    worker = start(make_config(processes=2, accelerate="zero3", held_out_questions=2))
    worker.expect(TrainerReady, 2 * LOAD_S)
    other = rank_of(worker)
    assert train(worker, 0).held_out is not None
    worker.send(PerformMessage(order(1)))
    worker.send(PerformMessage(CancelTraining("cancel", order(1).id)))
    worker.expect(TrainingCancelled, LOAD_S)
    assert worker.expect(FaultMessage, LOAD_S).planned
    assert worker.process.wait(60) == 0
    assert not other.is_running()


def configured(questions: int, peers: int, replayed: int, processes: int) -> TrainingConfig:
    numbers = f"questions = {questions}\npeer_questions = {peers}\nreplay_questions = {replayed}"
    text = f'role = "coordinator"\n[swarm]\nid = "s"\n[training]\n{numbers}\nprocesses = {processes}\n'
    return parse_config(text, "node.toml").training


@pytest.mark.parametrize("numbers", [(4, 1, 0, 4), (4, 0, 1, 4), (8, 1, 1, 4), (16, 4, 0, 16)])
def test_a_rank_without_a_question_of_its_own_is_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(*numbers)
    for key in ("questions", "peer_questions", "replay_questions", "processes"):
        assert f"training.{key} (" in caught.value.message
    least = int(re.findall(r"Set training\.questions to (\d+)", caught.value.fix)[0])
    assert configured(least, *numbers[1:]).questions == least, "the fix is one"
    with pytest.raises(ConfigError):
        configured(least - numbers[3], *numbers[1:])


def test_what_other_ranks_drew_is_in_the_stages_figures(make_engine: Callable[..., TrainingEngine]) -> None:
    engine = make_engine(held_out_questions=0)
    one, _ = engine._open_stage(order(0), Cancellation())
    other, _ = engine._open_stage(order(1), Cancellation())
    for stage, steps in ((one, 1), (other, 3)):
        for _ in range(steps):
            stage.next_batch()
    before = one.metrics.step.read_means()
    one.merge_rank_output(pickle.loads(pickle.dumps(other.rank_output)))  # as torch hands it over
    figures = one.metrics.stage.read_means()
    assert figures["own_groups"] == 4 * 4 and one.metrics.step.read_means() == before
    assert figures["reward"] == pytest.approx(one.mean_reward)
    assert figures["completion_tokens"] == pytest.approx(one.tokens / (16 * 4))


def test_ranks_with_other_passes_or_weights_are_told() -> None:
    check_equal_rows([8, 8])
    with pytest.raises(SwarmdError, match="8, 4 completions in a pass"):
        check_equal_rows([8, 4])
    check_equal_weights(["a", "a"])
    with pytest.raises(SwarmdError, match="differ"):
        check_equal_weights(["a", "b"])


def test_each_rank_takes_an_accelerator_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    double = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, set_device=taken.append)
    monkeypatch.setattr(torch, "cuda", double)
    for rank in (0, 1):
        select_rank_device("auto", rank)
    select_rank_device("cpu", 1)
    assert taken == [0, 1]
    with pytest.raises(ConfigError, match=r"training\.processes is 3 or more, but torch finds 2 cuda devices"):
        select_rank_device("cuda", 2)


def test_ranks_on_one_processor_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate would give each as many threads as there are cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert make_rank_environment(TrainingConfig(processes=4))["OMP_NUM_THREADS"] == "4"
    assert make_rank_environment(TrainingConfig(processes=4, threads=3))["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in make_rank_environment(TrainingConfig(processes=4))


def test_a_wrong_accelerate_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        make_rank_environment(TrainingConfig(processes=2, accelerate=str(missing)))
    missing.write_text("distributed_type: NONSENSE")
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        make_rank_environment(TrainingConfig(processes=2, accelerate=str(missing)))
