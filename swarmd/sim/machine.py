"""A simulated machine: its clock, its account, and its disk, which survives when every process on it dies."""

import io
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from random import Random
from typing import NoReturn

import msgspec

from swarmd.core.events import Event
from swarmd.core.state import State
from swarmd.core.values import RolloutsRef, Settings, StageTokens
from swarmd.eventlog.frame import Commit, decode_commit, encode_commit, encode_frame, read_frames
from swarmd.sim.simulation import Place, Simulation

CHECKPOINTS_KEPT = 2
ROOM_BYTES = 1 << 30  # free space of a normal disk
WANTED_BYTES = 40 << 20  # free space that a node needs to continue training; below 32 MiB it pauses
LOW_BYTES = 32 << 20
LOG_PATH = Path("simulated.seg")  # the log's name in errors


class CrashableLog:
    """An event log of which only the synced part is sure to survive a crash."""

    def __init__(self, events_max: int | None = None) -> None:
        self.commits: list[Commit] = []
        self.synced = 0  # commits
        self.events_max = events_max  # in a commit; one fact and a skip always fit

    @property
    def next_seq(self) -> int:
        """The next event's sequence number."""
        return self.commits[-1].end_seq if self.commits else 0

    def append(self, commit: Commit) -> None:
        self.commits.append(commit)

    def sync(self) -> None:
        self.synced = len(self.commits)

    def lose_unsynced(self, random: Random) -> None:
        """Lose power: of the bytes written since the last sync, a random prefix has reached the disk."""
        tail = self.commits[self.synced :]
        del self.commits[self.synced :]
        written = b"".join(encode_frame(encode_commit(commit), 0) for commit in tail)
        self.commits += decode_whole_commits(written[: random.randint(0, len(written))])
        self.sync()


def decode_whole_commits(written: bytes) -> list[Commit]:
    """Return the complete commits at the beginning of these bytes, read by the real log's frame reader."""
    file = io.BytesIO(written)
    return [decode_commit(payload, LOG_PATH) for _, payload in read_frames(file, 0, 0)]  # type: ignore[arg-type]


class SimCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint of a trained stage."""

    round: int
    stage: int
    reward: float
    rollouts: RolloutsRef
    ledger: StageTokens


class SimDisk:
    """Log and checkpoints of one machine.

    Attributes:
        trained: each (round, stage) that was trained to its end, in all runs; a record of the simulator, which the node
            cannot read.
        free_bytes: of the file system.
        drawn: tokens, by the trainer's count.
        snapshot: number of commits, and the state after them.
    """

    def __init__(self, commit_events_max: int | None = None) -> None:
        self.log = CrashableLog(commit_events_max)
        self.snapshot = (0, State())
        self.checkpoints: dict[Place, SimCheckpoint] = {}
        self.trained: set[Place] = set()
        self.free_bytes = ROOM_BYTES
        self.drawn = 0

    @property
    def is_nearly_full(self) -> bool:
        return self.free_bytes < LOW_BYTES

    def restore_backup(self, commits: int) -> None:
        """Truncate the log to `commits` and drop all checkpoints."""
        del self.log.commits[commits:]
        self.log.sync()
        self.checkpoints = {}
        self.drawn = 0
        self.snapshot = (0, State())

    def save_checkpoint(self, checkpoint: SimCheckpoint) -> None:
        """Write a checkpoint, and drop the oldest."""
        self.checkpoints[(checkpoint.round, checkpoint.stage)] = checkpoint
        while len(self.checkpoints) > CHECKPOINTS_KEPT:
            del self.checkpoints[next(iter(self.checkpoints))]


class SimMachine(ABC):
    """A machine as its processes see it; `swarmd.sim.node.SimNode` adds the daemon.

    Args:
        pace_s: median training time of a stage on this machine.
        skew_s: this machine's clock minus the true time.
        events_max: a commit of more events is refused; None for no bound.

    Attributes:
        jumped_s: the part of `skew_s` by which the clock was set wrong.
        jumps: how often it was set so far.
        account: the account for submissions to a contract.
        rpc_out_until: no chain endpoint answers until then.
        life: number of the daemon's current run; facts of an earlier one are lost.
        running: whether the daemon runs.
        piped: facts that did not fit into the daemon's inbox.
        busy_until: facts gather into one commit until then, as on a slow disk.
        frozen_until: the daemon stands still until then.
    """

    def __init__(
        self, world: Simulation, index: int, settings: Settings, pace_s: float, skew_s: float, events_max: int | None
    ) -> None:
        self.world = world
        self.index = index
        self.settings = settings
        self.peer = settings.peer
        self.name = settings.name
        self.coordinates = settings.role == "coordinator"
        self.pace_s = pace_s
        self.skew_s = skew_s
        self.jumped_s = 0.0
        self.jumps = 0
        self.account = f"0xaccount{index}"
        self.rpc_out_until = 0.0
        self.disk = SimDisk(events_max)
        self.life = 0
        self.running = False
        self.piped: deque[Event] = deque()
        self.busy_until = 0.0
        self.frozen_until = 0.0

    @property
    @abstractmethod
    def state(self) -> State:
        """The daemon's state."""

    @abstractmethod
    def receive_fact(self, life: int, event: Event) -> None:
        """Put a fact into the inbox of this run of the daemon."""

    def local_time(self) -> float:
        return self.world.now + self.skew_s

    def fail_run(self, what: str) -> NoReturn:
        """End the run with an error: a violated invariant on this machine."""
        self.world.fail_run(what, self.name)
