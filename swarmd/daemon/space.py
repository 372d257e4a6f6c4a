"""Room on disk: a node that runs low lets go of what it can do without, then pauses, and goes on when there is room.

Three bounds, each a number of free bytes on the data directory's file system (`SpaceBounds`). Below the first the node
pauses, above the second it goes on, and below the third it ends while its log can still be written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import anyio
import msgspec
from anyio import to_thread

from swarmd.config import StorageConfig
from swarmd.core.events import SpaceFreed, SpaceLow, StopRequested
from swarmd.errors import ExitCode, NoSpaceLeft
from swarmd.shell.ports import FactSink
from swarmd.training.checkpoint_files import newest_bytes

LOOK_EVERY_S = 5.0
MORE_TO_GO_ON = 1.25  # times what it pauses at, so that a node does not pause and go on by turns
MIB = 1024 * 1024
FIX = "Free some space, then start the node again; nothing is lost. an eighth of storage.free_bytes_min is the limit"


class SpaceBounds(msgspec.Struct, frozen=True):
    """Free bytes: below `low` a node pauses, from `wanted` on it goes on, below `stop` it ends."""

    low: int
    wanted: int
    stop: int


def bounds_of(storage: StorageConfig, checkpoint_bytes: int = 0) -> SpaceBounds:
    """The bounds that a configuration sets, for a node whose next checkpoint takes so much."""
    low = storage.free_bytes_min + checkpoint_bytes if storage.free_bytes_min else 0
    return SpaceBounds(low, int(low * MORE_TO_GO_ON), storage.free_bytes_min // 8)


def free_bytes(directory: Path) -> int:
    """Bytes that this user may still write to the directory's file system."""
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize


def check_space(directory: Path, storage: StorageConfig) -> None:
    """Raise NoSpaceLeft when there is too little room even for the log."""
    free, stop = free_bytes(directory), bounds_of(storage).stop
    if free < stop:
        raise NoSpaceLeft(_lack(directory, free, stop), FIX)


def _lack(directory: Path, free: int, stop: int) -> str:
    return f"only {free / MIB:.1f} MiB are free for {directory}, the limit is {stop / MIB:.1f} MiB"


class RoomMaker(Protocol):
    """Removes what the node can do without."""

    async def __call__(self) -> None:
        """Remove it, where there is any. Raises OSError where the disk refuses, which ends the node."""


class SpaceGuard:
    """Looks at the free space and says what it comes to.

    Args:
        root: the data directory.
        checkpoints: of the node: the newest tells how much the next one takes.
        storage: bounds.
        make_room: removes what the node can do without.
        facts: takes what it comes to.
    """

    def __init__(
        self,
        root: Path,
        checkpoints: Path,
        storage: StorageConfig,
        make_room: RoomMaker,
        facts: FactSink,
    ) -> None:
        self._root = root
        self._checkpoints = checkpoints
        self._storage = storage
        self._make_room = make_room
        self._facts = facts
        self._paused = False

    async def watch(self, every_s: float = LOOK_EVERY_S) -> None:
        """Look until the node has to end."""
        while True:
            if not await self._look():
                return
            await anyio.sleep(every_s)

    async def _look(self) -> bool:
        """Say what has changed. False when the node was asked to end, with exit code 73."""
        free, bounds = await to_thread.run_sync(self._measure)
        if free < bounds.low and not self._paused:
            await self._make_room()
            free, bounds = await to_thread.run_sync(self._measure)
        if free < bounds.stop:
            await self._facts.observe(StopRequested(_lack(self._root, free, bounds.stop), ExitCode.CANNOT_CREATE))
            return False
        if free < bounds.low and not self._paused:
            self._paused = True
            await self._facts.observe(SpaceLow(free, bounds.wanted))
        elif self._paused and free >= bounds.wanted:
            self._paused = False
            await self._facts.observe(SpaceFreed(free))
        return True

    def _measure(self) -> tuple[int, SpaceBounds]:
        return free_bytes(self._root), bounds_of(self._storage, newest_bytes(self._checkpoints))
