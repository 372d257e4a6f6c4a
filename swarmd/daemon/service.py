"""A whole node: opens the log, connects engine, supervisor, signals, control socket and service manager, and runs
them."""

import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import anyio
import msgspec
import psutil
from anyio import to_thread
from anyio.abc import TaskGroup

from swarmd import __version__
from swarmd.config import Config, encode, make_core_settings
from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import Command, StopWorkers
from swarmd.core.events import NodeStarted, StopRequested
from swarmd.core.state import State
from swarmd.core.values import RolloutsRef, Worker
from swarmd.daemon import directory
from swarmd.daemon.companion import WebProcess, is_web_process_wanted
from swarmd.daemon.control import ASKED, ControlServer, bind_control
from swarmd.daemon.engine import HANDLED_SIGNALS, Engine, handle_signals, watch_clock
from swarmd.daemon.notify import ServiceNotifier
from swarmd.daemon.process import disable_core_dumps, kill_leftovers, node_tag, worker_environment
from swarmd.daemon.supervisor import Program, Supervisor
from swarmd.dht.p2p.sockets import remove_short_directory
from swarmd.errors import ExitCode, LogWriteFailed, single_error
from swarmd.eventlog.blobs import BlobStore
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.store import EventLog
from swarmd.files import remove_leftover
from swarmd.logger import get_logger
from swarmd.observe.control import StopReply
from swarmd.observe.layers import LiveDaemon, describe_member_wait
from swarmd.observe.logs import EventLogger, describe_progress
from swarmd.observe.redaction import Redactor, known_secrets, variables_withheld_from
from swarmd.observe.status import Status, make_headline, measure_log, status_of, with_files
from swarmd.observe.stopping import find_safe_moment
from swarmd.paths import NodeDirectory
from swarmd.shell.loop import NodeLoop
from swarmd.training.checkpoint_files import is_writing, remove_older_checkpoints
from swarmd.worker.messages import StartMessage

WORKER_PROGRAMS: Mapping[Worker, tuple[str, ...]] = {
    "network": (sys.executable, "-m", "swarmd.dht.worker"),
    "trainer": (sys.executable, "-m", "swarmd.training.worker"),
    "chain": (sys.executable, "-m", "swarmd.chain.worker"),
}
WAITING_EVERY_S = 60.0
STOP_SLACK_S = 5.0  # grace beyond twice `workers.stop_s`, after which the daemon exits at once

log = get_logger("swarmd.daemon")


def make_worker_program(worker: Worker, argv: Sequence[str], tag: str) -> Program:
    """A worker's command and environment. Trainers regenerate each other's questions, and some tasks of reasoning-gym
    draw from sets of texts, so these must have the same order in all trainers."""
    return Program(
        argv, worker_environment(os.environ, tag, variables_withheld_from(worker), repeats=worker == "trainer")
    )


def run_node(
    config: Config,
    data: NodeDirectory,
    programs: Mapping[Worker, Sequence[str]] = WORKER_PROGRAMS,
    progress_s: float = 0.0,
) -> int:
    """Run a node until it stops. Returns its exit code (docs/OPERATING.md). Blocks.

    Args:
        programs: commands to execute for the workers.
        progress_s: seconds between log lines about the trainer's progress; 0: none.

    Raises:
        SwarmMismatch: the data directory belongs to another swarm; nothing was changed.
        SwarmdError: the node could not start, or its log could not be written; workers have been killed.
    """

    async def serve() -> int:
        with anyio.open_signal_receiver(
            *HANDLED_SIGNALS
        ) as signals:  # first, so that a signal during the start stops in order, too
            return await serve_node(config, data, programs, signals, progress_s)

    disable_core_dumps()
    try:
        return anyio.run(serve)
    except BaseExceptionGroup as group:
        raise single_error(group) from None


