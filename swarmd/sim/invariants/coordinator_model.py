"""The coordinator's books, kept a second time: who reported what in time, when a stage may close, who stands where."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from swarmd.bounds import add_real
from swarmd.core.chart_types import CoordinatorState
from swarmd.core.commands import Command, PublishLeaderboard
from swarmd.core.events import Equivocated, NodeStarted, ReportSeen, TimerFired, TrainerReady
from swarmd.core.node.workers import LEAVING
from swarmd.core.peers.evidence import APART_ROUNDS, BARRED_ROUNDS
from swarmd.core.reported import reports_in
from swarmd.core.state import NO_MEMBERS, Coordination, Members, State
from swarmd.sim.invariants.patience_model import PatienceModel

if TYPE_CHECKING:
    from swarmd.core.applied import Applied
    from swarmd.sim.node import SimNode
    from swarmd.sim.world import World

OPEN: tuple[CoordinatorState, ...] = ("announcing", "open.collecting")

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
        self.rounds: dict[str, int] = {}  # and how many there were
        assert node.settings.coordination is not None, "a coordinator coordinates"
        self.patience = PatienceModel(self.rounds, node.settings.coordination.stage_s)
        self.barred: dict[str, list[int]] = {}  # peers that signed two reports for one place, and in which rounds
        self.can_train = False  # a trainer has been ready in this life
        self._expected_of: tuple[Members, int, list[str]] = (NO_MEMBERS, -1, [])  # found last, and of what

    def apply(self, applied: Applied) -> None:
        envelope, before, after = applied.envelope, applied.before, applied.after
        then, now = before.coordination, after.coordination
        self._look_at_trainer(applied)
        if now is None or then is now or then is None:
            return
        event = envelope.event
        if isinstance(event, Equivocated) and event.kind == "report":
            self._bar(event, now.round)
        closed, counted = _place(now) != _place(then), msgspec.structs.replace(then, members=now.members)
        for report in reports_in(event):
            self._take_report(then, report)
            if closed and self._is_complete(counted, before):
                break  # what comes later with it is too late
        if now.members is not then.members and len(now.members) <= len(then.members):
            self._forget_evicted(now)
        if now.chart != then.chart or _place(now) != _place(then):
            self._check_place(then, now)
            if _place(now) != _place(then):
                self._close(applied, then, now)
        if now.standings is not then.standings:
            self._check_standings(now)
        complete = now.chart == "open.collecting" and self._is_complete(now, after)
        if complete and not self._is_alone(after) and not (now.held_since is not None and self._has_no_others(after)):
            self._fail(f"stage {_place(now)} stays open although the quorum has reported")

    def _forget_evicted(self, now: Coordination) -> None:
        """Who made room for another has no account any more."""
        kept = {member.peer for member in now.members}
        for book in (self.totals, self.credited, self.rounds):
            for peer in book.keys() - kept:
                del book[peer]
                self.patience.forget(peer)

    def _bar(self, event: Equivocated, round: int) -> None:
        """Reports of who signed two for one place do not count, from that round on; what is news is told apart."""
        rounds = self.barred.setdefault(event.peer, [])
        if all(event.round >= known + APART_ROUNDS for known in rounds):
            rounds.append(event.round)
        if self._is_barred(event.peer, round):
            self.reports.pop(event.peer, None)
        self._expected_of = (NO_MEMBERS, -1, [])

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

    def _take_report(self, then: Coordination, event: ReportSeen) -> None:
        current = then.chart in OPEN and (event.round, event.stage) == _place(then)
        if current and not self._is_barred(event.peer, event.round):
            self.reports.setdefault(event.peer, event.reward)

    def _check_place(self, then: Coordination, now: Coordination) -> None:
        if _place(now) < _place(then):
            self._fail(f"the coordinator went back from {_place(then)} to {_place(now)}")

    def _close(self, applied: Applied, then: Coordination, now: Coordination) -> None:
        """A stage closes on quorum, or at its deadline and not before."""
        envelope, before, after = applied.envelope, applied.before, applied.after
        event = envelope.event
        if self._is_alone(after):
            self._fail(f"stage {_place(then)} closed although this node was alone: {sorted(self.reports)} reported")
        if isinstance(event, TimerFired):
            if event.name != "stage" or envelope.at < then.deadline_at:
                self._fail(f"stage {_place(then)} closed on {event} before its deadline {then.deadline_at}")
            if not self.reports and not self.can_train:
                self._fail(f"stage {_place(then)} closed before anybody could train it")
        elif not self._is_complete(msgspec.structs.replace(then, members=now.members), before):
            self._fail(f"stage {_place(then)} closed without its quorum: {sorted(self.reports)} reported")
        missing = [peer for peer in self._find_expected(then.round, then.members) if peer not in self.reports]
        self.world.checks.honest.on_close(then, envelope.at, self.reports, missing)
        others = [peer for peer in missing if peer != self.node.peer]
        self.patience.note(others, envelope.at - then.opened_at, isinstance(event, TimerFired))
        for peer, reward in self.reports.items():
            self.round_reports.append((peer, then.round, then.stage, reward))
            self.totals[peer] = add_real(self.totals.get(peer, 0.0), reward)
            self.rounds[peer] = self.rounds.get(peer, 0) + (self.credited.get(peer) != then.round)
            self.credited[peer] = then.round
        self.patience.open(self.node.peer)
        self.reports = {}
        self._expected_of = (NO_MEMBERS, -1, [])
        if now.round != then.round:
            self._check_leaderboard(applied.after.pending, then.round)
            self.round_reports = []

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
        if list(standing.values()) != sorted(standing.values(), reverse=True):
            self._fail("the leaderboard is out of order")

    def _is_complete(self, coordination: Coordination, state: State) -> bool:
        """Whether enough of those that are waited for have reported; with nobody to wait for, one report will do.

        This node itself is one of them while it trains, unless it has missed several rounds in a row.
        """
        round, members = coordination.round, coordination.members
        if self._expected_of[0] is not members or self._expected_of[1] != round:
            self._expected_of = (members, round, self._find_expected(round, members))
        expected = self._expected_of[2]
        if self._awaits_own(coordination, state):
            return False
        if not expected:
            return bool(self.reports)
        needed = max(1, math.ceil(self._quorum(state) * len(expected)))
        return len(self.reports) >= needed and sum([peer in self.reports for peer in expected]) >= needed

    def _awaits_own(self, coordination: Coordination, state: State) -> bool:
        own = self.node.peer
        known = coordination.members.get(own)
        since = [] if known is None else [known.since_round]
        trains = state.trainer.chart in ("idle", "busy") and state.low_space is None
        if not since or not trains or own in self.reports:
            return False
        silent = coordination.round - max(self.credited.get(own, -1), since[0] - 1)
        return silent <= 3 or own in self._expected_of[2]

    def _find_expected(self, round: int, members: Members) -> list[str]:
        return [
            member.peer
            for member in members
            if not member.left
            and member.worked
            and not self._is_barred(member.peer, round)
            and self.patience.may_wait(member.peer)
            and is_awaited(round - max(self.credited.get(member.peer, -1), member.since_round - 1), round)
        ]

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


def is_awaited(silent: int, round: int) -> bool:
    """Whether a member heard of last (or new) so many rounds ago is waited for: ever more rarely, all in each 64th."""
    return silent <= 1 or silent in (3, 7, 15, 31, 63) or round % 64 == 63
