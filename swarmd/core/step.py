"""(state, envelope) → (state, commands): the only place where state changes. Pure: the time comes with the envelope."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from swarmd.core import contract_clock, coordination, events, evidence, rounds, submissions, votes, weights, workers
from swarmd.core.chart import Charts, default_charts
from swarmd.core.chart_types import RoundState
from swarmd.core.commands import Command
from swarmd.core.coordination import settings_of
from swarmd.core.events import ClockSet, Envelope, SpaceFreed, SpaceLow, members_in, reports_in
from swarmd.core.ids import TimerKind, TimerName, is_command_of_kind, kind_of_timer
from swarmd.core.rounds import CANCEL_S, RETRY_S
from swarmd.core.state import LowSpace, State
from swarmd.core.token_ledger import count_checkpoint
from swarmd.core.turn import StepContext
from swarmd.core.workers import RESTART

# states in which the node is idle or nearly so
IDLE: tuple[RoundState, ...] = ("syncing", "waiting", "round.gathering", "round.settling")


def on_space_low(turn: StepContext, event: SpaceLow) -> None:
    """Start no stage until there is space; `pause_for_low_space` handles the current one."""
    before = turn.state.low_space
    since = turn.at if before is None else before.since
    turn.state.low_space = LowSpace(event.free_bytes, event.wanted_bytes, since)


def pause_for_low_space(turn: StepContext) -> None:
    """Pause, at the end of every step while space is low, unless a stage is being trained or a report is pending. A
    stage in training is finished or abandoned by the `behind` policy."""
    chart, work = turn.state.chart, turn.state.work
    if chart in IDLE:
        turn.fire_round_trigger("pause")
    elif chart == "round.training" and work is not None:
        at_it = rounds.is_training(turn, rounds.train_command_id(work.round, work.stage))
        if not at_it or turn.settings.behind == "abandon":
            rounds.cancel_training(turn)
            turn.fire_round_trigger("pause")
    if turn.state.chart == "paused":
        turn.state.faulted = True
        turn.clear_deadlines("gather", "train", "publish")


def on_space_freed(turn: StepContext, event: SpaceFreed) -> None:
    """Rejoin the swarm now that there is space, as soon as the trainer has stopped."""
    turn.state.low_space = None
    rounds.rejoin_swarm(turn)


def on_clock_set(turn: StepContext, event: ClockSet) -> None:
    """Shorten waits that began while the clock was ahead to their normal length from now on."""
    for deadline in list(turn.deadlines.values()):
        longest_s = _longest_wait_s(turn, kind_of_timer(deadline.name))
        if longest_s is not None and deadline.due_at > turn.at + longest_s:
            turn.set_deadline(TimerName(deadline.name), turn.at + longest_s)
    if turn.open_if_coordinating():
        coordination = turn.coordination
        if coordination.chart != "finished":  # its end stays as announced
            coordination.deadline_at = min(coordination.deadline_at, turn.at + _longest_stage_s(turn))
            since = min(coordination.waiting.since, turn.at)
            coordination.waiting = replace(coordination.waiting, since=since)
    if turn.state.chain is not None:
        contract_clock.reschedule_advance(turn)


def _longest_wait_s(turn: StepContext, kind: TimerKind) -> float | None:
    """Return the longest wait of a kind; None if this node does not decide it (but a contract, for instance)."""
    settings = turn.settings
    waits: dict[TimerKind, float] = {
        "ready": settings.ready_s,
        "restart": RESTART.most_s,
        "retry": RETRY_S,
        "gather": settings.gather_s,
        "train": settings.train_s,
        "cancel": CANCEL_S,
        "publish": settings.publish_s,
        "clock": settings.clock_s,  # ending early only costs an extra read
    }
    if settings.coordination is not None:
        waits |= {"stage": _longest_stage_s(turn), "muster": settings.coordination.start_s}
    if settings.chain is not None:
        waits |= {"submission": settings.chain.resend_s, "register": settings.chain.resend_s}
    return waits.get(kind)


def _longest_stage_s(turn: StepContext) -> float:
    return max(settings_of(turn).stage_s, settings_of(turn).resume_s)


# Version of these rules, written with every commit: a log of another version is refused. From the first release on, a
# change that alters a log's outcome raises it; until then such a change records tests/golden again.
RULES = 1

Rule = Callable[[StepContext, Any], None]

BEGINNINGS = (events.NodeStarted, events.NodeForked)  # before a node's first start, only these have an effect
VOID = "an earlier event has failed: fold the log again"


def step(state: State, envelope: Envelope, charts: Charts | None = None) -> tuple[State, tuple[Command, ...]]:
    """Apply one event. `envelope`: the event, with its sequence number and commit time (POSIX seconds). `charts`: the
    statecharts to follow, by default the shipped ones. Returns the new state and the event's commands, in order."""
    if state.settings is None and not isinstance(envelope.event, BEGINNINGS):
        return state, ()
    fold = StateFold(state, charts, lasting=False)
    commands = fold.apply(envelope)
    return fold.state, commands


