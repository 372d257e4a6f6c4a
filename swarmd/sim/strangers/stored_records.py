"""The simulated DHT among strangers: what is kept under a key goes by the shipped rules of room, rank and work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from swarmd.core.events import Event
from swarmd.core.values import Standing
from swarmd.dht.identity.proof_of_work import WORK_BITS
from swarmd.dht.store.key_capacity import KEY_BYTES_MAX, KeyCapacity
from swarmd.dht.store.seniority import Rank, Seniority
from swarmd.dht.wire.records import PAST_S, ROUNDS_AHEAD, ROUNDS_BEHIND
from swarmd.sim.ports.dht import Reports, SimDht, SimReport, Store

if TYPE_CHECKING:
    from swarmd.sim.world import World

MEMBERS = "members"
RECORD_S = 900.0  # how long records live
MEMBER_BYTES = 400
REPORT_BYTES = 450
ROLLOUTS_BYTES = 4600  # with their body
BARE_BYTES = 450  # without

Place = tuple[int, int]
T = TypeVar("T")


class KeyRecords:
    """Who has a record under one key, and how it ranks.

    Args:
        name: of the key.
    """

    def __init__(self, dht: GuardedDht, name: str) -> None:
        self.name = name.encode()
        self.until: dict[str, float] = {}  # owner → expiration
        self.sizes: dict[str, int] = {}
        self._dht = dht
        self._room = KeyCapacity(KEY_BYTES_MAX)
        self._counted = dht.seniority.version

    def admit(self, owner: str, size_bytes: int, until: float) -> list[str] | None:
        """Keep a record if there is room for it. Returns whose were dropped for it; None when it must wait."""
        if owner in self.until and self.sizes[owner] == size_bytes:
            self.until[owner] = max(until, self.until[owner])
            return []
        rank = self._dht.seniority.rank(owner, self.name, self._dht.work_of(owner), size_bytes)
        if self._room.size_bytes + size_bytes > KEY_BYTES_MAX and self._counted != self._dht.seniority.version:
            self._counted = self._dht.seniority.version
            self._room.rank_anew(self._dht.seniority.rounds_of)
        gone = self._room.admit(owner, size_bytes, rank)
        if gone is not None:
            self.until[owner], self.sizes[owner] = until, size_bytes
            self._forget(gone)
        return gone

    def drop_expired(self, now: float) -> list[str]:
        """Forget records that are over. Returns whose."""
        gone = [owner for owner, until in self.until.items() if until < now - PAST_S]
        for owner in gone:
            self._room.drop(owner)
        self._forget(gone)
        return gone

    def _forget(self, owners: Iterable[str]) -> None:
        for owner in owners:
            del self.until[owner], self.sizes[owner]

    def ranks(self, seniority: Seniority, owners: Iterable[str]) -> dict[str, Rank]:
        """How one node ranks these owners' records."""
        rank, work_of, sizes = seniority.rank, self._dht.work_of, self.sizes
        return {owner: rank(owner, self.name, work_of(owner), sizes[owner]) for owner in owners}

    def kept_of(self, held: Mapping[str, T]) -> dict[str, T]:
        """Of what the owners hold, that for which there is room."""
        return {owner: record for owner, record in held.items() if owner in self.sizes}

    def copy(self) -> KeyRecords:
        """The same once more, as those rank now that it is of: who was credited no longer may find no room."""
        twin = KeyRecords(self._dht, self.name.decode())
        for owner, until in self.until.items():
            twin.admit(owner, self.sizes[owner], until)
        return twin


