"""A simulated machine: its disk, which stays when everything on it dies, and the processes on it, which die or freeze.

The trainer is here: it takes its time, fails, hangs, dies, and writes a checkpoint while it reports and goes on.
"""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from swarmd.core.commands import CancelTraining, Command, Train
from swarmd.core.events import (
    CheckpointWritten,
    CommandFailed,
    Event,
    StageTrained,
    TrainerReady,
    TrainingCancelled,
    WeightsAdopted,
    WeightsRefused,
)
from swarmd.core.state import State
from swarmd.core.values import PeerWeights, RolloutsRef, Skill, WeightsCause, Worker
from swarmd.errors import CommitTooLarge
from swarmd.eventlog.frame import Commit, decode_commit, encode_commit, encode_frame, read_frames
from swarmd.worker.messages import Fault, Observed

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode

CHECKPOINTS_KEPT = 2
ROOM_BYTES = 1 << 30  # free on a disk that nothing has filled
WANTED_BYTES = 40 << 20  # that a node wants to be free before it trains on; below 32 MiB it pauses
LOW_BYTES = 32 << 20
PLACE = Path("simulated.seg")  # names the log in errors


class DiskLog:
    """An event log of which only the synced part is sure to survive."""

    def __init__(self, events_max: int | None = None) -> None:
        self.commits: list[Commit] = []
        self.synced = 0  # commits
        self._events_max = events_max

    def check_size(self, commit: Commit) -> None:
        """Raise CommitTooLarge for a commit of more events than there is room for; one fact and a skip always fit."""
        if self._events_max is not None and len(commit.events) > self._events_max:
            raise CommitTooLarge(f"{len(commit.events)} events", f"Commit at most {self._events_max} at once")

    @property
    def next_seq(self) -> int:
        """Sequence number the next event gets."""
        return self.commits[-1].end_seq if self.commits else 0

    def append(self, commit: Commit) -> None:
        self.commits.append(commit)

    def sync(self) -> None:
        self.synced = len(self.commits)

    def crash(self, random: Random) -> None:
        """Lose power: of what was written since the last sync, some first bytes reached the disk."""
        tail = self.commits[self.synced :]
        del self.commits[self.synced :]
        written = b"".join(encode_frame(encode_commit(commit), 0) for commit in tail)
        self.commits += recover(written[: random.randint(0, len(written))])
        self.sync()


def recover(written: bytes) -> list[Commit]:
    """The whole commits at the beginning of what was found, read as the real log reads frames."""
    file = io.BytesIO(written)
    return [decode_commit(payload, PLACE) for _, payload in read_frames(file, 0, 0)]  # type: ignore[arg-type]


class SimCheckpoint(msgspec.Struct, frozen=True):
    """What training a stage left behind."""

    round: int
    stage: int
    reward: float
    rollouts: RolloutsRef


class SimDisk:
    """Log and checkpoints of one machine.

    Attributes:
        trained: each (round, stage) that was trained to its end, over all lives; a record of the simulator, which
            the node cannot read.
        free_bytes: on the file system.
        snapshot: so many commits, and what they come to.
    """

    def __init__(self, commit_events_max: int | None = None) -> None:
        self.log = DiskLog(commit_events_max)
        self.snapshot = (0, State())
        self.checkpoints: dict[tuple[int, int], SimCheckpoint] = {}
        self.trained: set[tuple[int, int]] = set()
        self.free_bytes = ROOM_BYTES

    @property
    def is_low(self) -> bool:
        """Whether a node pauses on it."""
        return self.free_bytes < LOW_BYTES

    def restore(self, commits: int) -> None:
        """Be what was there when the log had so many commits, without the checkpoints."""
        del self.log.commits[commits:]
        self.log.sync()
        self.checkpoints = {}
        self.snapshot = (0, State())

    def save(self, checkpoint: SimCheckpoint) -> None:
        """Write a checkpoint, atomically, and drop the oldest."""
        self.checkpoints[(checkpoint.round, checkpoint.stage)] = checkpoint
        while len(self.checkpoints) > CHECKPOINTS_KEPT:
            del self.checkpoints[next(iter(self.checkpoints))]