class StateFold:
    """Folds a log in place, for callers that need the final state, not every intermediate one.

    Yields the same states and commands as `step`, which copies the state at every event. `lasting`: whether it will
    apply many events, or only one, as in `step`.
    """

    __slots__ = ("_turn",)

    _turn: StepContext | None  # None after an exception in a rule

    def __init__(self, state: State | None = None, charts: Charts | None = None, lasting: bool = True) -> None:
        self._turn = StepContext(State() if state is None else state, charts or default_charts(), lasting)

    def apply(self, envelope: Envelope) -> tuple[Command, ...]:
        """Apply one event, and return its commands, in order. If this raises, the fold must not be used any more,
        because an event may have been applied partly."""
        turn, event = self._turn, envelope.event
        assert turn is not None, VOID
        state = turn.state
        if state.settings is None and not isinstance(event, BEGINNINGS):
            return ()
        turn.seq = envelope.seq
        turn.at = envelope.at
        turn.commands = ()
        try:
            _RULES[type(event)](turn, event)
            if state.low_space is not None:
                pause_for_low_space(turn)
        except BaseException:
            self._turn = None
            raise
        return turn.commands

    @property
    def state(self) -> State:
        """The state after all events so far."""
        assert self._turn is not None, VOID
        return self._turn.freeze()


def _on_node_started(turn: StepContext, event: events.NodeStarted) -> None:
    turn.settings = event.settings
    workers.start_node(turn, event)
    if turn.open_if_coordinating():
        coordination.on_node_started(turn, event)


def _on_timer_fired(turn: StepContext, event: events.TimerFired) -> None:
    """Handle a timer, unless its deadline was changed or cleared meanwhile."""
    standing = turn.deadlines.get(event.name)
    if standing is None or standing.due_at != event.due_at:
        return
    turn.clear_deadlines(TimerName(event.name))
    _TIMERS[kind_of_timer(event.name)](turn, event.name.partition("/")[2])


def _on_link_up(turn: StepContext, event: events.LinkUp) -> None:
    peers = turn.state.link.peers
    fresh = workers.on_link_up(turn, event)
    if turn.state.chart in workers.LEAVING:
        return
    if not fresh:
        if turn.open_if_coordinating():
            coordination.on_peer_count_changed(turn, peers)
        return
    rounds.on_linked(turn)
    if turn.state.chain is not None:
        contract_clock.on_linked(turn)
    if turn.open_if_coordinating():
        coordination.on_linked(turn)


def _on_worker_exited(turn: StepContext, event: events.WorkerExited) -> None:
    workers.on_worker_exited(turn, event)
    if event.worker == "trainer":
        rounds.continue_after_training(turn)
    elif event.worker == "chain" and turn.state.chain is not None:
        contract_clock.on_chain_worker_exited(turn, event)


