"""Real network workers with memberships in shards: they share, one comes late, one of before is refused."""

from __future__ import annotations

import time

import pytest

from swarmd.core.commands import CollectReports, Gather
from swarmd.core.events import MemberSeen, RecordsRejected, ReportSeen, RolloutsGathered, RoundAnnounced
from swarmd.dht.wire.names import EPOCH_ROUNDS
from tests.dht.driver import Driver
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
