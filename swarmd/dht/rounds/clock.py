"""The swarm's clock: announced by the coordinator, followed by everybody, itself included."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from swarmd.core.commands import Announce, ReadClock
from swarmd.core.events import NoRoundYet, RoundAnnounced, RoundPublished
from swarmd.dht.network_session import NetworkSession
from swarmd.dht.ports import Record
from swarmd.dht.rounds.key_watch import KeyWatch
from swarmd.dht.wire import names
from swarmd.dht.wire.evidence import Evidence
from swarmd.dht.wire.names import MembersPlace, shard_of
from swarmd.dht.wire.records import ROUNDS_AHEAD, ClockRecord, is_far
from swarmd.errors import NetworkDown, RecordRejected

WATCHED_SLOWLY = 6  # polls between two reads of the clock in a large swarm, where it is gossiped
CALL_FIRST_S = 1.0  # after the start; each further call is twice as long after the one before
CALL_EVERY_S = 10.0  # at the most
CALLS_PER_S = 100.0  # of all followers together; where there are more of them, each calls less often


class SwarmClock:
    """The swarm's clock: announced by the coordinator, followed by all others.

    Args:
        session: where all this happens.
        reached: called with the round of each announcement.
    """

    def __init__(self, session: NetworkSession, reached: Callable[[int], None] = lambda round: None) -> None:
        self._session = session
        self._reached = reached
        self._name = names.clock(session.swarm)
        self._watch: KeyWatch | None = None  # once it is followed
        self._deadline_at = math.inf  # of the stage that was announced last, POSIX seconds
        self._latest: Record | None = None
        self._told: RoundAnnounced | None = None

    def follow(self) -> None:
        """Watch the clock for the rest of the session, and listen for the coordinator."""
        session = self._session
        session.heard_clock = self._hear
        session.exchange.contradicted = self._tell_both
        self._watch = session.watch(self._name, self._see)
        if not session.coordinating and session.coordinator:
            session.start(self._call_coordinator)
            session.start(self._look_when_overdue, self._watch)

    async def _call_coordinator(self) -> None:
        """See now and then whether the coordinator itself answers: some node of the swarm may be all that one hears.

        The first calls come soon: one that has answered once is missed much earlier.
        """
        session, pause_s = self._session, CALL_FIRST_S
        while True:
            await session.runtime.sleep(pause_s)
            pause_s = min(2 * pause_s, max(CALL_EVERY_S, session.members / CALLS_PER_S))
            session.hearing.asked_every(pause_s)
            try:
                if await session.records.answers(session.coordinator):
                    session.hearing.answered()
            except NetworkDown:
                continue

    async def _look_when_overdue(self, watch: KeyWatch) -> None:
        """Read a large swarm's clock in each poll if a stage should be over and nothing was heard of the next."""
        session = self._session
        while True:
            await session.runtime.sleep(session.config.dht.poll_s)
            if session.shards.is_large and session.policy.now() > self._deadline_at:
                watch.look()

    def _hear(self, record: Record) -> None:
        """A record that was gossiped. Raises RecordRejected where it does not count."""
        session = self._session
        if record.owner != session.coordinator:
            raise RecordRejected("not-the-coordinator", f"{record.owner} is not the coordinator")
        self._see({record.owner: session.judge(self._name, record)})

    async def announce(self, command: Announce) -> None:
        """Publish where the swarm is. Raises NetworkDown."""
        content = ClockRecord(
            swarm=self._session.swarm,
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
        self._session.shards.note(content)
        await self._session.publisher.publish(content)
        self._session.emit(RoundPublished(command.id, command.round, command.stage))

    async def read(self, command: ReadClock) -> None:
        """Read the clock and tell it, whatever was told before.

        Raises:
            NetworkDown: nobody answered; that is not the same as no round.
        """
        found = await self._session.records.find(self._name)
        self._keep_if_later(found.records)
        if self._latest is not None:
            self._report(self._latest)
        elif found.answered or self._session.coordinating:
            self._session.emit(NoRoundYet())
        else:
            raise NetworkDown("no peer answered when the clock was read")

    def _see(self, records: Mapping[str, Record]) -> None:
        if self._keep_if_later(records) and self._latest is not None and _said(self._latest) != self._told:
            self._report(self._latest)

    def _keep_if_later(self, records: Mapping[str, Record]) -> bool:
        """Keep the coordinator's record if it is later than the one known. True when it is.

        One that was known while a clock was ahead is no measure after that clock was set back.
        """
        record, known = records.get(self._session.coordinator), self._latest
        if known is not None and is_far(known.expiration, self._session.policy.now()):
            known = None
        if record is None or (known is not None and record.expiration <= known.expiration):
            return False
        self._latest = record
        self._pass_on(record)
        return True

    def _pass_on(self, record: Record) -> None:
        """Hold it for whoever asks, and gossip it where it came by another way."""
        session, content = self._session, record.content
        if isinstance(content, ClockRecord):
            session.hearing.announced(content.deadline_at, content.final)
            session.shards.note(content)
            self._deadline_at = math.inf if content.final else content.deadline_at
            if self._watch is not None:
                self._watch.poll_s = session.config.dht.poll_s * (WATCHED_SLOWLY if session.shards.is_large else 1)
        session.records.hold(self._name, record)
        session.herald.pass_on(record)

    def _report(self, record: Record) -> None:
        self._told = _said(record)
        self._session.policy.round = self._told.round
        self._session.emit(self._told)
        self._reached(self._told.round)

    def _tell_both(self, evidence: Evidence) -> None:
        """The coordinator told others otherwise: tell both, of which the core takes the later place and deadline.

        So all who know of both go on alike. What lies too far ahead is nothing to go on by.
        """
        for signed in (evidence.first, evidence.second):
            if isinstance(signed.content, ClockRecord):
                said, reached = _said(signed), self._session.policy.round
                if reached is None or said.round <= reached + ROUNDS_AHEAD:
                    self._session.emit(said)


def _said(record: Record) -> RoundAnnounced:
    """What a clock record says; its number says nothing."""
    content = record.content
    assert isinstance(content, ClockRecord)
    return RoundAnnounced(content.round, content.stage, content.opened_at, content.deadline_at, content.final)


class Shard(NamedTuple):
    """Where a peer's records of a stage lie."""

    shards: int  # of the stage; 0: it has none
    shard: int


async def find_shards(session: NetworkSession, round: int) -> int:
    """Number of shards of a round's stages; the clock is read where this node has heard too little of it.

    Raises:
        NetworkDown: nobody answered; that is not the same as none.
    """
    known = session.shards.of(round)
    if known is not None:
        return known
    await _read_clock(session, f"for the shards of round {round}")
    return session.shards.latest_of(round)


async def find_members_place(session: NetworkSession) -> MembersPlace:
    """Where memberships lie; the clock is read where this node has not heard it yet. Raises NetworkDown."""
    if session.shards.awaits_place:
        await _read_clock(session, "for the shards of memberships")
    return session.shards.members


async def _read_clock(session: NetworkSession, purpose: str) -> None:
    found = await session.records.find(names.clock(session.swarm))
    clock = found.records.get(session.coordinator)
    if clock is not None and isinstance(clock.content, ClockRecord):
        session.shards.note(clock.content)
    elif not found.answered and not session.coordinating:
        raise NetworkDown(f"no peer answered when the clock was read {purpose}")


async def find_own_shard(session: NetworkSession, round: int, stage: int) -> Shard:
    """Where this node's own records of a stage lie. Raises NetworkDown."""
    shards = await find_shards(session, round)
    return Shard(shards, shard_of(session.swarm, session.peer_id, round, stage, shards))
