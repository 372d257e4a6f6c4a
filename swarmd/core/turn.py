"""One step in the making: the state so far and the commands so far.

The functions of rounds.py, workers.py and coordination.py work on a `Turn`; from outside, `step` stays a pure function
of (state, envelope).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from swarmd.bounds import INTEGER_MAX, WORD_MAX, add_real, fit
from swarmd.core.chart import Charts
from swarmd.core.chart_types import (
    CoordinatorTrigger,
    LinkTrigger,
    RoundTrigger,
    SubmissionTrigger,
    TrainerTrigger,
)
from swarmd.core.commands import TRAINER_COMMANDS, Command, Train
from swarmd.core.ids import Timer, TimerName, timer_about
from swarmd.core.state import REJECTIONS_KEPT, AnyState, Chain, Coordination, Deadline, Submission, Work
from swarmd.core.values import ChainSettings, Settings

STOPPED_SINCE = 4  # rules that tell a node that was stopped from one that broke
BOUNDED_SINCE = 6  # rules under which sums stay within `swarmd.bounds`, and not only within what a log can hold
PENDING_MAX = 64  # commands waiting for an answer; the oldest report is given up beyond it


class Turn(msgspec.Struct, gc=False):
    """State and commands of one step.

    `state` is a copy that only this turn knows, and rules assign to its fields until the step is over: a new copy for
    every field would take most of the time of a replay. So a rule that needs a field from before takes its value first.
    What the fields hold (work, link, deadlines, ...) is replaced, never changed.
    """

    state: AnyState
    settings: Settings  # of this life, which a `NodeStarted` begins
    seq: int
    at: float
    charts: Charts
    rules: int  # to follow: those of the commit that holds the event
    commands: list[Command] = []

    # --- charts ---

    def move_round(self, trigger: RoundTrigger) -> bool:
        """Follow round.yaml. False, and nothing changed, when the chart ignores the trigger here."""
        state, chart = self.state, self.charts.round
        after = chart.table.get((state.chart, trigger))
        if after is None:
            return chart.ignore(state.chart, trigger)
        state.chart = after
        state.since = self.at
        return True

    def move_link(self, trigger: LinkTrigger, **fields: Any) -> bool:
        """Follow link.yaml and replace fields of the link."""
        link, chart = self.state.link, self.charts.link
        after = chart.table.get((link.chart, trigger))
        if after is None:
            return chart.ignore(link.chart, trigger)
        self.state.link = replace(link, chart=after, since=self.at, **fields)
        return True

    def move_trainer(self, trigger: TrainerTrigger, **fields: Any) -> bool:
        """Follow trainer.yaml and replace fields of the trainer."""
        trainer, chart = self.state.trainer, self.charts.trainer
        after = chart.table.get((trainer.chart, trigger))
        if after is None:
            return chart.ignore(trainer.chart, trigger)
        self.state.trainer = replace(trainer, chart=after, since=self.at, **fields)
        return True

    def move_coordinator(self, trigger: CoordinatorTrigger, **fields: Any) -> bool:
        """Follow coordinator.yaml and replace fields of the coordination."""
        coordination, chart = self.coordination, self.charts.coordinator
        after = chart.table.get((coordination.chart, trigger))
        if after is None:
            return chart.ignore(coordination.chart, trigger)
        self.state.coordination = replace(coordination, chart=after, since=self.at, **fields)
        return True

    def move_chain(self, trigger: LinkTrigger, **fields: Any) -> bool:
        """Follow link.yaml for the chain and replace fields of what is known of it."""
        chain, chart = self.chain, self.charts.link
        after = chart.table.get((chain.chart, trigger))
        if after is None:
            return chart.ignore(chain.chart, trigger)
        self.state.chain = replace(chain, chart=after, since=self.at, **fields)
        return True

    def move_submission(self, submission: Submission, trigger: SubmissionTrigger, **fields: Any) -> bool:
        """Follow submission.yaml and replace fields of the submission, which keeps its place in the order."""
        chart = self.charts.submission
        after = chart.table.get((submission.chart, trigger))
        if after is None:
            return chart.ignore(submission.chart, trigger)
        moved = replace(submission, chart=after, since=self.at, **fields)
        submissions = self.state.submissions
        place = submissions.index(submission)
        self.state.submissions = (*submissions[:place], moved, *submissions[place + 1 :])
        return True

    @property
    def chain(self) -> Chain:
        """What is known of the chain. Only asked for where a contract keeps the rounds."""
        chain = self.state.chain
        assert chain is not None, "this swarm has no chain"
        return chain

    def note_chain(self, **fields: Any) -> None:
        """Replace fields of what is known of the chain."""
        self.state.chain = replace(self.chain, **fields)

    @property
    def chain_is_up(self) -> bool:
        """Whether the contract tells where the swarm is, now."""
        chain = self.state.chain
        return chain is not None and chain.chart == "up"

    @property
    def chain_settings(self) -> ChainSettings:
        """The chain's part of the settings. Only asked for where a contract keeps the rounds."""
        assert self.settings.chain is not None, "this swarm has no chain"
        return self.settings.chain

    @property
    def submits(self) -> bool:
        """Whether this node submits anything."""
        return self.settings.chain is not None and self.settings.chain.sends

    @property
    def coordination(self) -> Coordination:
        """The coordinator's side. Only asked for on a coordinator."""
        coordination = self.state.coordination
        assert coordination is not None, "this node does not coordinate"
        return coordination

    # --- deadlines ---

    def arm(self, name: Timer | TimerName, due_at: float) -> None:
        """Wait for `due_at` under this name, in place of an earlier wait of the same name."""
        deadlines = self.state.deadlines
        for place, deadline in enumerate(deadlines):
            if deadline.name == name:
                deadlines = deadlines[:place] + deadlines[place + 1 :]
                break
        self.state.deadlines = (*deadlines, Deadline(name, due_at))

    def arm_sooner(self, name: Timer | TimerName, due_at: float) -> None:
        """Wait until `due_at` at the latest: an earlier wait of the same name stands, whatever happens meanwhile."""
        standing = [deadline.due_at for deadline in self.state.deadlines if deadline.name == name]
        self.arm(name, min([due_at, *standing]))

    def disarm(self, *names: Timer | TimerName) -> None:
        """Wait no longer."""
        for deadline in self.state.deadlines:
            if deadline.name in names:
                deadlines = self.state.deadlines
                place = deadlines.index(deadline)
                self.state.deadlines = deadlines[:place] + deadlines[place + 1 :]

    # --- commands ---

    def emit(self, command: Command) -> None:
        """Send a command out without waiting for its answer."""
        self.commands.append(command)

    def issue(self, command: Command) -> None:
        """Send a command as soon as its port is up, and again each time the port comes back, until it is answered."""
        pending = self.state.pending
        for place, waiting in enumerate(pending):
            if waiting.id == command.id:
                pending = pending[:place] + pending[place + 1 :]
                break
        self.state.pending = (*pending[1 - PENDING_MAX :], command)
        if self.port_is_up(command):
            self.send(command)

    def send(self, command: Command) -> None:
        """Send a pending command now. A `Train` makes the trainer busy."""
        if not isinstance(command, Train) or self.move_trainer("train", train=command.id):
            self.commands.append(command)

    def port_is_up(self, command: Command) -> bool:
        """Whether the worker that does this command can take it now."""
        if isinstance(command, TRAINER_COMMANDS):
            return self.state.trainer.chart == "idle"
        return self.state.link.chart == "up"

    def settle(self, command_id: str) -> Command | None:
        """Take an answered command off the pending ones. None when it was not pending: an answer that came twice."""
        pending = self.state.pending
        for place, command in enumerate(pending):
            if command.id == command_id:
                self.state.pending = pending[:place] + pending[place + 1 :]
                self.disarm(timer_about("retry", command_id))
                return command
        return None

    def pending(self, command_id: str) -> Command | None:
        """The pending command with this id."""
        return next((command for command in self.state.pending if command.id == command_id), None)

    # --- odds ---

    def sum_of(self, total: float, value: float) -> float:
        """A sum of rewards, which stays finite."""
        return add_real(total, value) if self.rules >= BOUNDED_SINCE else total + value

    def note_fault(self) -> None:
        """Something broke: rounds missed until the next stage is trained have this cause. Leaving in order is none."""
        in_order = self.rules >= STOPPED_SINCE and self.state.chart == "draining"
        if self.state.work is not None and not in_order:
            self.state.faulted = True

    def work_on(self, **fields: Any) -> None:
        """Replace fields of the work in hand."""
        assert self.state.work is not None, "there is no work in hand"
        work: Work = replace(self.state.work, **fields)
        self.state.work = work

    def count_rejections(self, reason: str, count: int) -> None:
        """Add to the counter of a reason."""
        counts = dict(self.state.rejections)
        if reason not in counts and len(counts) >= REJECTIONS_KEPT:
            reason = "other"
        most = INTEGER_MAX if self.rules >= BOUNDED_SINCE else WORD_MAX
        counts[reason] = fit(counts.get(reason, 0) + count, most)
        self.state.rejections = tuple(sorted(counts.items()))