class SimWorker(ABC):
    """A child process of one daemon life."""

    kind: Worker

    def __init__(self, node: SimNode, pid: int) -> None:
        self.node = node
        self.supervisor = node.supervisor
        self.world = node.world
        self.random = node.world.random
        self.life = node.life
        self.pid = pid
        self.alive = True
        self.status: int | None = None  # that it ended with, negative the number of a signal
        self.outside = False  # others ended it
        self.fault: Fault | None = None  # that it reported before it ended
        self.watched = False  # its pings are counted
        self.ignores_stop = False  # neither the wish that it end nor SIGTERM has it end
        self.frozen_until = 0.0
        self.backlog: deque[Command] = deque()  # commands that came while it was frozen

    @abstractmethod
    def begin(self) -> None:
        """Come up after the process was started."""

    def take(self, command: Command) -> None:
        """Read a command from the pipe, in their order."""
        if self.backlog or self.frozen_until > self.world.now:
            self.backlog.append(command)
            self.later(0.0, self._take_next)
        else:
            self.perform(command)

    def _take_next(self) -> None:
        self.perform(self.backlog.popleft())

    @abstractmethod
    def perform(self, command: Command) -> None:
        """Do what the daemon wants; facts follow later, never from within."""

    def tell(self, event: Event) -> None:
        """Report a fact to the daemon."""
        if self.alive:
            self.supervisor.hear(self, Observed(event))

    def later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Go on with `act` after a while, unless the process is dead by then; a frozen one does it when it thaws."""
        self.world.call_in(delay_s, self._act, act, args)

    def _act(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.frozen_until > self.world.now:
            self.world.call_at(self.frozen_until, self._act, act, args)
        else:
            act(*args)

    def freeze(self, until: float) -> None:
        """Stand still, as after SIGSTOP."""
        self.frozen_until = max(self.frozen_until, until)
        self.supervisor.watch(self)

    def end(self) -> None:
        """Be gone, whatever was being done."""
        self.alive = False


ORPHAN_S = 0.5  # a trainer whose daemon was killed notices within this, and may save a checkpoint meanwhile
WRITE_S = 2.0  # for a checkpoint, beside what follows
LOAD_S = (0.5, 4.0)
MEASURE_S = 0.1  # of a peer's weights, before the first step
STEP_S = 0.5  # cancellation takes effect between two steps
FULL_CHANCE = 0.5  # that a checkpoint does not fit a disk that is nearly full
SAVE_S = 3.0  # evaluation at the end of a stage, which no cancellation stops


class TrainerWorker(SimWorker):
    """Trains one stage at a time."""

    kind = "trainer"
    running: Train | None = None
    writing: SimCheckpoint | None = None
    finish_at = math.inf
    hangs = False

    def begin(self) -> None:
        if self.random.random() >= self.world.chance("slow_start"):
            takes = self.node.settings.catch_up_rounds or self.node.settings.average_rounds
            digest = "a" * 64 if takes else ""
            restored = max(self.node.disk.checkpoints, default=None)
            ready = TrainerReady("cpu", "embedded", 1, architecture=digest, tokenizer=digest, restored=restored)
            self.later(self.random.uniform(*LOAD_S), self.tell, ready)

    def perform(self, command: Command) -> None:
        if isinstance(command, Train):
            self._train(command)
        elif isinstance(command, CancelTraining):
            self._cancel(command)

    def _train(self, command: Train) -> None:
        if self.running is not None and self.running.id == command.id:
            return
        if self.running is not None:
            self.world.fail(self.node, f"{command.id} was sent while the trainer is at {self.running.id}")
        self.running = command
        if self._has_checkpoint(command):
            self._finish_in(self.random.uniform(0.01, 0.3), command)
        elif self.random.random() < self.world.chance("trainer_failure"):
            self.later(self.random.uniform(0.1, 5.0), self._break_off, command)
        else:
            self._begin_stage(command)

    def _has_checkpoint(self, command: Train) -> bool:
        return (command.round, command.stage) in self.node.disk.checkpoints

    def _begin_stage(self, command: Train) -> None:
        if command.weights is not None:
            self.later(MEASURE_S, tell_measured, self, command, command.weights)
        self.hangs = self.random.random() < self.world.chance("trainer_hang")
        if not self.hangs:
            self._finish_in(self.random.lognormvariate(math.log(self.node.pace_s), 0.25), command)

    def _finish_in(self, delay_s: float, command: Train) -> None:
        self.finish_at = self.world.now + delay_s
        self.later(delay_s, self._finish, command)

    def _break_off(self, command: Train, reason: str = "out of memory") -> None:
        if self.running is command:
            self.running, self.finish_at = None, math.inf
            self.tell(CommandFailed(command.id, reason))

    def _finish(self, command: Train) -> None:
        if self.running is not command:
            return
        if self.node.disk.is_low and not self._has_checkpoint(command) and self.random.random() < FULL_CHANCE:
            self._break_off(command, "no space left for the checkpoint")
            return
        self._write()  # of the stage before: weights change with the first step after it
        checkpoint = self.learn(command)
        if self.random.random() < self.world.chance("trainer_crash"):
            if self.random.random() < 0.5:
                self.node.disk.save(checkpoint)
            self.node.lose_worker(self, "killed before its report")
            return
        self.running, self.finish_at = None, math.inf
        self.writing = checkpoint
        self.later(WRITE_S, self._write)
        self.tell(
            StageTrained(
                command.id,
                command.round,
                command.stage,
                checkpoint.reward,
                checkpoint.rollouts,
                steps=20,
                **(measured(checkpoint) if self.world.profile.measures else {}),
            )
        )

    def learn(self, command: Train) -> SimCheckpoint:
        """What comes of a stage: what its checkpoint says, or something new."""
        disk, place = self.node.disk, (command.round, command.stage)
        known = disk.checkpoints.get(place)
        if known is not None:
            return known
        if place <= self.node.state.done:
            self.world.fail(self.node, f"round {place[0]}, stage {place[1]} counts and was trained again")
        disk.trained.add(place)
        reward = round(self.random.random(), 6)
        rollouts = RolloutsRef(self.node.peer, *place, f"{self.random.getrandbits(64):016x}", 4096, 16)
        return SimCheckpoint(*place, reward, rollouts)

    def _write(self) -> None:
        """Have the last stage on disk."""
        if self.writing is not None:
            written, self.writing = self.writing, None
            self.node.disk.save(written)
            self.tell(CheckpointWritten(written.round, written.stage, written.rollouts.digest))

    def _cancel(self, command: CancelTraining) -> None:
        """A cancellation that comes too late is answered too, now and then, as a worker in doubt would."""
        running = self.running
        if running is not None and running.id == command.train:
            if not self.hangs and self.finish_at - self.world.now > SAVE_S:
                self.later(self.random.uniform(0.0, STEP_S), self._stop_stage, running)
        elif self.random.random() < 0.5:
            _, round, stage = command.train.split("/")
            self.later(0.001, self.tell, TrainingCancelled(command.id, int(round), int(stage)))

    def _stop_stage(self, train: Train) -> None:
        if self.running is train:
            self.running, self.finish_at = None, math.inf
            self.tell(TrainingCancelled(train.id, train.round, train.stage, steps=7))

    def orphan(self) -> None:
        """The daemon is gone: end soon, but a checkpoint on its way may be saved."""
        if self.writing is not None and self.random.random() < 0.5:
            self.node.disk.save(self.writing)
        if self.running is not None and self.finish_at - self.world.now < ORPHAN_S:
            self.node.disk.save(self.learn(self.running))
        self.end()


def measured(checkpoint: SimCheckpoint) -> dict[str, Any]:
    """Made of the reward, so that a stage that is answered again from its checkpoint tells the same."""
    share = checkpoint.reward
    fallen = Skill("sort", share / 2, 64, 0.9, True, 2.5)
    return {
        "held_out": (share + share / 2) / 2,
        "skills": (fallen, Skill("reverse", share, 64, share)),
    }


def tell_measured(trainer: TrainerWorker, command: Train, weights: PeerWeights) -> None:
    """A peer's weights are better than the own ones, or not; a mean is as good, or worse."""
    if trainer.running is not command:
        return
    if trainer.random.random() < 0.5:
        better = 0.25 if weights.averaged else 0.5
        trainer.tell(WeightsAdopted(command.id, command.round, command.stage, weights, 0.25, better))
    else:
        cause: WeightsCause = "worse" if weights.averaged else "no-better"
        trainer.tell(WeightsRefused(command.id, cause, "", weights.peer, 0.25, 0.125))