def _on_checkpoint_written(turn: StepContext, event: events.CheckpointWritten) -> None:
    turn.state.tokens = count_checkpoint(turn.state.tokens, (event.round, event.stage))


def _on_trainer_ready(turn: StepContext, event: events.TrainerReady) -> None:
    first = not coordination.has_had_trainer(turn.state)
    workers.on_trainer_ready(turn, event)
    weights.request_weights(turn)
    rounds.train_if_gathered(turn)
    if first and turn.state.chart not in workers.LEAVING and turn.open_if_coordinating():
        coordination.on_first_trainer_ready(turn)


def _on_registered(turn: StepContext, event: events.Registered) -> None:
    rounds.on_registered(turn, event)
    if turn.open_if_coordinating():
        coordination.on_registered(turn, event)


def _on_records_rejected(turn: StepContext, event: events.RecordsRejected) -> None:
    turn.count_rejections(event.reason, event.count)


def _on_equivocated(turn: StepContext, event: events.Equivocated) -> None:
    evidence.on_equivocated(turn, event)
    if turn.open_if_coordinating():
        coordination.on_equivocated(turn)


def _on_report_seen(turn: StepContext, event: events.ReportSeen) -> None:
    if turn.open_if_coordinating():
        coordination.on_report_seen(turn, event)
    elif turn.state.chain is not None:
        votes.on_report_seen(turn, event)


def _on_reports_seen(turn: StepContext, event: events.ReportsSeen) -> None:
    for report in reports_in(event):
        _on_report_seen(turn, report)


def _on_members_seen(turn: StepContext, event: events.MembersSeen) -> None:
    for member in members_in(event):
        coordination.on_member_seen(turn, member)


def _on_round_published(turn: StepContext, event: events.RoundPublished) -> None:
    if turn.open_if_coordinating():
        coordination.on_round_published(turn, event)
    else:
        turn.remove_pending(event.command)


def _on_command_failed(turn: StepContext, event: events.CommandFailed) -> None:
    if turn.state.chain is not None and is_command_of_kind(event.command, "submit", "broadcast"):
        submissions.on_failed(turn, event)
    else:
        rounds.on_command_failed(turn, event)


def _on_submission_included(turn: StepContext, event: events.SubmissionIncluded) -> None:
    submissions.on_included(turn, event)
    rounds.on_submission_settled(turn)


def _on_submission_refused(turn: StepContext, event: events.SubmissionRefused) -> None:
    submissions.on_refused(turn, event)
    rounds.on_submission_settled(turn)


def _on_weights_fetched(turn: StepContext, event: events.WeightsFetched) -> None:
    weights.on_fetched(turn, event)
    rounds.train_if_gathered(turn)


def _on_weights_refused(turn: StepContext, event: events.WeightsRefused) -> None:
    weights.on_refused(turn, event)
    rounds.train_if_gathered(turn)


def _on_weights_overdue(turn: StepContext) -> None:
    weights.on_overdue(turn)
    rounds.train_if_gathered(turn)


def _leave_state_unchanged(turn: StepContext, event: Any) -> None:
    """Do nothing: the event is only for the log and for display."""


def _only_with_chain(rule: Rule) -> Rule:
    """Skip a rule in swarms without a contract, whose log may contain chain events from an earlier configuration."""

    def apply_rule(turn: StepContext, event: Any) -> None:
        if turn.state.chain is not None:
            rule(turn, event)

    return apply_rule


def _only_if_coordinating(rule: Rule) -> Rule:
    """Skip a rule on followers, which see some of the coordinator's events."""

    def apply_rule(turn: StepContext, event: Any) -> None:
        if turn.open_if_coordinating():
            rule(turn, event)

    return apply_rule


