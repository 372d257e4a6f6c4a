"""A swarm's standings, added up from what its contract said. Pure.

The contract keeps sums and, in some versions, boards; its events are the same in all versions, and they are enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from swarmd.core.events import AnyChainLog, ChainBlock, ChainReorged, RegistrationLog, RewardLog, VoteLog
from swarmd.core.values import BlockRef
from swarmd.errors import ChainError

OPEN_BLOCKS_MAX = 4096  # newest blocks that a reorganisation may take back; older ones are added up for good

Order = Literal["reward", "wins", "votes", "rounds"]
ORDERS: tuple[Order, ...] = get_args(Order)


class PeerStanding(msgspec.Struct, frozen=True):
    """What the chain has of one peer."""

    peer: str
    account: str = ""  # empty for one that only votes speak of
    reward: int = 0  # sum of its rewards, in the contract's integers
    rounds: int = 0  # rounds with a reward
    stages: int = 0  # rewards
    wins: int = 0  # votes for it
    votes: int = 0  # ballots that it cast


class _Count(msgspec.Struct):
    """What one peer has so far."""

    account: str = ""
    reward: int = 0
    stages: int = 0
    wins: int = 0
    votes: int = 0
    rounds: set[int] = set()

    def copy(self) -> _Count:
        return msgspec.structs.replace(self, rounds=set(self.rounds))

    @classmethod
    def of(cls, kept: KeptCount) -> _Count:
        return cls(kept.account, int(kept.reward), kept.stages, kept.wins, kept.votes, set(kept.rounds))

    def keep(self, peer: str) -> KeptCount:
        rounds = tuple(sorted(self.rounds))
        return KeptCount(peer, self.account, str(self.reward), self.stages, self.wins, self.votes, rounds)

    def standing(self, peer: str) -> PeerStanding:
        return PeerStanding(peer, self.account, self.reward, len(self.rounds), self.stages, self.wins, self.votes)


_Counts = dict[str, _Count]


class KeptCount(msgspec.Struct, frozen=True, array_like=True):
    """What one peer has so far, as it is kept; `reward` in decimal digits, for it may have 256 bits and more."""

    peer: str
    account: str
    reward: str
    stages: int
    wins: int
    votes: int
    rounds: tuple[int, ...]


class KeptChainStandings(msgspec.Struct, frozen=True, array_like=True):
    """A `ChainStandings` as it is kept."""

    first: BlockRef | None
    sealed: tuple[KeptCount, ...]
    sealed_to: int
    open: tuple[ChainBlock, ...]


class ChainStandings:
    """The fold of `ChainBlock` and `ChainReorged`.

    Args:
        kept: what `keep` gave, to go on from there.

    Attributes:
        first: the earliest block that stands, None before any.
    """

    def __init__(self, kept: KeptChainStandings | None = None) -> None:
        kept = kept or KeptChainStandings(None, (), -1, ())
        self.first = kept.first
        self._sealed: _Counts = {each.peer: _Count.of(each) for each in kept.sealed}
        self._sealed_to = kept.sealed_to  # number of the last block among these
        self._open = deque(kept.open)

    def keep(self) -> KeptChainStandings:
        """All of it, to go on from later."""
        sealed = tuple(count.keep(peer) for peer, count in self._sealed.items())
        return KeptChainStandings(self.first, sealed, self._sealed_to, tuple(self._open))

    @property
    def last(self) -> int:
        """Number of the latest block that stands, -1 for none."""
        return self._open[-1].block.number if self._open else self._sealed_to

    def apply(self, event: ChainBlock | ChainReorged) -> None:
        """Add a block, or take back those above a fork. Raises ChainError where they were added up for good."""
        if isinstance(event, ChainReorged):
            self._drop_above(event.fork.number)
        else:
            self._add(event)

    def _add(self, event: ChainBlock) -> None:
        number = event.block.number
        if number <= self.last:
            known = next((each for each in self._open if each.block.number == number), None)
            if known is not None and known.block.hash == event.block.hash:
                return  # told again
            self._drop_above(number - 1)
        self.first = self.first or event.block
        self._open.append(event)
        if len(self._open) > OPEN_BLOCKS_MAX:
            oldest = self._open.popleft()
            _count(self._sealed, oldest.logs)
            self._sealed_to = oldest.block.number

    def _drop_above(self, number: int) -> None:
        if number < self._sealed_to:
            raise ChainError(
                f"blocks after {number} are taken back, more than {OPEN_BLOCKS_MAX} with events: too many to undo"
            )
        while self._open and self._open[-1].block.number > number:
            self._open.pop()
        if self.last < 0:
            self.first = None

    def standings(self, up_to: int | None = None) -> dict[str, PeerStanding]:
        """Standings by peer, of all blocks or of those up to a number (of the newest `OPEN_BLOCKS_MAX`)."""
        counts = {peer: count.copy() for peer, count in self._sealed.items()}
        for each in self._open:
            if up_to is None or each.block.number <= up_to:
                _count(counts, each.logs)
        return {peer: count.standing(peer) for peer, count in counts.items()}


def rank(standings: Iterable[PeerStanding], by: Order = "reward") -> list[PeerStanding]:
    """Best first, ties by peer id."""
    return sorted(standings, key=lambda standing: (-getattr(standing, by), standing.peer))


def _count(counts: _Counts, logs: Iterable[AnyChainLog]) -> None:
    for log in logs:
        if not isinstance(log, RegistrationLog | RewardLog | VoteLog):
            continue
        count = counts.setdefault(log.peer, _Count())
        count.account = count.account or log.account
        if isinstance(log, RewardLog):
            count.reward += int(log.reward)
            count.stages += 1
            count.rounds.add(log.round)
        elif isinstance(log, VoteLog):
            count.votes += 1
            for winner in log.winners:
                counts.setdefault(winner, _Count()).wins += 1
