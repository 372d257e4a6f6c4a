"""Memberships: which shards are read, and which peers are looked up."""

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from swarmd.config import Config, DhtConfig, SwarmConfig
from swarmd.core.commands import CollectReports, Gather
from swarmd.core.events import MemberSeen, RecordsRejected, ReportSeen, RolloutsGathered, RoundAnnounced
from swarmd.dht.membership import POLLS_BETWEEN_READS, MemberLookups, MembershipWatcher
from swarmd.dht.ports import RecordsSink
from swarmd.dht.publisher import RENEWALS
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.names import EPOCH_ROUNDS, MemberSharding, member_shard_of
from swarmd.dht.wire.records import ClockRecord, Membership, Record
from swarmd.errors import NetworkDown
from tests.dht.driver import Driver
from tests.dht.network import ME, KeptRecords, Network, VirtualTime
from tests.dht.test_worker import Swarm, announce, publish, swarm

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

SWARM = "s"


class Watching(KeptRecords):
    """Says which keys are watched, and how slowly."""

    def __init__(self, view: SwarmView) -> None:
        super().__init__(view)
        self.watched: dict[str, float] = {}
        self.seen: dict[str, RecordsSink] = {}
        self.looked: list[str] = []

    def watch(self, name: str, seen: RecordsSink, polls: float = 1, later: bool = False) -> Any:
        self.watched[name], self.seen[name] = polls, seen
        return SimpleNamespace(name=name, read_now=lambda: self.looked.append(name))

    def unwatch(self, name: str) -> None:
        del self.watched[name]


class Watcher:
    """A node that watches where memberships lie."""

    def __init__(self, coordinating: bool) -> None:
        self.time = VirtualTime()
        swarm = SwarmConfig(id=SWARM, coordinator="" if coordinating else "boss")
        config = Config(swarm, role="coordinator" if coordinating else "follower")
        self.view = Network(config, self.time.runtime).view
        self.store = Watching(self.view)
        self.keys = MembershipWatcher(self.view, self.store, lambda records: None)
        self.keys.watch()

    def announce(self, round: int, shards: int) -> None:
        self.view.shards.apply_clock(ClockRecord(SWARM, round, 0, 0.0, 1.0, shards=shards))


def own_key(shards: int, epoch: int) -> str:
    place = MemberSharding(shards, epoch)
    return names.members_key(SWARM, *place, member_shard_of(SWARM, ME, place))


