"""Starts, feeds and kills worker processes as `swarmd.shell.supervision` decides; restarts are decided by the core.

Whatever happens to a process becomes a fact (`WorkerStarted`, `WorkerStartFailed`, `WorkerExited`, and what the worker
observes); every command comes from the core. A command for a worker that does not run is dropped, and the core issues
it again when the worker is back.
"""

import contextlib
import errno
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, assert_never

import anyio
from anyio.abc import TaskGroup

from swarmd.config import WorkersConfig
from swarmd.core.commands import Command, StopWorkers, SupervisorCommand
from swarmd.core.events import CommandFailed
from swarmd.core.values import Worker
from swarmd.daemon.process import Child, LineReader
from swarmd.errors import FrameError
from swarmd.logger import get_logger
from swarmd.observe.layers import LiveWorker
from swarmd.observe.logs import LineDeduplicator
from swarmd.observe.redaction import Redactor
from swarmd.shell import supervision
from swarmd.shell.loop import ObserveEvent
from swarmd.worker import messages

UNKILLABLE_S = 60.0  # longest wait for a killed process, which may hang in the kernel

log = get_logger("swarmd.supervisor")


class WorkerProcess:
    """One process from start to exit; `child` is None before it is executed."""

    def __init__(self, worker: Worker, limits: WorkersConfig, supervisor: "Supervisor", cover: Redactor) -> None:
        self.worker: Worker = worker
        self.child: Child | None = None
        self._limits = limits
        self._supervisor = supervisor
        self._to_worker, self._messages = anyio.create_memory_object_stream[messages.ToWorker](
            supervision.MESSAGES_QUEUED_MAX
        )
        self._cover = cover
        self._lines = LineReader(cover)
        self._folder = LineDeduplicator(self.worker)
        self._started_at = anyio.current_time()
        self._heard_at = 0.0  # time of the last frame; 0 before the first
        self._progress: messages.ProgressMessage | None = None
        self._progress_at = 0.0
        self._killed = anyio.Event()

    def send(self, message: messages.ToWorker) -> bool:
        """Queue a message. Returns False if `MESSAGES_QUEUED_MAX` are waiting."""
        try:
            self._to_worker.send_nowait(message)
        except anyio.WouldBlock:
            return False
        return True

    def kill(self) -> None:
        if self.child is not None:
            self.child.kill()
            self._killed.set()

    def terminate(self) -> None:
        if self.child is not None:
            self.child.terminate()

    def make_live_status(self, answering: bool) -> LiveWorker:
        """Pid, age, time since the last frame, and progress."""
        now = anyio.current_time()
        return LiveWorker(
            pid=self.child.pid if self.child else 0,
            age_s=now - self._started_at,
            silent_s=now - (self._heard_at or self._started_at),
            spoken=bool(self._heard_at),
            answering=answering,
            progress=self._progress,
            progress_age_s=now - self._progress_at if self._progress else 0.0,
        )

    def tail(self) -> str:
        """The last lines of its output."""
        return self._lines.tail()

    async def run(self, first: messages.StartMessage) -> None:
        """Exchange messages until the process has ended, or has survived a kill for `UNKILLABLE_S`."""
        child = self.child
        assert child is not None, "the process was executed before"
        async with anyio.create_task_group() as watching:
            readers = anyio.Event()
            watching.start_soon(self._read_output, child, readers)
            watching.start_soon(self._write_messages, child, first)
            watching.start_soon(self._send_pings)
            if not await wait_for_end(child, self._killed):
                log.error("the worker does not go away though it was killed", worker=self.worker, pid=child.pid)
            child.kill()  # kill the rest of its group, so that the pipes close
            with anyio.move_on_after(supervision.DRAIN_S):
                await readers.wait()
            watching.cancel_scope.cancel()
        for line in self._lines.finish():
            self._folder.log(line.level, line.text, anyio.current_time())
        self._folder.flush()

    async def _read_output(self, child: Child, done: anyio.Event) -> None:
        async with anyio.create_task_group() as reading:
            reading.start_soon(self._read_frames, child)
            reading.start_soon(self._read_lines, child)
        done.set()

    async def _read_frames(self, child: Child) -> None:
        reader: messages.FrameReader[messages.FromWorker] = messages.FrameReader(messages.FromWorker)  # type: ignore[arg-type]
        while chunk := await child.read_stdout():
            try:
                for message in reader.read_messages(chunk):
                    if not await self._handle_message(message):
                        return
            except FrameError as error:
                self._supervisor.on_broken_output(self.worker, str(error))
                return

    async def _handle_message(self, message: messages.FromWorker) -> bool:
        """Forward a message. Returns whether to read further messages."""
        self._heard_at = anyio.current_time()
        if isinstance(message, messages.ObservedMessage):
            message = messages.ObservedMessage(self._cover.redact_struct(message.event))
        else:
            message = self._cover.redact_struct(message)
        if isinstance(message, messages.ProgressMessage):
            self._progress, self._progress_at = message, self._heard_at
        return await self._supervisor.on_message(self.worker, message)

    async def _read_lines(self, child: Child) -> None:
        while chunk := await child.read_stderr():
            for line in self._lines.feed(chunk):
                self._folder.log(line.level, line.text, anyio.current_time())

    async def _write_messages(self, child: Child, first: messages.StartMessage) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is ending, and its exit is reported
            await child.write(messages.encode_frame(first))
            async for message in self._messages:
                try:
                    frame = messages.encode_frame(message)
                except FrameError as error:
                    log.error("a message is too large for the worker", worker=self.worker, error=str(error))
                    if isinstance(message, messages.PerformMessage):
                        await self._supervisor.observe(CommandFailed(message.command.id, str(error)))
                    continue
                await child.write(frame)

    async def _send_pings(self) -> None:
        while True:
            await anyio.sleep(self._limits.silent_s / supervision.PINGS_MISSED)
            self._folder.end_windows(anyio.current_time())
            self._supervisor.ping(self.worker)


