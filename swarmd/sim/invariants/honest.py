"""Honest progress among strangers: whatever they do, it costs an honest swarm no more than this."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from swarmd.core.commands import CollectReports
from swarmd.core.events import (
    Equivocated,
    MemberLeft,
    MemberSeen,
    NodeStopped,
    RecordsRejected,
    Registered,
    ReportSeen,
)
from swarmd.core.reported import members_in, reports_in
from swarmd.core.state import MEMBERS_MAX, Coordination
from swarmd.dht.limits import COUNTERS_MAX, NAMED_BURST, NAMED_PER_S
from swarmd.dht.membership import IDLE_BURST, IDLE_PER_S, RETURNS_BURST, RETURNS_PER_S
from swarmd.dht.rounds.report_collector import CHANGES_MAX, IDLE_MAX
from swarmd.sim.invariants.recovery import PACE_MARGIN, SETTLE_S
from swarmd.sim.ports.network import POLL_S
from swarmd.sim.strangers.guarded import GuardedNetworkWorker
from swarmd.sim.strangers.hostile import is_hostile

if TYPE_CHECKING:
    from swarmd.core.applied import Applied
    from swarmd.sim.node import SimNode
    from swarmd.sim.world import World

Place = tuple[int, int]

NOTICE_S = POLL_S + 10.0  # what has been there for so long is known to everybody who is well
NEWCOMER_ROUNDS = 3  # within so many rounds a newcomer's reports count
SETTLED_S = 60.0  # after the faults no honest node ends any more
CLOCK_SET_TIMES = 3  # a coordinator's clock, from which on its announcements may contradict each other
REASONS = 16  # of refusals, each told once a minute under no name


class Honest:
    """Checks that need no world without strangers to compare with.

    Attributes:
        held: stages of the calm swarm that stayed open for long after the last honest report.
        told: events that strangers caused at each node, by kind.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.calm_at = math.inf  # from then on nothing goes wrong by itself
        self.held = self.closed = 0
        self.told: list[Counter[str]] = [Counter() for _ in world.nodes]
        self._stored: dict[tuple[str, Place], float] = {}  # when an honest report was first kept
        self._joined: dict[str, int] = {}  # newcomer → the round in which it registered
        self._credited: set[str] = set()
        self._collected: Counter[int] = Counter()  # stages that each node collected, again after each restart
        self._begun = 0  # times that the coordinator began to collect the open stage
        self._told_of: Counter[tuple[int, str, str]] = Counter()  # by node, stranger and kind

    def expect(self) -> None:
        """Expect progress from now on: no more faults are injected."""
        self.calm_at = self.world.now + SETTLE_S

    # --- what happens ---

    def on_no_room(self, node: SimNode, what: str) -> None:
        """A record was not kept although somebody honest could be reached: then it had no room."""
        self.world.fail(node, f"strangers leave no room for its {what}")

    def on_stored(self, peer: str, place: Place) -> None:
        """An honest report is kept."""
        self._stored.setdefault((peer, place), self.world.now)

    def look_at(self, node: SimNode, applied: Applied) -> None:
        """Count what strangers make a node write down; nobody honest ends because of them."""
        if self.world.hostile is None:
            return
        event = applied.event
        collected = sum([isinstance(command, CollectReports) for command in applied.commands])
        self._collected[node.index] += collected
        self._begun += collected if node.coordinates else 0
        told: list[MemberSeen | ReportSeen] = [*members_in(event), *reports_in(event)]
        for each in told:
            self._count(node, each)
        if isinstance(event, MemberLeft):
            self._count(node, event)
        elif isinstance(event, Equivocated):
            self.told[node.index]["Equivocated"] += 1
            if not is_hostile(event.peer) and not self._may_contradict_itself(event):
                self.world.fail(node, f"{event.peer}, which is honest, is accused: {event}")
        elif isinstance(event, RecordsRejected):
            self.told[node.index]["RecordsRejected"] += 1
        elif isinstance(event, Registered) and node is self.world.newcomer:
            coordination = self.world.nodes[0].state.coordination
            self._joined.setdefault(node.peer, coordination.round if coordination is not None else -1)
        elif isinstance(event, NodeStopped) and self._is_unasked(event):
            self.world.fail(node, f"it ends with {event.code} ({event.reason}) although nothing goes wrong by itself")

    def _may_contradict_itself(self, event: Equivocated) -> bool:
        """Whether a clock was set ahead, right and back: nothing that peers take then expires after all before."""
        return event.kind == "clock" and self.world.nodes[0].jumps >= CLOCK_SET_TIMES

    def _is_unasked(self, event: NodeStopped) -> bool:
        """Whether a node ends for what is no fault of its world; an operator's stop may take a frozen node a while."""
        return self.world.now > self.calm_at - SETTLE_S + SETTLED_S and event.reason != "operator"

    def _count(self, node: SimNode, event: MemberSeen | MemberLeft | ReportSeen) -> None:
        if is_hostile(event.peer):
            kind = type(event).__name__
            self.told[node.index][kind] += 1
            self._told_of[node.index, event.peer, kind] += 1

    def on_close(self, then: Coordination, at: float, reports: Mapping[str, float], missing: list[str]) -> None:
        """The coordinator closes a stage; these reported in it, for others it waited in vain."""
        if self.world.hostile is None:
            return
        place = (then.round, then.stage)
        fresh = [peer for peer in reports.keys() - self._credited if is_hostile(peer) and not self._has_worked(peer)]
        if len(fresh) > IDLE_MAX * self._begun:
            self.world.fail(None, f"{len(fresh)} strangers that have done nothing are credited for stage {place}")
        self._begun = 0
        for peer in missing:
            if is_hostile(peer) and not self._has_worked(peer):
                self.world.fail(None, f"stage {place} waited for {peer}, which has done nothing")
        self._credited |= reports.keys()
        if self.world.now > self.calm_at:
            self._check_calm(place, at - then.opened_at, reports)
        self._stored = {key: kept_at for key, kept_at in self._stored.items() if key[1] > place}

    def _has_worked(self, peer: str) -> bool:
        return self.world.works.get(peer, 0) > 0

    def _check_calm(self, place: Place, lasted_s: float, reports: Mapping[str, float]) -> None:
        honest = {peer: at for (peer, there), at in self._stored.items() if there == place}
        waited_s = self.world.now - max(honest.values(), default=self.world.now)
        self.closed += 1
        self.held += waited_s > NOTICE_S and len(honest) >= sum(map(self._is_up, self.world.nodes))
        for peer, at in honest.items():
            if peer not in reports and self.world.now - at > NOTICE_S:
                self.world.fail(None, f"the report of {peer} on stage {place} was there in time and does not count")
        for node in self.world.nodes:
            clock = node.state.clock
            if lasted_s > NOTICE_S and self._is_up(node) and (clock is None or (clock.round, clock.stage) < place):
                self.world.fail(node, f"it has not heard of stage {place} in {lasted_s:.0f} s, and knows {clock}")
        for peer, round in self._joined.items():
            if place[0] > round + NEWCOMER_ROUNDS and peer not in self._credited and self._is_quick(peer):
                self.world.fail(None, f"{peer} joined in round {round} and is not credited by round {place[0]}")

    def _is_up(self, node: SimNode) -> bool:
        """Whether an honest node has been there for long enough to know everything."""
        link = node.state.link
        return node.running and link.chart == "up" and node.clock() - link.since > NOTICE_S

    def _is_quick(self, peer: str) -> bool:
        node = next(node for node in self.world.nodes if node.peer == peer)
        profile = self.world.profile
        return node.pace_s * PACE_MARGIN < min(node.settings.train_s, profile.stage_s) and profile.quorum == 1.0

    # --- the end ---

    def check(self) -> None:
        """Check at the end of a run that honest nodes made progress."""
        if self.world.hostile is None:
            return
        for node in self.world.nodes:
            self._check_log(node)
            self._check_sizes(node)

    def _check_log(self, node: SimNode) -> None:
        """What strangers made a node write is bounded by time, stages and those who have credit or have worked."""
        told, lasted_s, lives = self.told[node.index], self.world.profile.hours * 3600.0, 1 + node.life
        lives += self.world.counts["worker_exits"]
        insiders = self._insiders()
        comings = lives * (1 + RETURNS_BURST) + lasted_s * RETURNS_PER_S
        idle = lives * IDLE_BURST + lasted_s * IDLE_PER_S
        reports = (self._collected[node.index] + lives) * (1 + CHANGES_MAX)
        each = {"MemberSeen": comings, "MemberLeft": comings, "ReportSeen": reports}
        bounds = {
            "MemberSeen": idle + insiders * comings,
            "MemberLeft": idle + insiders * comings,
            "ReportSeen": (IDLE_MAX + insiders) * reports,
            "RecordsRejected": lives * (NAMED_BURST + REASONS) + lasted_s * (NAMED_PER_S + REASONS / 60.0),
        }
        slack = 1 + 2 * self.world.profile.duplicate
        for kind, bound in bounds.items():
            if told[kind] > bound * slack:
                self.world.fail(node, f"strangers made it write {told[kind]} {kind}, more than {bound:.0f}")
        for (index, peer, kind), count in self._told_of.items():
            if index == node.index and count > each[kind] * slack:
                self.world.fail(node, f"{peer} made it write {count} {kind}, more than {each[kind]:.0f}")

    def _insiders(self) -> int:
        """Hostile identities with credit, or for which the work was done."""
        worked = {peer for peer in self.world.works if self._has_worked(peer)}
        return len({peer for peer in self._credited if is_hostile(peer)} | worked)

    def _check_sizes(self, node: SimNode) -> None:
        worker = node.supervisor.running["network"]
        if isinstance(worker, GuardedNetworkWorker):
            sizes = (len(worker.presences), len(worker.session.rejections.waiting))
            if sizes[0] > MEMBERS_MAX or sizes[1] > COUNTERS_MAX + REASONS:
                self.world.fail(node, f"it keeps {sizes[0]} members and {sizes[1]} refusals in mind")
