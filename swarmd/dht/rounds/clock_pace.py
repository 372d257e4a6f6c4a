"""How often the clock is read: in a large swarm, where it is gossiped, rarely until a stage is overdue."""

from __future__ import annotations

import math

from swarmd.dht.network_session import NetworkSession
from swarmd.dht.rounds.key_watch import KeyWatch
from swarmd.dht.wire.records import ClockRecord

WATCHED_SLOWLY = 6  # polls between two reads of the clock in a large swarm


class ClockPace:
    """Sets the pace at which the clock's key is read.

    Args:
        session: where all this happens.
        watch: of the key.
    """

    def __init__(self, session: NetworkSession, watch: KeyWatch) -> None:
        self._session = session
        self._watch = watch
        self._deadline_at = math.inf  # of the stage that was announced last, POSIX seconds

    def heard(self, clock: ClockRecord) -> None:
        """The clock says something newer; the session's shards are by it already."""
        polls = WATCHED_SLOWLY if self._session.shards.is_large else 1
        self._watch.poll_s = self._session.config.dht.poll_s * polls
        self._deadline_at = math.inf if clock.final else clock.deadline_at

    async def look_when_overdue(self) -> None:
        """Read the clock in each poll when a stage should be over and nothing was heard of the next."""
        session = self._session
        while True:
            await session.runtime.sleep(session.config.dht.poll_s)
            if session.shards.is_large and session.policy.now() > self._deadline_at:
                self._watch.look()
