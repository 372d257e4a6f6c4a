"""The coordinator takes reports that are stored with it, and reads shards only for missing ones."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import pytest

from swarmd.config import Config, DhtConfig, SwarmConfig
from swarmd.core.commands import CollectReports
from swarmd.core.events import ReportSeen
from swarmd.dht.membership import MemberPresences
from swarmd.dht.report_collector import TOGETHER_S, ReportChangeLimiter, ReportCollector
from swarmd.dht.store.seniority import Seniority
from swarmd.dht.wire import names
from swarmd.dht.wire.names import shard_of
from swarmd.dht.wire.records import ClockRecord, Record, ReportRecord, SignedRecord
from swarmd.errors import RecordRejected
from tests.dht.network import Network, VirtualTime

SWARM = "s"
POLL_S = 5.0
RECORD_S = 90_000.0  # longer than a test: no shard is read for its own sake


class Coordinator:
    """The shipped collector over keys that hold what is put there, on a clock of its own."""

    def __init__(self, shards: int, members: Iterable[str] = ()) -> None:
        self.time, self.shards = VirtualTime(), shards
        dht = DhtConfig(poll_s=POLL_S, record_s=RECORD_S)
        config = Config(SwarmConfig(id=SWARM), role="coordinator", dht=dht)
        network = Network(config, self.time.runtime, lambda always: Seniority(set(members).__contains__))
        network.view.shards.apply_clock(ClockRecord(SWARM, 1, 0, 0.0, 1.0, shards=shards))
        self.store = network.store
        self._events = network.events
        presences = MemberPresences(self.time)
        self.collector = ReportCollector(network.view, self.store, network.gossip, presences)
        ranks = {member: network.view.seniority.make_rank(member, b"", 0, 0) for member in members}
        for member, rank in ranks.items():
            presences.record_presence(member, True, 1e9, lambda rank=rank: rank)

    @property
    def told(self) -> list[str]:
        """Whose reports were told."""
        return [event.peer for event in self._events if isinstance(event, ReportSeen)]

    # --- what a test does ---

    def collect(self, round: int) -> None:
        self.time.runtime.start(self.collector.collect(CollectReports(f"collect/{round}/0", round, 0)))

    def report(self, peer: str, round: int) -> Record:
        """A report in its owner's shard; nobody looks at its signature."""
        shard = shard_of(SWARM, peer, round, 0, self.shards)
        content = ReportRecord(SWARM, round, 0, 0.5, shards=self.shards, shard=shard)
        return cast(Record, SimpleNamespace(owner=peer, content=content, expiration=1e9, size_bytes=300,
                                            encode=lambda: SignedRecord(peer, b"", 1e9, b"").encode()))  # fmt: skip

    def store_at_peers(self, peer: str, round: int) -> str:
        """Peers keep a report that its owner could not bring. Returns its key."""
        return self.store.keep(self.report(peer, round))

    def forget(self) -> None:
        """Look at what comes from now on."""
        self.store.read.clear()
        self._events.clear()


def collecting(shards: int, members: Iterable[str] = ()) -> Coordinator:
    """A coordinator that has collected a stage before, and now collects that of round 1."""
    coordinator = Coordinator(shards, members)
    coordinator.collect(0)
    coordinator.time.run(POLL_S * shards)
    coordinator.collect(1)
    coordinator.forget()
    return coordinator


MEMBERS = [f"member {number}" for number in range(64)]


def test_reports_that_are_brought_are_told_together_and_none_is_read() -> None:
    coordinator = collecting(16, MEMBERS)
    for peer in MEMBERS:
        assert coordinator.collector.accept_stored_report(coordinator.report(peer, 1))
    coordinator.time.run(TOGETHER_S / 2)
    assert coordinator.told == []
    coordinator.time.run(TOGETHER_S)
    assert coordinator.told == MEMBERS
    coordinator.time.run(10 * POLL_S)
    assert coordinator.store.read == []


def test_a_shard_is_read_for_a_member_whose_report_was_not_brought() -> None:
    coordinator = collecting(16, MEMBERS)
    for peer in MEMBERS[1:]:
        coordinator.collector.accept_stored_report(coordinator.report(peer, 1))
    key = coordinator.store_at_peers(MEMBERS[0], 1)
    coordinator.time.run(POLL_S + 1.0)
    assert MEMBERS[0] in coordinator.told
    read = len(coordinator.store.read)
    coordinator.time.run(10 * POLL_S)
    assert set(coordinator.store.read) == {key} and len(coordinator.store.read) == read, "nobody is missing any more"


def test_a_report_is_awaited_of_a_member_once_and_under_its_stages_keys() -> None:
    coordinator = collecting(16, MEMBERS)
    record = coordinator.report(MEMBERS[0], 1)
    key = names.key_id(record.content.key)
    awaits = coordinator.collector.is_expected
    assert awaits(key, MEMBERS[0]) and not awaits(key, "stranger")
    assert not awaits(names.key_id(coordinator.report(MEMBERS[0], 2).content.key), MEMBERS[0])
    coordinator.collector.accept_stored_report(record)
    assert not awaits(key, MEMBERS[0])
    coordinator.time.run(1.0)
    assert not awaits(key, MEMBERS[0])


def test_a_change_is_taken_when_its_time_has_come() -> None:
    now = VirtualTime()
    changes = ReportChangeLimiter(2, 10.0, now)
    changes.try_accept("a", 1)
    assert not changes.try_accept("a", 2)
    now.now = 10.0
    assert changes.try_accept("a", 2) and not changes.try_accept("a", 2)


def test_after_some_changes_no_further_one_is_taken() -> None:
    now = VirtualTime()
    changes = ReportChangeLimiter(2, 10.0, now)
    for number in range(3):
        now.now = 10.0 * number
        assert changes.try_accept("a", number)
    now.now = 1000.0
    with pytest.raises(RecordRejected):
        changes.try_accept("a", 3)
    assert not changes.try_accept("a", 2)