async def wait_for_end(child: Child, killed: anyio.Event) -> bool:
    """Wait until a process has ended. Returns False if it survives a kill for `UNKILLABLE_S`."""

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


# The OOM killer chooses higher scores first; the daemon has 0.
OOM_SCORES: Mapping[Worker, int] = {"trainer": 500, "network": 200, "chain": 200}
WANTING = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)  # errno values: no resources for another process


class Program(NamedTuple):
    argv: Sequence[str]
    environment: Mapping[str, str]


class Supervisor:
    """A node's worker processes; carries out all commands."""

    def __init__(
        self,
        programs: Mapping[Worker, Program],
        start: messages.StartMessage,
        limits: WorkersConfig,
        observe: ObserveEvent,
        tasks: TaskGroup,
        cover: Redactor | None = None,
    ) -> None:
        self._programs = dict(programs)
        self._first = start
        self._limits = limits
        self.observe = observe
        self._tasks = tasks
        self._cover = cover or Redactor()
        self._supervision = supervision.WorkerSupervision(tuple(programs), limits)
        self._processes: dict[Worker, WorkerProcess] = {}

    # --- commands ---

    def perform(self, command: Command) -> None:
        """Start or kill a worker, stop all, or queue a command for a worker's process; returns at once."""
        if not isinstance(command, SupervisorCommand):
            self._hand_command(supervision.worker_for_command(command), command)
            return
        self._carry_out_all(self._supervision.handle_command(command, anyio.current_time()))
        if isinstance(command, StopWorkers):
            self._tasks.start_soon(self._enforce_stop_timeout)

    def _hand_command(self, worker: Worker, command: Command) -> None:
        """Queue a command for a worker's process, or drop it."""
        actions = self._supervision.send_command(worker, command)
        if not actions:
            log.debug("the worker does not run, command dropped", worker=worker, command=command.id)
        self._carry_out_all(actions)

    def kill_all(self) -> None:
        """Kill all workers without waiting, because the daemon is about to exit."""
        self._carry_out_all(self._supervision.kill_all())

    def live_status_of(self, worker: Worker) -> LiveWorker | None:
        """A running process's status beyond the log; None if none runs."""
        process = self._processes.get(worker)
        return process.make_live_status(self._supervision.is_answering(worker)) if process and process.child else None

    # --- actions ---

    def _carry_out_all(self, actions: Sequence[supervision.Action]) -> None:
        for action in actions:
            if isinstance(action, supervision.EmitEventAction):
                self._tasks.start_soon(self.observe, action.event)
            else:
                self._carry_out_action(action)

    async def _carry_out_in_order(self, actions: Sequence[supervision.Action]) -> None:
        """Carry out actions in order, and deliver each resulting fact before the next action."""
        for action in actions:
            if isinstance(action, supervision.EmitEventAction):
                await self.observe(action.event)
            else:
                self._carry_out_action(action)

    def _carry_out_action(
        self,
        action: supervision.ExecuteAction
        | supervision.SendAction
        | supervision.TerminateAction
        | supervision.KillAction,
    ) -> None:
        match action:
            case supervision.ExecuteAction():
                self._processes[action.worker] = WorkerProcess(action.worker, self._limits, self, self._cover)
                self._tasks.start_soon(self._run_process, self._processes[action.worker], action.attempt)
            case supervision.SendAction():
                if not self._processes[action.worker].send(action.message):
                    self._carry_out_all(self._supervision.on_messages_unread(action.worker))
            case supervision.TerminateAction():
                log.warning("the worker does not end by itself", worker=action.worker)
                self._processes[action.worker].terminate()
            case supervision.KillAction():
                self._processes[action.worker].kill()
            case _:
                assert_never(action)

    async def _enforce_stop_timeout(self) -> None:
        """Kill processes that have not ended within `stop_s` of a stop request."""
        while (due_at := self._supervision.next_tick_at) < math.inf:
            await anyio.sleep(max(0.0, due_at - anyio.current_time()))
            self._carry_out_all(self._supervision.tick(anyio.current_time()))

    async def _run_process(self, process: WorkerProcess, attempt: int) -> None:
        worker, program = process.worker, self._programs[process.worker]
        try:
            child = Child(program.argv, program.environment)
        except OSError as error:
            del self._processes[worker]
            reason = f"{program.argv[0]}: {error.strerror or error}"
            await self._carry_out_in_order(self._supervision.on_start_failed(worker, reason, error.errno in WANTING))
            return
        status: int | None = None
        try:
            child.prefer_for_oom(OOM_SCORES[worker])
            process.child = child
            await self._carry_out_in_order(self._supervision.on_started(worker, child.pid))
            await process.run(self._first)
        finally:
            status = child.reap()
            del self._processes[worker]
        # Last, so that the process is gone when the core starts the next one.
        await self._carry_out_in_order(self._supervision.on_exit(worker, status, process.tail()))

    # --- messages of its processes ---

    async def on_message(self, worker: Worker, message: messages.FromWorker) -> bool:
        """Handle a worker's message; waits while the inbox is full. Returns False to stop reading from the worker."""
        self._supervision.set_waiting_for_inbox(worker, True)
        await self._carry_out_in_order(self._supervision.on_message(worker, message))
        self._supervision.set_waiting_for_inbox(worker, False)
        return self._supervision.is_listened_to(worker)

    def on_broken_output(self, worker: Worker, reason: str) -> None:
        """Handle worker output that cannot be decoded."""
        self._carry_out_all(self._supervision.on_broken_output(worker, reason))

    def ping(self, worker: Worker) -> None:
        """Send a ping, or kill a worker that has answered none for too long."""
        self._carry_out_all(self._supervision.ping_worker(worker))
