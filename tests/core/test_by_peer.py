"""Values by peer: every version stays as it was made, whatever becomes of the others."""

import pickle
from random import Random

import msgspec
import pytest

from swarmd.core.by_peer import STALE_MIN, ValuesByPeer
from swarmd.core.state import NO_MEMBERS, NO_REPORTS, Coordination, Member, Members, Report, State
from swarmd.eventlog.snapshot import decode_state, encode_state

PEERS = [f"peer {number}" for number in range(9)]


def invent(random: Random) -> Member:
    """A member of one of few peers."""
    flags = {"left": random.random() < 0.3, "worked": random.random() < 0.7}
    return Member(random.choice(PEERS), "", random.randrange(4), last_round=random.randrange(-1, 4), **flags)


def put_last(plain: list[Member], member: Member) -> list[Member]:
    """The same with a list."""
    return [*without(plain, member.peer), member]


def without(plain: list[Member], peer: str) -> list[Member]:
    return [each for each in plain if each.peer != peer]


@pytest.mark.parametrize("seed", range(8))
def test_every_version_is_what_a_list_would_be(seed: int) -> None:
    """Changed are older versions too, from which a copy has to be made."""
    random = Random(seed)
    versions: list[tuple[Members, list[Member]]] = [(NO_MEMBERS, [])]
    for _ in range(5 * STALE_MIN):
        members, plain = versions[-1] if random.random() < 0.9 else random.choice(versions)
        if random.random() < 0.2:
            peer = random.choice(PEERS)
            versions.append((members.without_peer(peer), without(plain, peer)))
        else:
            member = invent(random)
            versions.append((members.put(member), put_last(plain, member)))
    for members, plain in versions:
        assert list(members) == plain and len(members) == len(plain)
        assert [members.get(peer) for peer in PEERS] == [
            next((each for each in plain if each.peer == peer), None) for peer in PEERS
        ]
        assert members.present == sum(not each.left for each in plain)
        assert {each.peer for each in members.idle} == {each.peer for each in plain if not each.worked}


@pytest.mark.parametrize("seed", range(8))
def test_what_grows_is_one_version_until_it_is_closed(seed: int) -> None:
    random = Random(seed)
    growing, plain = NO_MEMBERS, list[Member]()
    closed: list[tuple[Members, list[Member]]] = [(growing, plain)]
    for _ in range(5 * STALE_MIN):
        before, size = growing, growing.size
        member = invent(random)
        growing, plain = growing.put_in_place(member), put_last(plain, member)
        fresh = before is closed[-1][0] or growing.size <= size  # the first after one that is closed, or a copy
        assert fresh or growing is before
        if random.random() < 0.3:
            growing.freeze()
            closed.append((growing, plain))
    assert len(closed) > STALE_MIN
    for members, values in closed:
        assert list(members) == values and members.count == len(values)
        assert members.present == sum(not each.left for each in values)
        assert {each.peer for each in members.idle} == {each.peer for each in values if not each.worked}


def test_a_version_made_of_a_growing_one_leaves_it_as_it_is() -> None:
    growing = NO_MEMBERS.put_in_place(Member("a", "", 0))
    fewer = growing.without_peer("a")
    assert list(growing) == [Member("a", "", 0)] and fewer is NO_MEMBERS
    again = growing.put_in_place(Member("b", "", 0))
    assert again is not growing and len(growing) == 1 and len(again) == 2


def test_a_put_copies_nothing_however_many_there_are() -> None:
    members = Members.from_values([Member(f"peer {number}", "", 0) for number in range(1000)])
    assert members.put(Member("one more", "", 0)).is_successor_of(members)
    assert not members.put(Member("another", "", 0)).is_successor_of(members.put(Member("one more", "", 0)))


def test_a_member_that_changes_for_ever_takes_no_more_room() -> None:
    members = NO_MEMBERS
    for number in range(100 * STALE_MIN):
        members = members.put(Member("restless", str(number), 0))
    assert members.size <= 2 * STALE_MIN


def test_nothing_is_always_the_same_object() -> None:
    """msgspec leaves out a field that has its default, which it tells by that."""
    assert reports_of([Report("a", 1.0, b"")]).without_peer("a") is NO_REPORTS
    assert Members.from_values([]) is NO_MEMBERS is Members.empty() and ValuesByPeer.empty() is not NO_MEMBERS


def reports_of(reports: list[Report]) -> ValuesByPeer[Report]:
    return type(NO_REPORTS).from_values(reports)


def test_a_state_reads_back_with_its_members_and_reports() -> None:
    members, reports = Members.from_values([Member("a", "Ann", 1)]), reports_of([Report("a", float("nan"), b"r")])
    state = State(coordination=Coordination(members=members, reports=reports))  # type: ignore[arg-type]
    again = decode_state(encode_state(state))
    assert encode_state(again) == encode_state(state)
    assert again.coordination is not None and again.coordination.members == members
    assert pickle.loads(pickle.dumps(members)) == members


def test_a_state_whose_members_are_none_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_state(msgspec.msgpack.encode({"coordination": {"members": [{"peer": 5}]}}))
