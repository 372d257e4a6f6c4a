"""Processes that an earlier life of this node left behind.

A daemon that is killed outright cannot end its workers. They end by themselves when their stdin closes; one that hangs
does not. Every worker and what it starts carries the node's tag in its environment, so the next life, once it holds the
event log's lock, can find them and no others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import anyio

from swarmd.daemon.process import TAG_VARIABLE

GONE_S = 5.0  # longest wait for a killed process to be gone
PASSES_MAX = 5  # looks for leftovers: one that was found may have started another just before it was killed


def node_tag(peer: str, data_dir: Path) -> str:
    """What marks the processes of one node."""
    return f"{peer}@{data_dir.resolve()}"


def find_leftovers(tag: str, proc: Path = Path("/proc")) -> list[int]:
    """Pids of processes that carry the tag; none where there is no /proc."""
    found = [int(entry.name) for entry in proc.glob("[0-9]*") if _carries(entry, tag)]
    return sorted(pid for pid in found if pid != os.getpid())


def _carries(entry: Path, tag: str) -> bool:
    """Whether a process, given its directory in /proc, carries the tag."""
    with contextlib.suppress(OSError):  # gone meanwhile, or another user's
        return f"{TAG_VARIABLE}={tag}".encode() in (entry / "environ").read_bytes().split(b"\0")
    return False


async def kill_leftovers(tag: str) -> list[int]:
    """End the processes of an earlier life. Returns their pids."""
    if sys.platform != "linux":
        return []
    killed: list[int] = []
    for _ in range(PASSES_MAX):
        found = find_leftovers(tag)
        if not found:
            break
        killed += [pid for pid in found if await _kill(pid, tag)]
    return killed


async def _kill(pid: int, tag: str) -> bool:
    """Kill one process and wait until it is gone. False when it was gone already or is not ours.

    It is looked at once more when the descriptor holds it: its number may have become another's since it was found.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(pid)
        try:
            if not _carries(Path("/proc", str(pid)), tag):
                return False
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            with anyio.move_on_after(GONE_S):
                await anyio.wait_readable(descriptor)
            return True
        finally:
            os.close(descriptor)
    return False