async def serve_node(
    config: Config,
    data: NodeDirectory,
    programs: Mapping[Worker, Sequence[str]],
    signals: AsyncIterator[signal.Signals],
    progress_s: float = 0.0,
    begun: "Callable[[Node], None]" = lambda node: None,
    end: Callable[[int], None] = os._exit,
) -> int:
    """Like `run_node`, in an event loop of the caller, who supplies the signals. `begun`: called once the node has
    started on its log; `end`: called with an exit code to exit at once, after the workers were killed."""
    data.create()
    directory.check_space(data.root, config.storage)
    directory.refuse_moved(data)
    directory.write_layout_if_absent(data)
    peer = directory.read_or_make_identity(config, data).peer_id
    run, storage = secrets.token_hex(8), config.storage
    with (
        EventLog.open(data.events, peer, run, bytes_max=storage.log_bytes_max) as event_log,
        contextlib.closing(bind_control(data.control)) as endpoint,
        contextlib.ExitStack() as ending,
    ):
        ending.callback(remove_short_directory, NodeDirectory(data.root.resolve()).sockets)
        if event_log.cut is not None:
            log.warning("an interrupted write was cut off the log", size_bytes=event_log.cut.size_bytes)
        state = load_state(data.events)[0] if event_log.next_seq else State()
        directory.refuse_other_logged_swarm(data, directory.swarm_of_state(state), directory.swarm_of_config(config))
        tag = node_tag(peer, data.root)
        if killed := await kill_leftovers(tag):
            log.warning("processes of an earlier life were ended", pids=killed)
        node = Node(config, data, peer, event_log, state, ServiceNotifier.from_environment(os.environ), end)
        async with anyio.create_task_group() as tasks:
            node.make_supervisor(tasks, tag, programs)
            tasks.start_soon(handle_signals, signals, node.engine.observe, node.exit_at_once, tasks)
            control = ControlServer(
                data.control, lambda: msgspec.json.encode(node.status()), node.engine.observe, node.stop_when_safe
            )
            tasks.start_soon(control.serve, endpoint)
            guard = directory.SpaceGuard(
                data.root, data.checkpoints, config.storage, node.free_disk_space, node.engine.observe
            )
            tasks.start_soon(guard.watch)
            tasks.start_soon(watch_clock, node.engine.observe)
            tasks.start_soon(log_waiting, lambda: node.engine.state)
            if progress_s:
                tasks.start_soon(log_progress, node.status, progress_s)
            await node.record_start(run, directory.read_restore_note(data))
            begun(node)
            stopped = await node.engine.run()
            tasks.cancel_scope.cancel()
    return stopped.code


async def log_progress(status: Callable[[], Status], every_s: float) -> None:
    """Log the trainer's progress periodically while it is busy."""
    while True:
        await anyio.sleep(every_s)
        if words := describe_progress(status()):
            log.info(words)


async def log_waiting(state: Callable[[], State], every_s: float = WAITING_EVERY_S) -> None:
    """Log periodically that a coordinator waits for members before its first round."""
    while True:
        await anyio.sleep(every_s)
        if words := describe_member_wait(state(), time.time()):
            log.info(f"the coordinator {words}")


