"""The numbers of shards that the clock has announced, by round. Pure."""

from __future__ import annotations

from swarmd.core.coordinator.shards import SHARDED_SINCE
from swarmd.dht.wire.records import ClockRecord

CHANGES_KEPT = 16  # of the number, beyond what an honest coordinator makes within the rounds whose records count


class AnnouncedShards:
    """What is known of the stages' shards.

    Args:
        sharded: whether the swarm's clock may announce any: all members know them, and the rounds are no contract's.
    """

    def __init__(self, sharded: bool) -> None:
        self._sharded = sharded
        self._round = -1  # of the latest clock record
        self._counts: dict[int, int] = {}  # first round → number from there on

    @classmethod
    def of_swarm(cls, protocol: int, on_chain: bool) -> AnnouncedShards:
        """For a swarm whose members speak this version of the protocol or a later one."""
        return cls(protocol >= SHARDED_SINCE and not on_chain)

    def note(self, clock: ClockRecord) -> None:
        """Take over what a clock record says."""
        if clock.round < self._round:
            return
        self._round = clock.round
        for since in [since for since in self._counts if since >= clock.sharded_since]:
            del self._counts[since]
        if clock.sharded_since > 0 and not self._counts:
            self._counts[0] = clock.shards_before
        self._counts[clock.sharded_since] = clock.shards
        for since in list(self._counts)[:-CHANGES_KEPT]:
            del self._counts[since]

    def of(self, round: int) -> int | None:
        """Number of shards of a round's stages; None where the clock was not heard in that round or a later one."""
        if not self._sharded:
            return 0
        return self.latest_of(round) if round <= self._round else None

    def latest_of(self, round: int) -> int:
        """The same, by what is known so far."""
        if not self._sharded:
            return 0
        return next((self._counts[since] for since in reversed(self._counts) if since <= round), 0)
