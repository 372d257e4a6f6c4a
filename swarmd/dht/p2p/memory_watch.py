"""The network worker watches the memory, files and tasks of itself and p2pd, and frees them in time.

It returns freed memory to the system as the process grows; the C library would keep about as much again as is in use.
If usage is still too high, three steps follow: disconnect unknown peers; kill p2pd, which the node starts again; end
the worker, which the daemon replaces immediately. None of this counts as a failure of the node, because peers cause it.
"""

import asyncio
import ctypes
import gc
import os
import resource
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import anyio

from swarmd.dht.p2p.node import DhtNode, NodeRun
from swarmd.errors import WorkerLimitExceeded
from swarmd.logger import get_logger

LOOK_S = 1.0
PRESSED = 0.75  # share of a threshold above which unknown peers are disconnected
P2PD_SHARE = 0.5  # p2pd's share of the worker's threshold; p2pd uses some 60 MiB idle, 150 MiB with 512 connections
COLLECTED = 0.7  # p2pd's GOMEMLIMIT as a share of its threshold: more than 512 connections need
SPARED = 3  # attempts to free memory before unknown peers that are being served are disconnected, too
PATIENCE_S = 10.0  # time above a threshold, after unknown peers were disconnected
HANDSHAKES_S = 60.0  # p2pd's files may be abandoned handshakes, which it gives up after 15 s
EASE_S = 3.0  # between two attempts to free memory
TRIM_S = 10.0  # between two checks whether the process has grown since it last returned freed memory
TRIM_BYTES = 4 << 20  # growth that makes a trim worthwhile
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
FILES_MAX = 4096  # open in the network worker or in p2pd; above it the process is replaced
TASKS_MAX = 4096  # asyncio tasks in the network worker; above it the process is replaced
DESCRIPTORS_KEPT = 64  # file descriptors reserved for logs, sockets and the disk

log = get_logger(__name__)


class MemoryThresholds(NamedTuple):
    """Thresholds above which a process has to be replaced."""

    memory_bytes: int  # resident, of the worker; p2pd has half of it
    files: int
    tasks: int

    def for_p2pd(self) -> "MemoryThresholds":
        return self._replace(memory_bytes=int(self.memory_bytes * P2PD_SHARE))


class ProcessUsage(NamedTuple):
    """Memory, open files and tasks of a process."""

    memory_bytes: int = 0
    files: int = 0
    tasks: int = 0

    def share_of_thresholds(self, marks: MemoryThresholds) -> float:
        """Return usage as a share of the nearest threshold; more than 1 exceeds it."""
        return max(self.memory_bytes / marks.memory_bytes, self.files / marks.files, self.tasks / marks.tasks)

    def __str__(self) -> str:
        tasks = f", {self.tasks} tasks" if self.tasks else ""
        return f"{self.memory_bytes / 2**20:.0f} MiB, {self.files} open files{tasks}"


