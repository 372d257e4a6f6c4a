"""The swarm's clock: announced by the coordinator, followed by everybody, itself included."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from swarmd.core.commands import Announce, ReadClock
from swarmd.core.events import NoRoundYet, RoundAnnounced, RoundPublished
from swarmd.dht.evidence import announcement_of
from swarmd.dht.gossip import Gossip
from swarmd.dht.ports import Record
from swarmd.dht.record_store import KeyWatch, RecordStore
from swarmd.dht.rounds.publisher import Publisher
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.names import MembersPlace, shard_of
from swarmd.dht.wire.records import ClockRecord, is_far
from swarmd.errors import NetworkDown, RecordRejected

WATCHED_SLOWLY = 6  # polls between two reads of the clock in a large swarm, where it is gossiped
CALL_FIRST_S = 1.0  # after the start; each further call is twice as long after the one before
CALL_EVERY_S = 10.0  # at the most
CALLS_PER_S = 100.0  # of all followers together; where there are more of them, each calls less often


class SwarmClock:
    """The swarm's clock: announced by the coordinator, followed by all others.

    Args:
        reached: called with the round of each announcement.
    """

    def __init__(
        self,
        view: SwarmView,
        store: RecordStore,
        publisher: Publisher,
        gossip: Gossip,
        reached: Callable[[int], None] = lambda round: None,
    ) -> None:
        self._view = view
        self._store = store
        self._publisher = publisher
        self._gossip = gossip
        self._reached = reached
        self._name = names.clock(view.swarm)
        self._watch: KeyWatch | None = None  # once it is followed
        self._deadline_at = math.inf  # of the stage that was announced last, POSIX seconds
        self._latest: Record | None = None
        self._told: RoundAnnounced | None = None
        gossip.clock.follow(self._hear)

    def follow(self) -> None:
        """Watch the clock for the rest of the session, and listen for the coordinator."""
        view, store = self._view, self._store
        self._watch = store.watch(self._name, self._see)
        if not view.coordinating and view.coordinator:
            view.runtime.start(self._call_coordinator())
            view.runtime.start(self._look_when_overdue(self._watch))

    async def _call_coordinator(self) -> None:
        """See now and then whether the coordinator itself answers: some node of the swarm may be all that one hears.

        The first calls come soon: one that has answered once is missed much earlier.
        """
        view, store, pause_s = self._view, self._store, CALL_FIRST_S
        while True:
            await view.runtime.sleep(pause_s)
            pause_s = min(2 * pause_s, max(CALL_EVERY_S, view.members / CALLS_PER_S))
            view.contact.asked_every(pause_s)
            try:
                if await store.answers(view.coordinator):
                    view.contact.answered()
            except NetworkDown:
                continue

    async def _look_when_overdue(self, watch: KeyWatch) -> None:
        """Read a large swarm's clock in each poll if a stage should be over and nothing was heard of the next."""
        view = self._view
        while True:
            await view.runtime.sleep(view.config.dht.poll_s)
            if view.shards.is_large and view.policy.now() > self._deadline_at:
                watch.look()

    def _hear(self, record: Record) -> None:
        """A record that was gossiped. Raises RecordRejected where it does not count."""
        view, store = self._view, self._store
        if record.owner != view.coordinator:
            raise RecordRejected("not-the-coordinator", f"{record.owner} is not the coordinator")
        self._see({record.owner: store.judge(self._name, record)})

    async def announce(self, command: Announce) -> None:
        """Publish where the swarm is. Raises NetworkDown."""
        content = ClockRecord(
            swarm=self._view.swarm,
            round=command.round,
            stage=command.stage,
            opened_at=command.opened_at,
            deadline_at=command.deadline_at,
            final=command.final,
            opening=command.opening,
            shards=command.shards,
            sharded_since=command.sharded_since,
            shards_before=command.shards_before,
            steady_min=command.steady_min,
        )
        self._view.shards.note(content)
        await self._publisher.publish(content)
        self._view.emit(RoundPublished(command.id, command.round, command.stage))

    async def read(self, command: ReadClock) -> None:
        """Read the clock and tell it, whatever was told before.

        Raises:
            NetworkDown: nobody answered; that is not the same as no round.
        """
        found = await self._store.find(self._name)
        self._keep_if_later(found.records)
        if self._latest is not None:
            self._report(self._latest)
        elif found.answered or self._view.coordinating:
            self._view.emit(NoRoundYet())
        else:
            raise NetworkDown("no peer answered when the clock was read")

    def _see(self, records: Mapping[str, Record]) -> None:
        if self._keep_if_later(records) and self._latest is not None and announcement_of(self._latest) != self._told:
            self._report(self._latest)

    def _keep_if_later(self, records: Mapping[str, Record]) -> bool:
        """Keep the coordinator's record if it is later than the one known. True when it is.

        One that was known while a clock was ahead is no measure after that clock was set back.
        """
        record, known = records.get(self._view.coordinator), self._latest
        if known is not None and is_far(known.expiration, self._view.policy.now()):
            known = None
        if record is None or (known is not None and record.expiration <= known.expiration):
            return False
        self._latest = record
        self._pass_on(record)
        return True

    def _pass_on(self, record: Record) -> None:
        """Hold it for whoever asks, and gossip it where it came by another way."""
        view, store, gossip, content = self._view, self._store, self._gossip, record.content
        if isinstance(content, ClockRecord):
            view.contact.announced(content.deadline_at, content.final)
            view.shards.note(content)
            self._deadline_at = math.inf if content.final else content.deadline_at
            if self._watch is not None:
                self._watch.read_every(view.config.dht.poll_s * (WATCHED_SLOWLY if view.shards.is_large else 1))
        store.hold(self._name, record)
        gossip.clock.pass_on(record)

    def _report(self, record: Record) -> None:
        self._told = announcement_of(record)
        self._view.policy.announce(self._told.round)
        self._view.emit(self._told)
        self._reached(self._told.round)


class Shard(NamedTuple):
    """Where a peer's records of a stage lie."""

    shards: int  # of the stage; 0: it has none
    shard: int


async def find_shards(view: SwarmView, store: RecordStore, round: int) -> int:
    """Number of shards of a round's stages; the clock is read where this node has heard too little of it.

    Raises:
        NetworkDown: nobody answered; that is not the same as none.
    """
    known = view.shards.of(round)
    if known is not None:
        return known
    await _read_clock(view, store, f"for the shards of round {round}")
    return view.shards.latest_of(round)


async def find_members_place(view: SwarmView, store: RecordStore) -> MembersPlace:
    """Where memberships lie; the clock is read where this node has not heard it yet. Raises NetworkDown."""
    if view.shards.awaits_place:
        await _read_clock(view, store, "for the shards of memberships")
    return view.shards.members


async def _read_clock(view: SwarmView, store: RecordStore, purpose: str) -> None:
    found = await store.find(names.clock(view.swarm))
    clock = found.records.get(view.coordinator)
    if clock is not None and isinstance(clock.content, ClockRecord):
        view.shards.note(clock.content)
    elif not found.answered and not view.coordinating:
        raise NetworkDown(f"no peer answered when the clock was read {purpose}")


async def find_own_shard(view: SwarmView, store: RecordStore, round: int, stage: int) -> Shard:
    """Where this node's own records of a stage lie. Raises NetworkDown."""
    shards = await find_shards(view, store, round)
    return Shard(shards, shard_of(view.swarm, view.peer_id, round, stage, shards))
