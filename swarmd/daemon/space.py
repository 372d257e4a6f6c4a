"""Room on disk: a node that runs low stops in order, with its log whole, instead of filling the disk."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from anyio import to_thread

from swarmd.core.events import Event, StopRequested
from swarmd.errors import ExitCode, NoSpaceLeft

LOOK_EVERY_S = 5.0
MIB = 1024 * 1024
FIX = "Free some space, then start the node again; nothing is lost. storage.free_bytes_min sets the limit"


def free_bytes(directory: Path) -> int:
    """Bytes that this user may still write to the directory's file system."""
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize


def lack_of_space(directory: Path, free_bytes_min: int) -> str:
    """What is wrong in words, empty when there is room."""
    free = free_bytes(directory)
    if free >= free_bytes_min:
        return ""
    return f"only {free / MIB:.1f} MiB are free for {directory}, the limit is {free_bytes_min / MIB:.1f} MiB"


def check_space(directory: Path, free_bytes_min: int) -> None:
    """Raise NoSpaceLeft when there is too little room to start."""
    if lack := lack_of_space(directory, free_bytes_min):
        raise NoSpaceLeft(lack, FIX)


async def guard_space(
    directory: Path,
    free_bytes_min: int,
    observe: Callable[[Event], Awaitable[None]],
    every_s: float = LOOK_EVERY_S,
) -> None:
    """Look at the free space until it runs low, then ask the node to stop with exit code 73."""
    while True:
        lack = await to_thread.run_sync(lack_of_space, directory, free_bytes_min)
        if lack:
            break
        await anyio.sleep(every_s)
    await observe(StopRequested(lack, ExitCode.CANNOT_CREATE))
