"""Worker processes as seen by the core: started, ready, exited, restarted within a budget."""

from typing import assert_never

from msgspec.structs import replace

from swarmd.bounds import Backoff, clamp_integer
from swarmd.core import events, weights
from swarmd.core.chart_types import RoundState
from swarmd.core.commands import Gather, KillWorker, StartWorker, StopWorkers, Train, WatchChain
from swarmd.core.ids import command_id, timer_name_of
from swarmd.core.state import ChainState, Coordination, NetworkLink, State, StateBase, Trainer, WorkerState
from swarmd.core.token_ledger import count_start
from swarmd.core.turn import StepContext
from swarmd.core.values import Worker
from swarmd.errors import ExitCode

RESTART = Backoff(0.2, 10.0)
RESTART_OUTSIDE = Backoff(0.2, 60.0)  # after exits with an outside cause; the longest delay applies whatever others do
LEAVING: tuple[RoundState, ...] = ("draining", "stopped", "failed")


def start_node(turn: StepContext, event: events.NodeStarted) -> None:
    """Begin a run: keep what was learned and what is unfinished, reset what belonged to the earlier process."""
    state = turn.state
    in_order = state.chart == "stopped"
    working = state.work is not None
    state.settings, state.run, state.started_at = event.settings, event.run, turn.at
    state.link, state.network = NetworkLink(since=turn.at), WorkerState()
    state.trainer, state.training = Trainer(since=turn.at, reward_max=state.trainer.reward_max), WorkerState()
    _resume_coordination(turn, event)
    state.chain = _chain_at_start(state, event, turn.at)
    turn.deadlines.clear()
    state.faulted = state.faulted or (working and not in_order) or event.restored
    state.stopped = state.stopped or (working and in_order)
    state.low_space = None
    state.restored = state.restored or event.restored
    state.first_heard, state.floor, state.heard = -1, max(state.floor, event.from_round), None
    state.stop_reason, state.exit_code = "", 0
    state.stage_times = None
    if event.restored:  # earlier pending fetches and training no longer apply
        turn.drop_pending(Gather, Train)
        weights.forget_catch_up(turn)
    if state.chain is not None:
        state.chaining = WorkerState()
    turn.fire_round_trigger("start")
    for worker in workers_of(turn.state):
        start_worker(turn, worker)


# What a fork keeps: what was trained, and its results. Everything else belongs to the parent node.
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


def on_node_forked(turn: StepContext, event: events.NodeForked) -> None:
    """Pass the log to another node, which takes part from the round after the last trained one."""
    turn.fire_round_trigger("drain")
    turn.fire_round_trigger("drained")
    state, fresh = turn.state, State()
    for name in State.__struct_fields__:
        if name not in (*KEPT_BY_FORK, "chart", "since"):
            setattr(state, name, getattr(fresh, name))
    turn.pending.clear()
    turn.deadlines.clear()
    state.forked_from, state.floor = event.parent, clamp_integer(state.done[0] + 1)
    state.stopped = True


def workers_of(state: StateBase) -> tuple[Worker, ...]:
    return ("network", "trainer") if state.chain is None else ("network", "trainer", "chain")


def _chain_at_start(before: StateBase, event: events.NodeStarted, at: float) -> ChainState | None:
    if event.settings.chain is None:
        return None
    return replace(before.chain or ChainState(), chart="down", since=at, reason="", handed="", failures=0)


def _resume_coordination(turn: StepContext, event: events.NodeStarted) -> None:
    if event.settings.coordination is None:
        turn.state.coordination = None
        return
    if turn.state.coordination is None:
        turn.state.coordination = Coordination()
    if turn.open_if_coordinating() and (turn.coordination.chart == "mustering" or event.restored):
        turn.coordination.chart, turn.coordination.held_since = "idle", None


def start_worker(turn: StepContext, worker: Worker) -> None:
    """Request a worker process, which must report ready within `ready_s`."""
    attempt = worker_state_of(turn.state, worker).attempt + 1
    set_worker_state(turn, worker, replace(worker_state_of(turn.state, worker), attempt=attempt))
    turn.emit(StartWorker(command_id("start", f"{worker}/{turn.state.run}/{attempt}"), worker, attempt))
    turn.set_deadline(timer_name_of("ready", worker), turn.at + turn.settings.ready_s)


def worker_state_of(state: StateBase, worker: Worker) -> WorkerState:
    match worker:
        case "network":
            return state.network
        case "trainer":
            return state.training
        case "chain":
            return state.chaining
        case _:
            assert_never(worker)


def set_worker_state(turn: StepContext, worker: Worker, life: WorkerState) -> None:
    match worker:
        case "network":
            turn.state.network = life
        case "trainer":
            turn.state.training = life
        case "chain":
            turn.state.chaining = life
        case _:
            assert_never(worker)


def on_worker_started(turn: StepContext, event: events.WorkerStarted) -> None:
    """Record that the process runs; it is not ready yet."""
    set_worker_state(turn, event.worker, replace(worker_state_of(turn.state, event.worker), pid=event.pid))
    if event.worker == "network":
        turn.fire_link_trigger("started")
        turn.fire_round_trigger("network_started")
    elif event.worker == "trainer":
        turn.fire_trainer_trigger("started")
    elif turn.state.chain is not None:
        _watch_chain(turn)


def _watch_chain(turn: StepContext) -> None:
    """Send the chain worker the position up to which the log knows the chain."""
    turn.fire_chain_trigger("started")
    chain = turn.chain
    name = command_id("watch", f"{turn.state.run}/{turn.state.chaining.attempt}")
    spent = (chain.spent_day, chain.spent_wei)
    turn.emit(WatchChain(name, chain.recent, chain.genesis, chain.base_fee, *spent))


