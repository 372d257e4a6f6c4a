"""The clock reaches a node that has any peer, and a node that is cut off from the coordinator says so."""

import asyncio
import math
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from swarmd.core.events import LinkUp, RecordsRejected, RoundAnnounced
from swarmd.core.state import NetworkLink, State
from swarmd.dht.identity.identity import load_identity
from swarmd.dht.swarm_view import SILENT_S, CoordinatorContact
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ClockRecord, sign
from swarmd.observe.layers import LiveDaemon
from swarmd.observe.status import LogStatus, status_of
from tests.core.story import Story, settings
from tests.dht.driver import SWARM
from tests.dht.making import ALICE, signed_by
from tests.dht.outsider import Outsider
from tests.hostile.swarm import small_swarm


@pytest.mark.anyio
async def test_a_stranger_may_carry_the_clock_and_cannot_make_one(tmp_path: Path) -> None:
    stranger = Outsider(tmp_path / "o")
    async with small_swarm(tmp_path, followers=1, attackers=(stranger,), poll_s=60.0) as swarm:
        (follower,) = swarm.followers
        await stranger.open(await follower.address())
        listening = asyncio.ensure_future(_drain(stranger))
        topic, now = names.clock_topic(SWARM), time.time()
        identity = load_identity(swarm.coordinator.paths.root / "identity.key")
        genuine = sign(identity, ClockRecord(SWARM, 7, 0, now, now + 60.0), now + 600.0)
        others = [
            signed_by(ALICE, ClockRecord(SWARM, 9, 0, now, now + 60.0), 800.0),
            msgspec.structs.replace(genuine, payload=genuine.payload.replace(b"\x07", b"\x08"), expiration=now + 700.0),
        ]
        messages = [b"", b"\x94", b"x" * 3000, *(each.encode() for each in (*others, genuine))]

        async def carried() -> bool:
            for message in messages:  # again and again, until gossip knows of its subscription
                await stranger.p2p.publish(topic, message)
            await asyncio.sleep(1.0)
            refused = follower.seen(RecordsRejected, peer=stranger.peer_id, reason="not-the-coordinator")
            return bool(refused and follower.seen(RoundAnnounced))

        async with asyncio.timeout(40):
            while not await carried():
                pass
        assert {event.round for event in follower.seen(RoundAnnounced)} == {7}
        assert swarm.coordinator.peer_id in await stranger.find(names.clock_key(SWARM)), "it holds it for whoever asks"
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening


async def _drain(outsider: Outsider) -> None:
    async for _ in outsider.p2p.subscribe(names.clock_topic(SWARM)):
        continue


class Times:
    """A clock of ours."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_who_hears_nothing_when_a_stage_should_be_over_is_isolated() -> None:
    times = Times()
    contact = CoordinatorContact(True, times, times)
    contact.record_announcement(deadline_at=1300.0, final=False)
    times.now = 1299.0
    assert contact.isolation_reason(5) == "", "it may be a long stage"
    times.now = 1300.0 + SILENT_S
    assert "connected to 5 peers" in contact.isolation_reason(5)
    assert contact.isolation_reason(0) == "", "that is another trouble"
    contact.record_answer()
    assert contact.isolation_reason(5) == "", "the coordinator itself answers: it is slow"
    times.now += 2 * SILENT_S
    assert contact.isolation_reason(5)
    contact.record_announcement(deadline_at=math.inf, final=True)
    times.now += 1e6
    assert contact.isolation_reason(5) == "", "nothing more will come"
    alone = CoordinatorContact(False, times, times)
    times.now += 1e6
    assert alone.isolation_reason(5) == "", "it has no coordinator to hear of"


def test_a_coordinator_that_no_member_reports_to_is_isolated() -> None:
    contact = CoordinatorContact(False)
    contact.record_stage_end(others_reported=False, others=0)
    assert contact.isolation_reason(3) == "", "there are no members"
    contact.record_stage_end(others_reported=False, others=2)
    contact.record_stage_end(others_reported=False, others=2)
    assert "last 2 stages" in contact.isolation_reason(3)
    contact.record_stage_end(others_reported=True, others=2)
    assert contact.isolation_reason(3) == ""


def test_an_isolated_node_is_not_well_and_says_why() -> None:
    node = Story.joined(settings())
    node.tell(LinkUp(4, (), "connected to 4 peers, but nothing was heard"))
    assert node.state.link.chart == "up", "it goes on as it did"
    assert _network(node.state) == ("isolated", False, "connected to 4 peers, but nothing was heard")
    node.tell(LinkUp(4))
    assert _network(node.state)[0] == "up"
    assert (
        node.state.link
        == msgspec.structs.replace(node.state.link, isolated="")
        == NetworkLink("up", node.state.link.since, "", 4)
    )


def _network(state: State) -> tuple[str, bool, str]:
    network = status_of(state, 10.0, LogStatus("", 0, 0), LiveDaemon(pid=1, rss_bytes=0)).network
    return network.state, network.healthy, network.reason