class Node:
    """The parts of a running daemon and their connections."""

    def __init__(
        self,
        config: Config,
        data: NodeDirectory,
        peer: str,
        event_log: EventLog,
        state: State,
        notifier: ServiceNotifier,
        end: Callable[[int], None],
    ) -> None:
        self._end = end
        self._config = config
        self._data = data
        self._peer = peer
        self._notifier = notifier
        self._blobs = BlobStore(data.blobs)
        self._pruning = False
        self._stop_wished_until = 0.0  # monotonic time until which a safe stop is requested
        self._supervisor: Supervisor
        self._companion: WebProcess | None = None
        self._tasks: TaskGroup
        loop = NodeLoop(event_log, state, (EventLogger(), self))
        loop.set_command_handler(self.perform)
        self.engine = Engine(loop, time.time, notifier)

    def make_supervisor(self, tasks: TaskGroup, tag: str, programs: Mapping[Worker, Sequence[str]]) -> None:
        """Make the supervisor and, if wanted, the web process. `tag` marks the node's processes."""
        self._tasks = tasks
        cover = Redactor(known_secrets(self._config, self._data.root, signing=True))
        start = StartMessage(encode(self._config), str(self._data.root.resolve()), self._peer)
        wanted = {
            worker: make_worker_program(worker, argv, tag)
            for worker, argv in programs.items()
            if worker != "chain" or self._config.chain is not None
        }
        self._supervisor = Supervisor(wanted, start, self._config.workers, self.engine.observe, tasks, cover)
        environment = worker_environment(os.environ, tag, variables_withheld_from("web"))
        if is_web_process_wanted(self._config, environment):
            self._companion = WebProcess(self._config, self._data.root, environment, cover=cover)

    async def record_start(self, run: str, restored: directory.RestoreNote | None) -> None:
        """Log the start of this run, whose id is `run`, and remove the restore note."""
        from_round = restored.from_round if restored else 0
        settings = make_core_settings(self._config, self._peer)
        await self.engine.record_start(NodeStarted(settings, run, __version__, restored is not None, from_round))
        directory.remove_restore_note(self._data)
        self._notifier.notify_ready(make_headline(self.engine.state))
        log.info("ready", pid=os.getpid(), version=__version__, data=str(self._data.root))
        if self._companion is not None:
            self._tasks.start_soon(self._companion.run)

    # --- commands ---

    def perform(self, command: Command) -> None:
        """Pass a command to the supervisor, without waiting."""
        log.debug("command", command=command.id)
        self._supervisor.perform(command)

    def exit_at_once(self, code: int) -> None:
        """Kill the workers and exit without another write; the log stays intact, as after any crash."""
        self._supervisor.kill_all()
        remove_leftover(self._data.control)
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        self._end(code)

    # --- a projection ---

    def apply(self, applied: AppliedEvent) -> None:
        """React to an applied event: notify the service manager, limit a stop's duration, prune old rollouts."""
        self._notifier.notify_status(make_headline(applied.after))
        if self._stop_wished_until > time.monotonic():
            self._stop_if_safe(applied.after)
        if isinstance(applied.event, StopRequested):
            self._tasks.start_soon(self._enforce_stop_timeout)
        if any(isinstance(command, StopWorkers) for command in applied.commands):
            self._notifier.notify_stopping(self._config.workers.stop_s + STOP_SLACK_S)
        before, after = applied.before.clock, applied.after.clock
        if after is not None and before != after and not self._pruning:  # older rollouts may be pruned
            self._pruning = True
            self._tasks.start_soon(self._prune_rollouts)

    def stop_when_safe(self, for_s: float) -> StopReply:
        """Stop now, or at the first event within `for_s` after which a stop costs no round."""
        self._stop_wished_until = time.monotonic() + for_s
        return self._stop_if_safe(self.engine.state)

    def _stop_if_safe(self, state: State) -> StopReply:
        moment = find_safe_moment(state, time.time(), self._live())
        if moment.now:
            self._stop_wished_until = 0.0
            self._tasks.start_soon(self.engine.observe, StopRequested(ASKED))
        return StopReply(moment.now, moment)

    async def _enforce_stop_timeout(self) -> None:
        """Exit at once if an orderly stop takes too long."""
        await anyio.sleep(2 * self._config.workers.stop_s + STOP_SLACK_S)
        log.error("the orderly stop took too long, ending at once")
        self.exit_at_once(ExitCode.FAILURE)

    async def _prune_rollouts(self) -> None:
        try:
            await self._prune_blobs(self._config.storage.blob_bytes_max)
        finally:
            self._pruning = False

    async def _prune_blobs(self, bytes_max: int) -> None:
        """Remove old rollouts. A failure is only logged: if space runs out, the node pauses."""
        try:
            pruned = await to_thread.run_sync(self._blobs.prune, digests_in_use(self.engine.state), bytes_max)
        except LogWriteFailed as error:
            log.warning("not all old rollouts can be removed", error=error.message)
            return
        if pruned.blobs:
            log.info("old rollouts removed", blobs=pruned.blobs, size_bytes=pruned.size_bytes)

    async def free_disk_space(self) -> None:
        """On low space, keep only the rollouts in use and the newest complete checkpoint, regardless of budgets."""
        await self._prune_blobs(0)
        if older := await to_thread.run_sync(remove_older_checkpoints, self._data.checkpoints):
            log.info("old checkpoints removed", checkpoints=older)

    # --- status ---

    def _live(self) -> LiveDaemon:
        return LiveDaemon(
            os.getpid(),
            psutil.Process().memory_info().rss,
            self._supervisor.live_status_of("network"),
            self._supervisor.live_status_of("trainer"),
            self._supervisor.live_status_of("chain"),
            is_writing(self._data.checkpoints),
        )

    def status(self) -> Status:
        log_status = measure_log(self._data.events, self.engine.loop.next_seq)
        amiss = (self._companion.trouble if self._companion else "", self.engine.loop.snapshots.failure_note)
        notes = tuple(note for note in amiss if note)
        status = status_of(self.engine.state, time.time(), log_status, self._live(), __version__)
        status = with_files(status, self.engine.state, self._data, self._config)
        return msgspec.structs.replace(status, notes=(*status.notes, *notes)) if notes else status


def digests_in_use(state: State) -> frozenset[str]:
    """Digests of blobs that the current stage or a pending command still needs."""
    needed: list[RolloutsRef] = []
    if state.work is not None:
        needed += state.work.rollouts + state.work.context  # later stages build questions from the context
        needed += [state.work.result.rollouts] if state.work.result else []
    for command in state.pending:
        rollouts = getattr(command, "rollouts", ())
        needed += rollouts if isinstance(rollouts, tuple) else (rollouts,)
    return frozenset(reference.digest for reference in needed)
