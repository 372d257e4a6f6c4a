"""A single peer's membership is looked for once while it lives, where it lies now or lay before."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from swarmd.dht.members.member_lookups import MemberLookups
from swarmd.dht.ports import Record
from swarmd.dht.store.announced_shards import AnnouncedShards
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ClockRecord, Membership
from swarmd.dht.wire.shards import member_shard_of
from swarmd.errors import NetworkDown

pytestmark = pytest.mark.anyio

SWARM = "s"
LIVES_S = 900.0


class Peers:
    """A swarm of which memberships can be looked up, at a time of ours; the lookups themselves are shipped."""

    def __init__(self, shards: int = 8) -> None:
        self.now = 1000.0
        self.asked: list[str] = []
        self.kept: dict[str, dict[str, Any]] = {}
        self.seen: dict[str, Record] = {}
        announced = AnnouncedShards(True, members_sharded=True)
        announced.note(ClockRecord(SWARM, 0, 0, 0.0, 1.0, shards=shards))
        policy = SimpleNamespace(now=lambda: self.now)
        self.session: Any = SimpleNamespace(swarm=SWARM, shards=announced, policy=policy, records=self)
        self.lookups = MemberLookups(self.session, self._see)

    def _see(self, records: Mapping[str, Record]) -> None:
        self.seen |= records
        self.lookups.note(records)

    async def find_of(self, name: str, owner: str) -> Any:
        self.asked.append(name)
        found = self.kept.get(name, {})
        return SimpleNamespace(records={owner: found[owner]} if owner in found else {})

    def join(self, peer: str, leaving: bool = False) -> str:
        """A peer with a membership where these lie now."""
        place = self.session.shards.members
        name = names.members(SWARM, *place, member_shard_of(SWARM, peer, place))
        self.kept.setdefault(name, {})[peer] = self.record(peer, leaving)
        return name

    def record(self, peer: str, leaving: bool = False) -> Any:
        content = Membership(SWARM, peer, "n", 1.0, leaving=leaving)
        return SimpleNamespace(owner=peer, content=content, expiration=self.now + LIVES_S)


async def test_a_membership_is_looked_for_in_its_owners_shard_and_kept_until_it_expires() -> None:
    peers = Peers()
    name = peers.join("anna")
    for _ in range(3):
        await peers.lookups.must_be_member("anna")
    assert peers.asked == [name] and list(peers.seen) == ["anna"]
    peers.now += LIVES_S + 1
    peers.join("anna")
    await peers.lookups.must_be_member("anna")
    assert peers.asked == [name, name]


async def test_who_has_no_membership_or_has_left_is_none() -> None:
    peers = Peers()
    peers.join("otto", leaving=True)
    peers.join("lena")
    await peers.lookups.must_be_member("lena")
    peers.lookups.note({"lena": peers.record("lena", leaving=True)})
    for peer in ("nobody", "otto"):
        with pytest.raises(NetworkDown, match="no membership"):
            await peers.lookups.must_be_member(peer)
    peers.join("lena", leaving=True)
    with pytest.raises(NetworkDown, match="no membership"):
        await peers.lookups.must_be_member("lena")


async def test_a_membership_that_has_expired_is_none_where_no_other_is_found() -> None:
    peers = Peers()
    peers.join("anna")
    await peers.lookups.must_be_member("anna")
    peers.now, peers.kept = peers.now + LIVES_S + 1, {}
    with pytest.raises(NetworkDown, match="no membership"):
        await peers.lookups.must_be_member("anna")
