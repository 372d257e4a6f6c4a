"""Which peers a gathering waits for, if some of them never send their bodies."""

import hashlib
import time
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
import pytest

from swarmd.config import Config, SwarmConfig
from swarmd.core.commands import Gather
from swarmd.core.events import RolloutsGathered
from swarmd.core.values import Standing
from swarmd.dht import gather
from swarmd.dht.adapters import HivemindBodies
from swarmd.dht.gather import FAILED_S, FORGOTTEN_AFTER, IDLE_MAX, TIMED_OUT_MAX, UNTRIED_S, WaitPolicy
from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, find_work
from swarmd.dht.store.seniority import ALWAYS, Rank
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ReportRecord, RolloutsRecord
from swarmd.eventlog.blobs import BlobStore
from tests.dht.driver import SWARM
from tests.dht.making import signed_by
from tests.dht.network import Network, take_anybody

pytestmark = pytest.mark.anyio


def body_of(peer: str) -> bytes:
    """A body that no other peer has."""
    return msgspec.msgpack.encode(peer)


class Swarm(Network):
    """What one node sees of a swarm in which nobody but `answering` ever gives a body."""

    def __init__(self, root: Path, config: Config | None = None) -> None:
        super().__init__(config or Config(SwarmConfig(id=SWARM), role="coordinator"))
        self.view.set_member_count(2)
        self.view.started_at = 0.0
        self.answering: set[str] = set()
        self.asked: list[str] = []
        self.bodies = HivemindBodies(cast(Any, None), BlobStore(root / "blobs"))
        self.wait_policy, self.must_be_member = WaitPolicy(), take_anybody

    async def body(self, peer: str, *rest: Any) -> bytes:
        """A body, if the peer gives any."""
        self.asked.append(peer)
        if peer not in self.answering:
            await anyio.sleep_forever()
        return body_of(peer)

    def join(self, worked: bool, answering: bool = False) -> str:
        """A peer with a report and rollouts."""
        identity: Identity = generate_identity()
        work = find_work(SWARM, identity.peer_id, WORK_BITS) if worked else 0
        body = body_of(identity.peer_id)
        digest = hashlib.sha256(body).hexdigest()
        report = ReportRecord(SWARM, 0, 0, 0.5, digest, len(body), 1, work)
        rollouts = RolloutsRecord(SWARM, 0, 0, digest, len(body), 1, work=work)
        for content in (report, rollouts):
            self.store.keep(signed_by(identity, content))
        if answering:
            self.answering.add(identity.peer_id)
        return identity.peer_id

    async def gather(self) -> set[str]:
        """Whose rollouts are gathered, with all the time in the world."""
        command = Gather("gather/1", 0, 1, 0, 0, time.time() + 3600.0)
        parts = (self.view, self.store, self.gossip, self.bodies, self.wait_policy)
        await gather.Gathering(*parts, self.must_be_member, command).run()
        told = self.events[-1]
        assert isinstance(told, RolloutsGathered)
        return {ref.peer for ref in told.rollouts}


@pytest.fixture
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Swarm:
    swarm = Swarm(tmp_path)
    monkeypatch.setattr(swarm.bodies, "fetch", swarm.body)
    monkeypatch.setattr(gather, "LOOK_AGAIN_S", 0.01)
    return swarm


async def test_nobody_waits_for_bodies_of_idle_strangers(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "FETCH_S", 3600.0)
    honest = {swarm.join(worked=True, answering=True) for _ in range(3)}
    stalling = {swarm.join(worked=False) for _ in range(IDLE_MAX)}
    with anyio.fail_after(60.0):
        assert await swarm.gather() == honest
    assert stalling & set(swarm.asked)  # which were tried, and cancelled


@pytest.mark.parametrize(("peers", "whole"), [(gather.WHOLE_MAX, True), (gather.WHOLE_MAX + 1, False)])
async def test_the_rollouts_of_many_are_not_read_with_all_that_lies_under_their_key(
    swarm: Swarm, peers: int, whole: bool
) -> None:
    joined = {swarm.join(worked=True, answering=True) for _ in range(peers)}
    with anyio.fail_after(60.0):
        assert await swarm.gather() == joined
    assert (names.rollouts_key(SWARM, 0, 0) in swarm.store.read) == whole


