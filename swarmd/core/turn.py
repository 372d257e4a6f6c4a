"""One step in the making: the state so far and the commands so far.

The functions of rounds.py, workers.py and coordination.py work on a `Turn`; from outside, `step` stays a pure function
of (state, envelope).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import force_setattr, replace

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
from swarmd.core.state import REJECTIONS_KEPT, Chain, Coordination, Deadline, Link, State, Submission, Trainer, Work
from swarmd.core.values import ChainSettings, Settings

STOPPED_SINCE = 4  # rules that tell a node that was stopped from one that broke
BOUNDED_SINCE = 6  # rules under which sums stay within `swarmd.bounds`, and not only within what a log can hold
PENDING_MAX = 64  # commands waiting for an answer; the oldest report is given up beyond it


class Turn(msgspec.Struct, gc=False):
    """State and commands of one step.

    `state` is a copy that only this turn knows, and changes in place until the step is over: a new copy for every field
    would take most of the time of a replay. So a rule that needs a field from before a change takes its value first.
    What the fields hold (work, link, deadlines, ...) is replaced, never changed.
    """

    state: State
    seq: int
    at: float
    charts: Charts
    rules: int  # to follow: those of the commit that holds the event
    commands: list[Command] = []

    @property
    def settings(self) -> Settings:
        """The settings of this life. Only asked for after `NodeStarted`."""
        assert self.state.settings is not None, "an event came before NodeStarted"
        return self.state.settings

    def put(self, field: str, value: Any) -> None:
        """Replace one field of the state."""
        force_setattr(self.state, field, value)

    def set(self, **fields: Any) -> None:
        """Replace several fields of the state."""
        for field, value in fields.items():
            force_setattr(self.state, field, value)

    # --- charts ---

    def move_round(self, trigger: RoundTrigger) -> bool:
        """Follow round.yaml. False, and nothing changed, when the chart does not list the trigger here."""
        after = self.charts.round.table.get((self.state.chart, trigger))
        if after is None:
            return False
        force_setattr(self.state, "chart", after)
        force_setattr(self.state, "since", self.at)
        return True

    def move_link(self, trigger: LinkTrigger, **fields: Any) -> bool:
        """Follow link.yaml and replace fields of the link."""
        after = self.charts.link.table.get((self.state.link.chart, trigger))
        if after is None:
            return False
        link: Link = replace(self.state.link, chart=after, since=self.at, **fields)
        force_setattr(self.state, "link", link)
        return True

    def move_trainer(self, trigger: TrainerTrigger, **fields: Any) -> bool:
        """Follow trainer.yaml and replace fields of the trainer."""
        after = self.charts.trainer.table.get((self.state.trainer.chart, trigger))
        if after is None:
            return False
        trainer: Trainer = replace(self.state.trainer, chart=after, since=self.at, **fields)
        force_setattr(self.state, "trainer", trainer)
        return True

    def move_coordinator(self, trigger: CoordinatorTrigger, **fields: Any) -> bool:
        """Follow coordinator.yaml and replace fields of the coordination."""
        coordination = self.coordination
        after = self.charts.coordinator.table.get((coordination.chart, trigger))
        if after is None:
            return False
        force_setattr(self.state, "coordination", replace(coordination, chart=after, since=self.at, **fields))
        return True

    def move_chain(self, trigger: LinkTrigger, **fields: Any) -> bool:
        """Follow link.yaml for the chain and replace fields of what is known of it."""
        chain = self.chain
        after = self.charts.link.table.get((chain.chart, trigger))
        if after is None:
            return False
        force_setattr(self.state, "chain", replace(chain, chart=after, since=self.at, **fields))
        return True

    def move_submission(self, submission: Submission, trigger: SubmissionTrigger, **fields: Any) -> bool:
        """Follow submission.yaml and replace fields of the submission, which keeps its place in the order."""
        after = self.charts.submission.table.get((submission.chart, trigger))
        if after is None:
            return False
        moved = replace(submission, chart=after, since=self.at, **fields)
        submissions = self.state.submissions
        place = submissions.index(submission)
        force_setattr(self.state, "submissions", (*submissions[:place], moved, *submissions[place + 1 :]))
        return True

    @property
    def chain(self) -> Chain:
        """What is known of the chain. Only asked for where a contract keeps the rounds."""
        assert self.state.chain is not None, "this swarm has no chain"
        return self.state.chain

    def note_chain(self, **fields: Any) -> None:
        """Replace fields of what is known of the chain."""
        force_setattr(self.state, "chain", replace(self.chain, **fields))

    @property
    def chain_is_up(self) -> bool:
        """Whether the contract tells where the swarm is, now."""
        return self.state.chain is not None and self.state.chain.chart == "up"

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
        assert self.state.coordination is not None, "this node does not coordinate"
        return self.state.coordination

    # --- deadlines ---

    def arm(self, name: str, due_at: float) -> None:
        """Wait for `due_at` under this name, in place of an earlier wait of the same name."""
        deadlines = self.state.deadlines
        for place, deadline in enumerate(deadlines):
            if deadline.name == name:
                deadlines = deadlines[:place] + deadlines[place + 1 :]
                break
        force_setattr(self.state, "deadlines", (*deadlines, Deadline(name, due_at)))

    def arm_sooner(self, name: str, due_at: float) -> None:
        """Wait until `due_at` at the latest: an earlier wait of the same name stands, whatever happens meanwhile."""
        standing = [deadline.due_at for deadline in self.state.deadlines if deadline.name == name]
        self.arm(name, min([due_at, *standing]))

    def disarm(self, *names: str) -> None:
        """Wait no longer."""
        for deadline in self.state.deadlines:
            if deadline.name in names:
                deadlines = self.state.deadlines
                place = deadlines.index(deadline)
                force_setattr(self.state, "deadlines", deadlines[:place] + deadlines[place + 1 :])

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
        force_setattr(self.state, "pending", (*pending[1 - PENDING_MAX :], command))
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
                force_setattr(self.state, "pending", pending[:place] + pending[place + 1 :])
                self.disarm("retry/" + command_id)
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
            force_setattr(self.state, "faulted", True)

    def work_on(self, **fields: Any) -> None:
        """Replace fields of the work in hand."""
        assert self.state.work is not None, "there is no work in hand"
        work: Work = replace(self.state.work, **fields)
        force_setattr(self.state, "work", work)

    def count_rejections(self, reason: str, count: int) -> None:
        """Add to the counter of a reason."""
        counts = dict(self.state.rejections)
        if reason not in counts and len(counts) >= REJECTIONS_KEPT:
            reason = "other"
        most = INTEGER_MAX if self.rules >= BOUNDED_SINCE else WORD_MAX
        counts[reason] = fit(counts.get(reason, 0) + count, most)
        force_setattr(self.state, "rejections", tuple(sorted(counts.items())))
