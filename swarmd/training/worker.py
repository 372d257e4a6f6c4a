"""The trainer worker: `python -m swarmd.training.worker`, which exchanges frames with the daemon (`swarmd.worker`).

- It trains one stage at a time in a thread, so that the loop answers pings meanwhile.
- Errors that neither another try nor a restart can fix end the process with a permanent fault. All others fail the
  command, and the core decides what follows.
- `python -m swarmd.training.worker rank` is another rank (`swarmd.training.ranks`). It gets the same first message as
  rank 0, then stage after stage, and ends at the end of its input or at any error. Then rank 0 ends too, and all
  restart from the checkpoint.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from swarmd.config import Config, decode, needs_peer_weights
from swarmd.core.commands import CancelTraining, Command, Train
from swarmd.core.events import CheckpointWritten, CommandFailed, Event, StageTrained, TrainerReady, TrainingCancelled
from swarmd.errors import (
    FOREIGN_ERRORS,
    CheckpointFailed,
    ConfigError,
    ExitCode,
    ModelError,
    SwarmdError,
    SwarmError,
    single_error,
)
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.results.hub import Pusher
from swarmd.results.trackers import check_trackers, make_trackers
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.footprint import (
    find_replacement_reason,
    freeze_loaded_objects,
    is_device_lost,
    is_out_of_memory,
    pause_gc_and_freeze,
)
from swarmd.training.models.source import AUTO, locate_configured
from swarmd.training.ranks import ALONE, RANK, RankGroup, RankInfo
from swarmd.worker.child import Inbox, Outbox, log_lines_to_stderr, run_worker
from swarmd.worker.messages import (
    STAGE_FAILED,
    FrameReader,
    PerformMessage,
    ProgressMessage,
    StartMessage,
    StopMessage,
    ToWorker,
)

if TYPE_CHECKING:
    from swarmd.training.checkpoints import Checkpoint
    from swarmd.training.engine import TrainingEngine
    from swarmd.training.peer_weights import WeightsOffering

PERMANENT = (ConfigError, ModelError, SwarmError)
PROGRESS_S = 0.25  # least time between two progress messages of a stage

log = get_logger(__name__)


@dataclass(eq=False)
class TrainerService:
    """Runs commands from the inbox on the engine."""

    engine: TrainingEngine
    config: Config
    outbox: Outbox
    pusher: Pusher
    offering: WeightsOffering | None = None

    def __post_init__(self) -> None:
        self._running: tuple[str, Cancellation] | None = None
        self._progress: ProgressMessage | None = None  # the newest message
        self._spent = ""  # why only a fresh process can go on; empty if this one can

    async def run(self, inbox: Inbox, early: Sequence[Command] = ()) -> None:
        """Run until `StopMessage` or the planned end of this process; a stage being trained is then cancelled. `early`:
        commands received while the engine was loading."""
        async with anyio.create_task_group() as tasks:
            try:
                for command in early:
                    self._perform(command, tasks)
                async for message in inbox:
                    if isinstance(message, StopMessage):
                        break
                    self._perform(message.command, tasks)
            finally:  # also if the daemon is gone: only this flag can end the thread
                if self._running is not None:
                    self._running[1].request()

    def _perform(self, command: Command, tasks: TaskGroup) -> None:
        if isinstance(command, CancelTraining):
            self._cancel(command)
        elif isinstance(command, Train) and self._can_accept_stage(command):
            cancellation = Cancellation()
            self._running = (command.id, cancellation)
            tasks.start_soon(self._train, command, cancellation, tasks)

    def _can_accept_stage(self, command: Train) -> bool:
        """Whether to begin a stage: not while another is trained, and not twice for the same command."""
        if self._running is None:
            return True
        if self._running[0] != command.id:
            reason = f"the trainer is busy with {self._running[0]}"
            self.outbox.report_event(CommandFailed(command.id, reason))
        return False

    def _cancel(self, command: CancelTraining) -> None:
        if self._running is not None and self._running[0] == command.train:
            self._running[1].request()
        else:
            log.info("nothing to cancel", command=command.id, train=command.train)

    async def _train(self, command: Train, cancellation: Cancellation, tasks: TaskGroup) -> None:
        async with anyio.create_task_group() as telling:
            telling.start_soon(self._send_progress)
            event = await anyio.to_thread.run_sync(self._train_in_thread, command, cancellation)
            if not isinstance(event, StageTrained) and self.config.training.processes > 1:
                self._spent = self._spent or "the other ranks are in the middle of a stage that has ended here"
            reason = await anyio.to_thread.run_sync(self._find_reason_to_retire, command)
            telling.cancel_scope.cancel()
        if isinstance(event, CommandFailed):
            self.outbox.report_progress(STAGE_FAILED, note=event.reason)  # shown by `status` until the next stage
        self._running = None  # first, since the daemon may send its next command at once
        self.outbox.report_event(event)
        if reason:
            self.outbox.report_retirement(reason)
            tasks.cancel_scope.cancel()

    def _find_reason_to_retire(self, command: Train) -> str:
        """Why a fresh process should follow; empty if not. Only at the end of a round, unless memory ran out."""
        if self._spent or command.stage + 1 < self.config.swarm.stages:
            return self._spent
        reason = find_replacement_reason(self.config.training.memory_bytes_max, self.engine.policy.device)
        return reason if reason and self._can_retire() else ""

    def _can_retire(self) -> bool:
        """Whether this process may end: the last stage is on disk, and no push is in progress."""
        try:
            self.engine.wait_until_saved()
        except CheckpointFailed as error:
            log.warning("this process stays, for the last stage is not on disk", reason=str(error))
            return False
        return not self.pusher.is_busy

    def _on_checkpoint_written(self, checkpoint: Checkpoint) -> None:
        """Push, offer and report a checkpoint. Called in the thread that wrote it and may later replace it."""
        event, offering = checkpoint.meta.event, self.offering
        self.pusher.push(event, checkpoint.directory)
        if offering is not None and offering.is_due(event) and offering.keep_weights(checkpoint.directory):
            # Not a daemon thread: this process must wait for it, because no other would offer the weights.
            threading.Thread(
                target=offering.publish_offer, args=(event, self.engine.policy), name="weights-offer"
            ).start()
        self.outbox.report_event(CheckpointWritten(event.round, event.stage, checkpoint.digest))

    def _train_in_thread(self, command: Train, cancellation: Cancellation) -> Event:
        """Run the command and return the resulting event. Raises errors that only a new process can fix."""
        first = self.engine.steps
        try:
            event = self.engine.train(
                command, cancellation, self._set_progress, self.outbox.report_event, self._on_checkpoint_written
            )
        except Cancelled:
            taken = max(self.engine.abandoned_steps - first, 0)
            return TrainingCancelled(command.id, command.round, command.stage, taken, self.engine.tokens_drawn)
        except PERMANENT:
            raise
        except SwarmdError as error:
            return CommandFailed(command.id, str(error))
        except FOREIGN_ERRORS as error:  # including `SystemExit` of a plan or library
            if is_out_of_memory(error):
                self._spent = "memory ran out: a fresh process has it back"
            elif is_device_lost(error):
                self._spent = "the accelerator failed: it works again in a fresh process only"
            log.exception("a stage failed", command=command.id)
            return CommandFailed(command.id, f"{type(error).__name__}: {error}")
        return event

    def _set_progress(self, progress: ProgressMessage) -> None:
        self._progress = progress

    async def _send_progress(self) -> None:
        """Send the training thread's newest progress, at most once per `PROGRESS_S`."""
        told = None
        while True:
            newest = self._progress
            if newest is not None and newest is not told:
                self.outbox.send_message(newest)
                told = newest
            await anyio.sleep(PROGRESS_S)


