"""What a simulated machine keeps when everything on it dies: the event log and the trainer's checkpoints."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random

import msgspec

from swarmd.core.state import State
from swarmd.core.values import RolloutsRef
from swarmd.errors import CommitTooLarge
from swarmd.eventlog.frame import Commit, decode_commit, encode_commit, encode_frame, read_frames

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
        trained: how often each (round, stage) was trained to its end, over all lives; a record of the simulator, which
            the node cannot read.
        free_bytes: on the file system.
        snapshot: so many commits, and what they come to.
    """

    def __init__(self, commit_events_max: int | None = None) -> None:
        self.log = DiskLog(commit_events_max)
        self.snapshot = (0, State())
        self.checkpoints: dict[tuple[int, int], SimCheckpoint] = {}
        self.trained: dict[tuple[int, int], int] = {}
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
        place = (checkpoint.round, checkpoint.stage)
        self.trained[place] = self.trained.get(place, 0) + 1
        self.checkpoints[place] = checkpoint
        while len(self.checkpoints) > CHECKPOINTS_KEPT:
            del self.checkpoints[next(iter(self.checkpoints))]
