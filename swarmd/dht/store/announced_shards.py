"""The numbers of shards: those that the clock announces, by round, or that the manifest of a swarm on a chain gives."""

from __future__ import annotations

from collections.abc import Callable

from swarmd.dht.wire.records import ClockRecord
from swarmd.dht.wire.shards import EPOCH_ROUNDS, MembersPlace, epoch_of

CHANGES_KEPT = 16  # of the number, beyond what an honest coordinator makes within the rounds whose records count


class AnnouncedShards:
    """What is known of the stages' shards.

    Attributes:
        members: where memberships lie, as far as is known.
        members_before: where they lay before that, also before this node was there; a member that has not heard of the
            change yet is still found there.
        moved: called when they lie elsewhere.
        fixed: the number that the manifest of a swarm on a chain gives all stages, and the memberships, which then stay
            where they are: the contract announces none. 0: there are none, or as many as the clock says.

    Args:
        sharded: whether the swarm's clock may announce any: the rounds are no contract's.
        members_sharded: whether memberships lie in as many.
        fixed: as the attribute.
    """

    def __init__(self, sharded: bool, members_sharded: bool = False, fixed: int = 0) -> None:
        self.members = self.members_before = MembersPlace(fixed)
        self.fixed = fixed
        self.moved: Callable[[], None] = lambda: None
        self._sharded = sharded
        self._members_sharded = sharded and members_sharded
        self._round = -1  # of the latest clock record
        self._counts: dict[int, int] = {}  # first round → number from there on

    @classmethod
    def of_swarm(cls, fixed: int | None, admission: str = "open") -> AnnouncedShards:
        """As a swarm's manifest has it.

        What a host withdraws stands in its membership and is for all: those of a swarm by invitation lie under one key.

        Args:
            fixed: as the attribute; None where there is no chain.
        """
        if fixed is not None:
            return cls(False, fixed=fixed)
        return cls(True, admission != "invitation")

    @property
    def awaits_place(self) -> bool:
        """Whether the clock says where memberships lie, and was not heard yet."""
        return self._members_sharded and self._round < 0

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
        if self._members_sharded:
            self._place_members()

    def _place_members(self) -> None:
        place = self._place_in(self._round)
        if place != self.members:
            self.members, self.members_before = place, self._place_in(self._moved_in(self._round) - 1)
            self.moved()

    def _place_in(self, round: int) -> MembersPlace:
        shards = self.latest_of(round)
        return MembersPlace(shards, epoch_of(round)) if shards else MembersPlace()

    def _moved_in(self, round: int) -> int:
        """The round that memberships lie since where they lie in this one: the epoch's first, or a later one that
        changed the number of shards."""
        return max([epoch_of(round) * EPOCH_ROUNDS, *(since for since in self._counts if since <= round)])

    @property
    def is_large(self) -> bool:
        """Whether stages lie in shards now: the swarm has too many members for all to ask the coordinator for all."""
        return self.fixed > 0 or self.latest_of(self._round) > 0

    def of(self, round: int) -> int | None:
        """Number of shards of a round's stages; None where the clock was not heard in that round or a later one."""
        if not self._sharded:
            return self.fixed
        return self.latest_of(round) if round <= self._round else None

    def latest_of(self, round: int) -> int:
        """The same, by what is known so far."""
        if not self._sharded:
            return self.fixed
        return next((self._counts[since] for since in reversed(self._counts) if since <= round), 0)
