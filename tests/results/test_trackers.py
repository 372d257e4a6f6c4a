"""Figures reach the trackers, once each and in their order, and no tracker can hurt training."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers.integrations import integration_utils

from swarmd.config import Config, ResultsConfig, SwarmConfig
from swarmd.errors import ConfigError
from swarmd.paths import NodeDirectory
from swarmd.results import trackers as module
from swarmd.results.trackers import TensorBoard, Tracker, Trackers, event_files, make_trackers, prune
from tests.log_capture import capture_logs


def read_scalars(directory: Path, name: str) -> list[tuple[int, float]]:
    """What TensorBoard shows of one curve, with what was purged left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: Any = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    found.Reload()
    return [(event.step, round(event.value, 4)) for event in found.Scalars(name)]


def config_of(**results: tuple[str, ...]) -> Config:
    return Config(SwarmConfig(id="test"), role="coordinator", results=ResultsConfig(**results))  # type: ignore[arg-type]


class Listening(Tracker):
    """A tracker that writes down what it is told."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self.steps.append(step)

    def rewind(self, step: int) -> None:
        self.steps.append(-step)

    def close(self) -> None:
        self.steps.append(0)


def test_a_curve_goes_on_over_a_restart_without_doubles(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path, 0)
    for step in range(1, 7):
        first.log(step, {"step/reward": step / 10})
    first.close()
    second = TensorBoard(tmp_path, 4)  # the last checkpoint was made after step 4
    for step in (5, 6, 7):
        second.log(step, {"step/reward": step / 100})
    second.close()
    expected = [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.05), (6, 0.06), (7, 0.07)]
    assert read_scalars(tmp_path, "train/step/reward") == expected


def test_a_stage_that_is_trained_again_takes_its_figures_back(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, 0)
    for step in (1, 2, 3, 4):
        board.log(step, {"step/loss": 1.0})
    board.rewind(2)
    board.log(3, {"step/loss": 2.0})
    board.close()
    assert read_scalars(tmp_path, "train/step/loss") == [(1, 1.0), (2, 1.0), (3, 2.0)]


@pytest.mark.parametrize(("files_max", "bytes_max", "left"), [(2, 1000, [3, 4]), (9, 25, [3, 4]), (9, 9, [])])
def test_the_oldest_event_files_go_first(tmp_path: Path, files_max: int, bytes_max: int, left: list[int]) -> None:
    for number in range(5):
        path = tmp_path / f"events.out.tfevents.{number}"
        path.write_bytes(b"x" * 10)
        os.utime(path, (number, number))
    (tmp_path / "notes.txt").write_text("not ours")
    prune(event_files(tmp_path), files_max, bytes_max)
    assert [int(path.suffix[1:]) for path in event_files(tmp_path)] == left and (tmp_path / "notes.txt").exists()


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Of what hangs until its end, as a server that does not answer: nobody waits for it for long."""
    for limit in ("MAKE_S", "TELL_S", "CLOSE_S"):
        monkeypatch.setattr(module, limit, 0.05)
    event = threading.Event()
    yield event
    event.set()


def test_a_tracker_that_hangs_at_its_beginning_is_left_out(answered: threading.Event) -> None:
    def never() -> Tracker:
        answered.wait(60)
        raise AssertionError("it was given up before")

    with capture_logs() as lines:
        Trackers({"mute": never})
    assert [(line["tracker"], line["reason"]) for line in lines] == [("mute", "TimeoutError: not done within 0.05 s")]


def fail(*_: object) -> None:
    raise OSError("the disk is full")


@pytest.mark.parametrize("how", ["fails", "hangs"])
@pytest.mark.parametrize("where", ["log", "rewind", "close"])
def test_a_tracker_that_fails_or_hangs_is_given_up_with_one_warning(
    where: str, how: str, answered: threading.Event
) -> None:
    """Else the stage would wait for one that hangs until its trainer is ended, and the next again."""
    fragile, sound = Listening(), Listening()
    setattr(fragile, where, fail if how == "fails" else lambda *_: answered.wait(60))
    trackers = Trackers({"fragile": lambda: fragile, "sound": lambda: sound})
    with capture_logs() as lines:
        trackers.log(1, {})
        trackers.log(2, {})
        trackers.rewind(1)
        trackers.close()
    reason = "OSError: the disk is full" if how == "fails" else "TimeoutError: not done within 0.05 s"
    assert [(line["log_level"], line["tracker"], line["reason"]) for line in lines] == [("warning", "fragile", reason)]
    assert sound.steps == [1, 2, -1, 0]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_asked_for_and_not_installed_ends_the_start(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_installed", lambda package: package != name)
    with pytest.raises(ConfigError, match=rf"pip install '{name}>="):
        make_trackers(config_of(trackers=(name,)), NodeDirectory(tmp_path), "peer", 0)


class Recorded:
    """The part of wandb's interface that is used, with the arguments it is used with."""

    def __init__(self) -> None:
        self.opened: dict[str, Any] = {}
        self.logged: list[Any] = []

    def init(self, **arguments: Any) -> Recorded:
        self.opened = arguments
        return self

    def Settings(self, **arguments: Any) -> dict[str, Any]:
        return arguments

    def log(self, figures: dict[str, float]) -> None:
        self.logged.append(figures)

    def finish(self) -> None:
        self.logged.append("finished")


def test_wandb_is_offline_and_below_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    double = Recorded()
    monkeypatch.setitem(sys.modules, "wandb", double)
    monkeypatch.setattr(module, "is_installed", lambda package: True)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(integration_utils, "is_wandb_available", lambda: True)
    monkeypatch.setattr(integration_utils.WandbCallback, "setup", lambda *_: None)
    trackers = make_trackers(config_of(trackers=("wandb",)), NodeDirectory(tmp_path), "peer", 0)
    trackers.log(3, {"step/loss": 1.0, "kl": None, "reward_std": math.nan})
    trackers.close()
    assert double.opened["mode"] == "offline" and double.opened["project"] == "swarmd"
    assert Path(double.opened["dir"]).is_relative_to(tmp_path)
    assert double.logged == [{"train/step/loss": 1.0, "train/global_step": 3}, "finished"]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_the_real_package_takes_figures(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not module.is_installed(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv("TRACKIO_DIR", "")
    trackers = make_trackers(config_of(trackers=(name,)), NodeDirectory(tmp_path), "peer", 0)
    trackers.log(1, {"step/loss": 1.0})
    trackers.close()
    assert any(path.stat().st_size > 0 for path in (tmp_path / "results" / name).rglob("*") if path.is_file())
