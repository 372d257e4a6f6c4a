"""Which peers a look-up asks, for which owners, and in which order owners rank."""

from __future__ import annotations

import hashlib
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from swarmd.core.values import Standing
from swarmd.dht.identity import proof_of_work
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, find_work
from swarmd.dht.p2p.hivemind_api import DHTID
from swarmd.dht.store.lookup import KeySearch
from swarmd.dht.store.parts import LATE_MAX, LATE_S, TRIES_MAX, LookupShares, Promptness
from swarmd.dht.store.seniority import ELDERS, ELDEST_SHARE, Seniority
from swarmd.dht.wire import names
from swarmd.dht.wire.records import AnnouncedShards, ClockRecord, Record
from tests.dht.making import MEMBERSHIP, SWARM

OWNERS = [f"peer-{number}" for number in range(20)]


def test_every_owner_is_asked_for_once_and_everybody_is_asked_for_as_many() -> None:
    shares = LookupShares(OWNERS, 4)
    taken = [shares.assign_share(peer) for peer in range(5)]
    assert [len(share) for share in taken] == [5, 5, 5, 5, 0]
    assert Counter(owner for share in taken for owner in share) == Counter(OWNERS)


def test_what_a_peer_does_not_show_is_asked_of_others_and_of_a_few_only() -> None:
    shares = LookupShares(OWNERS[:1], 1)
    for peer in range(TRIES_MAX):
        share = shares.assign_share(peer)
        shares.release_share(share, [])
        assert share == ("peer-0",) and shares.assign_share(peer) == ()
    assert shares.assign_share("another") == ()


def test_who_is_wanted_is_asked_for_first_and_again_before_all_others() -> None:
    crowd = [f"crowd {number}" for number in range(60)]
    shares = LookupShares([*crowd, "a", "b"], 8, first=["a", "b"])
    first = shares.assign_share("one")
    assert set(first[:2]) == {"a", "b"} and len(first) == 8
    assert not {"a", "b"} & set(shares.assign_share("two"))
    shares.release_share(first, shown=["b"])
    assert shares.assign_share("three")[0] == "a"


def be_late(promptness: Promptness, peer: str, times: int, answered: bool = True) -> None:
    for _ in range(times):
        promptness.record_answer(peer, LATE_S * 2, answered)


def test_one_late_answer_is_nothing() -> None:
    promptness = Promptness()
    be_late(promptness, "a", LATE_MAX - 1)
    assert not promptness.is_late("a")
    be_late(promptness, "a", 1)
    assert promptness.is_late("a") and not promptness.is_late("b")


def test_a_prompt_answer_makes_good() -> None:
    promptness = Promptness()
    be_late(promptness, "a", LATE_MAX)
    promptness.record_answer("a", LATE_S / 2, answered=True)
    assert not promptness.is_late("a")


COORDINATOR, ELDER = generate_identity().peer_id, generate_identity().peer_id


def asked_first(name: str, shards: int, *trusted_peers: str) -> set[str]:
    announced = AnnouncedShards()
    announced.apply_clock(ClockRecord(SWARM, 0, 0, 0.0, 1.0, shards=shards))
    policy = SimpleNamespace(coordinator=COORDINATOR, shards=announced)
    validator = SimpleNamespace(policy=policy, trusted_peers=lambda: (COORDINATOR, ELDER, *trusted_peers))
    run: Any = SimpleNamespace(
        dht=SimpleNamespace(protocol=SimpleNamespace(record_validator=validator), node_id=DHTID(1))
    )
    return {peer.to_base58() for _, peer in KeySearch(run, name).trusted_peers_to_read(())}


@pytest.mark.parametrize(
    "name", [names.clock_key(SWARM), names.leaderboard_key(SWARM, 3), names.reports_key(SWARM, 3, 0, 4, 1)]
)
def test_the_coordinator_of_a_large_swarm_is_not_asked_by_all(name: str) -> None:
    assert asked_first(name, shards=4) == {ELDER}


PEERS = 2000


def seniority(peers: int = PEERS) -> Seniority:
    """A node that has read standings of so many peers: the first was credited longest."""
    known = Seniority()
    known.update_standings([Standing(f"peer-{number:04}", "", 1.0, 1 + peers - number, 0) for number in range(peers)])
    return known


def membership_of(peer: str, work: int) -> Record:
    content = msgspec.structs.replace(MEMBERSHIP, work=work)
    return cast(Record, SimpleNamespace(owner=peer, content=content, size_bytes=400))


def test_elders_are_of_the_eldest_tenth_and_the_longest_credited_come_first() -> None:
    known = seniority()
    assert len(known.elders) == ELDERS
    assert max(known.elders) < f"peer-{PEERS // ELDEST_SHARE:04}"
    assert known.elders == sorted(known.elders)


def test_work_is_hashed_once_for_all_reads_and_anew_when_another_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    begin = proof_of_work._start_hash
    peer = generate_identity().peer_id
    records = membership_of(peer, 0), membership_of(peer, find_work(SWARM, peer, WORK_BITS))

    def count(swarm: str, peer: str) -> hashlib._Hash:
        hashed.append(peer)
        return begin(swarm, peer)

    monkeypatch.setattr(proof_of_work, "_start_hash", count)
    ranks = [seniority(0).rank_of(record, b"key") for record in records for _ in range(3)]
    assert [rank.has_proof_of_work for rank in ranks] == [False] * 3 + [True] * 3
    assert hashed == [peer, peer]
