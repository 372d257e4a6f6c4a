"""The context that rules work on: a state that is changed in place, and the commands of the current event.

`step` makes a `StepContext` for one event and drops it, so that it is a pure function of (state, envelope) from
outside. A `StateFold` keeps one `StepContext` from event to event, and makes a `State` of it only on request.
"""

from operator import attrgetter, is_not
from typing import Any, cast

from msgspec.structs import astuple, replace

from swarmd.bounds import INTEGER_MAX, clamp_integer
from swarmd.core import stage_times
from swarmd.core.chart import Charts
from swarmd.core.chart_types import CoordinatorTrigger, LinkTrigger, RoundTrigger, SubmissionTrigger, TrainerTrigger
from swarmd.core.commands import Command, Train, TrainerCommand
from swarmd.core.ids import Timer, TimerName, timer_name_of
from swarmd.core.state import (
    REJECTIONS_KEPT,
    REWARDS_KEPT,
    ChainState,
    Coordination,
    CoordinationBase,
    Deadline,
    StageReward,
    State,
    StateBase,
    Submission,
)
from swarmd.core.values import ChainSettings, Settings

PENDING_MAX = 64  # commands waiting for an answer; beyond it the oldest is dropped


class StateFields:
    """Assignable fields of a state; assigning to a Struct takes three times as long."""

    __slots__ = StateBase.__struct_fields__

    def __init__(self, state: State) -> None:
        for name, value in zip(self.__slots__, astuple(state), strict=True):
            setattr(self, name, value)


_values = attrgetter(*StateFields.__slots__)


