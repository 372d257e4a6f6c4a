"""The simulated network worker: joins the DHT, publishes, reads, hints and polls, with what goes wrong there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from swarmd.core.commands import (
    AdmitPeers,
    Announce,
    CollectReports,
    Command,
    FetchWeights,
    Gather,
    NoteEvidence,
    PublishLeaderboard,
    PublishReport,
    ReadClock,
    Register,
)
from swarmd.core.events import (
    CommandFailed,
    Event,
    LeaderboardPublished,
    LinkDegraded,
    LinkDown,
    LinkUp,
    NoRoundYet,
    Registered,
    ReportPublished,
    ReportSeen,
    RolloutsGathered,
    RoundAnnounced,
    RoundPublished,
    WeightsFetched,
    WeightsRefused,
)
from swarmd.core.values import PeerWeights
from swarmd.dht.rounds.credit_check import CreditCheck
from swarmd.dht.wire.records import PAST_S, TTL_MAX_S
from swarmd.sim.ports.dht import SimReport, announcement_of, is_newer, member_fact, report_of, reporters_of
from swarmd.sim.ports.worker import SimWorker

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode

CALL_S = 5.0  # a network command that gets no answer fails after this
RECORD_S = 900.0  # how long records live
POLL_S = 15.0  # hints are what carries; a poll finds what a lost one would have told
REPUBLISH_CHANCE = 0.4  # of publishing one's own records again at a poll
JOIN_S = (0.2, 3.0)
WEIGHTS_MISSING_CHANCE = 0.2
AHEAD_S_MAX = TTL_MAX_S + PAST_S - RECORD_S  # records of a clock further ahead end too late for anybody
BEHIND_S_MAX = RECORD_S + PAST_S  # those of one further behind have ended


class NetworkWorker(SimWorker):
    """A node's place in the DHT.

    Attributes:
        linked: whether it reaches the swarm.
        epoch: counts losses of the link; what was under way before one is not answered after it.
    """

    kind = "network"

    def __init__(self, node: SimNode, pid: int) -> None:
        super().__init__(node, pid)
        self.dht = node.world.dht
        self.linked = False
        self.joined = False
        self.peers_told = 0
        self.epoch = 0
        self.clock_told: RoundAnnounced | None = None
        self.collecting: tuple[int, int] | None = None
        self.told_reports: set[str] = set()  # peers, of the stage that is collected
        self.told_members: dict[str, Event] = {}
        self.seen_version = -1  # of the DHT, at the last poll
        self.own_clock: RoundAnnounced | None = None
        self.own_report: SimReport | None = None
        self.own_member: Event | None = None
        self.credit = CreditCheck(node.peer, node.settings.stages)

    @property
    def estranged(self) -> bool:
        """Whether this node's clock is so wrong that nobody takes its records, and it takes nobody's."""
        return not -BEHIND_S_MAX < self.node.skew_s < AHEAD_S_MAX

    # --- the link ---

    def begin(self) -> None:
        if self.random.random() < self.world.chance("slow_start"):
            return
        self.dht.join(self)
        self.later(self.random.uniform(*JOIN_S), self._join)
        self.later(self.random.uniform(0.5, 1.0) * POLL_S, self._poll)

    def _join(self) -> None:
        self.joined = True
        self._look_around()

    def _look_around(self) -> None:
        """A follower is linked while it reaches another node, the coordinator always."""
        others = self.dht.at_side(self.node.side) - 1
        reaches = others > 0 or self.node.coordinates
        if reaches and (not self.linked or self._is_news(others)):
            self.linked, self.peers_told = True, others
            self.tell(LinkUp(others))
        elif self.linked and not reaches:
            self.linked = False
            self.tell(LinkDegraded("no peer answers"))
        elif not reaches and self.random.random() < 0.2:
            self.tell(LinkDegraded("no peer answers"))

    def _is_news(self, others: int) -> bool:
        """The last peer is gone, or there is one again; which matters to a coordinator that holds the swarm then."""
        coordination = self.node.settings.coordination
        holds = coordination is not None and coordination.when_alone == "hold"
        return holds and (others > 0) != (self.peers_told > 0)

    def lose_link(self) -> None:
        """p2pd died; it is started again."""
        if not self.alive or not self.joined:
            return
        self.epoch += 1
        self.linked = self.joined = False
        self.tell(LinkDown("p2pd ended"))
        self.later(self.random.uniform(0.3, 4.0), self._join)

    def end(self) -> None:
        super().end()
        self.dht.leave(self)

    # --- commands ---

    def perform(self, command: Command) -> None:
        delay_s = self.random.expovariate(1.0 / self.world.profile.latency_s)
        if self.random.random() < self.world.chance("failure"):
            self.later(CALL_S, self._refuse, command, self.epoch)
        else:
            self.later(min(delay_s, CALL_S), self._perform, command, self.epoch)

    def _refuse(self, command: Command, epoch: int) -> None:
        if epoch == self.epoch or self.random.random() < 0.5:
            self.tell(CommandFailed(command.id, "no answer"))

    def _perform(self, command: Command, epoch: int) -> None:
        unheard = self.estranged and type(command) in _WRITES
        if epoch != self.epoch or not self.linked or unheard:
            self._refuse(command, epoch)
        else:
            getattr(self, _PERFORM[type(command)])(command)

    def _register(self, command: Register) -> None:
        self.own_member = member_fact(self.node.peer, self.node.name, left=False)
        if not self._keep_member(self.own_member):
            self.tell(CommandFailed(command.id, "no peer could show it"))
            return
        self._hint_listeners(self.own_member)
        self.tell(Registered(command.id))

    def _keep_member(self, fact: Event) -> bool:
        return self.dht.store_of(self).put_member(self.node.peer, fact)

    def _keep_report(self, report: SimReport) -> bool:
        return self.dht.store_of(self).put_report(report)

    def _read_clock(self, command: ReadClock) -> None:
        clock = self._clock()
        self.clock_told = clock
        self.tell(NoRoundYet() if clock is None else clock)

    def _gather(self, command: Gather) -> None:
        """What is there at once, or a little later when something is missing; now and then nothing comes."""
        wait_s = command.until_at - self.node.clock()
        if self.random.random() < self.world.chance("loss"):
            return
        if wait_s > 0 and self.random.random() < 0.3:
            self.later(self.random.uniform(0.0, 1.2) * wait_s, self._answer_gather, command)
        else:
            self._answer_gather(command)

    def _answer_gather(self, command: Gather) -> None:
        reports = {} if self.estranged else self.dht.store_of(self).reports
        found = reports.get((command.source_round, command.source_stage), {})
        rollouts = tuple(report.rollouts for peer, report in found.items() if peer != self.node.peer)
        self.tell(RolloutsGathered(command.id, command.round, command.stage, rollouts))

    def _publish_report(self, command: PublishReport) -> None:
        report = report_of(self.node.peer, command)
        self.world.note_report(self.node, report)
        if self.own_report is None or _place(report.seen) >= _place(self.own_report.seen):
            self.own_report = report
        if not self._keep_report(report):
            self.tell(CommandFailed(command.id, "no peer could show it"))
            return
        self._hint_listeners(report.seen)
        self.tell(ReportPublished(command.id, command.round, command.stage))
        reports = self.dht.store_of(self).reports.get((command.round, command.stage), {})
        worked = [peer for peer, each in reports.items() if each.seen.worked]
        self.credit.note(command.round, command.stage, self.node.clock(), worked)

    def _announce(self, command: Announce) -> None:
        clock = announcement_of(command)
        if self.own_clock is None or is_newer(clock, self.own_clock):
            self.own_clock = clock
        self.dht.store_of(self).put_clock(clock)
        self.tell(RoundPublished(command.id, command.round, command.stage))
        for other in self.dht.reached_by(self):
            self._hint_clock(other, clock)

    def _hint_clock(self, other: NetworkWorker, clock: RoundAnnounced) -> None:
        self._hint(other, other.look_at_clock, sure=other is self)

    def _collect(self, command: CollectReports) -> None:
        self.collecting = (command.round, command.stage)
        self.told_reports.clear()
        self._look_at_reports()

    def _admit(self, command: AdmitPeers) -> None:
        """Everybody may take part in the simulated DHT."""

    def _note_evidence(self, command: NoteEvidence) -> None:
        """Nobody fetches in vain in the simulated DHT; the core leaves out what does not count."""

    def _fetch_weights(self, command: FetchWeights) -> None:
        """A peer's weights come after a while, too late at times; or they do not come."""
        left_s = command.until_at - self.node.clock()
        if self.random.random() < self.world.chance("loss") or left_s <= 0:
            return
        if self.estranged or self.random.random() < WEIGHTS_MISSING_CHANCE:
            self.tell(WeightsRefused(command.id, "none-offered", "nobody offers any"))
            return
        digest, size_bytes = f"{self.random.getrandbits(256):064x}", self.random.randint(1, command.size_bytes_max)
        weights = PeerWeights(self.node.settings.coordinator, 0, digest, size_bytes, 0.5)
        seconds = self.random.expovariate(4.0 / max(left_s, 1.0))
        self.later(seconds, self.tell, WeightsFetched(command.id, weights, size_bytes, seconds))

    def _publish_leaderboard(self, command: PublishLeaderboard) -> None:
        self.dht.store_of(self).board = command
        self.tell(LeaderboardPublished(command.id, command.round))

    # --- hints and polls ---

    def _hint(self, other: NetworkWorker, act: Callable[..., None], *args: Any, sure: bool = False) -> None:
        random, profile = self.random, self.world.profile
        times = 0 if not sure and random.random() < self.world.chance("loss") else 1
        times += random.random() < self.world.chance("duplicate")
        for _ in range(times):
            other.later(random.expovariate(1.0 / profile.latency_s), act, *args)

    def _hint_listeners(self, fact: Event) -> None:
        """Who collects is the coordinator, or everybody where there is a contract to vote at."""
        for other in self.dht.reached_by(self):
            if other.node.coordinates or (other.collecting and self.world.chain is not None):
                self._hint(other, other.look_at, fact)

    def look_at(self, fact: Event) -> None:
        """A hint about one record has come."""
        if self.estranged:
            return
        if isinstance(fact, ReportSeen):
            if _place(fact) == self.collecting:
                self._tell_report(fact)
        else:
            self._look_at_members()

    def look_at_clock(self) -> None:
        """Tell the clock when it changed; now and then it is told again."""
        clock = self._clock()
        again = self.random.random() < self.world.chance("duplicate")
        if clock is not None and (clock is not self.clock_told or again):
            self.clock_told = clock
            self.tell(clock)
            self._look_at_leaderboard(clock)

    def _look_at_leaderboard(self, clock: RoundAnnounced) -> None:
        """A follower reads the leaderboard of the round before, once that is over."""
        board = self.dht.store_of(self).board
        if board is None or board.round != clock.round - 1 or self.node.settings.promised is None:
            return
        event = self.credit.read(board.round, board.standings, reporters_of(board), True)
        if event is not None:
            self.tell(event)

    def _clock(self) -> RoundAnnounced | None:
        if self.estranged:
            return None
        store = self.dht.store_of(self)
        stale = store.clock_before is not None and self.random.random() < self.world.chance("stale")
        return store.clock_before if stale else store.clock

    def _poll(self) -> None:
        self.later(POLL_S, self._poll)
        if not self.joined:
            return
        if self.random.random() < REPUBLISH_CHANCE:
            self._republish()
        if self.seen_version == self.dht.version and self.linked:
            return
        self.seen_version = self.dht.version
        self._look_around()
        if not self.linked or self.estranged:
            return
        self.look_at_clock()
        if self.node.coordinates:
            self._look_at_members()
        self._look_at_reports()

    def _republish(self) -> None:
        """Keep one's own records alive, and find them lost if they are."""
        if not self.linked or self.estranged:
            return
        store = self.dht.store_of(self)
        if self.own_clock is not None:
            store.put_clock(self.own_clock)
        if self.own_report is not None:
            self._keep_report(self.own_report)
        if self.own_member is not None:
            self._keep_member(self.own_member)

    def _look_at_members(self) -> None:
        for peer, fact in self.dht.store_of(self).members.items():
            if self.told_members.get(peer) is not fact:
                self.told_members[peer] = fact
                self.tell(fact)

    def _look_at_reports(self) -> None:
        if self.collecting is None or self.estranged:
            return
        for report in self.dht.store_of(self).reports.get(self.collecting, {}).values():
            self._tell_report(report.seen)

    def _tell_report(self, seen: ReportSeen) -> None:
        if seen.peer not in self.told_reports or self.random.random() < self.world.chance("duplicate"):
            self.told_reports.add(seen.peer)
            self.tell(seen)

    def say_goodbye(self) -> None:
        """An orderly stop: the membership record says so."""
        if self.linked and not self.estranged:
            farewell = member_fact(self.node.peer, self.node.name, left=True)
            self._keep_member(farewell)
            self._hint_listeners(farewell)


def _place(seen: ReportSeen) -> tuple[int, int]:
    return seen.round, seen.stage


_WRITES = (Register, PublishReport, Announce, PublishLeaderboard)
_PERFORM: dict[type, str] = {  # by name: workers among strangers do some of these otherwise
    Register: "_register",
    ReadClock: "_read_clock",
    Gather: "_gather",
    AdmitPeers: "_admit",
    NoteEvidence: "_note_evidence",
    FetchWeights: "_fetch_weights",
    PublishReport: "_publish_report",
    Announce: "_announce",
    CollectReports: "_collect",
    PublishLeaderboard: "_publish_leaderboard",
}
