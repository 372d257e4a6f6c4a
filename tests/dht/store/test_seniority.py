"""Of the peers that were credited longest each node asks some of its own, and the eldest few are not asked by all."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from swarmd.core.values import Standing
from swarmd.dht.identity import proof_of_work
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.identity.proof_of_work import WORK_BITS, find_work
from swarmd.dht.ports import Record
from swarmd.dht.store.seniority import ELDERS, ELDEST_SHARE, Seniority
from tests.dht.making import MEMBERSHIP, SWARM

PEERS = 2000


def seniority(peers: int = PEERS) -> Seniority:
    """A node that has read standings of so many peers: the first was credited longest."""
    known = Seniority()
    known.learn([Standing(f"peer-{number:04}", "", 1.0, 1 + peers - number, 0) for number in range(peers)])
    return known


def membership_of(peer: str, work: int) -> Record:
    content = msgspec.structs.replace(MEMBERSHIP, work=work)
    return cast(Record, SimpleNamespace(owner=peer, content=content, size_bytes=400))


def test_elders_are_of_the_eldest_tenth_and_the_longest_credited_come_first() -> None:
    known = seniority()
    assert len(known.elders) == ELDERS
    assert set(known.elders) <= set(known.eldest[: PEERS // ELDEST_SHARE])
    assert known.elders == sorted(known.elders)


def test_work_is_hashed_once_for_all_reads_and_anew_when_another_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    begin = proof_of_work._begin
    peer = generate_identity().peer_id
    records = membership_of(peer, 0), membership_of(peer, find_work(SWARM, peer, WORK_BITS))

    def count(swarm: str, peer: str) -> hashlib._Hash:
        hashed.append(peer)
        return begin(swarm, peer)

    monkeypatch.setattr(proof_of_work, "_begin", count)
    ranks = [seniority(0).rank_of(record, b"key") for record in records for _ in range(3)]
    assert [rank.worked for rank in ranks] == [False] * 3 + [True] * 3
    assert hashed == [peer, peer]
