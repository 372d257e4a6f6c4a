"""Results of the real trainer: metrics in event files by step, and pushes for which training does not wait."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from swarmd.config import HubConfig, ResultsConfig
from swarmd.core.events import ModelPushed, StageTrained, TrainerReady
from swarmd.paths import NodeDirectory
from swarmd.results.trackers import TensorBoard, Tracker, Trackers
from swarmd.training.cancellation import Cancelled
from swarmd.training.engine import TrainingEngine
from swarmd.worker.messages import PerformMessage, StopMessage
from tests.hub_double import TOKEN, HubDouble, serve_hub
from tests.results.conftest import NODE
from tests.results.test_trackers import read_scalars
from tests.training.conftest import StartWorker, make_config, order, train_stage
from tests.training.test_sampling import AfterTokens
from tests.training.trainer_process import LOAD_S, Worker

STEP_FIGURES = {"reward", "accuracy", "format", "tokens_per_s", "own_groups", "other_groups", "flat_share"}
STEP_FIGURES |= {"completion_tokens"}
OF_TRL = {"reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "completions/mean_length"}
OF_TRL |= {"clip_ratio/region_mean", "loss", "grad_norm", "learning_rate"}
STAGE_FIGURES = {"reward", "accuracy", "held_out", "seconds", "tokens", "tokens_per_s", "peer_groups", "memory_gib"}


class Kept(Tracker):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.figures: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self.figures.append((step, dict(figures)))

    def rewind(self, step: int) -> None:
        self.figures = [(told, figures) for told, figures in self.figures if told <= step]

    def close(self) -> None:
        """Nothing is held."""


def test_every_step_and_stage_is_told_once(make_engine: Callable[..., TrainingEngine], tmp_path: Path) -> None:
    kept, board = Kept(), tmp_path / "board"
    engine = make_engine(beta=0.1)
    engine.trackers = Trackers({"kept": lambda: kept, "TensorBoard": lambda: TensorBoard(board, engine.steps)})
    train_stage(engine, 0)
    with pytest.raises(Cancelled):
        engine.train(order(1), AfterTokens(40))
    train_stage(engine, 1)
    train_stage(engine, 1)  # answered from the checkpoint: nothing is told
    engine.trackers.close()
    steps = [(step, figures) for step, figures in kept.figures if "loss" in figures]
    stages = [(step, figures) for step, figures in kept.figures if "stage/reward" in figures]
    assert [step for step, _ in steps] == [1, 2, 3, 4] and [step for step, _ in stages] == [2, 4]
    for _, figures in steps:
        assert {f"step/{name}" for name in STEP_FIGURES} | OF_TRL <= set(figures)
        assert figures["reward"] == pytest.approx(figures["step/reward"])  # nobody else's groups are in the batch
        assert figures["step/own_groups"] == 4 and 0 <= figures["step/flat_share"] <= 1
    for _, figures in stages:
        assert {f"stage/{name}" for name in STAGE_FIGURES} <= set(figures)
    assert "stage/held_out_before" in stages[0][1] and "stage/held_out_before" not in stages[1][1]
    assert not any("stage/vram_gib" in figures for _, figures in stages), "there is no accelerator"
    assert any(figures["grad_norm"] > 0 for _, figures in steps)
    assert [step for step, _ in read_scalars(board, "train/loss")] == [1, 2, 3, 4]
    assert [step for step, _ in read_scalars(board, "train/stage/held_out")] == [2, 4]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    yield from serve_hub(monkeypatch)


@pytest.fixture
def worker(tmp_path: Path, hub: HubDouble, start: StartWorker) -> Worker:
    """A trainer worker that pushes after every round; its data directory has a node's log."""
    data = tmp_path / "data"
    shutil.copytree(NODE / "events", data / "events")
    (data / "token").touch(0o600)
    (data / "token").write_text(TOKEN)
    results = ResultsConfig(hub=HubConfig(repo="someone/tiny", token="token"))
    return start(msgspec.structs.replace(make_config(threads=1), results=results))


def test_a_worker_pushes_what_it_trained_and_trains_on_beside_a_push_that_hangs(
    worker: Worker, hub: HubDouble, tmp_path: Path
) -> None:
    worker.expect(TrainerReady, LOAD_S)
    worker.send(PerformMessage(order(7)))
    worker.expect(StageTrained)
    pushed = worker.expect(ModelPushed)
    assert (pushed.error, pushed.round, pushed.repo) == ("", 7, "someone/tiny")
    files = hub.files["someone/tiny"]
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    assert not {"meta.json", "optimizer.pt", "rollouts.msgpack"} & set(files)
    assert not any(str(tmp_path).encode() in content for content in files.values())
    check_loads(files, tmp_path, load_file(tmp_path / "data" / "checkpoints" / "r000000007-s0000/model.safetensors"))

    hub.faults["/commit/"] = "hang"
    worker.send(PerformMessage(order(8)))
    worker.expect(StageTrained)
    while not any("/commit/" in call for call in hub.calls[-1:]):
        threading.Event().wait(0.05)
    worker.send(PerformMessage(order(9)))
    assert worker.expect(ModelPushed).error.startswith("the push of an earlier round")  # and round 9 is trained
    assert any(getattr(getattr(message, "event", None), "round", 0) == 9 for message in worker.seen)
    worker.send(StopMessage(5.0))
    assert "ended before" in worker.expect(ModelPushed, 10).error
    assert (
        worker.end() == 0
        and read_scalars(tmp_path / "data" / "results" / "tensorboard", "train/stage/round")[-1][1] == 9
    )
    assert TOKEN not in worker.errors.read_text()


def check_loads(files: dict[str, bytes], directory: Path, expected: dict[str, torch.Tensor]) -> None:
    """What was pushed is a model that transformers loads, with these weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = directory / "downloaded"
    place.mkdir()
    for name, content in files.items():
        (place / name).write_bytes(content)
    weights = AutoModelForCausalLM.from_pretrained(place).state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items()) and expected
    assert AutoTokenizer.from_pretrained(place).chat_template
    assert NodeDirectory(directory / "data").results.is_dir()
