"""Real network workers with memberships in shards: they share, one comes late, one of before is refused."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from swarmd.core.commands import CollectReports, Gather
from swarmd.core.events import MemberSeen, RecordsRejected, ReportSeen, RolloutsGathered, RoundAnnounced
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.wire import names
from swarmd.dht.wire.records import PROTOCOL, Membership, sign
from swarmd.dht.wire.shards import EPOCH_ROUNDS, MembersPlace, member_shard_of
from tests.dht.driver import SWARM, Driver
from tests.dht.outsider import Outsider
from tests.dht.test_worker import Swarm, announce, publish, swarm

__all__ = ["swarm"]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

SHARDS = 4
PATIENCE_S = 40.0


async def large_swarm(swarm: Swarm, *followers: str) -> Driver:
    """A coordinator whose clock has announced shards, and followers. Returns the coordinator."""
    coordinator = await swarm.coordinator()
    await announce(coordinator, 0, shards=SHARDS)
    for name in followers:
        await swarm.follower(name, coordinator)
    return coordinator


async def must_lie(stranger: Outsider, peer: str, place: MembersPlace) -> None:
    """The coordinator shows a membership to whoever asks for its owner's shard."""
    name = names.members(SWARM, *place, member_shard_of(SWARM, peer, place))
    over = time.monotonic() + PATIENCE_S
    while peer not in await stranger.find(name):
        assert time.monotonic() < over, f"no membership of {peer} lies under {name}"
        await asyncio.sleep(0.2)


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


async def test_a_membership_lies_in_its_owners_shard_and_one_of_before_is_refused(swarm: Swarm, tmp_path: Path) -> None:
    coordinator = await large_swarm(swarm, "one")
    stranger = await Outsider(tmp_path / "o").open(await coordinator.address())
    try:
        for node in swarm.nodes:
            await must_lie(stranger, node.peer_id, MembersPlace(SHARDS, 0))
        old = Membership(SWARM, "old", "nonce", time.time(), protocol=PROTOCOL + 1)
        identity = generate_identity()
        await stranger.store_signed(old.key, sign(identity, old, time.time() + 600))
        await coordinator.expect(RecordsRejected, PATIENCE_S, reason="other-protocol")
        assert coordinator.seen(MemberSeen, peer=identity.peer_id) == []
    finally:
        await stranger.close()
