"""The simulated network worker among strangers: it listens, chooses and counts by the shipped rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from swarmd.core.commands import Announce, CollectReports, Gather, NoteEvidence, PublishLeaderboard
from swarmd.core.events import Equivocated, Event, MemberLeft, MemberSeen, ReportSeen, RolloutsGathered, RoundAnnounced
from swarmd.dht.limits.hint_limits import HintBounds
from swarmd.dht.limits.rejections import Rejections
from swarmd.dht.limits.reporters import Reporters
from swarmd.dht.members.presence import Presences
from swarmd.dht.p2p.search_peers import choose_guides
from swarmd.dht.rounds.sources import Sources
from swarmd.dht.store.seniority import Rank, Seniority
from swarmd.errors import RecordRejected
from swarmd.sim.evidence import EvidenceFinder
from swarmd.sim.ports.dht import SimReport, is_newer
from swarmd.sim.ports.network import NetworkWorker
from swarmd.sim.strangers.stored_records import MEMBERS, GuardedDht, GuardedStore

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode

BOOTSTRAP = ("peer-000", "peer-001")  # that every node was given


class GuardedNetworkWorker(NetworkWorker):
    """A node's place in a DHT with strangers in it."""

    dht: GuardedDht

    def __init__(self, node: SimNode, pid: int) -> None:
        super().__init__(node, pid)
        world = node.world
        assert world.hostile is not None, "there are strangers"
        self.sample = world.hostile.random.sample  # honest chances under attack have a stream of their own
        self.seniority = Seniority(lambda peer: peer in (world.coordinator, node.peer), f"{node.peer}/{pid}".encode())
        self.seniority.learn(self.dht.kept_boards.get(node.index, ()))
        self.presences = Presences(self._steady)
        self.rejections = Rejections(self._steady)
        self.reporters: Reporters[ReportSeen] = Reporters(self._steady)
        self.hints = HintBounds(self._steady)
        self.evidence = EvidenceFinder(world.coordinator, self._is_credited, self._tell_evidence)
        self.heard: RoundAnnounced | None = None
        self._passed_over: set[str] = set()  # whose reports of the stage found no place

    def _steady(self) -> float:
        return self.world.now

    def _is_credited(self, peer: str) -> bool:
        return self.seniority.rounds_of(peer) > 0

    # --- what searches find ---

    def _view(self) -> GuardedStore | None:
        """What a search finds: nothing where strangers answer for every key and no guide does."""
        store = self.dht.store_of(self)
        assert isinstance(store, GuardedStore), "all stores of a world are of one kind"
        how = self.dht.eclipsed.get(self.node.index, "")
        return store if not how or self.node.peer == self.world.coordinator or self._has_guide(how) else None

    def _has_guide(self, how: str) -> bool:
        """Does one of those that are asked in each search answer, and is it honest? With "all" none can be called."""
        coordinator, eldest = self.world.coordinator, self.seniority.eldest
        guides = choose_guides(self.node.peer, coordinator, BOOTSTRAP, eldest, self.sample)
        return how != "all" and any(other.node.peer in guides for other in self.dht.reached_by(self))

    def _clock(self) -> RoundAnnounced | None:
        """The latest of what was gossiped and what is found."""
        found = super()._clock() if self._view() is not None else None
        if self.estranged or self.heard is None or (found is not None and is_newer(found, self.heard)):
            return found
        return self.heard

    def _hint_clock(self, other: NetworkWorker, clock: RoundAnnounced) -> None:
        assert isinstance(other, GuardedNetworkWorker), "all workers of a world are of one kind"
        self._hint(other, other.hear_clock, clock, sure=other is self)

    def hear_clock(self, clock: RoundAnnounced) -> None:
        """The signed record itself has come by gossip."""
        if self.heard is None or is_newer(clock, self.heard):
            self.heard = clock
        self.look_at_clock()

    def look_at_clock(self) -> None:
        if self.dht.board is not self.dht.kept_boards.get(self.node.index) and self._view() is not None:
            self.dht.kept_boards[self.node.index] = self.dht.board
            self.seniority.learn(self.dht.board)
        super().look_at_clock()

    # --- what it writes ---

    def _keep_member(self, fact: Event) -> bool:
        view = self._view()
        return view is not None and self.world.note_room(self.node, "membership", super()._keep_member(fact))

    def _keep_report(self, report: SimReport) -> bool:
        view = self._view()
        if view is None:
            return False
        if not view.is_now((report.seen.round, report.seen.stage)):
            return False
        kept = self.world.note_room(self.node, "report", super()._keep_report(report))
        if kept:
            self.world.checks.honest.on_stored(report.seen)
        return kept

    def _announce(self, command: Announce) -> None:
        super()._announce(command)
        self.hear_clock(self.own_clock) if self.own_clock is not None else None

    def _publish_leaderboard(self, command: PublishLeaderboard) -> None:
        self.dht.learn(command.standings)
        self.seniority.learn(command.standings)
        super()._publish_leaderboard(command)

    # --- what it tells ---

    def look_at(self, fact: Event) -> None:
        """A hint: of an owner that may still say something."""
        assert isinstance(fact, ReportSeen | MemberSeen | MemberLeft), "hints are about reports and memberships"
        credited = self.seniority.rounds_of(fact.peer) > 0
        if self.hints.try_charge_sender(fact.peer) and self.hints.try_charge_all(credited):
            super().look_at(fact)

    def _collect(self, command: CollectReports) -> None:
        self.reporters = Reporters(self._steady)
        self._passed_over = set()
        super()._collect(command)

    def _look_at_reports(self) -> None:
        view = self._view()
        if self.collecting is None or self.estranged or view is None:
            return
        self._take_reports(view, view.reports.get(self.collecting, {}))

    def _tell_report(self, seen: ReportSeen) -> None:
        view = self._view()
        if view is not None and self.collecting is not None:
            report = view.reports.get(self.collecting, {}).get(seen.peer)
            self._take_reports(view, {} if report is None else {seen.peer: report})

    def _take_reports(self, view: GuardedStore, reports: Mapping[str, SimReport]) -> None:
        assert self.collecting is not None, "a stage is collected"
        fresh = reports.keys() - self.reporters.peers - self._passed_over
        if fresh:
            self.reporters.choose(view.rank_reports(self.seniority, self.collecting, sorted(fresh)))
            self._passed_over |= fresh - self.reporters.peers
        for peer, report in reports.items():
            self.evidence.see(report, self.world.now)
            if peer in self.reporters.peers and self._count_report(report.seen):
                self.tell(replace(report.seen, worked=self.reporters.is_awaited(peer)))

    def _count_report(self, seen: ReportSeen) -> bool:
        """Count a report as shipped nodes do. Returns whether it is told: it is news, or a duplicate by chance."""
        try:
            news = self.reporters.admit(seen.peer, seen)
        except RecordRejected as error:
            self.rejections.count(seen.peer, error.reason, error.message)
            return False
        return news or self.random.random() < self.world.chance("duplicate")

    def _look_at_members(self) -> None:
        view = self._view()
        if view is None or self.estranged:
            return
        view.drop_expired()
        members, known = view.members, self.presences.known
        ranks = view.rank_members(self.seniority, [peer for peer in members if peer not in known])
        for peer in [*[peer for peer in members if peer in known], *self.presences.choose(ranks)]:
            self._note_member(view, peer, members[peer])
        for peer in self.presences.forget_gone(self.world.now):
            self.tell(MemberLeft(peer))

    def _note_member(self, view: GuardedStore, peer: str, fact: Event) -> None:
        until = view.key(MEMBERS).until[peer]

        def rank() -> Rank:
            return view.rank_members(self.seniority, [peer])[peer]

        told = self.presences.note(peer, isinstance(fact, MemberSeen), until, rank)
        if told is not None:
            self.tell(replace(fact, worked=rank().awaited) if isinstance(fact, MemberSeen) else fact)

    def _answer_gather(self, command: Gather) -> None:
        place, view = (command.source_round, command.source_stage), self._view()
        found = {} if self.estranged or view is None else view.rollouts.get(place, {})
        sources = Sources(self.sample)
        if view is not None:
            others = [peer for peer in found if peer != self.node.peer]
            sources.choose(view.rank_rollouts(self.seniority, place, others))
        for peer in sources.peers:
            self.evidence.see(found[peer], self.world.now)
        refs = [found[peer].rollouts for peer in sources.peers if found[peer].rollouts.groups]
        self.tell(RolloutsGathered(command.id, command.round, command.stage, tuple(refs)))

    def _poll(self) -> None:
        super()._poll()
        for event in self.rejections.due():
            self.tell(event)
        for evidence in self.evidence.due(self.world.now) if self.linked else ():
            self._gossip_evidence(evidence)

    # --- evidence ---

    def _note_evidence(self, command: NoteEvidence) -> None:
        self.evidence.note(command.known)

    def _tell_evidence(self, event: Equivocated) -> None:
        """Tell the daemon, and the others by gossip."""
        self.tell(event)
        self._gossip_evidence(event)

    def _gossip_evidence(self, event: Equivocated) -> None:
        self.evidence.held(event, self.world.now)
        for other in self.dht.reached_by(self):
            if other is not self:
                assert isinstance(other, GuardedNetworkWorker), "all workers of a world are of one kind"
                self._hint(other, other.evidence.hear, event)

    # --- what strangers do ---

    def refuse(self, senders: Iterable[str], reason: str) -> None:
        """Records or calls of these are refused."""
        for sender in senders:
            self.rejections.count(sender, reason)

    def flood(self, senders: Iterable[str], count: int) -> None:
        """Each of these says so many hints at once, of which only the bounds let some in."""
        for sender in senders:
            if self.hints.try_charge_sender(sender, count):
                self.hints.try_charge_all(False, count)
            else:
                self.rejections.count(sender, "hints")
