"""The pipes of one worker process: its frames and lines are read, its messages written, pings sent in time."""

from __future__ import annotations

import contextlib
from typing import Protocol

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from swarmd.config import WorkersConfig
from swarmd.core.events import CommandFailed
from swarmd.core.values import Worker
from swarmd.daemon.output import LineReader
from swarmd.daemon.process import Child
from swarmd.errors import FrameError
from swarmd.logger import get_logger
from swarmd.observe.live import WorkerLive
from swarmd.observe.logging.logs import LineFolder
from swarmd.observe.logging.redaction import Redactor
from swarmd.shell.supervision import DRAIN_S, MESSAGES_QUEUED_MAX, PINGS_MISSED
from swarmd.worker.messages import FrameReader, FromWorker, Observed, Perform, Progress, Start, ToWorker, encode_frame

UNKILLABLE_S = 60.0  # longest wait for a killed process: one that hangs in the kernel, as in a driver, does not go

log = get_logger("swarmd.supervisor")


class Listener(Protocol):
    """Who decides about the process: `swarmd.daemon.supervisor.Supervisor`."""

    async def hear(self, worker: Worker, message: FromWorker) -> bool:
        """A message came. False where nothing more is to be read."""
        ...

    def hear_nonsense(self, worker: Worker, reason: str) -> None:
        """What came is no message."""
        ...

    def ping(self, worker: Worker) -> None:
        """Time for a ping."""
        ...

    async def fail(self, event: CommandFailed) -> None:
        """A command is too large to be sent."""
        ...


class WorkerProcess:
    """One process from start to exit.

    Attributes:
        child: the process; None until it was executed.
    """

    def __init__(self, worker: Worker, limits: WorkersConfig, listener: Listener, cover: Redactor) -> None:
        self.worker: Worker = worker
        self.child: Child | None = None
        self._limits = limits
        self._listener = listener
        self._to_worker, self._messages = anyio.create_memory_object_stream[ToWorker](MESSAGES_QUEUED_MAX)
        self._cover = cover
        self._lines = LineReader(cover)
        self._folder = LineFolder(self.worker)
        self._started_at = anyio.current_time()
        self._heard_at = 0.0  # 0 until the first frame
        self._progress: Progress | None = None
        self._progress_at = 0.0
        self._killed = anyio.Event()

    def send(self, message: ToWorker) -> bool:
        """Queue a message. False where `MESSAGES_QUEUED_MAX` wait."""
        try:
            self._to_worker.send_nowait(message)
        except anyio.WouldBlock:
            return False
        return True

    def kill(self) -> None:
        """End the process and its group at once."""
        if self.child is not None:
            self.child.kill()
            self._killed.set()

    def terminate(self) -> None:
        """Ask the process and its group to end."""
        if self.child is not None:
            self.child.terminate()

    def live(self, answering: bool) -> WorkerLive:
        """Process id, age, silence and progress."""
        now = anyio.current_time()
        return WorkerLive(
            pid=self.child.pid if self.child else 0,
            age_s=now - self._started_at,
            silent_s=now - (self._heard_at or self._started_at),
            spoken=bool(self._heard_at),
            answering=answering,
            progress=self._progress,
            progress_age_s=now - self._progress_at if self._progress else 0.0,
        )

    def tail(self) -> str:
        """The last of what it printed."""
        return self._lines.tail()

    async def run(self, first: Start) -> None:
        """Speak with the process until it has ended, or does not though it was killed `UNKILLABLE_S` ago."""
        child = self.child
        assert child is not None, "the process was executed before"
        async with anyio.create_task_group() as watching:
            readers = anyio.Event()
            watching.start_soon(self._read, child, readers)
            watching.start_soon(self._write, child, first)
            watching.start_soon(self._ping)
            if not await has_ended(child, self._killed):
                log.error("the worker does not go away though it was killed", worker=self.worker, pid=child.pid)
            child.kill()  # the rest of its group, so that the pipes end
            with anyio.move_on_after(DRAIN_S):
                await readers.wait()
            watching.cancel_scope.cancel()
        self._flush_lines()

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
                    if not await self._take(message):
                        return
            except FrameError as error:
                self._listener.hear_nonsense(self.worker, str(error))
                return

    async def _take(self, message: FromWorker) -> bool:
        """Hand a message on. Returns whether to read further."""
        self._heard_at = anyio.current_time()
        if isinstance(message, Observed):
            message = Observed(self._cover.within(message.event))
        else:
            message = self._cover.within(message)
        if isinstance(message, Progress):
            self._progress, self._progress_at = message, self._heard_at
        return await self._listener.hear(self.worker, message)

    async def _read_lines(self, child: Child) -> None:
        while chunk := await child.read_stderr():
            for line in self._lines.feed(chunk):
                self._folder.log(line.level, line.text, anyio.current_time())

    def _flush_lines(self) -> None:
        for line in self._lines.end():
            self._folder.log(line.level, line.text, anyio.current_time())
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
                    await self._listener.fail(CommandFailed(message.command.id, str(error)))
                continue
            await child.write(frame)

    async def _ping(self) -> None:
        while True:
            await anyio.sleep(self._limits.silent_s / PINGS_MISSED)
            self._folder.tick(anyio.current_time())
            self._listener.ping(self.worker)


async def has_ended(child: Child, killed: anyio.Event) -> bool:
    """Wait until a process has ended. False where it does not, though it was killed `UNKILLABLE_S` ago."""

    async def give_up() -> None:
        await killed.wait()
        await anyio.sleep(UNKILLABLE_S)
        waiting.cancel_scope.cancel()

    async with anyio.create_task_group() as waiting:
        waiting.start_soon(give_up)
        await child.wait()
        waiting.cancel_scope.cancel()
        return True
    return False
