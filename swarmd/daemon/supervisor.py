"""One worker's processes: start, speak, listen, watch, end. Whether to start again is the core's to decide.

Everything that happens to a process becomes a fact (`WorkerStarted`, `WorkerStartFailed`, `WorkerExited`, and what the
worker observes); every command comes from the core. A command for a worker that does not run is dropped: the core
issues it again when the worker is back.
"""

from __future__ import annotations

import contextlib
import errno
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio
import structlog
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream

from swarmd.config import WorkersConfig
from swarmd.core.commands import Command
from swarmd.core.events import (
    CommandFailed,
    Event,
    NodeStarted,
    NodeStopped,
    StopRequested,
    TimerFired,
    WorkerExited,
    WorkerStarted,
    WorkerStartFailed,
)
from swarmd.core.values import Worker
from swarmd.daemon.output import LineReader
from swarmd.daemon.process import Child
from swarmd.errors import EXIT_FOR_ROOM, FrameError
from swarmd.observe.folding import LineFolder
from swarmd.observe.live import WorkerLive
from swarmd.observe.redaction import Cover
from swarmd.worker.frames import FrameReader, encode_frame
from swarmd.worker.messages import Fault, FromWorker, Observed, Perform, Ping, Progress, Start, Stop, ToWorker

MESSAGES_QUEUED_MAX = 256  # a worker that leaves so many unread is killed
DRAIN_S = 2.0  # longest reading of what a dead worker left in its pipes
STOP_MESSAGE_SHARE = 0.7  # of stop_s: until then a worker may end by itself; then SIGTERM
STOP_TERMINATE_SHARE = 0.9  # of stop_s: then SIGKILL
OOM_SCORES: Mapping[Worker, int] = {
    "trainer": 500,
    "network": 200,
    "chain": 200,
}  # whom the kernel takes first; the daemon has 0

# Signals that a process does not bring about itself: the kernel's for want of memory, or another's.
OUTSIDE_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
WANTING = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)  # the machine has no room for one more process

# Facts about the daemon itself; a worker that claims one is broken.
DAEMON_EVENTS = (NodeStarted, StopRequested, NodeStopped, TimerFired, WorkerStarted, WorkerExited, WorkerStartFailed)

log = structlog.get_logger("swarmd.supervisor")


class Supervisor:
    """Runs at most one process of one worker at a time.

    Args:
        worker: which one.
        argv: the program to execute.
        environment: of the process.
        start: the first message to every new process.
        limits: ping and stop times.
        observe: takes facts; waits while the inbox is full.
        tasks: where the processes' tasks run.
        cover: for what the processes print and tell.
    """

    def __init__(
        self,
        worker: Worker,
        argv: Sequence[str],
        environment: Mapping[str, str],
        start: Start,
        limits: WorkersConfig,
        observe: Callable[[Event], Awaitable[None]],
        tasks: TaskGroup,
        cover: Cover | None = None,
    ) -> None:
        self.worker = worker
        self._cover = cover or Cover()
        self._argv = tuple(argv)
        self._environment = dict(environment)
        self._first = start
        self._limits = limits
        self._observe = observe
        self._tasks = tasks
        self._life: Life | None = None
        self._end_told = False  # of the last process: its exit, or that it did not start, is on its way to the core
        self._stopping = False

    def start(self, attempt: int) -> None:
        """Start a process, unless one runs or the node is stopping."""
        if self._stopping or self._life is not None:
            log.debug("start not needed", worker=self.worker, attempt=attempt, stopping=self._stopping)
            return
        self._life = Life(self.worker, self._limits, self._observe, self._cover)
        self._end_told = False
        self._tasks.start_soon(self._run, self._life, attempt)

    def perform(self, command: Command) -> None:
        """Hand a command to the running process, or drop it."""
        if self._life is None:
            log.debug("the worker does not run, command dropped", worker=self.worker, command=command.id)
            return
        self._life.send(Perform(command))

    def kill(self, reason: str) -> None:
        """End the running process at once; its exit is reported with this reason.

        Where none runs and none was reported to have ended, that is reported: the core waits for an exit after a kill,
        and would otherwise wait for ever.
        """
        if self._life is not None:
            self._life.kill(reason)
        elif not self._end_told and not self._stopping:
            self._tasks.start_soon(self._tell_end, WorkerExited(self.worker, f"{reason}, and no process was there"))

    async def _tell_end(self, event: WorkerExited | WorkerStartFailed) -> None:
        self._end_told = True
        await self._observe(event)

    async def stop(self) -> None:
        """End the running process in order, within `stop_s`, and start none any more."""
        self._stopping = True
        life = self._life
        if life is None:
            return
        stop_s = self._limits.stop_s
        life.planned = True
        life.send(Stop(grace_s=stop_s * STOP_MESSAGE_SHARE))
        if await life.ends_within(stop_s * STOP_MESSAGE_SHARE):
            return
        log.warning("the worker does not end by itself", worker=self.worker)
        life.terminate()
        if not await life.ends_within(stop_s * (STOP_TERMINATE_SHARE - STOP_MESSAGE_SHARE)):
            life.kill("did not end in time")
            await life.ends_within(DRAIN_S)

    def kill_now(self) -> None:
        """Kill without waiting for anything: the daemon is about to exit."""
        self._stopping = True
        if self._life is not None:
            self._life.kill("killed at once")

    def live(self) -> WorkerLive | None:
        """What can be said of the running process beyond the log, None when none runs."""
        return self._life.live() if self._life and self._life.child else None

    async def _run(self, life: Life, attempt: int) -> None:
        try:
            child = Child(self._argv, self._environment)
        except OSError as error:
            self._life = None
            reason = f"{self._argv[0]}: {error.strerror or error}"
            await self._tell_end(WorkerStartFailed(self.worker, reason, attempt, error.errno in WANTING))
            return
        try:
            child.prefer_for_oom(OOM_SCORES[self.worker])
            await self._observe(WorkerStarted(self.worker, child.pid, attempt))
            exited = await life.run(child, self._first)
        finally:
            child.reap()
            self._life = None
            life.ended.set()
        await self._tell_end(exited)  # last, so that the core's answer finds no process in its way