def load_engine(
    start: StartMessage, config: Config, ranks: RankInfo = ALONE, rank_group: RankGroup | None = None
) -> TrainingEngine:
    """Import torch and the other libraries, and load model and plan. Raises the errors of `TrainingEngine` and
    `make_plan`."""
    if config.training.threads:
        os.environ["OMP_NUM_THREADS"] = str(config.training.threads)
    if ranks.size == 1:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # TRL refuses several devices in one process
    with pause_gc_and_freeze():
        from swarmd.training.library_logging import silence_libraries
        from swarmd.training.models.adapters import block_unused_imports

        block_unused_imports(config.training)
        silence_libraries()  # these two before anything imports TRL
    if ranks.size > 1:
        from swarmd.training.models.device import select_rank_device

        select_rank_device(config.training.device, ranks.rank)
    config = resolve_auto_config(config, NodeDirectory(Path(start.data_dir)))
    from swarmd.swarms.registry import make_plan

    plan = make_plan(config.swarm, config.training, Path(start.data_dir))
    with pause_gc_and_freeze():
        from swarmd.training.engine import TrainingEngine
    return TrainingEngine(config, NodeDirectory(Path(start.data_dir)), start.peer, plan, ranks, rank_group)


async def load_unless_stopped(
    load: Callable[[], TrainingEngine], inbox: Inbox
) -> tuple[TrainingEngine | None, list[Command]]:
    """Load in a thread, which may take minutes, while listening to the daemon. Returns the engine, None if
    `StopMessage` came first; and the commands received meanwhile."""
    early: list[Command] = []
    engine: TrainingEngine | None = None

    async def watch_for_stop(loading: anyio.CancelScope) -> None:
        async for message in inbox:
            if isinstance(message, StopMessage):
                loading.cancel()
                return
            early.append(message.command)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch_for_stop, tasks.cancel_scope)
            engine = await anyio.to_thread.run_sync(load, abandon_on_cancel=True)
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        raise single_error(errors) from None
    return engine, early


