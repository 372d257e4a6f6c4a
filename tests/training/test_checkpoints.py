"""A checkpoint is complete or not there, whatever interrupts the save, and it restores what was saved."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmd.core.events import StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.errors import CheckpointDamaged, CheckpointFailed, CheckpointUnreadable, ExitCode, SwarmError
from swarmd.training import checkpoint_files
from swarmd.training import checkpoints as subject
from swarmd.training.checkpoints import Checkpoint, CheckpointStore, copy_as_plain_values, read_checkpoint
from swarmd.training.engine import TrainingEngine
from tests.durability import recording
from tests.log_capture import capture_logs
from tests.training.conftest import train_stage


def save(checkpoints: CheckpointStore, round: int, stage: int = 0, value: float | None = None) -> Checkpoint:
    filled = torch.full((64, 64), float(round) if value is None else value)
    event = StageTrained(f"train/{round}/{stage}", round, stage, 0.5, RolloutsRef("a", round, stage, "", 4, 0))
    return checkpoints.save({"w": filled, "tied": filled}, {"optimizer": {"m": filled}}, b"body", event, round * 2, "m")


def newest(checkpoints: CheckpointStore) -> Checkpoint | None:
    return next(checkpoints.complete_checkpoints(), None)


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    saved = save(CheckpointStore(tmp_path, 2), 3)
    found = newest(CheckpointStore(tmp_path, 2))
    assert found == saved
    assert found.read_weights().keys() == {"w"}
    assert torch.equal(found.read_weights()["w"], torch.full((64, 64), 3.0))
    assert torch.equal(found.read_optimizer()["optimizer"]["m"], torch.full((64, 64), 3.0))
    assert found.read_rollouts() == b"body"
    assert found.meta.event.round == 3 and found.meta.steps == 6


def test_a_power_cut_takes_nothing_of_it(tmp_path: Path) -> None:
    with recording() as disk:
        final = save(CheckpointStore(tmp_path, 2), 3).directory
    assert disk.hazards == [] and tmp_path in disk.synced and tmp_path not in disk.lost
    written = {path.name for path in disk.synced if path.parent.name.startswith(subject.TEMPORARY)}
    assert written == {path.name for path in final.iterdir()}


def test_the_newest_stay(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path, 2)
    for round, stage in ((1, 0), (1, 1), (2, 0)):
        save(checkpoints, round, stage)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r000000001-s0001", "r000000002-s0000"]
    assert checkpoints.find(1, 0) is None and checkpoints.find(1, 1) is not None


def test_the_one_just_saved_stays(tmp_path: Path) -> None:
    """Even if a swarm started again and its rounds are lower than those kept."""
    checkpoints = CheckpointStore(tmp_path, 1)
    save(checkpoints, 9)
    save(checkpoints, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["r000000000-s0000"]


@pytest.mark.parametrize("name", [subject.META, subject.WEIGHTS, subject.OPTIMIZER, subject.ROLLOUTS])
@pytest.mark.parametrize("harm", ["cut", "flip", "remove"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, name: str, harm: str) -> None:
    checkpoints = CheckpointStore(tmp_path, 3)
    save(checkpoints, 1)
    file = save(checkpoints, 2).directory / name
    content = bytearray(file.read_bytes())
    if harm == "remove":
        file.unlink()
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content[: len(content) // 2] if harm == "cut" else content)
    if not (name == subject.META and harm == "flip"):  # a flipped digit in the report is still a report
        with pytest.raises(CheckpointDamaged, match="r000000002"):
            read_checkpoint(file.parent)
        found = newest(checkpoints)
        assert found is not None and found.meta.event.round == 1
    save(checkpoints, 2, value=9.0)
    found = newest(checkpoints)
    assert found is not None and float(found.read_weights()["w"][0, 0]) == 9.0


@pytest.mark.parametrize("code", ["EACCES", "EMFILE", "ESTALE"])
@pytest.mark.parametrize("name", [subject.META, subject.WEIGHTS])
def test_one_that_cannot_be_read_now_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    """Else the stages since the one before would be lost, or all, and its place taken by what is trained from there."""
    checkpoints = CheckpointStore(tmp_path, 2)
    save(checkpoints, 1)
    unread = save(checkpoints, 2).directory / name
    opened = Path.open

    def refuse(path: Path, *args: Any, **named: Any) -> Any:
        if path == unread:
            raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
        return opened(path, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(CheckpointUnreadable, match=f"{name} cannot be read") as caught:
            newest(checkpoints)
        assert caught.value.exit_code == ExitCode.FAILURE, "another try may do better"
        assert checkpoint_files.remove_older_checkpoints(tmp_path) == 0
    found = newest(checkpoints)
    assert found is not None and found.meta.event.round == 2


def test_what_the_trainer_would_not_load_is_no_reason_to_drop_what_it_would(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(tmp_path, 3)
    loaded = save(checkpoints, 1)
    meta = save(checkpoints, 2).directory / subject.META
    meta.write_text(meta.read_text().replace('"format": 1', '"format": 2'))
    assert checkpoint_files.remove_older_checkpoints(tmp_path) == 0
    assert newest(checkpoints) == loaded and checkpoint_files.find_newest_complete(tmp_path) == loaded.directory


def test_views_that_begin_at_one_address_and_empty_tensors_are_kept(tmp_path: Path) -> None:
    table = torch.arange(6.0)
    weights = {"flat": table, "tied": table, "table": table.view(2, 3), "first": table[:2], "middle": table[2:4]}
    weights |= {"turned": table.view(2, 3).t(), "none": torch.empty(0), "no rows": torch.empty(0, 3)}
    event = StageTrained("train/1/0", 1, 0, 0.5, RolloutsRef("a", 1, 0, "", 4, 0))
    read = CheckpointStore(tmp_path, 1).save(weights, {}, b"", event, 1, "m").read_weights()
    assert read.keys() == weights.keys() - {"tied"}
    assert all(torch.equal(read[name], weights[name]) and read[name].shape == weights[name].shape for name in read)


def save_until(fatal: int, checkpoints: CheckpointStore) -> int:
    """Save round 2 in a process that SIGKILL ends before its file operation number `fatal`; the exit status."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    calls = itertools.count(1)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    try:
        for place, name in (
            (subject, "sync_file"),
            (subject, "write_weights"),
            (torch, "save"),
            (Path, "rename"),
            (Path, "write_bytes"),
            (shutil, "rmtree"),
        ):
            setattr(place, name, counted(getattr(place, name)))
        save(checkpoints, 2)
        os._exit(0)
    finally:
        os._exit(1)