def usage_of_process(pid: int) -> ProcessUsage:
    """Return the usage of another process; zero if it has ended."""
    with suppress(OSError, IndexError, ValueError):
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return ProcessUsage(pages * PAGE_BYTES, len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208 - names alone are counted
    return ProcessUsage()


def set_open_files_limit(files_max: int) -> None:
    """Let this process and its children open `files_max` files, as far as the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files_max if hard == resource.RLIM_INFINITY else min(files_max, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))


class MemoryWatch:
    """Watches memory, files and tasks of the network worker and p2pd, and frees or replaces them in time.
    `disconnect_strangers` disconnects unknown peers (if True, even those being served) and returns how many.
    `fills_process`: this process is the network worker alone; otherwise only p2pd is watched."""

    def __init__(
        self,
        node: DhtNode,
        marks: MemoryThresholds,
        disconnect_strangers: Callable[[NodeRun, bool], Awaitable[int]],
        fills_process: bool = True,
    ) -> None:
        self._node = node
        self._marks = marks
        self._disconnect_strangers = disconnect_strangers
        self._fills_process = fills_process
        self._over_since: dict[str, float] = {}
        self._eased_at = -EASE_S
        self._eased = 0  # attempts to free memory in a row
        self._trimmed_at = -TRIM_S
        self._trimmed_bytes = 0  # resident size after the last trim

    async def run(self) -> None:
        """Check usage at intervals until cancelled. Raises WorkerLimitExceeded: this process must be replaced."""
        while True:
            await anyio.sleep(LOOK_S)
            run = self._node.p2pd_run
            await self.check_usage(
                self.own_usage(), usage_of_process(run.p2p.pid) if run is not None else ProcessUsage()
            )

    def own_usage(self) -> ProcessUsage:
        """Return the usage of this process; zero if it does not run the network alone."""
        if not self._fills_process:
            return ProcessUsage()
        return usage_of_process(os.getpid())._replace(tasks=len(asyncio.all_tasks()))

    def _current_thresholds(self) -> MemoryThresholds:
        """Return the thresholds, with no more files than the soft limit allows."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = self._marks.files if soft == resource.RLIM_INFINITY else max(soft - DESCRIPTORS_KEPT, 1)
        return self._marks._replace(files=min(self._marks.files, allowed))

    async def check_usage(self, own: ProcessUsage, p2pd: ProcessUsage) -> None:
        """Free memory or replace processes according to their usage. Raises WorkerLimitExceeded."""
        marks, now = self._current_thresholds(), anyio.current_time()
        share, share_of_p2pd = own.share_of_thresholds(marks), p2pd.share_of_thresholds(marks.for_p2pd())
        self._return_freed_memory(own, now)
        if max(share, share_of_p2pd) < PRESSED:
            self._eased = 0
        elif now - self._eased_at >= EASE_S:
            self._eased_at = now
            await self._free_memory(own, p2pd)
        memory_share = p2pd.memory_bytes / marks.for_p2pd().memory_bytes
        if self._is_over_threshold("p2pd", memory_share, now) or self._is_over_threshold(
            "files", share_of_p2pd, now, HANDSHAKES_S
        ):
            self._kill_p2pd(p2pd)
        if self._is_over_threshold("worker", share, now):
            raise WorkerLimitExceeded(f"the network worker makes room for a fresh process: it holds {own}")

    def _is_over_threshold(self, whose: str, share: float, now: float, patience_s: float = PATIENCE_S) -> bool:
        """Record a share of a threshold. Returns whether it was above 1 for `patience_s`, or is far above."""
        if share < 1.0:
            self._over_since.pop(whose, None)
            return False
        at_once = share >= 1.0 / PRESSED and patience_s == PATIENCE_S
        return at_once or now - self._over_since.setdefault(whose, now) >= patience_s

    def _return_freed_memory(self, own: ProcessUsage, now: float) -> None:
        """Return freed memory to the system if the process has grown."""
        if now - self._trimmed_at < TRIM_S:
            return
        self._trimmed_at = now
        if own.memory_bytes >= self._trimmed_bytes + TRIM_BYTES:
            _trim_heap()
            self._trimmed_bytes = usage_of_process(os.getpid()).memory_bytes
        elif own.memory_bytes:
            self._trimmed_bytes = min(self._trimmed_bytes, own.memory_bytes)

    async def _free_memory(self, own: ProcessUsage, p2pd: ProcessUsage) -> None:
        run = self._node.p2pd_run
        gone = 0
        if run is not None:
            with suppress(Exception):  # a p2pd that does not answer is killed below
                with anyio.move_on_after(PATIENCE_S / 2):
                    gone = await self._disconnect_strangers(run, self._eased >= SPARED)
        self._eased += 1
        gc.collect()
        _trim_heap()
        log.warning("little room is left: worker %s, p2pd %s; %d strangers were disconnected", own, p2pd, gone)

    def _kill_p2pd(self, p2pd: ProcessUsage) -> None:
        run = self._node.p2pd_run
        for whose in ("p2pd", "files"):
            self._over_since.pop(whose, None)
        if run is not None and run.p2p.returncode is None:
            log.warning("p2pd holds %s and is started again", p2pd)
            run.p2p._child.kill()


def _trim_heap() -> None:
    """Return freed memory to the system if the C library supports it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
