"""Thousands of memberships do not make thousands of events, and are not kept for ever."""

from typing import Any, cast

import msgspec
import pytest

from swarmd.bounds import KEYS_MAX
from swarmd.config import Config, SwarmConfig
from swarmd.core.events import Event, MemberLeft, MemberSeen
from swarmd.core.values import Standing
from swarmd.dht import membership
from swarmd.dht.identity.identity import Identity, generate_identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, find_work, work_bits
from swarmd.dht.membership import IDLE_BURST, NEWCOMERS_BURST, RETURNS_BURST, MemberPresences, Members
from swarmd.dht.store.seniority import Rank
from swarmd.dht.wire.records import PAST_S, SignedRecord
from tests.dht.making import ALICE, BOB, MEMBERSHIP, SWARM, signed_by
from tests.dht.network import Network, VirtualTime


class Watcher(Network):
    """`Members` that reads what it is given, at a time of ours."""

    def __init__(self) -> None:
        self.time = VirtualTime(1000.0)
        config = Config(SwarmConfig(id=SWARM, coordinator="boss"), role="follower")
        super().__init__(config, self.time.runtime)
        publisher = cast(Any, None)  # nothing is published
        self.members = Members(self.view, self.store, publisher, self.node)

    def read(self, *records: SignedRecord) -> list[Event]:
        """What is told when these are found."""
        before = len(self.events)
        self.members._handle_memberships({signed.owner: signed for signed in records})
        return self.events[before:]


def of(identity: Identity, until: float, work: int = 0, leaving: bool = False) -> SignedRecord:
    content = msgspec.structs.replace(MEMBERSHIP, name="", work=work, leaving=leaving)
    return msgspec.structs.replace(signed_by(identity, content), expiration=until)


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


def test_who_writes_no_more_is_gone_when_its_record_is(watcher: Watcher) -> None:
    work = {each: find_work(SWARM, each.peer_id, WORK_BITS) for each in (ALICE, BOB)}
    seen = watcher.read(of(ALICE, 1030.0, work[ALICE]), of(BOB, 1900.0, work[BOB]))  # in the order of a lot
    assert len(seen) == 2 and MemberSeen(ALICE.peer_id) in seen and MemberSeen(BOB.peer_id) in seen
    watcher.time.now = 1030.0 + PAST_S - 1
    assert watcher.read() == [] and watcher.view.members == 2
    watcher.time.now += 2
    assert watcher.read() == [MemberLeft(ALICE.peer_id)] and watcher.view.members == 1
    watcher.time.now += 100
    assert watcher.read(of(ALICE, 2500.0, work[ALICE])) == [MemberSeen(ALICE.peer_id)]
    assert watcher.read(of(ALICE, 2501.0, work[ALICE], leaving=True)) == [MemberLeft(ALICE.peer_id)]
    watcher.time.now = 9000.0
    assert watcher.read() == [MemberLeft(BOB.peer_id)], "it is told once that a member is gone"


def test_a_crowd_is_news_slowly_and_keeps_nobody_waiting_that_has_worked_or_is_known(watcher: Watcher) -> None:
    identities = [generate_identity() for _ in range(int(2 * NEWCOMERS_BURST))]
    crowd = [of(each, 5000.0) for each in identities if work_bits(SWARM, each.peer_id, 0) < WORK_BITS]
    assert len(watcher.read(*crowd)) == IDLE_BURST
    assert watcher.view.members == 1, "what goes by the number of members does not go by theirs"
    watcher.time.now += 60
    assert 0 < len(watcher.read(*crowd)) < IDLE_BURST
    worker, elder = generate_identity(), generate_identity()
    watcher.view.seniority.update_standings([Standing(elder.peer_id, "", 1.0, 1, 0)])
    worked = [of(each, 5000.0, find_work(SWARM, each.peer_id, 16)) for each in (worker, elder)]
    assert {cast(MemberSeen, event).peer for event in watcher.read(*crowd, *worked)} == {
        worker.peer_id,
        elder.peer_id,
    }
    assert watcher.view.members == 2


def test_where_the_list_is_full_those_who_left_make_room(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MEMBERS_MAX", 2)
    watcher.read(of(ALICE, 5000.0), of(BOB, 5000.0))
    third = generate_identity()
    assert watcher.read(of(third, 5000.0)) == []
    watcher.read(of(BOB, 5001.0, leaving=True))
    assert watcher.read(of(third, 5000.0)) == [MemberSeen(third.peer_id, worked=False)]


UNTIL = 900.0


def credited() -> Rank:
    return Rank(5, WORK_BITS, True, b"")


@pytest.fixture
def presences(monkeypatch: pytest.MonkeyPatch) -> MemberPresences:
    monkeypatch.setattr(membership, "IDLE_MEMBERS_MAX", 4)
    return MemberPresences(lambda: 0.0)


def test_a_crowd_with_credit_that_leaves_and_comes_back_in_turn_has_no_fresh_burst_each_time(
    presences: MemberPresences,
) -> None:
    peers = [f"peer {number}" for number in range(KEYS_MAX + 1)]
    told = [presences.record_presence(peer, True, UNTIL, credited) for peer in peers]
    assert all(told)
    returns = 0
    for _ in range(3 * int(RETURNS_BURST)):
        for peer in peers:
            presences.record_presence(peer, False, UNTIL, credited)
            returns += presences.record_presence(peer, True, UNTIL, credited) is True
    assert returns == RETURNS_BURST * len(peers)
