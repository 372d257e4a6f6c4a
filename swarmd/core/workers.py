"""Worker processes as the core sees them: started, ready, exited, started again within a budget."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from swarmd.bounds import Backoff, fit
from swarmd.core import weights
from swarmd.core.chart_types import RoundState
from swarmd.core.commands import Gather, KillWorker, StartWorker, StopWorkers, Train, WatchChain
from swarmd.core.events import (
    LinkDegraded,
    LinkDown,
    LinkUp,
    NodeForked,
    NodeStarted,
    NodeStopped,
    StopRequested,
    TrainerReady,
    WorkerExited,
    WorkerStarted,
    WorkerStartFailed,
)
from swarmd.core.ids import command_id, timer_about
from swarmd.core.state import AnyState, Chain, Coordination, Link, State, Trainer, WorkerState
from swarmd.core.turn import Turn
from swarmd.core.values import Worker
from swarmd.errors import ExitCode

RESTART = Backoff(0.2, 10.0)
RESTART_OUTSIDE = Backoff(0.2, 60.0)  # whatever others do to it: longest wait until a worker is started again
LEAVING: tuple[RoundState, ...] = ("draining", "stopped", "failed")


def start_node(turn: Turn, event: NodeStarted) -> None:
    """Begin a run: keep what was learnt and left undone, forget what belonged to the process before."""
    state = turn.state
    in_order = state.chart == "stopped"
    working = state.work is not None
    state.settings, state.run, state.started_at = event.settings, event.run, turn.at
    state.link, state.network = Link(since=turn.at), WorkerState()
    state.trainer, state.training = Trainer(since=turn.at, reward_max=state.trainer.reward_max), WorkerState()
    _take_up_coordination(turn, event)
    state.chain = _chain(state, event, turn.at)
    turn.deadlines.clear()
    state.faulted = state.faulted or (working and not in_order) or event.restored
    state.stopped = state.stopped or (working and in_order)
    state.low_space = None
    state.restored = state.restored or event.restored
    state.first_heard, state.floor, state.heard = -1, max(state.floor, event.from_round), None
    state.stop_reason, state.exit_code = "", 0
    state.stage_times = None
    if event.restored:  # what was to be fetched and trained then is no longer, or was by now
        turn.drop_pending(Gather, Train)
        weights.forget(turn)
    if state.chain is not None:
        state.chaining = WorkerState()
    turn.move_round("start")
    for worker in workers_of(turn.state):
        start_worker(turn, worker)


# What a fork keeps: what was trained, and what came of it. All else is the first node's to say or to answer.
KEPT_BY_FORK = (
    "done",
    "skipped_to",
    "skips",
    "rounds_skipped",
    "rounds_joined",
    "rewards",
    "learning",
    "reward_total",
    "first_accuracy",
    "rejections",
)


def on_node_forked(turn: Turn, event: NodeForked) -> None:
    """The log passes to another node, which takes part from the round after the last that was trained."""
    turn.move_round("drain")
    turn.move_round("drained")
    state, fresh = turn.state, State()
    for name in State.__struct_fields__:
        if name not in (*KEPT_BY_FORK, "chart", "since"):
            setattr(state, name, getattr(fresh, name))
    turn.pending.clear()
    turn.deadlines.clear()
    state.forked_from, state.floor = event.parent, fit(state.done[0] + 1)
    state.stopped = True


def workers_of(state: AnyState) -> tuple[Worker, ...]:
    """The workers that a node has."""
    return ("network", "trainer") if state.chain is None else ("network", "trainer", "chain")


def _chain(before: AnyState, event: NodeStarted, at: float) -> Chain | None:
    if event.settings.chain is None:
        return None
    return replace(before.chain or Chain(), chart="down", since=at, reason="", handed="", failures=0)


def _take_up_coordination(turn: Turn, event: NodeStarted) -> None:
    if event.settings.coordination is None:
        turn.state.coordination = None
        return
    if turn.state.coordination is None:
        turn.state.coordination = Coordination()
    if turn.coordinates() and (turn.coordination.chart == "mustering" or event.restored):
        turn.coordination.chart, turn.coordination.held_since = "idle", None


def start_worker(turn: Turn, worker: Worker) -> None:
    """Ask for a worker process and wait no longer than `ready_s` for it to report ready."""
    attempt = life_of(turn.state, worker).attempt + 1
    set_life(turn, worker, replace(life_of(turn.state, worker), attempt=attempt))
    turn.emit(StartWorker(command_id("start", f"{worker}/{turn.state.run}/{attempt}"), worker, attempt))
    turn.arm(timer_about("ready", worker), turn.at + turn.settings.ready_s)


def life_of(state: AnyState, worker: Worker) -> WorkerState:
    """The process state of a worker."""
    match worker:
        case "network":
            return state.network
        case "trainer":
            return state.training
        case "chain":
            return state.chaining
        case _:
            assert_never(worker)


def set_life(turn: Turn, worker: Worker, life: WorkerState) -> None:
    """Replace the process state of a worker."""
    match worker:
        case "network":
            turn.state.network = life
        case "trainer":
            turn.state.training = life
        case "chain":
            turn.state.chaining = life
        case _:
            assert_never(worker)


def on_worker_started(turn: Turn, event: WorkerStarted) -> None:
    """The process runs; it is not ready yet."""
    set_life(turn, event.worker, replace(life_of(turn.state, event.worker), pid=event.pid))
    if event.worker == "network":
        turn.move_link("started")
        turn.move_round("network_started")
    elif event.worker == "trainer":
        turn.move_trainer("started")
    elif turn.state.chain is not None:
        _watch_chain(turn)


def _watch_chain(turn: Turn) -> None:
    """Tell the chain worker how far the log knows the chain."""
    turn.move_chain("started")
    chain = turn.chain
    name = command_id("watch", f"{turn.state.run}/{turn.state.chaining.attempt}")
    spent = (chain.spent_day, chain.spent_wei)
    turn.emit(WatchChain(name, chain.recent, chain.genesis, chain.base_fee, *spent))


def on_worker_start_failed(turn: Turn, event: WorkerStartFailed) -> None:
    """The process could not be executed: the same as an exit."""
    on_worker_exited(turn, WorkerExited(event.worker, event.reason, outside=event.outside))


def on_worker_exited(turn: Turn, event: WorkerExited) -> None:
    """Start the worker again after a back-off, or stop the node when the budget is spent or a restart cannot help.

    What others caused costs nothing of the budget: anyone who can get a worker killed must not be able to end the node.
    """
    _note_exit(turn, event)
    if turn.state.chart in LEAVING:
        return
    life = life_of(turn.state, event.worker)
    if event.permanent:
        stop_node(turn, f"{event.worker} worker: {event.reason}", event.exit_code or ExitCode.UNAVAILABLE)
    elif event.outside:
        turn.arm(timer_about("restart", event.worker), turn.at + RESTART_OUTSIDE.after(max(1, len(life.outside))))
    elif len(life.exits) > turn.settings.restarts_max:
        window_s = turn.settings.restart_window_s
        reason = f"{event.worker} worker ended {len(life.exits)} times in {window_s:g} s, last: {event.reason}"
        stop_node(turn, reason, ExitCode.UNAVAILABLE)
    else:
        turn.arm(timer_about("restart", event.worker), turn.at + RESTART.after(max(1, len(life.exits))))


def _note_exit(turn: Turn, event: WorkerExited) -> None:
    life = life_of(turn.state, event.worker)
    planned = event.planned or turn.state.chart in LEAVING  # so are the exits of an orderly stop
    counted = () if planned else (turn.at,)
    exits, outside = _recent(turn, life.exits), _recent(turn, life.outside)
    if event.outside:
        outside += counted
    else:
        exits += counted
    set_life(turn, event.worker, replace(life, pid=0, exits=exits, reason=event.reason, outside=outside))
    turn.disarm(timer_about("ready", event.worker))
    if event.worker == "network":
        turn.move_link("exited", reason=event.reason, peers=0, isolated="", isolated_at=None)
    elif event.worker == "trainer":
        turn.move_trainer("exited")
        turn.disarm("cancel")
    if not event.planned:
        turn.note_fault()


def _recent(turn: Turn, ends: tuple[float, ...]) -> tuple[float, ...]:
    window_from = turn.at - turn.settings.restart_window_s
    return tuple(time for time in ends if time > window_from)[-turn.settings.restarts_max :]


def on_ready_overdue(turn: Turn, worker: Worker) -> None:
    """The worker runs but never reported ready."""
    life = life_of(turn.state, worker)
    reason = f"not ready within {turn.settings.ready_s:g} s"
    turn.emit(KillWorker(command_id("kill", f"{worker}/{turn.state.run}/{life.attempt}"), worker, reason))


def on_link_up(turn: Turn, event: LinkUp) -> bool:
    """Record the peers. Returns whether the link has just come up, rather than its number of peers changed."""
    turn.disarm(timer_about("ready", "network"))
    since = (turn.state.link.isolated_at or turn.at) if event.isolated else None
    peers, addresses, isolated = event.peers, event.addresses, event.isolated
    fresh = turn.move_link("linked", reason="", peers=peers, addresses=addresses, isolated=isolated, isolated_at=since)
    if not fresh and turn.state.link.chart == "up":
        link = turn.state.link
        turn.state.link = replace(link, peers=peers, addresses=addresses, isolated=isolated, isolated_at=since)
    return fresh


def on_link_degraded(turn: Turn, event: LinkDegraded) -> None:
    """The DHT node runs and reaches nobody."""
    turn.disarm(timer_about("ready", "network"))
    turn.move_link("isolated", reason=event.reason, peers=0, isolated="", isolated_at=None)


def on_link_down(turn: Turn, event: LinkDown) -> None:
    """p2pd died under the network worker, which starts it again by itself."""
    turn.move_link("lost", reason=event.reason, peers=0, isolated="", isolated_at=None)
    turn.note_fault()


def on_trainer_ready(turn: Turn, event: TrainerReady) -> None:
    """The model is loaded: take up the stage that waits for it."""
    turn.disarm(timer_about("ready", "trainer"))
    if turn.move_trainer("ready"):
        turn.state.trainer = replace(
            turn.state.trainer,
            device=event.device,
            model=event.model,
            parameters=event.parameters,
            numbers=event.numbers,
            architecture=event.architecture,
            tokenizer=event.tokenizer,
            reward_max=event.reward_max,
            other_weights=event.other_weights,
        )
    resend_training(turn)


def resend_training(turn: Turn) -> None:
    """Send the pending `Train`, if the stage is at training and the trainer is free."""
    if turn.state.chart != "round.training":
        return
    for command in list(turn.pending.values()):
        if isinstance(command, Train) and turn.port_is_up(command):
            turn.send(command)


def stop_node(turn: Turn, reason: str, code: int) -> None:
    """Begin to stop: all workers are asked to end, then the shell records `NodeStopped`."""
    if turn.move_round("drain"):
        turn.state.stop_reason, turn.state.exit_code = reason, code
        turn.deadlines.clear()
        turn.emit(StopWorkers(command_id("stop", turn.state.run), reason, code))


def on_stop_requested(turn: Turn, event: StopRequested) -> None:
    """A signal or the operator asks the node to stop."""
    stop_node(turn, event.reason, event.code)


def on_node_stopped(turn: Turn, event: NodeStopped) -> None:
    """The workers are gone: the node has stopped, in order or after a failure."""
    turn.move_round("broke" if event.code else "drained")