class StepContext:
    """A state being built, and the commands of one event.

    Rules assign to the fields of `state`; copying the state for every field, or every event, would take most of a
    replay's time. So a rule that needs a field's earlier value must read it first. Values in the fields (work, link,
    ...) are replaced, never changed, except the coordinator's: rules assign to the fields of `coordination`, too. Three
    fields of `state` are stale meanwhile, and kept here: the deadlines and the pending commands by name, each ordered
    by last change, and the latest rewards.
    """

    __slots__ = (
        "_kept", "_rewards", "_round", "at", "charts", "commands", "coordination", "deadlines", "pending", "seq",
        "settings", "state",
    )  # fmt: skip

    state: StateBase
    settings: Settings  # of the current run, which a `NodeStarted` begins
    seq: int
    at: float
    charts: Charts
    commands: tuple[Command, ...]
    deadlines: dict[str, Deadline]
    pending: dict[str, Command]  # by id
    coordination: CoordinationBase  # changed in place; set once `open_if_coordinating` has returned True
    _kept: Coordination  # what `state` had before
    _rewards: list[StageReward]  # those not yet in `state`

    def __init__(self, state: State, charts: Charts, lasting: bool) -> None:
        # a Struct is fast to make and read, for one event; for many, fast assignment matters more
        self.state = cast(StateBase, StateFields(state)) if lasting else StateBase(*astuple(state))
        self.charts = charts
        self._round = charts.round.table
        self.commands = ()
        self.deadlines = {each.name: each for each in state.deadlines}
        self.pending = {each.id: each for each in state.pending}
        self._rewards = []
        if state.settings is not None:
            self.settings = state.settings

    def freeze(self) -> State:
        state = self.state
        deadlines, pending = tuple(self.deadlines.values()), tuple(self.pending.values())
        if deadlines != state.deadlines:  # otherwise it stays the same object
            state.deadlines = deadlines
        if pending != state.pending:
            state.pending = pending
        if type(state.coordination) is CoordinationBase:
            state.coordination = self._close_coordination(state.coordination)
        self._flush_rewards()
        return State(*(astuple(state) if isinstance(state, StateBase) else _values(state)))

    def add_reward(self, reward: StageReward) -> None:
        """Add to the latest rewards. They are a long tuple, so several new ones are added at once."""
        self._rewards.append(reward)
        if len(self._rewards) >= REWARDS_KEPT:
            self._flush_rewards()

    def _flush_rewards(self) -> None:
        if self._rewards:
            self.state.rewards = (*self.state.rewards, *self._rewards)[-REWARDS_KEPT:]
            self._rewards = []

    # --- charts ---

    def fire_round_trigger(self, trigger: RoundTrigger) -> bool:
        """Follow round.yaml. Returns False, without a change, if the chart ignores the trigger in this state."""
        state = self.state
        after = self._round.get((state.chart, trigger))
        if after is None:
            return self.charts.round.ignore_trigger(state.chart, trigger)
        if state.stage_times is not None:
            stage_times.add_time_in_state(state, self.at)
        state.chart = after
        state.since = self.at
        return True

    def fire_link_trigger(self, trigger: LinkTrigger, **fields: Any) -> bool:
        """Follow link.yaml and replace fields of the link. Returns False if the trigger is ignored."""
        link, chart = self.state.link, self.charts.link
        after = chart.table.get((link.chart, trigger))
        if after is None:
            return chart.ignore_trigger(link.chart, trigger)
        self.state.link = replace(link, chart=after, since=self.at, **fields)
        return True

    def fire_trainer_trigger(self, trigger: TrainerTrigger, train: str = "") -> bool:
        """Follow trainer.yaml; `train` is the id of the `Train` sent; empty keeps the previous one."""
        trainer, chart = self.state.trainer, self.charts.trainer
        after = chart.table.get((trainer.chart, trigger))
        if after is None:
            return chart.ignore_trigger(trainer.chart, trigger)
        self.state.trainer = replace(trainer, chart=after, since=self.at, train=train or trainer.train)
        return True

    def fire_coordinator_trigger(self, trigger: CoordinatorTrigger) -> bool:
        coordination, chart = self.coordination, self.charts.coordinator
        after = chart.table.get((coordination.chart, trigger))
        if after is None:
            return chart.ignore_trigger(coordination.chart, trigger)
        coordination.chart = after
        coordination.since = self.at
        return True

    def fire_chain_trigger(self, trigger: LinkTrigger, **fields: Any) -> bool:
        """Follow link.yaml for the chain and replace fields of the chain's state."""
        chain, chart = self.chain, self.charts.link
        after = chart.table.get((chain.chart, trigger))
        if after is None:
            return chart.ignore_trigger(chain.chart, trigger)
        self.state.chain = replace(chain, chart=after, since=self.at, **fields)
        return True

    def fire_submission_trigger(self, submission: Submission, trigger: SubmissionTrigger, **fields: Any) -> bool:
        """Follow submission.yaml and replace fields of the submission, which keeps its position."""
        chart = self.charts.submission
        after = chart.table.get((submission.chart, trigger))
        if after is None:
            return chart.ignore_trigger(submission.chart, trigger)
        moved = replace(submission, chart=after, since=self.at, **fields)
        submissions = self.state.submissions
        place = submissions.index(submission)
        self.state.submissions = (*submissions[:place], moved, *submissions[place + 1 :])
        return True

    @property
    def chain(self) -> ChainState:
        """The chain's state; asserts that a contract keeps the rounds."""
        chain = self.state.chain
        assert chain is not None, "this swarm has no chain"
        return chain

    def update_chain(self, **fields: Any) -> None:
        """Replace fields of the chain's state."""
        self.state.chain = replace(self.chain, **fields)

    @property
    def is_chain_up(self) -> bool:
        """Whether the contract currently decides the swarm's round and stage."""
        chain = self.state.chain
        return chain is not None and chain.chart == "up"

    @property
    def chain_settings(self) -> ChainSettings:
        """The chain's part of the settings; asserts that a contract keeps the rounds."""
        assert self.settings.chain is not None, "this swarm has no chain"
        return self.settings.chain

    @property
    def is_submitting(self) -> bool:
        """Whether this node submits anything."""
        return self.settings.chain is not None and self.settings.chain.sends

    def open_if_coordinating(self) -> bool:
        """Return whether this node coordinates; if so, make `coordination` available."""
        kept: Any = self.state.coordination
        if kept is None or type(kept) is CoordinationBase:
            return kept is not None
        self._kept, self.coordination = kept, CoordinationBase(*astuple(kept))
        self.state.coordination = self.coordination  # type: ignore[assignment]  # until `freeze`
        return True

    def _close_coordination(self, opened: CoordinationBase) -> Coordination:
        """Return the state's new coordination: the same object as before if nothing changed."""
        opened.members.freeze()
        opened.reports.freeze()
        del self.coordination
        kept, values = self._kept, astuple(opened)
        return Coordination(*values) if any(map(is_not, values, astuple(kept))) else kept

    # --- deadlines ---

    def set_deadline(self, name: Timer | TimerName, due_at: float) -> None:
        """Set the deadline of this name, in place of an earlier one."""
        deadlines = self.deadlines
        if name in deadlines:
            del deadlines[name]
        deadlines[name] = Deadline(name, due_at)

    def set_deadline_if_sooner(self, name: Timer | TimerName, due_at: float) -> None:
        """Set a deadline unless an earlier one of the same name is set."""
        standing = self.deadlines.get(name)
        self.set_deadline(name, due_at if standing is None else min(due_at, standing.due_at))

    def clear_deadlines(self, name: Timer | TimerName, *others: Timer) -> None:
        self.deadlines.pop(name, None)
        for other in others:
            self.deadlines.pop(other, None)

    # --- commands ---

    def emit(self, command: Command) -> None:
        """Send a command without waiting for its answer."""
        self.commands += (command,)

    def issue_until_answered(self, command: Command) -> None:
        """Send a command once its worker is up, and again each time the worker comes back, until it is answered."""
        pending, command_id = self.pending, command.id
        if pending.pop(command_id, None) is None and len(pending) >= PENDING_MAX:
            del pending[next(iter(pending))]
        pending[command_id] = command
        if isinstance(command, TrainerCommand):
            if self.state.trainer.chart == "idle":
                self.send_pending(command)
        elif self.state.link.chart == "up":
            self.commands += (command,)

    def send_pending(self, command: Command) -> None:
        """Send a pending command now. A `Train` makes the trainer busy."""
        if isinstance(command, Train):
            if not self.fire_trainer_trigger("train", command.id):
                return
            stage_times.record_training_start(self.state, self.at)
        self.commands += (command,)

    def is_worker_free(self, command: Command) -> bool:
        """Return whether the worker for this command can accept it now."""
        if isinstance(command, TrainerCommand):
            return self.state.trainer.chart == "idle"
        return self.state.link.chart == "up"

    def remove_pending(self, command_id: str) -> Command | None:
        """Remove and return an answered command; None if it was not pending: the answer came twice."""
        command = self.pending.pop(command_id, None)
        if command is not None and self.deadlines:
            self.deadlines.pop(timer_name_of("retry", command_id), None)
        return command

    def drop_pending(self, *kinds: type[Command]) -> None:
        """Drop pending commands of these kinds, whatever their outcome."""
        for command in list(self.pending.values()):
            if isinstance(command, kinds):
                del self.pending[command.id]

    # --- counts and causes ---

    def mark_faulted(self) -> None:
        """Give rounds skipped before the next trained stage the cause "fault", except in an orderly stop."""
        in_order = self.state.chart == "draining"
        if self.state.work is not None and not in_order:
            self.state.faulted = True

    def count_rejections(self, reason: str, count: int) -> None:
        counts = dict(self.state.rejections)
        if reason not in counts and len(counts) >= REJECTIONS_KEPT:
            reason = "other"
        counts[reason] = clamp_integer(counts.get(reason, 0) + count, INTEGER_MAX)
        self.state.rejections = tuple(sorted(counts.items()))
