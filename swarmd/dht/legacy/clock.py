"""The clock of a legacy network: (round, stage) under one key, written when a stage begins."""

from __future__ import annotations

import logging
import random
import time

import anyio

from swarmd.core.commands import Announce, ReadClock
from swarmd.core.events import NoRoundYet, RoundAnnounced, RoundPublished
from swarmd.dht.legacy import keys
from swarmd.dht.legacy.records import read_place
from swarmd.dht.legacy.search import Findings
from swarmd.dht.legacy.session import LegacySession
from swarmd.errors import NetworkDown, RecordRejected

PAUSE_S = 0.5  # between two reads, however often somebody stores the clock here
LEAP_ROUNDS = 64  # the clock may be so far ahead of what was read last, and one more for each second since

log = logging.getLogger(__name__)

Place = tuple[int, int]


class LegacyClock:
    """Announces, or follows what others announce.

    The coordinator goes by its own announcements: anybody can write the clock. Others follow the latest that is there.
    v0.4 has no deadlines. A stage counts as opened when it is first seen, and as due `coordinator.stage_s` later.

    Args:
        session: where all this happens.
    """

    def __init__(self, session: LegacySession) -> None:
        self._session = session
        self._announced: Announce | None = None
        self._told: RoundAnnounced | None = None  # where the clock was when it was read last
        self._furthest: Place = (-1, -1)  # of all that became an event
        self._read_at = 0.0  # by a clock that nobody can set

    async def announce(self, command: Announce) -> None:
        """Write where the swarm is. v0.4 knows no end: its coordinator just stops writing. Raises NetworkDown."""
        if not command.final:
            await self._session.publisher.write(keys.CLOCK, {None: (command.round, command.stage)})
        self._announced = command
        self._tell_own(command)
        self._session.emit(RoundPublished(command.id, command.round, command.stage))

    def _tell_own(self, command: Announce) -> None:
        place = (command.round, command.stage, command.opened_at, command.deadline_at, command.final)
        self._session.emit(RoundAnnounced(*place))

    def deadline_at(self, place: Place) -> float | None:
        """When a stage that this node announced is over, POSIX seconds; None for any other."""
        own = self._announced
        return own.deadline_at if own is not None and (own.round, own.stage) == place else None

    async def read(self, command: ReadClock) -> None:
        """Read the clock and tell it, whatever was told before.

        Raises:
            NetworkDown: nobody answered; that is not the same as no round.
        """
        if self._session.coordinating:
            if self._announced is None:
                self._session.emit(NoRoundYet())
            else:
                self._tell_own(self._announced)
            return
        found = await self._find()
        self._note_position(found)
        if self._told is not None:
            self._report(self._told)
        elif found.answered:
            self._session.emit(NoRoundYet())
        else:
            raise NetworkDown("no peer answered when the clock was read")

    def _report(self, told: RoundAnnounced) -> None:
        self._furthest = max(self._furthest, (told.round, told.stage))
        self._session.emit(told)

    async def _find(self) -> Findings[Place]:
        return await self._session.find(keys.CLOCK, self._read_place)

    def _read_place(self, subkey: str | None, encoded: bytes) -> Place:
        if subkey is not None:
            raise RecordRejected("malformed", "a clock with a subkey")
        place = read_place(encoded)
        last = self._told
        if last is not None and place[0] > last.round + LEAP_ROUNDS + (time.monotonic() - self._read_at):
            raise RecordRejected("wrong-round", f"round {place[0]} soon after round {last.round}")
        return place

    def _note_position(self, found: Findings[Place]) -> bool:
        """Note where the swarm is. True when it has moved."""
        if found.plain is None:
            return False
        self._read_at = time.monotonic()
        round, stage = found.plain.value
        last = self._told
        if last is not None and (last.round, last.stage) == (round, stage):
            return False
        if last is not None and (round, stage) < (last.round, last.stage) == self._furthest:
            log.warning(
                "the coordinator went back from round %d to round %d: it was started anew, or somebody else wrote the "
                "clock; this node waits until the swarm has passed where it was",
                *(last.round, round),
            )
        now = time.time()
        self._told = RoundAnnounced(round, stage, now, now + self._session.config.coordinator.stage_s)
        return True

    async def follow(self) -> None:
        """Read every `dht.poll_s`, and when a peer stores the clock with this node, for the rest of the session.

        Only what leads further than ever becomes an event: anybody may write the clock to and fro.
        """
        session = self._session
        while not session.coordinating:
            await session.node.wait_up()
            session.clock_stored.clear()
            try:
                moved, told = self._note_position(await self._find()), self._told
                if moved and told is not None and (told.round, told.stage) > self._furthest:
                    self._report(told)
            except NetworkDown as error:
                log.debug("the clock was not read: %s", error)
            await anyio.sleep(PAUSE_S)
            with anyio.move_on_after(session.config.dht.poll_s * random.uniform(0.9, 1.1)):
                await session.clock_stored.wait()