def resolve_auto_config(config: Config, paths: NodeDirectory) -> Config:
    """Replace the model "auto" in a configuration by the chosen one. Raises ModelError if there is none."""
    if config.training.model != AUTO:
        locate_configured(config.training)
        return config
    from swarmd.training.models.model import read_model_shape
    from swarmd.training.models.pool import resolve_auto_model

    training = resolve_auto_model(config.training, paths, lambda source: read_model_shape(source, source))
    return msgspec.structs.replace(config, training=training)


def end_process(reason: str) -> None:
    """End this process at once: another rank is gone, and waiting for it would never end."""
    log.error("the trainer starts again", reason=reason)
    os._exit(ExitCode.UNAVAILABLE)


async def main(start: StartMessage, outbox: Outbox, inbox: Inbox) -> None:
    """Run the worker; `serve` turns a SwarmdError into a fault and an exit code, from 64 on if it is permanent. Raises
    ModelError, SwarmError, ConfigError: no restart can help; SwarmdError and anything else: this process must end, but
    another may succeed."""
    config = decode(start.config)
    paths = NodeDirectory(Path(start.data_dir))
    pusher = Pusher(config, paths, start.peer, outbox.report_event)
    check_trackers(config)
    outbox.report_progress("loading", note=config.training.model)
    rank_group = RankGroup(start, config.training, end_process) if config.training.processes > 1 else None
    ranks = rank_group.ranks if rank_group else ALONE
    engine, early = await load_unless_stopped(partial(load_engine, start, config, ranks, rank_group), inbox)
    if engine is None:  # at once: Python would wait for the thread that loads
        if rank_group is not None:
            rank_group.stop()
        log.info("stopped while loading")
        os._exit(ExitCode.OK)
    # In a thread, so that a slow tracker does not make this process look dead.
    engine.trackers = await anyio.to_thread.run_sync(make_trackers, config, paths, start.peer, engine.steps)
    from swarmd.training.peer_weights import WeightsOffering, digest_policy_architecture, digest_tokenizer

    freeze_loaded_objects()
    policy = engine.policy
    pusher.base = policy.name
    kind = (policy.device, policy.name, policy.parameter_count, engine.loaded_digest, policy.precision.description)
    fit = (
        (digest_policy_architecture(policy), digest_tokenizer(policy.tokenizer))
        if needs_peer_weights(config)
        else ("", "")
    )
    begun = (engine.restored_stage, engine.tokens_drawn)
    outbox.report_event(TrainerReady(*kind, *fit, engine.reward_max, policy.other_weights, *begun))
    every, free = config.training.offer_weights_every, config.storage.free_bytes_min
    offering = WeightsOffering(every, config.swarm.stages, paths.weights, free)
    offering.withdraw_if_off()
    try:
        await TrainerService(engine, config, outbox, pusher, offering).run(inbox, early)
    except BaseExceptionGroup as errors:
        raise single_error(errors) from None
    finally:
        if rank_group is not None:
            rank_group.stop()
        engine.close()
        pusher.close()
        engine.trackers.close()


def run_other_rank() -> None:
    """Run as another rank: load what rank 0 loads, and assist it."""
    reader: FrameReader[ToWorker] = FrameReader(ToWorker)  # type: ignore[arg-type]
    chunks = iter(lambda: os.read(sys.stdin.fileno(), 65536), b"")
    messages = (message for chunk in chunks for message in reader.read_messages(chunk))
    start = next(messages)
    assert isinstance(start, StartMessage)
    config = decode(start.config)
    log_lines_to_stderr(config.logs.level)
    engine = load_engine(start, config, RankInfo(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])))
    freeze_loaded_objects()
    for message in messages:
        if isinstance(message, PerformMessage) and isinstance(message.command, Train):
            engine.assist_stage(message.command, Cancellation())


if __name__ == "__main__":
    if sys.argv[1:] == [RANK]:
        run_other_rank()
    else:
        anyio.run(run_worker, main)