def test_killed_at_any_point_of_a_save(tmp_path: Path) -> None:
    """SIGKILL before each file operation in turn: the old checkpoint or the new one is there, whole."""
    rounds = []
    for fatal in itertools.count(1):
        checkpoints = CheckpointStore(tmp_path / str(fatal), 1)
        save(checkpoints, 1)
        if (end := save_until(fatal, checkpoints)) == 0:
            break
        assert end == -signal.SIGKILL
        found = newest(CheckpointStore(checkpoints.directory, 1))
        assert found is not None
        rounds.append(found.meta.event.round)
        assert float(found.read_weights()["w"][0, 0]) == found.meta.event.round
        assert not list(checkpoints.directory.glob(f"{subject.TEMPORARY}*"))
    assert len(rounds) > 8 and rounds == sorted(rounds) and set(rounds) == {1, 2}


def test_no_space_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = CheckpointStore(tmp_path, 2)
    old = save(checkpoints, 1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(subject.os, "fsync", full)
    with pytest.raises(CheckpointFailed, match="bytes free") as caught:
        save(checkpoints, 2)
    assert str(tmp_path) in caught.value.message and "No space" in caught.value.message
    monkeypatch.undo()
    assert newest(checkpoints) == old
    assert list(tmp_path.iterdir()) == [old.directory]


@pytest.mark.parametrize("value", [deque([1]), Fraction(1, 2), lambda: 1])
def test_what_no_checkpoint_gives_back_is_refused_when_it_is_written(value: object) -> None:
    with pytest.raises(SwarmError, match="cannot be kept"):
        copy_as_plain_values({"level": value})


def test_another_optimiser_begins_anew_and_the_weights_go_on(make_engine: Callable[..., TrainingEngine]) -> None:
    round = 0
    for before, after in (("adamw", "adamw_8bit"), ("adamw_8bit", "adamw"), ("adamw", "adamw")):
        engine = make_engine(optimizer=before, steps=1, held_out_questions=0)
        trained = train_stage(engine, round)
        place = engine.checkpoint_directory(trained)
        assert read_checkpoint(place).meta.optimizer == before
        with capture_logs() as logs:
            again = make_engine(optimizer=after, steps=1, held_out_questions=0)
        told = [(line["written"], line["now"]) for line in logs if "another optimiser" in line["event"]]
        assert told == ([(before, after)] if before != after else [])
        assert (again.steps, again.policy.digest_current_weights()) == (
            engine.steps,
            engine.policy.digest_current_weights(),
        )
        assert bool(again._trainer.optimizer.state_dict()["state"]) == (before == after)
        assert again._step_callback.fresh_from == (
            engine._step_callback.fresh_from if before == after else engine.steps
        )
        train_stage(again, round + 1)
        round += 2