def on_worker_start_failed(turn: StepContext, event: events.WorkerStartFailed) -> None:
    """Handle that the process could not be started like an exit."""
    on_worker_exited(turn, events.WorkerExited(event.worker, event.reason, outside=event.outside))


def on_worker_exited(turn: StepContext, event: events.WorkerExited) -> None:
    """Restart the worker after a back-off, or stop the node if the budget is used up or a restart cannot help. Exits
    with an outside cause do not count: anyone who can get a worker killed must not be able to stop the node."""
    _record_exit(turn, event)
    if turn.state.chart in LEAVING:
        return
    life = worker_state_of(turn.state, event.worker)
    if event.permanent:
        stop_node(turn, f"{event.worker} worker: {event.reason}", event.exit_code or ExitCode.UNAVAILABLE)
    elif event.outside:
        turn.set_deadline(
            timer_name_of("restart", event.worker), turn.at + RESTART_OUTSIDE.after(max(1, len(life.outside)))
        )
    elif len(life.exits) > turn.settings.restarts_max:
        window_s = turn.settings.restart_window_s
        reason = f"{event.worker} worker ended {len(life.exits)} times in {window_s:g} s, last: {event.reason}"
        stop_node(turn, reason, ExitCode.UNAVAILABLE)
    else:
        turn.set_deadline(timer_name_of("restart", event.worker), turn.at + RESTART.after(max(1, len(life.exits))))


def _record_exit(turn: StepContext, event: events.WorkerExited) -> None:
    life = worker_state_of(turn.state, event.worker)
    planned = event.planned or turn.state.chart in LEAVING  # an orderly stop's exits are planned, too
    counted = () if planned else (turn.at,)
    exits, outside = _recent_ends(turn, life.exits), _recent_ends(turn, life.outside)
    if event.outside:
        outside += counted
    else:
        exits += counted
    set_worker_state(turn, event.worker, replace(life, pid=0, exits=exits, reason=event.reason, outside=outside))
    turn.clear_deadlines(timer_name_of("ready", event.worker))
    if event.worker == "network":
        turn.fire_link_trigger("exited", reason=event.reason, peers=0, isolated="", isolated_at=None)
    elif event.worker == "trainer":
        turn.fire_trainer_trigger("exited")
        turn.clear_deadlines("cancel")
    if not event.planned:
        turn.mark_faulted()


def _recent_ends(turn: StepContext, ends: tuple[float, ...]) -> tuple[float, ...]:
    window_from = turn.at - turn.settings.restart_window_s
    return tuple(time for time in ends if time > window_from)[-turn.settings.restarts_max :]


def on_ready_overdue(turn: StepContext, worker: Worker) -> None:
    """Kill a worker that runs but did not report ready."""
    life = worker_state_of(turn.state, worker)
    reason = f"not ready within {turn.settings.ready_s:g} s"
    turn.emit(KillWorker(command_id("kill", f"{worker}/{turn.state.run}/{life.attempt}"), worker, reason))


def on_link_up(turn: StepContext, event: events.LinkUp) -> bool:
    """Record the number of peers. Returns True if the link has just come up, False if only the number changed."""
    turn.clear_deadlines(timer_name_of("ready", "network"))
    since = (turn.state.link.isolated_at or turn.at) if event.isolated else None
    peers, addresses, isolated = event.peers, event.addresses, event.isolated
    fresh = turn.fire_link_trigger(
        "linked", reason="", peers=peers, addresses=addresses, isolated=isolated, isolated_at=since
    )
    if not fresh and turn.state.link.chart == "up":
        link = turn.state.link
        turn.state.link = replace(link, peers=peers, addresses=addresses, isolated=isolated, isolated_at=since)
    return fresh


def on_link_degraded(turn: StepContext, event: events.LinkDegraded) -> None:
    """Record that the DHT node runs but reaches no peer."""
    turn.clear_deadlines(timer_name_of("ready", "network"))
    turn.fire_link_trigger("isolated", reason=event.reason, peers=0, isolated="", isolated_at=None)


def on_link_down(turn: StepContext, event: events.LinkDown) -> None:
    """Record that p2pd died; the network worker restarts it by itself."""
    turn.fire_link_trigger("lost", reason=event.reason, peers=0, isolated="", isolated_at=None)
    turn.mark_faulted()


def on_trainer_ready(turn: StepContext, event: events.TrainerReady) -> None:
    """Send the pending stage to the trainer, which has loaded its model."""
    turn.clear_deadlines(timer_name_of("ready", "trainer"))
    turn.state.tokens = count_start(turn.state.tokens, event.drawn, event.restored)
    if turn.fire_trainer_trigger("ready"):
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


def resend_training(turn: StepContext) -> None:
    """Send the pending `Train`, if the stage is in training and the trainer is free."""
    if turn.state.chart != "round.training":
        return
    for command in list(turn.pending.values()):
        if isinstance(command, Train) and turn.is_worker_free(command):
            turn.send_pending(command)


def stop_node(turn: StepContext, reason: str, code: int) -> None:
    """Begin to stop: ask all workers to end; then the daemon records `NodeStopped`."""
    if turn.fire_round_trigger("drain"):
        turn.state.stop_reason, turn.state.exit_code = reason, code
        turn.deadlines.clear()
        turn.emit(StopWorkers(command_id("stop", turn.state.run), reason, code))


def on_stop_requested(turn: StepContext, event: events.StopRequested) -> None:
    """Stop the node on a signal's or the operator's request."""
    stop_node(turn, event.reason, event.code)


def on_node_stopped(turn: StepContext, event: events.NodeStopped) -> None:
    """Record that the node has stopped, in order or after a failure; its workers have ended."""
    turn.fire_round_trigger("broke" if event.code else "drained")
