"""A coordinator takes reports as they are brought, and reads shards for those alone that were not."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from swarmd.core.commands import CollectReports
from swarmd.core.events import ReportSeen
from swarmd.dht.membership import Presences
from swarmd.dht.ports import Record
from swarmd.dht.rounds.key_watch import KeyWatch
from swarmd.dht.rounds.report_collector import TOGETHER_S, ReportCollector
from swarmd.dht.store.seniority import Seniority
from swarmd.dht.wire import names
from swarmd.dht.wire.names import shard_of
from swarmd.dht.wire.records import ReportRecord, SignedRecord
from swarmd.sim.coroutines import VirtualRuntime

SWARM = "s"
POLL_S = 5.0
RECORD_S = 900.0


class Coordinator:
    """The shipped collector over keys that hold what is put there, on a clock of its own."""

    def __init__(self, shards: int, members: Iterable[str] = ()) -> None:
        self.now = 0.0
        self.shards = shards
        self.kept: dict[str, dict[str, Record]] = {}
        self.read: list[str] = []
        self.told: list[tuple[float, str]] = []
        self._order, self._due = count(), cast(list[tuple[float, int, Callable[..., None], tuple[Any, ...]]], [])
        clock = lambda: self.now  # noqa: E731
        self.runtime = VirtualRuntime(self._later, clock, clock)
        self.session: Any = SimpleNamespace(
            swarm=SWARM,
            peer_id="me",
            members=1,
            coordinating=True,
            runtime=self.runtime,
            seniority=Seniority(lambda peer: True),
            shards=SimpleNamespace(of=lambda round: self.shards),
            config=SimpleNamespace(dht=SimpleNamespace(poll_s=POLL_S, record_s=RECORD_S)),
            hearing=SimpleNamespace(closed=lambda *args: None),
            bars=lambda peer, round: False,
            is_credited=lambda peer: False,
            emit=self._emit,
            start=lambda task: self.runtime.start(task()),
            watch=self._watch,
            unwatch=lambda name: self._watching.pop(name).stop(),
        )
        self._watching: dict[str, Any] = {}
        presences = Presences(clock)
        self.collector = ReportCollector(cast(Any, self.session), presences)
        rank = self.session.seniority.rank("", b"", 0, 0)
        for member in members:
            presences.note(member, True, 1e9, lambda: rank)

    def _later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), act, args))

    def _emit(self, event: Any) -> None:
        assert isinstance(event, ReportSeen)
        self.told.append((self.now, event.peer))

    def _watch(self, name: str, seen: Any, polls: float = 1, later: bool = False) -> KeyWatch:
        watch = KeyWatch(cast(Any, self), self.runtime, Random(0), name, POLL_S * polls, seen)
        self._watching[name] = self.runtime.start(watch.run(later))
        return watch

    async def wait_up(self) -> None:
        """The network is up."""

    def spent_s(self) -> float:
        return 0.0

    async def find(self, name: str, wanted: Mapping[str, float] | None = None) -> Any:
        self.read.append(name)
        return SimpleNamespace(records=dict(self.kept.get(name, {})), answered=True, has=lambda wanted: True)

    # --- what a test does ---

    def run(self, s: float) -> None:
        """So many seconds pass."""
        until = self.now + s
        while self._due and self._due[0][0] <= until:
            self.now, _, act, args = heapq.heappop(self._due)
            act(*args)
        self.now = until

    def collect(self, round: int) -> None:
        self.runtime.start(self.collector.collect(CollectReports(f"collect/{round}/0", round, 0)))

    def report(self, peer: str, round: int) -> Record:
        """A report in its owner's shard; nobody looks at its signature."""
        shard = shard_of(SWARM, peer, round, 0, self.shards)
        content = ReportRecord(SWARM, round, 0, 0.5, shards=self.shards, shard=shard)
        return cast(Record, SimpleNamespace(owner=peer, content=content, expiration=1e9, size_bytes=300,
                                            encode=lambda: SignedRecord(peer, b"", 1e9, b"").encode()))  # fmt: skip

    def store(self, peer: str, round: int) -> str:
        """Peers keep a report that its owner could not bring. Returns its key."""
        record = self.report(peer, round)
        self.kept.setdefault(record.content.key, {})[peer] = record
        return record.content.key


def collecting(shards: int, members: Iterable[str] = ()) -> Coordinator:
    """A coordinator that has collected a stage before, and now collects that of round 1."""
    coordinator = Coordinator(shards, members)
    coordinator.collect(0)
    coordinator.run(POLL_S * shards)
    coordinator.collect(1)
    coordinator.read.clear()
    coordinator.told.clear()
    return coordinator


MEMBERS = [f"member {number}" for number in range(64)]


def test_reports_that_are_brought_are_told_together_and_none_is_read() -> None:
    coordinator = collecting(16, MEMBERS)
    began = coordinator.now
    for peer in MEMBERS:
        assert coordinator.collector.take(coordinator.report(peer, 1))
    coordinator.run(10 * POLL_S)
    assert coordinator.told == [(began + TOGETHER_S, peer) for peer in MEMBERS]
    assert coordinator.read == []


def test_a_shard_is_read_for_a_member_whose_report_was_not_brought() -> None:
    coordinator = collecting(16, MEMBERS)
    for peer in MEMBERS[1:]:
        coordinator.collector.take(coordinator.report(peer, 1))
    key = coordinator.store(MEMBERS[0], 1)
    coordinator.run(POLL_S + 1.0)
    assert MEMBERS[0] in [peer for _, peer in coordinator.told]
    read = len(coordinator.read)
    coordinator.run(10 * POLL_S)
    assert set(coordinator.read) == {key} and len(coordinator.read) == read, "nobody is missing any more"


def test_a_report_is_awaited_of_a_member_once_and_under_its_stages_keys() -> None:
    coordinator = collecting(16, MEMBERS)
    record = coordinator.report(MEMBERS[0], 1)
    key = names.key_id(record.content.key)
    awaits = coordinator.collector.awaits
    assert awaits(key, MEMBERS[0]) and not awaits(key, "stranger")
    assert not awaits(names.key_id(coordinator.report(MEMBERS[0], 2).content.key), MEMBERS[0])
    coordinator.collector.take(record)
    assert not awaits(key, MEMBERS[0])
    coordinator.run(1.0)
    assert not awaits(key, MEMBERS[0])