_RULES: dict[type, Rule] = {
    events.NodeStarted: _on_node_started,
    events.NodeForked: workers.on_node_forked,
    events.StopRequested: workers.on_stop_requested,
    events.NodeStopped: workers.on_node_stopped,
    events.TimerFired: _on_timer_fired,
    events.SpaceLow: on_space_low,
    events.SpaceFreed: on_space_freed,
    events.ClockSet: on_clock_set,
    events.WorkerStarted: workers.on_worker_started,
    events.WorkerStartFailed: workers.on_worker_start_failed,
    events.WorkerExited: _on_worker_exited,
    events.LinkUp: _on_link_up,
    events.LinkDegraded: workers.on_link_degraded,
    events.LinkDown: workers.on_link_down,
    events.Registered: _on_registered,
    events.MemberSeen: _only_if_coordinating(coordination.on_member_seen),
    events.MembersSeen: _only_if_coordinating(_on_members_seen),
    events.MemberLeft: _only_if_coordinating(coordination.on_member_left),
    events.RoundAnnounced: rounds.on_round_announced,
    events.NoRoundYet: rounds.on_no_round_yet,
    events.RoundsSkipped: rounds.on_rounds_skipped,
    events.RolloutsGathered: rounds.on_rollouts_gathered,
    events.ReportPublished: rounds.on_report_published,
    events.ReportSeen: _on_report_seen,
    events.ReportsSeen: _on_reports_seen,
    events.RoundPublished: _on_round_published,
    events.LeaderboardPublished: _only_if_coordinating(coordination.on_leaderboard_published),
    events.RecordsRejected: _on_records_rejected,
    events.Equivocated: _on_equivocated,
    events.CommandFailed: _on_command_failed,
    events.TrainerReady: _on_trainer_ready,
    events.StageTrained: rounds.on_stage_trained,
    events.CheckpointWritten: _on_checkpoint_written,
    events.TrainingCancelled: rounds.on_training_cancelled,
    events.WeightsFetched: _on_weights_fetched,
    events.WeightsRefused: _on_weights_refused,
    events.WeightsAdopted: weights.on_adopted,
    events.ModelPushed: _leave_state_unchanged,
    events.ChainUp: _only_with_chain(contract_clock.on_chain_up),
    events.ChainDegraded: _only_with_chain(contract_clock.on_chain_degraded),
    events.ChainBlock: _only_with_chain(contract_clock.on_chain_block),
    events.ChainReorged: _only_with_chain(contract_clock.on_chain_reorged),
    events.SubmissionsCounted: _only_with_chain(contract_clock.on_submissions_counted),
    events.MembershipRead: _only_with_chain(contract_clock.on_membership_read),
    events.SubmissionPrepared: _only_with_chain(submissions.on_prepared),
    events.SubmissionSent: _only_with_chain(submissions.on_sent),
    events.SubmissionIncluded: _only_with_chain(_on_submission_included),
    events.SubmissionConfirmed: _only_with_chain(submissions.on_confirmed),
    events.SubmissionLost: _only_with_chain(submissions.on_lost),
    events.SubmissionRefused: _only_with_chain(_on_submission_refused),
}

_TIMERS: dict[TimerKind, Callable[[StepContext, Any], None]] = {
    "ready": workers.on_ready_overdue,
    "restart": workers.start_worker,
    "retry": rounds.on_retry_due,
    "gather": lambda turn, _: rounds.on_gather_overdue(turn),
    "train": lambda turn, _: rounds.on_train_overdue(turn),
    "cancel": lambda turn, _: rounds.on_cancel_overdue(turn),
    "weights": lambda turn, _: _on_weights_overdue(turn),
    "publish": lambda turn, _: rounds.on_publish_overdue(turn),
    "clock": lambda turn, _: rounds.on_clock_overdue(turn),
    "muster": _only_if_coordinating(lambda turn, _: coordination.open_first_round(turn)),
    "stage": _only_if_coordinating(lambda turn, _: coordination.on_stage_overdue(turn)),
    "drive": lambda turn, _: contract_clock.on_advance_due(turn),
    "register": lambda turn, _: submissions.on_register_due(turn),
    "submission": lambda turn, _: submissions.on_overdue(turn),
}