class GuardedStore(Store):
    """What the nodes of one side hold together, with bounds.

    Attributes:
        rollouts: of each stage, owner → report that names them.
    """

    dht: GuardedDht

    def __init__(self, dht: GuardedDht) -> None:
        super().__init__(dht)
        self.rollouts: Reports = {}
        self.keys: dict[str, KeyRecords] = {}

    def key(self, name: str) -> KeyRecords:
        """The records under a name."""
        if name not in self.keys:
            self.keys[name] = KeyRecords(self.dht, name)
        return self.keys[name]

    def copy(self) -> GuardedStore:
        twin = GuardedStore(self.dht)
        twin.clock, twin.clock_before = self.clock, self.clock_before
        twin.keys = {name: key.copy() for name, key in self.keys.items()}
        twin.members = twin.key(MEMBERS).kept_of(self.members)
        twin.reports = {place: twin.key(_reports(place)).kept_of(held) for place, held in self.reports.items()}
        twin.rollouts = {place: twin.key(_rollouts(place)).kept_of(held) for place, held in self.rollouts.items()}
        return twin

    def merge(self, other: Store) -> None:
        """Come together again. What the other side has kept finds its room here, or none."""
        assert isinstance(other, GuardedStore), "all stores of a world are of one kind"
        if other.clock is not None:
            self.put_clock(other.clock)
        for peer, fact in other.members.items():
            self.keep_member(peer, fact, other.key(MEMBERS).sizes[peer])
        for place, reports in other.reports.items():
            for peer, report in reports.items():
                self.keep_report(report, other.key(_reports(place)).sizes[peer])
        for place, reports in other.rollouts.items():
            for peer, report in reports.items():
                self.keep_rollouts(report, other.key(_rollouts(place)).sizes[peer])

    def forget(self, what: int) -> None:
        super().forget(what)
        if what == 1:
            self.keys.pop(MEMBERS, None)
        elif what == 2:
            self.rollouts = {}
            self.keys = {name: key for name, key in self.keys.items() if name == MEMBERS}

    def _forget_place(self, place: Place) -> None:
        super()._forget_place(place)
        self.rollouts.pop(place, None)
        self.keys.pop(_reports(place), None)
        self.keys.pop(_rollouts(place), None)

    # --- writing ---

    def put_member(self, peer: str, fact: Event) -> bool:
        return self.keep_member(peer, fact, MEMBER_BYTES)

    def keep_member(self, peer: str, fact: Event, size_bytes: int) -> bool:
        """Keep a membership of some size. False where there is no room for it."""
        if not self._admit(MEMBERS, self.members, peer, size_bytes):
            return False
        return super().put_member(peer, fact)

    def put_report(self, report: SimReport) -> bool:
        """A report and its rollouts: with their body, else without."""
        kept = self.keep_rollouts(report, ROLLOUTS_BYTES) or self.keep_rollouts(report, BARE_BYTES)
        return kept and self.keep_report(report, REPORT_BYTES)

    def keep_report(self, report: SimReport, size_bytes: int) -> bool:
        """Keep a report of some size. False where there is no room, or its round is not of this time."""
        seen, place = report.seen, (report.seen.round, report.seen.stage)
        reports = self.reports.setdefault(place, {})
        if not self.is_now(place) or not self._admit(_reports(place), reports, seen.peer, size_bytes):
            return False
        return super().put_report(report)

    def keep_rollouts(self, report: SimReport, size_bytes: int) -> bool:
        """Keep rollouts of some size, likewise."""
        place = (report.seen.round, report.seen.stage)
        rollouts = self.rollouts.setdefault(place, {})
        if not self.is_now(place) or not self._admit(_rollouts(place), rollouts, report.seen.peer, size_bytes):
            return False
        rollouts[report.seen.peer] = report
        return True

    def is_now(self, place: Place) -> bool:
        """Whether a round is one whose records are taken."""
        return self.clock is None or -ROUNDS_BEHIND <= place[0] - self.clock.round <= ROUNDS_AHEAD

    def _admit(self, name: str, held: dict[str, Event] | dict[str, SimReport], owner: str, size_bytes: int) -> bool:
        until = self.dht.world.now + RECORD_S
        gone = self.key(name).admit(owner, size_bytes, until)
        for other in gone or ():
            held.pop(other, None)
        return gone is not None

    def drop_expired(self) -> None:
        """Forget memberships that are over."""
        for peer in self.key(MEMBERS).drop_expired(self.dht.world.now):
            self.members.pop(peer, None)

    # --- ranks ---

    def rank_reports(self, seniority: Seniority, place: Place, peers: Iterable[str]) -> Mapping[str, Rank]:
        """How a node ranks reports of a stage."""
        return self.key(_reports(place)).ranks(seniority, peers)

    def rank_rollouts(self, seniority: Seniority, place: Place, peers: Iterable[str]) -> Mapping[str, Rank]:
        """How a node ranks rollouts of a stage."""
        return self.key(_rollouts(place)).ranks(seniority, peers)

    def rank_members(self, seniority: Seniority, peers: Iterable[str]) -> Mapping[str, Rank]:
        """How a node ranks memberships."""
        return self.key(MEMBERS).ranks(seniority, peers)


def _reports(place: Place) -> str:
    return f"reports/{place[0]}/{place[1]}"


def _rollouts(place: Place) -> str:
    return f"rollouts/{place[0]}/{place[1]}"


class GuardedDht(SimDht):
    """The network with strangers in it.

    Attributes:
        seniority: as those know it that hold what others read.
        board: the leaderboard that was published last.
        works: bits of work of identities that have not done what every node does.
        kept_boards: node → the leaderboard that it read last, which it keeps on its disk.
        eclipsed: node → how it is kept in the dark: "nothing" or "stale"; searches give it only what its guides know.
    """

    def __init__(self, world: World) -> None:
        self.seniority = Seniority(lambda peer: peer == world.coordinator, b"the holders of records")
        self.board: tuple[Standing, ...] = ()
        self.works: dict[str, int] = {}
        self.kept_boards: dict[int, tuple[Standing, ...]] = {}
        self.eclipsed: dict[int, str] = {}
        super().__init__(world)

    def make_store(self) -> GuardedStore:
        return GuardedStore(self)

    def work_of(self, peer: str) -> int:
        """Bits of work that an identity has cost."""
        return self.works.get(peer, WORK_BITS)

    def learn(self, board: tuple[Standing, ...]) -> None:
        """Take over a published leaderboard's standings for ranking."""
        self.board = board
        self.seniority.learn(board)
