"""What a coordinator owes its swarm: each report in time counts once, no stage closes too early, the books add up.

Which reports a stage waits for, and how long, is the core's to decide. Whatever it decides,

- no stage closes before its deadline without this node's own report, while it trains and has reported lately;
- none closes sooner, without a member that was credited in the stage before, than that member took then;
- none stays open when all who could have reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from swarmd.bounds import add_real
from swarmd.core.chart_types import CoordinatorState
from swarmd.core.commands import Command, PublishLeaderboard
from swarmd.core.coordinator.waiting import is_expected
from swarmd.core.events import Equivocated, NodeStarted, ReportSeen, TimerFired, TrainerReady
from swarmd.core.node.workers import LEAVING
from swarmd.core.peers.evidence import APART_ROUNDS, BARRED_ROUNDS
from swarmd.core.reported import reports_in
from swarmd.core.state import Coordination, State

if TYPE_CHECKING:
    from swarmd.core.applied import Applied
    from swarmd.sim.node import SimNode
    from swarmd.sim.world import World

OPEN: tuple[CoordinatorState, ...] = ("announcing", "open.collecting")
OWN_STAGES = 3  # since this node reported last, after which stages may close without it

_record = msgspec.msgpack.Decoder(tuple[str, int, int, float])


class CoordinatorModel:
    """Follows one coordinator's events."""

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.node = node
        self.reports: dict[str, float] = {}  # of the open stage
        self.round_reports: list[tuple[str, int, int, float]] = []  # peer, round, stage, reward, of the open round
        self.totals: dict[str, float] = {}
        self.credited: dict[str, int] = {}  # last round each peer was credited in
        self.closed = 0  # stages
        self.reported_in: dict[str, int] = {self.node.peer: 0}  # number of the last stage that each reported in,
        self.took_s: dict[str, float] = {}  # and how long after its announcement, where it was announced once
        self.announced: list[float] = []  # when the open stage was
        self.barred: dict[str, list[int]] = {}  # peers that signed two reports for one place, and in which rounds
        self.can_train = False  # a trainer has been ready in this life

    def apply(self, applied: Applied) -> None:
        envelope, before, after = applied.envelope, applied.before, applied.after
        then, now = before.coordination, after.coordination
        self._look_at_trainer(applied)
        if now is None or then is now or then is None:
            return
        event = envelope.event
        if isinstance(event, Equivocated) and event.kind == "report":
            self._bar(event, now.round)
        closed = _place(now) != _place(then)
        counted = self._counted(then, now, after.pending) if closed else None
        for report in reports_in(event):
            if counted is None or report.record in counted:  # what comes after the one that closes it is too late
                self._take_report(then, report, envelope.at)
        if now.members is not then.members and len(now.members) <= len(then.members):
            self._forget_evicted(now)
        if not closed and (now.chart == "open.collecting" != then.chart or now.openings != then.openings):
            self.announced.append(envelope.at)
        if now.chart != then.chart or closed:
            self._check_place(then, now)
        if closed:
            self._close(applied, then, now)
        if now.standings is not then.standings:
            self._check_standings(now)
        if now.chart == "open.collecting" and self._is_full(now, after) and not self._is_alone(after):
            self._fail(f"stage {_place(now)} stays open although all have reported")

    def _counted(self, then: Coordination, now: Coordination, pending: tuple[Command, ...]) -> set[bytes]:
        """The signed reports of a stage that has closed, as they are published or will be."""
        if now.round == then.round:
            return {report.record for report in now.round_reports}
        boards = [each for each in pending if isinstance(each, PublishLeaderboard) and each.round == then.round]
        return {record for board in boards for record in board.reports}

    def _forget_evicted(self, now: Coordination) -> None:
        """Who made room for another has no account any more."""
        kept = {member.peer for member in now.members}
        for book in (self.totals, self.credited):
            for peer in book.keys() - kept:
                del book[peer]

    def _bar(self, event: Equivocated, round: int) -> None:
        """Reports of who signed two for one place do not count, from that round on; what is news is told apart."""
        rounds = self.barred.setdefault(event.peer, [])
        if all(event.round >= known + APART_ROUNDS for known in rounds):
            rounds.append(event.round)
        if self._is_barred(event.peer, round):
            self.reports.pop(event.peer, None)

    def _is_barred(self, peer: str, round: int) -> bool:
        return any(since <= round < since + BARRED_ROUNDS for since in self.barred.get(peer, ()))

    def _look_at_trainer(self, applied: Applied) -> None:
        """The stage that is open when the node can train at last, and of which nobody reported, has its whole time."""
        envelope, before, after = applied.envelope, applied.before, applied.after
        if isinstance(envelope.event, NodeStarted):
            self.can_train = False
        elif isinstance(envelope.event, TrainerReady) and not self.can_train:
            self.can_train = True
            then, now = before.coordination, after.coordination
            assert then is not None and now is not None and after.settings is not None, "a coordinator coordinates"
            assert after.settings.coordination is not None, "a coordinator coordinates"
            until = envelope.at + after.settings.coordination.stage_s
            counts = then.chart in OPEN and then.held_since is None and not self.reports
            if counts and after.chart not in LEAVING and now.deadline_at < until:
                self._fail(f"stage {_place(now)} ends at {now.deadline_at}, this node can train since {envelope.at}")

    def _take_report(self, then: Coordination, event: ReportSeen, at: float) -> None:
        current = then.chart in OPEN and (event.round, event.stage) == _place(then)
        if not current or self._is_barred(event.peer, event.round) or event.peer in self.reports:
            return
        self.reports[event.peer] = event.reward
        self.reported_in[event.peer] = self.closed + 1
        self.took_s.pop(event.peer, None)
        if len(self.announced) == 1:
            self.took_s[event.peer] = at - self.announced[0]

    def _check_place(self, then: Coordination, now: Coordination) -> None:
        if _place(now) < _place(then):
            self._fail(f"the coordinator went back from {_place(then)} to {_place(now)}")

    def _close(self, applied: Applied, then: Coordination, now: Coordination) -> None:
        """A stage closes at its deadline, or before it if that is unfair to nobody."""
        envelope, before, after = applied.envelope, applied.before, applied.after
        if self._is_alone(after):
            self._fail(f"stage {_place(then)} closed although this node was alone: {sorted(self.reports)} reported")
        if not self.reports and not self.can_train:
            self._fail(f"stage {_place(then)} closed before anybody could train it")
        if envelope.at < then.deadline_at:
            self._check_early(then, now, before, envelope.at)
        elif isinstance(envelope.event, TimerFired) and envelope.event.name != "stage":
            self._fail(f"stage {_place(then)} closed on {envelope.event}")
        missing = [member.peer for member in then.members if is_expected(then, member)]
        missing = [peer for peer in missing if peer not in self.reports]
        self.world.checks.honest.on_close(then, envelope.at, self.reports, missing)
        self.world.checks.recovery.on_close(now, self.reports)
        for peer, reward in self.reports.items():
            self.round_reports.append((peer, then.round, then.stage, reward))
            self.totals[peer] = add_real(self.totals.get(peer, 0.0), reward)
            self.credited[peer] = then.round
        self.closed += 1
        self.reports = {}
        self.announced = []
        if now.round != then.round:
            self._check_leaderboard(applied.after.pending, then.round)
            self.round_reports = []

    def _check_early(self, then: Coordination, now: Coordination, before: State, at: float) -> None:
        """A stage closes before its deadline."""
        own, quorum = self.node.peer, self._quorum(before)
        trains = before.trainer.chart in ("idle", "busy") and before.low_space is None
        lately = self.closed + 1 - self.reported_in[own] <= OWN_STAGES
        if not self.reports:
            self._fail(f"stage {_place(then)} closed early without any report")
        if trains and lately and own not in self.reports and not self._is_barred(own, then.round):
            self._fail(f"stage {_place(then)} closed early without this node's report: {sorted(self.reports)}")
        lasted_s = at - self.announced[-1] if self.announced else 0.0
        for member in now.members:
            peer, took_s = member.peer, self.took_s.get(member.peer, 0.0)
            in_step = self.reported_in.get(peer, 0) == self.closed and member.worked and not member.left
            if in_step and quorum == 1.0 and lasted_s < took_s and not self._is_barred(peer, then.round):
                self._fail(f"stage {_place(then)} closed after {lasted_s} s without {peer}, which took {took_s} s")

    def _check_leaderboard(self, pending: tuple[Command, ...], round: int) -> None:
        """The signed reports of a round that are published are those that were counted, each once."""
        for command in pending:
            if isinstance(command, PublishLeaderboard) and command.round == round:
                published = [_record.decode(record) for record in command.reports]
                if published != self.round_reports:
                    self._fail(f"the leaderboard of round {round} shows {published}, counted were {self.round_reports}")
                return
        self._fail(f"round {round} is over, but its leaderboard is not published")

    def _check_standings(self, now: Coordination) -> None:
        standing = {row.peer: row.reward for row in now.standings}
        if standing != self.totals or len(now.standings) != len(standing):
            self._fail(f"the leaderboard says {standing}, the reports add up to {self.totals}")
        places = [(not row.admitted, -row.reward) for row in now.standings]
        if places != sorted(places):
            self._fail("the leaderboard is out of order")

    def _is_full(self, now: Coordination, state: State) -> bool:
        """Whether all have reported that may."""
        present = [each.peer for each in now.members if each.worked and not each.left]
        waited = [peer for peer in present if not self._is_barred(peer, now.round)]
        return bool(self.reports) and all(peer in self.reports for peer in (*waited, self.node.peer))

    def _is_alone(self, state: State) -> bool:
        """Whether no other could take part in the open stage, and the settings have it wait for them."""
        settings = state.settings
        assert settings is not None and settings.coordination is not None and state.coordination is not None
        waits = settings.coordination.when_alone == "hold" and settings.coordination.min_peers > 1
        others = {member.peer for member in state.coordination.members} - {settings.peer}
        return waits and bool(others) and not state.link.peers and self._has_no_others(state)

    def _has_no_others(self, state: State) -> bool:
        """Whether nobody but this node has reported in the open stage."""
        assert state.settings is not None, "a coordinator has settings"
        return not set(self.reports) - {state.settings.peer}

    def _quorum(self, state: State) -> float:
        settings = state.settings
        assert settings is not None and settings.coordination is not None, "only a coordinator coordinates"
        return settings.coordination.quorum

    def _fail(self, what: str) -> None:
        self.world.fail(self.node, what)


def _place(coordination: Coordination) -> tuple[int, int]:
    return coordination.round, coordination.stage
