"""Which keys of memberships are watched: a follower's own shard, all of the coordinator's, wherever they lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from swarmd.config import DhtConfig
from swarmd.dht.members.member_keys import WATCHED_SLOWLY, MemberKeys
from swarmd.dht.ports import RecordsSink
from swarmd.dht.rounds.publisher import RENEWALS
from swarmd.dht.store.announced_shards import AnnouncedShards
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ClockRecord
from swarmd.dht.wire.shards import EPOCH_ROUNDS, MembersPlace, member_shard_of

pytestmark = pytest.mark.anyio

SWARM, PEER = "s", "me"


class Enough(Exception):
    """The test has seen what it wanted."""


class Watching:
    """A session that says which keys are watched, and how slowly."""

    def __init__(self, coordinating: bool) -> None:
        self.swarm, self.peer_id, self.coordinating = SWARM, PEER, coordinating
        self.shards = AnnouncedShards(True, members_sharded=True)
        self.config = SimpleNamespace(dht=DhtConfig())
        self.watched: dict[str, float] = {}
        self.seen: dict[str, RecordsSink] = {}
        self.looked: list[str] = []
        self.runtime = self
        self.polls = 0

    async def sleep(self, seconds: float) -> None:
        """Time passes, until the test has seen enough."""
        if not self.polls:
            raise Enough
        self.polls -= 1

    def watch(self, name: str, seen: RecordsSink, polls: float, later: bool) -> Any:
        self.watched[name], self.seen[name] = polls, seen
        return SimpleNamespace(name=name, look=lambda: self.looked.append(name))

    def unwatch(self, name: str) -> None:
        del self.watched[name]

    def start(self, task: Any) -> None:
        self.task = task

    def announce(self, round: int, shards: int) -> None:
        self.shards.note(ClockRecord(SWARM, round, 0, 0.0, 1.0, shards=shards))


def keys_of(session: Any) -> MemberKeys:
    keys = MemberKeys(session, lambda records: None)
    keys.watch()
    return keys


def own_key(shards: int, epoch: int) -> str:
    place = MembersPlace(shards, epoch)
    return names.members(SWARM, *place, member_shard_of(SWARM, PEER, place))


def test_a_follower_watches_its_own_shard_wherever_it_lies() -> None:
    session = Watching(coordinating=False)
    keys = keys_of(session)
    assert session.watched == {names.members(SWARM): WATCHED_SLOWLY}
    for round, shards in ((1, 8), (2, 16), (EPOCH_ROUNDS, 16)):
        session.announce(round, shards)
        assert session.watched == {own_key(shards, round // EPOCH_ROUNDS): WATCHED_SLOWLY}
    keys.look()
    assert session.looked == [own_key(16, 1)]


async def test_the_coordinator_reads_shards_again_as_members_follow_ever_later_and_anew_after_each_move() -> None:
    session = Watching(coordinating=True)
    keys_of(session)
    for epoch in range(2):
        session.announce(epoch * EPOCH_ROUNDS, 2)
        polls = []
        for poll in range(1, 40):
            session.looked, session.polls = [], 1
            with pytest.raises(Enough):
                await session.task()
            for name in session.looked:
                session.seen[name]({})
            polls += [poll] * bool(session.looked)
        dht = session.config.dht
        assert polls == [1, 2, 4, 8, 16, 32], "from then on it is watched as often"
        assert 32 < dht.record_s / RENEWALS / dht.poll_s <= 64
