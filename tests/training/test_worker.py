"""The trainer worker as the daemon sees it: a child process that exchanges frames."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from swarmd.config import Config
from swarmd.core.commands import CancelTraining, Train
from swarmd.core.events import CheckpointWritten, CommandFailed, StageTrained, TrainerReady, TrainingCancelled
from swarmd.core.values import RolloutsRef
from swarmd.errors import CheckpointFailed, ExitCode, PlanFailed
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from swarmd.training.cancellation import Cancellation
from swarmd.training.worker import PROGRESS_S, TrainerService
from swarmd.worker.messages import (
    STAGE_FAILED,
    FaultMessage,
    PerformMessage,
    PingMessage,
    PongMessage,
    ProgressMessage,
    StopMessage,
)
from tests.training.conftest import StartWorker, make_config, order
from tests.training.trainer_process import LOAD_S


def test_a_life(start: StartWorker, tmp_path: Path) -> None:
    """Ready, a stage with progress and pings, the same again, one refused, one cancelled, stopped; back, left alone."""
    config = make_config(steps=8, held_out_questions=2, threads=1)
    worker = start(config)
    ready = worker.expect(TrainerReady, LOAD_S)
    assert (ready.device, ready.model) == ("cpu", "embedded") and ready.parameters > 500_000 and len(ready.digest) == 64

    began = time.monotonic()
    worker.send(PerformMessage(order(0)))
    worker.send(PerformMessage(order(0)))  # sent twice is trained once
    for number in range(5):
        asked = time.monotonic()
        worker.send(PingMessage(number))
        assert worker.expect(PongMessage, 10).number == number
        assert time.monotonic() - asked < 5
    first = worker.expect(StageTrained)
    assert first.steps == 8 and first.rollouts.peer == "peer"
    assert BlobStore(NodeDirectory(tmp_path / "data").blobs).get(first.rollouts.digest)
    progress = [message for message in worker.seen if isinstance(message, ProgressMessage)]
    assert progress[0].what == "loading" and progress[1].what != "loading", "nobody is told that it loads still"
    took_s = time.monotonic() - began
    assert len(progress) <= 2 + took_s / PROGRESS_S

    worker.send(PerformMessage(Train("train/0/0 again", 0, 0)))
    assert worker.expect(StageTrained) == msgspec.structs.replace(first, command="train/0/0 again")

    worker.send(PerformMessage(order(1)))
    worker.send(PerformMessage(order(2)))
    assert "busy with train/1/0" in worker.expect(CommandFailed).reason
    worker.send(PerformMessage(CancelTraining("cancel/1/0", "train/1/0")))
    cancelled = worker.expect(TrainingCancelled)
    assert (cancelled.command, cancelled.round) == ("train/1/0", 1) and cancelled.steps < 8

    worker.send(PerformMessage(order(1)))
    worker.expect(ProgressMessage)
    worker.send(StopMessage(5.0))
    assert worker.end() == 0

    worker = start(config)
    assert worker.expect(ProgressMessage, LOAD_S).what == "loading"
    worker.send(PerformMessage(order(0)))  # not lost, though nobody can train yet
    back = worker.expect(TrainerReady, LOAD_S)
    assert back.digest != ready.digest, "it goes on from the checkpoint"
    assert (ready.restored, back.restored) == (None, (0, 0))
    assert worker.expect(StageTrained) == first
    worker.send(PerformMessage(order(1)))
    worker.expect(ProgressMessage)
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    worker.end()


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.soak)])
def test_a_kill_costs_what_one_stage_has_learnt_at_most(start: StartWorker, tmp_path: Path, kills: int) -> None:
    """At random instants around a report, some within the next stage; what was reported is trained only once."""
    random, reported = Random(kills), -1
    config = make_config(threads=1, steps=1, held_out_questions=0)
    for _ in range(kills):
        worker = start(config)
        restored = worker.expect(TrainerReady, LOAD_S).restored or (-1, 0)
        assert restored[0] in range(max(reported - 1, -1), reported + 2)
        for round in range(reported + 1, reported + random.randint(2, 3)):
            worker.send(PerformMessage(order(round)))
            trained = worker.expect(StageTrained)
            assert BlobStore(NodeDirectory(tmp_path / "data").blobs).get(trained.rollouts.digest)
            reported = round
        if random.random() < 0.5:
            worker.send(PerformMessage(order(reported + 1)))
        time.sleep(random.uniform(0.0, 0.1))
        os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait(10)


def test_a_stop_while_it_loads_is_heeded_at_once(start: StartWorker) -> None:
    """Loading takes longer than this worker's whole life, and nothing that is loaded is kept."""
    worker = start(make_config(threads=1))
    while worker.expect(ProgressMessage, LOAD_S).what != "loading":
        continue
    worker.send(StopMessage(1.0))
    assert worker.end() == 0


def test_what_no_restart_can_help(start: StartWorker, tmp_path: Path) -> None:
    worker = start(make_config(model=str(tmp_path / "nowhere")))
    fault = worker.expect(FaultMessage, LOAD_S)
    assert fault.permanent and fault.exit_code == ExitCode.NO_INPUT
    assert str(tmp_path / "nowhere") in fault.reason and "training.model" in fault.reason
    assert worker.end() == ExitCode.NO_INPUT