def test_a_follower_watches_its_own_shard_wherever_it_lies() -> None:
    node = Watcher(coordinating=False)
    assert node.store.watched == {names.members_key(SWARM): POLLS_BETWEEN_READS}
    for round, shards in ((1, 8), (2, 16), (EPOCH_ROUNDS, 16)):
        node.announce(round, shards)
        assert node.store.watched == {own_key(shards, round // EPOCH_ROUNDS): POLLS_BETWEEN_READS}
    node.keys.read_own_shard_now()
    assert node.store.looked == [own_key(16, 1)]


def test_the_coordinator_reads_shards_again_as_members_follow_ever_later_and_anew_after_each_move() -> None:
    node, dht = Watcher(coordinating=True), DhtConfig()
    for epoch in range(2):
        node.announce(epoch * EPOCH_ROUNDS, 2)
        polls = []
        for poll in range(1, 40):
            node.store.looked = []
            node.time.run(dht.poll_s)
            for name in node.store.looked:
                node.store.seen[name]({})
            polls += [poll] * bool(node.store.looked)
        assert polls == [1, 2, 4, 8, 16, 32], "from then on it is watched as often"
        assert 32 < dht.record_s / RENEWALS / dht.poll_s <= 64


LIVES_S = 900.0


class Peers:
    """A swarm of which memberships can be looked up, at a time of ours; the lookups themselves are shipped."""

    def __init__(self, shards: int = 8) -> None:
        self.time = VirtualTime(1000.0)
        network = Network(runtime=self.time.runtime)
        self.view, self.store = network.view, network.store
        self.view.shards.apply_clock(ClockRecord(SWARM, 0, 0, 0.0, 1.0, shards=shards))
        self.seen: dict[str, Record] = {}
        self.lookups = MemberLookups(self.view, self.store, self._see)

    def _see(self, records: Mapping[str, Record]) -> None:
        self.seen |= records
        self.lookups.remember_members(records)

    def join(self, peer: str, leaving: bool = False) -> str:
        """A peer with a membership where these lie now. Returns its key."""
        return self.store.keep(self.record(peer, leaving))

    def record(self, peer: str, leaving: bool = False) -> Any:
        place = self.view.shards.members
        lies = (*place, member_shard_of(SWARM, peer, place))
        content = Membership(SWARM, peer, "n", 1.0, leaving, shards=lies[0], epoch=lies[1], shard=lies[2])
        return SimpleNamespace(owner=peer, content=content, expiration=self.time.now + LIVES_S)


async def test_a_membership_is_looked_for_in_its_owners_shard_and_kept_until_it_expires() -> None:
    peers = Peers()
    name = peers.join("anna")
    for _ in range(3):
        await peers.lookups.require_member("anna")
    assert peers.store.asked == [name] and list(peers.seen) == ["anna"]
    peers.time.now += LIVES_S + 1
    peers.join("anna")
    await peers.lookups.require_member("anna")
    assert peers.store.asked == [name, name]


async def test_who_has_no_membership_or_has_left_is_none() -> None:
    peers = Peers()
    peers.join("otto", leaving=True)
    peers.join("lena")
    await peers.lookups.require_member("lena")
    peers.lookups.remember_members({"lena": peers.record("lena", leaving=True)})
    for peer in ("nobody", "otto"):
        with pytest.raises(NetworkDown, match="no membership"):
            await peers.lookups.require_member(peer)
    peers.join("lena", leaving=True)
    with pytest.raises(NetworkDown, match="no membership"):
        await peers.lookups.require_member("lena")


async def test_a_membership_that_has_expired_is_none_where_no_other_is_found() -> None:
    peers = Peers()
    peers.join("anna")
    await peers.lookups.require_member("anna")
    peers.time.now += LIVES_S + 1
    peers.store.kept = {}
    with pytest.raises(NetworkDown, match="no membership"):
        await peers.lookups.require_member("anna")


__all__ = ["swarm"]


SHARDS = 4
PATIENCE_S = 40.0


async def large_swarm(swarm: Swarm, *followers: str) -> Driver:
    """A coordinator whose clock has announced shards, and followers. Returns the coordinator."""
    coordinator = await swarm.coordinator()
    await announce(coordinator, 0, shards=SHARDS)
    for name in followers:
        await swarm.follower(name, coordinator)
    return coordinator


async def must_gather(node: Driver, round: int, peers: set[str]) -> None:
    """A node gathers these peers' rollouts, if not at once then later: a busy machine may leave a question unanswered,
    and what a node has not seen announced it does not wait for."""
    name, over = f"gather/{round + 1}/0", time.monotonic() + 2 * PATIENCE_S
    found: set[str] = set()
    while found != peers:
        assert time.monotonic() < over, f"{node.paths.root.name} gathered {found}, not {peers}"
        since = len(node.events)
        await node.do(Gather(name, round + 1, 0, round, 0, time.time() + PATIENCE_S))
        gathered = await node.expect(RolloutsGathered, 2 * PATIENCE_S, since=since, command=name)
        found = {ref.peer for ref in gathered.rollouts}


async def test_members_in_shards_are_known_to_the_coordinator_and_share_also_when_all_have_moved(
    swarm: Swarm,
) -> None:
    coordinator = await large_swarm(swarm, "one", "two")
    await coordinator.do(CollectReports("collect/0/0", 0, 0))
    peers = {node.peer_id for node in swarm.nodes}
    for node in swarm.nodes:
        await publish(node, 0, [node.peer_id])
    for peer in peers:
        await coordinator.expect(ReportSeen, PATIENCE_S, peer=peer)
    late = await swarm.follower("late", coordinator)
    for node in swarm.nodes[1:]:
        await coordinator.expect(MemberSeen, PATIENCE_S, peer=node.peer_id)
    for node in swarm.nodes:
        await must_gather(node, 0, peers - {node.peer_id})
    await announce(coordinator, EPOCH_ROUNDS, shards=SHARDS)  # each membership lies elsewhere from here on
    for node in swarm.nodes:  # who has not heard of this round refuses its reports, for it is far ahead
        await node.expect(RoundAnnounced, PATIENCE_S, round=EPOCH_ROUNDS)
    for node in swarm.nodes:
        await publish(node, EPOCH_ROUNDS, [node.peer_id, "later"])
    for node in swarm.nodes:
        await must_gather(node, EPOCH_ROUNDS, (peers | {late.peer_id}) - {node.peer_id})
    assert not [event for node in swarm.nodes for event in node.seen(RecordsRejected)]
