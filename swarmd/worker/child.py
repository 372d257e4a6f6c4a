"""A worker's end of the pipe: exchanges frames with the daemon.

- `run_worker` answers pings from the event loop, so a worker whose loop is stuck counts as silent; long work belongs in
  a thread.
- When the daemon goes away (end of file on stdin) the worker ends with all its children. Workers never outlive their
  daemon, even with a stuck loop.
"""

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
from swarmd.worker import messages

COMMANDS_QUEUED_MAX = 256  # when full, the daemon's writes block
CHUNK_BYTES = 65536
ORPHAN_S = 5.0  # longest time that a worker survives its daemon


class Outbox:
    """Sends messages to the daemon. Thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send_message(self, message: messages.FromWorker) -> None:
        """Write one frame. Raises BrokenPipeError when the daemon is gone, FrameError when the message is too large."""
        frame = memoryview(messages.encode_frame(message))
        with self._lock:
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]

    def report_event(self, event: Event) -> None:
        """Send a fact to the daemon's event log."""
        self.send_message(messages.ObservedMessage(event))

    def report_progress(
        self, what: str, done: int = 0, total: int = 0, note: str = "", figures: dict[str, float] | None = None
    ) -> None:
        self.send_message(messages.ProgressMessage(what, done, total, note, figures or {}))

    def report_fault(self, reason: str, permanent: bool = False, exit_code: int = 0) -> None:
        """Report why this worker is about to exit."""
        self.send_message(messages.FaultMessage(reason, permanent, exit_code))

    def report_retirement(self, reason: str) -> None:
        """Report that this worker exits as planned, to be replaced by a fresh process."""
        self.send_message(messages.FaultMessage(reason, planned=True))


Inbox = MemoryObjectReceiveStream[messages.PerformMessage | messages.StopMessage]
WorkerMain = Callable[[messages.StartMessage, Outbox, Inbox], Awaitable[None]]


def claim_stdout() -> int:
    """Reserve the real stdout for frames, and redirect prints to stderr. Returns the descriptor for frames."""
    frames = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return frames


class OneLineFormatter(logging.Formatter):
    """Formats a record on one line, tracebacks included, because the daemon reads a worker's output line by line."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", " | ")


def log_lines_to_stderr(level: str) -> None:
    """Log to stderr from this level on, one line a record."""
    target = logging.StreamHandler(sys.stderr)
    target.setFormatter(OneLineFormatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [target]
    root.setLevel(level.upper())


async def run_worker(main: WorkerMain, prepare: Callable[[messages.StartMessage], None] = lambda start: None) -> None:
    """Run a worker: wait for `StartMessage`, then run `main(start, outbox, inbox)` until it returns or the daemon goes
    away.

    `inbox` yields `PerformMessage` and `StopMessage`; after `StopMessage`, `main` should return within its `grace_s`. A
    SwarmdError from `main` is reported to the daemon as a `FaultMessage` and becomes the exit status; other errors also
    leave a traceback. `prepare` runs before `main` and before this process has a second thread, so that it may drop
    privileges.
    """
    outbox = Outbox(claim_stdout())
    try:
        failure = await _exchange_frames(main, prepare, outbox)
    finally:
        if is_daemon_gone():  # perhaps the cause of the error in `_exchange_frames`
            kill_process_group()
    if failure is not None:
        report_failure_and_exit(outbox, failure)


async def _exchange_frames(
    main: WorkerMain, prepare: Callable[[messages.StartMessage], None], outbox: Outbox
) -> SwarmdError | None:
    """Exchange frames until `main` ends or the daemon is gone. Returns the SwarmdError that ended `main`, if any."""
    reader: messages.FrameReader[messages.ToWorker] = messages.FrameReader(messages.ToWorker)  # type: ignore[arg-type]
    send, inbox = anyio.create_memory_object_stream[messages.PerformMessage | messages.StopMessage](COMMANDS_QUEUED_MAX)
    failure: SwarmdError | None = None
    async with anyio.create_task_group() as tasks:

        async def run_main(start: messages.StartMessage) -> None:
            nonlocal failure
            try:
                prepare(start)
                threading.Thread(target=_exit_after_daemon, args=(ORPHAN_S,), name="orphan-watch", daemon=True).start()
                await main(start, outbox, inbox)
            except SwarmdError as error:
                failure = error
            except Exception as error:
                outbox.report_fault(f"{type(error).__name__}: {error}")
                raise
            tasks.cancel_scope.cancel()

        while chunk := await _read_stdin():
            for message in reader.read_messages(chunk):
                if isinstance(message, messages.PingMessage):
                    outbox.send_message(messages.PongMessage(message.number))
                elif isinstance(message, messages.StartMessage):
                    tasks.start_soon(run_main, message)
                else:
                    await send.send(message)
        tasks.cancel_scope.cancel()
    return failure


def report_failure_and_exit(outbox: Outbox, failure: SwarmdError) -> None:
    """Report a SwarmdError and exit with its status."""
    # Not permanent: another process may end, a disk may get free space, the peers that filled this process may leave.
    passing = (ExitCode.IN_USE, ExitCode.CANNOT_CREATE, EXIT_FOR_ROOM)
    permanent = failure.exit_code >= ExitCode.USAGE and failure.exit_code not in passing
    outbox.report_fault(str(failure), permanent, failure.exit_code)
    sys.exit(failure.exit_code)


async def _read_stdin() -> bytes:
    await anyio.wait_readable(sys.stdin.fileno())
    return os.read(sys.stdin.fileno(), CHUNK_BYTES)


def is_daemon_gone(within_s: float | None = 0.0) -> bool:
    """Whether the daemon has closed its end of stdin, now or within the time; None waits for ever."""
    hang_up = select.poll()
    hang_up.register(sys.stdin.fileno(), 0)  # POLLHUP is always reported, and no other event is requested
    return bool(hang_up.poll(None if within_s is None else within_s * 1000))


def _exit_after_daemon(seconds: float) -> None:
    """In a thread, wait for the daemon's end; then give the event loop `seconds` to finish."""
    is_daemon_gone(within_s=None)
    threading.Event().wait(seconds)
    kill_process_group()


def kill_process_group() -> None:
    """Kill this process and its children; only itself unless it leads its process group, as when run without a
    daemon."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(ExitCode.FAILURE)