class Idle:
    """A pusher with nothing to push."""

    is_busy = False

    def push(self, trained: StageTrained, checkpoint: Path) -> None:
        pass


class Heard:
    """An outbox that keeps the events of stages."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.written: list[object] = []
        self.retired: list[str] = []
        self.progress = lambda what, note: None
        self.heard = threading.Semaphore(0)
        self.report_retirement = self.retired.append

    def report_event(self, event: object) -> None:
        if isinstance(event, CheckpointWritten):
            self.written.append(event)
            return
        self.events.append(event)
        self.heard.release()


def trained_in(round: int) -> StageTrained:
    return StageTrained(order(round).id, round, 0, 0.5, RolloutsRef("a", round, 0, "", 4, 0))


def live(
    config: Config,
    outbox: Heard,
    rounds: int,
    pusher: Idle | None = None,
    offering: Any = None,
    settle: Callable[[], None] = lambda: None,
    before: Callable[[int], None] = lambda round: None,
) -> None:
    """Run a trainer's loop for `rounds` rounds, around an engine that is done at once."""

    def train(command: Train, *given: Any) -> StageTrained:
        written = SimpleNamespace(meta=SimpleNamespace(event=trained_in(command.round)), directory=Path(), digest="")
        given[-1](written)
        return trained_in(command.round)

    engine: Any = SimpleNamespace(steps=0, policy=SimpleNamespace(device="cpu"), train=train, wait_until_saved=settle)
    service = TrainerService(engine, config, outbox, pusher or Idle(), offering)  # type: ignore[arg-type]

    async def run() -> None:
        told, inbox = anyio.create_memory_object_stream[PerformMessage | StopMessage](4)
        with anyio.fail_after(60.0):
            async with told, inbox, anyio.create_task_group() as tasks:
                tasks.start_soon(service.run, inbox)
                for round in range(rounds):
                    before(round)
                    await told.send(PerformMessage(order(round)))
                    assert await anyio.to_thread.run_sync(outbox.heard.acquire, True, 30.0)

    anyio.run(run)


def test_a_plan_that_leaves_by_sys_exit_fails_its_stage_and_ends_no_process() -> None:
    """With code 0, the daemon would take the process to have ended in order, and start another one to the same end."""

    def leave(*_: object) -> None:
        raise SystemExit(0)

    engine: Any = SimpleNamespace(steps=0, train=leave)
    service = TrainerService(engine, make_config(), Heard(), Idle(), None)  # type: ignore[arg-type]
    failed = service._train_in_thread(order(0), Cancellation())
    assert failed == CommandFailed(order(0).id, "SystemExit: 0")


def test_why_a_stage_failed_is_told_in_full_and_shown() -> None:
    words = "the reward function mine:right failed at all of its 3 calls: " + "no such thing, " * 50

    def fail(*_: object) -> None:
        raise PlanFailed(words, "Mend it")

    engine: Any = SimpleNamespace(steps=0, train=fail, policy=SimpleNamespace(device="cpu"))
    outbox, shown = Heard(), list[tuple[str, str]]()
    outbox.report_progress = lambda what, note: shown.append((what, note))
    service = TrainerService(engine, make_config(), outbox, Idle(), None)  # type: ignore[arg-type]

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            await service._train(order(0), Cancellation(), tasks)

    anyio.run(run)
    failed = CommandFailed(order(0).id, f"{words}. Mend it")
    assert outbox.events == [failed]
    assert shown == [(STAGE_FAILED, failed.reason)]


def test_weights_are_kept_before_another_checkpoint_is_written_and_offered_afterwards() -> None:
    """Even by a process that retires after the same round: otherwise no peer would see any."""
    outbox, took_at, offered = Heard(), [0], threading.Semaphore(0)
    offering = SimpleNamespace(
        is_due=lambda event: event.round == 0,
        keep_weights=lambda checkpoint: not took_at.append(len(outbox.written)),  # type: ignore[func-returns-value]
        publish_offer=lambda event, policy: offered.release(),
    )

    live(make_config(memory_bytes_max=1), outbox, 1, offering=offering)
    assert offered.acquire(timeout=30.0) and outbox.retired
    assert took_at == [0, 0] and len(outbox.written) == 1


def test_a_process_that_holds_too_much_retires_at_the_end_of_a_round() -> None:
    """test_ranks.py has how its process ends then."""
    outbox = Heard()
    live(make_config(memory_bytes_max=1), outbox, 1)
    assert outbox.events == [trained_in(0)]
    (reason,) = outbox.retired
    assert "training.memory_bytes_max" in reason


def test_a_process_that_has_something_to_finish_stays() -> None:
    """Its push would end with it, and so would a stage for which the disk has no room."""
    outbox, pusher, full = Heard(), Idle(), [True, False, False]

    def settle() -> None:
        if full.pop(0):
            raise CheckpointFailed("no space left")

    def push(round: int) -> None:
        pusher.is_busy = round == 1

    live(make_config(memory_bytes_max=1), outbox, 3, pusher, settle=settle, before=push)
    assert len(outbox.events) == 3 and len(outbox.retired) == 1 and full == []
