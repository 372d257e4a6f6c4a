"""The worker's end of the pipe, which exchanges frames with the daemon for it.

- `serve` answers pings from the event loop, so a worker whose loop is stuck counts as silent; long work belongs in a
  thread.
- When the daemon goes away (end of file on stdin) the worker ends with all that it started. Workers never outlive their
  daemon, not even with a stuck loop.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Awaitable, Callable

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from swarmd.core.events import Event
from swarmd.errors import EXIT_FOR_ROOM, ExitCode, SwarmdError
from swarmd.worker.messages import (
    Fault,
    FrameReader,
    FromWorker,
    Observed,
    Perform,
    Ping,
    Pong,
    Progress,
    Start,
    Stop,
    ToWorker,
    encode_frame,
)

COMMANDS_QUEUED_MAX = 256  # beyond it the daemon's writes wait
CHUNK_BYTES = 65536
ORPHAN_S = 5.0  # longest time that a worker outlives its daemon


class Outbox:
    """Sends messages to the daemon; may be used from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        """Write one frame. Raises BrokenPipeError when the daemon is gone, FrameError when the message is too large."""
        frame = memoryview(encode_frame(message))
        with self._lock:
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]

    def observe(self, event: Event) -> None:
        """Send a fact to the daemon's event log."""
        self.send(Observed(event))

    def progress(
        self, what: str, done: int = 0, total: int = 0, note: str = "", figures: dict[str, float] | None = None
    ) -> None:
        """Report the progress of a running command."""
        self.send(Progress(what, done, total, note, figures or {}))

    def fault(self, reason: str, permanent: bool = False, exit_code: int = 0) -> None:
        """Report why this worker is about to end."""
        self.send(Fault(reason, permanent, exit_code))

    def retire(self, reason: str) -> None:
        """Report that this worker ends as planned, to be replaced by a fresh process."""
        self.send(Fault(reason, planned=True))


Inbox = MemoryObjectReceiveStream[Perform | Stop]
WorkerMain = Callable[[Start, Outbox, Inbox], Awaitable[None]]


def claim_stdout() -> int:
    """Keep the real stdout for frames, and send what is printed to stderr. Returns the frames' descriptor."""
    frames = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return frames


class OneLine(logging.Formatter):
    """A record on one line, tracebacks included: the daemon takes a worker's output line by line."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", " | ")


def log_lines(level: str) -> None:
    """Log to stderr from this level on, one line a record."""
    target = logging.StreamHandler(sys.stderr)
    target.setFormatter(OneLine("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [target]
    root.setLevel(level.upper())


async def serve(main: WorkerMain, prepare: Callable[[Start], None] = lambda start: None) -> None:
    """Run a worker: wait for `Start`, then `main(start, outbox, inbox)` until it returns or the daemon goes away.

    `inbox` yields `Perform` and `Stop`; after `Stop`, `main` should return within its `grace_s`. A SwarmdError from
    `main` is reported to the daemon as a `Fault` and becomes the exit status; another error also leaves its traceback.
    `prepare` runs before `main` and before this process has a second thread, so that it may drop privileges.
    """
    outbox = Outbox(claim_stdout())
    try:
        failure = await _converse(main, prepare, outbox)
    finally:
        if daemon_is_gone():  # also if that is why `_converse` failed
            end_group()
    if failure is not None:
        tell_failure(outbox, failure)


async def _converse(main: WorkerMain, prepare: Callable[[Start], None], outbox: Outbox) -> SwarmdError | None:
    """Exchange frames until `main` ends or the daemon is gone. Returns the deliberate error that ended `main`."""
    reader: FrameReader[ToWorker] = FrameReader(ToWorker)  # type: ignore[arg-type]
    send, inbox = anyio.create_memory_object_stream[Perform | Stop](COMMANDS_QUEUED_MAX)
    failure: SwarmdError | None = None
    async with anyio.create_task_group() as tasks:

        async def run(start: Start) -> None:
            nonlocal failure
            try:
                prepare(start)
                threading.Thread(target=_outlive_by, args=(ORPHAN_S,), name="orphan-watch", daemon=True).start()
                await main(start, outbox, inbox)
            except SwarmdError as error:
                failure = error
            except Exception as error:
                outbox.fault(f"{type(error).__name__}: {error}")
                raise
            tasks.cancel_scope.cancel()

        while chunk := await _read_stdin():
            for message in reader.feed(chunk):
                if isinstance(message, Ping):
                    outbox.send(Pong(message.number))
                elif isinstance(message, Start):
                    tasks.start_soon(run, message)
                else:
                    await send.send(message)
        tasks.cancel_scope.cancel()
    return failure


def tell_failure(outbox: Outbox, failure: SwarmdError) -> None:
    """Report a deliberate error and end with its exit status."""
    # Not permanent: another process may end, a disk have room again, peers that filled this process go away.
    passing = (ExitCode.IN_USE, ExitCode.CANNOT_CREATE, EXIT_FOR_ROOM)
    permanent = failure.exit_code >= ExitCode.USAGE and failure.exit_code not in passing
    outbox.fault(str(failure), permanent, failure.exit_code)
    sys.exit(failure.exit_code)


async def _read_stdin() -> bytes:
    await anyio.wait_readable(sys.stdin.fileno())
    return os.read(sys.stdin.fileno(), CHUNK_BYTES)


def daemon_is_gone(within_s: float | None = 0.0) -> bool:
    """Whether the daemon's end of stdin is closed, or closes within the time; None waits for ever."""
    hang_up = select.poll()
    hang_up.register(sys.stdin.fileno(), 0)  # POLLHUP is always reported, and nothing else wakes this
    return bool(hang_up.poll(None if within_s is None else within_s * 1000))


def _outlive_by(seconds: float) -> None:
    """Wait in a thread for the daemon's end; then give the event loop `seconds` to end by itself."""
    daemon_is_gone(within_s=None)
    threading.Event().wait(seconds)
    end_group()


def end_group() -> None:
    """Kill this process and its children; only itself if it does not lead its process group, as without a daemon."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(ExitCode.FAILURE)