class Life:
    """One process from start to exit."""

    def __init__(
        self, worker: Worker, limits: WorkersConfig, observe: Callable[[Event], Awaitable[None]], cover: Cover
    ) -> None:
        self.worker = worker
        self.child: Child | None = None
        self.ended = anyio.Event()
        self.planned = False  # the node asked it to end
        self._limits = limits
        self._observe = observe
        self._to_worker, self._messages = anyio.create_memory_object_stream[ToWorker](MESSAGES_QUEUED_MAX)
        self._cover = cover
        self._lines = LineReader(cover)
        self._folder = LineFolder(self.worker)
        self._fault: Fault | None = None
        self._killed_for = ""
        self._started_at = anyio.current_time()
        self._heard_at = 0.0  # 0 until the first frame
        self._missed = 0  # pings sent since the last frame
        self._handing_over = False  # the inbox is full: the worker is not to blame for its silence
        self._progress: Progress | None = None
        self._progress_at = 0.0

    # --- from the core ---

    def send(self, message: ToWorker) -> None:
        """Queue a message; at the bound the worker is killed, because it reads nothing."""
        try:
            self._to_worker.send_nowait(message)
        except anyio.WouldBlock:
            self.kill(f"took none of {MESSAGES_QUEUED_MAX} waiting messages")

    def kill(self, reason: str) -> None:
        """End the process and its group at once."""
        self._killed_for = self._killed_for or reason
        if self.child is not None:
            self.child.kill()

    def terminate(self) -> None:
        """Ask the process and its group to end."""
        if self.child is not None:
            self.child.terminate()

    async def ends_within(self, seconds: float) -> bool:
        """Wait for the end of the process."""
        with anyio.move_on_after(seconds):
            await self.ended.wait()
        return self.ended.is_set()

    def live(self) -> WorkerLive:
        """Process id, age, silence and progress."""
        now = anyio.current_time()
        return WorkerLive(
            pid=self.child.pid if self.child else 0,
            age_s=now - self._started_at,
            silent_s=now - (self._heard_at or self._started_at),
            spoken=bool(self._heard_at),
            answering=bool(self._heard_at) and self._missed <= 2,
            progress=self._progress,
            progress_age_s=now - self._progress_at if self._progress else 0.0,
        )

    # --- the process ---

    async def run(self, child: Child, first: Start) -> WorkerExited:
        """Speak with the process until it has ended, and say how it ended."""
        self.child = child
        if self._killed_for:
            child.kill()
        async with anyio.create_task_group() as watching:
            readers = anyio.Event()
            watching.start_soon(self._read, child, readers)
            watching.start_soon(self._write, child, first)
            watching.start_soon(self._ping)
            await child.wait()
            child.kill()  # the rest of its group, so that the pipes end
            with anyio.move_on_after(DRAIN_S):
                await readers.wait()
            watching.cancel_scope.cancel()
        self._flush_lines()
        return self._exit(child.reap())

    async def _read(self, child: Child, done: anyio.Event) -> None:
        async with anyio.create_task_group() as reading:
            reading.start_soon(self._read_frames, child)
            reading.start_soon(self._read_lines, child)
        done.set()

    async def _read_frames(self, child: Child) -> None:
        reader: FrameReader[FromWorker] = FrameReader(FromWorker)  # type: ignore[arg-type]
        while chunk := await child.read_stdout():
            try:
                for message in reader.feed(chunk):
                    await self._take(message)
            except FrameError as error:
                self.kill(f"broken output: {error}")
                return

    async def _take(self, message: FromWorker) -> None:
        self._heard_at = anyio.current_time()
        self._missed = 0
        if isinstance(message, Observed):
            await self._take_fact(self._cover.within(message.event))
        elif isinstance(message, Progress):
            self._progress, self._progress_at = self._cover.within(message), self._heard_at
        elif isinstance(message, Fault):
            self._fault = self._cover.within(message)

    async def _take_fact(self, event: Event) -> None:
        if isinstance(event, DAEMON_EVENTS):
            raise FrameError(f"a worker cannot observe {type(event).__name__}")
        self._handing_over = True
        await self._observe(event)
        self._handing_over = False

    async def _read_lines(self, child: Child) -> None:
        while chunk := await child.read_stderr():
            for line in self._lines.feed(chunk):
                self._folder.take(line.level, line.text, anyio.current_time())

    def _flush_lines(self) -> None:
        for line in self._lines.end():
            self._folder.take(line.level, line.text, anyio.current_time())
        self._folder.flush()

    async def _write(self, child: Child, first: Start) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is ending; the exit tells
            await child.write(encode_frame(first))
            await self._write_messages(child, self._messages)

    async def _write_messages(self, child: Child, messages: MemoryObjectReceiveStream[ToWorker]) -> None:
        async for message in messages:
            try:
                frame = encode_frame(message)
            except FrameError as error:
                log.error("a message is too large for the worker", worker=self.worker, error=str(error))
                if isinstance(message, Perform):
                    await self._observe(CommandFailed(message.command.id, str(error)))
                continue
            await child.write(frame)

    async def _ping(self) -> None:
        """Ping, and kill a worker that has been silent through `silent_s` worth of pings.

        Counted in pings, not by the clock, so that a daemon that was itself suspended blames nobody. Until the first
        frame the core's `ready_s` deadline watches: imports take long on a busy machine.
        """
        number = 0
        while True:
            await anyio.sleep(self._limits.ping_s)
            self._folder.tick(anyio.current_time())
            if self._heard_at and not self._handing_over:
                self._missed += 1
            if self._missed * self._limits.ping_s >= self._limits.silent_s + self._limits.ping_s:
                self.kill(f"answered no ping for {self._limits.silent_s:g} s")
                return
            number += 1
            self.send(Ping(number))

    # --- the end ---

    def _exit(self, status: int | None) -> WorkerExited:
        fault = self._fault
        reason = self._reason(status)
        return WorkerExited(
            worker=self.worker,
            reason=reason,
            code=status if status is not None and status >= 0 else None,
            signal=-status if status is not None and status < 0 else None,
            permanent=fault.permanent if fault else False,
            exit_code=fault.exit_code if fault else 0,
            planned=fault is not None and fault.planned and not self._killed_for,
            outside=not self._killed_for and not self.planned and is_from_outside(status),
        )

    def _reason(self, status: int | None) -> str:
        how = describe_status(status)
        if self._killed_for:
            headline = f"{self._killed_for}, killed"
        elif self._fault:
            headline = self._fault.reason
        elif self.planned:
            return f"stopped ({how})"
        elif status == -signal.SIGKILL:
            headline = f"{how}, not by this daemon; out of memory?"
        else:
            headline = how
        tail = self._lines.tail()
        return f"{headline}; last output:\n{tail}" if tail and not self._fault else headline


def is_from_outside(status: int | None) -> bool:
    """Whether others ended a process: by a signal, or by filling it until it made room."""
    return status is not None and (status == EXIT_FOR_ROOM or -status in OUTSIDE_SIGNALS)


def describe_status(status: int | None) -> str:
    """How a process ended, in words."""
    if status is None:
        return "does not go away though killed"
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-status).name}"
    return f"ended by signal {-status}"