async def test_newcomers_with_large_bodies_leave_room_to_those_with_credit(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(body_of(generate_identity().peer_id))
    monkeypatch.setattr(gather, "TOTAL_BYTES_MAX", 8 * size)
    monkeypatch.setattr(gather, "NEWCOMERS_BYTES_MAX", 4 * size)
    newcomers = {swarm.join(worked=True, answering=True) for _ in range(8)}
    with anyio.fail_after(60.0):
        first = await swarm.gather()
    assert len(first) == 4 and first <= newcomers
    assert swarm.view.rejections.total == {"oversized": 4}
    known = {swarm.join(worked=True, answering=True) for _ in range(4)}
    swarm.view.seniority.update_standings([Standing(peer, "", 1.0, 1, 0) for peer in known])
    with anyio.fail_after(60.0):
        assert known < await swarm.gather()


async def test_whoever_worked_is_waited_for_once(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "FETCH_S", 0.5)
    honest, stalling = swarm.join(worked=True, answering=True), swarm.join(worked=True)
    assert await swarm.gather() == {honest}
    assert swarm.view.rejections.total == {"slow": 1} and swarm.view.slow == {stalling: 1}
    monkeypatch.setattr(gather, "FETCH_S", 3600.0)
    with anyio.fail_after(60.0):
        assert await swarm.gather() == {honest}


async def test_a_crowd_that_announces_what_it_does_not_have_is_waited_for_less_and_less(swarm: Swarm) -> None:
    honest = swarm.join(worked=True, answering=True)
    assert await swarm.gather() == {honest}
    swarm.wait_policy.strangers_s = FAILED_S / 16
    absent = swarm.join(worked=True)
    del swarm.store.kept[names.rollouts_key(SWARM, 0, 0)][absent]
    with anyio.fail_after(60.0):
        assert await swarm.gather() == {honest}
    assert swarm.wait_policy.strangers_s == 0.0
    swarm.answering.clear()  # whose bodies are here already
    assert await swarm.gather() == {honest}


def test_those_who_gave_are_waited_for_and_strangers_as_long_as_it_was_worth_it() -> None:
    ranks = {name: Rank(rounds, WORK_BITS, True, b"") for name, rounds in (("a", 0), ("b", 3), ("boss", ALWAYS))}
    ranks["idle"] = Rank(3, 0, True, b"")
    wait_policy, all_ = WaitPolicy(), {"a", "b", "boss"}
    assert wait_policy.expected_peers(ranks, UNTRIED_S / 2) == all_, "credit without work is to be had for nothing"
    wait_policy.record_outcome(ranks, {"a", "boss", "idle"}, ())
    assert wait_policy.strangers_s == FAILED_S and wait_policy.expected_peers(ranks, 2 * FAILED_S) == {
        "a",
        "boss",
        "idle",
    }
    for _ in range(5):
        wait_policy.record_outcome(ranks, {"a", "boss"}, ())
    assert wait_policy.strangers_s == 0.0 and wait_policy.expected_peers(ranks, 0.0) == {"a", "boss"}
    wait_policy.record_outcome(ranks, {"a", "boss"}, {"b"})
    assert wait_policy.strangers_s == 0.0, "what is no rollouts costs no waiting, and shows nothing"
    wait_policy.record_outcome(ranks, {"a", "b"}, ())
    assert 0.0 < wait_policy.strangers_s < FAILED_S and wait_policy.expected_peers(ranks, FAILED_S) == all_


def gather_by_turns(wait_policy: WaitPolicy, turns: int, gatherings: int) -> tuple[int, int]:
    """Two peers give to each gathering, and of others each to all but one in `turns`.

    Returns how many gatherings waited in vain, and how many did not wait for the two.
    """
    honest, crowd = {"a", "b"}, [f"crowd {number}" for number in range(turns)]
    ranks = {name: Rank(0, WORK_BITS, True, b"") for name in (*honest, *crowd)}
    vain = hasty = 0
    for number in range(gatherings):
        got = honest | {each for place, each in enumerate(crowd) if number % turns != place}
        awaited = wait_policy.expected_peers(ranks, UNTRIED_S)
        vain += bool(awaited - got)
        hasty += number > 0 and not honest <= awaited
        wait_policy.record_outcome(ranks, got, ())
    return vain, hasty


@pytest.mark.parametrize("turns", [2, 3, 8, 50])
def test_those_who_give_by_turns_have_few_gatherings_last_to_their_ends(turns: int) -> None:
    vain, hasty = gather_by_turns(WaitPolicy(), turns, 600)
    assert vain <= turns + TIMED_OUT_MAX + 600 / FORGOTTEN_AFTER
    assert hasty == 0, "who gives each time is waited for whatever others do"
