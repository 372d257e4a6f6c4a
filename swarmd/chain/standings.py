"""A swarm's standings, added up from its contract's logs. Pure.

The contract keeps sums, and in some versions leaderboards. Its logs suffice, and are the same in all versions.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from swarmd.core.events import AnyChainLog, ChainBlock, ChainReorged, RegistrationLog, RewardLog, VoteLog
from swarmd.core.values import BlockRef
from swarmd.errors import ChainError

OPEN_BLOCKS_MAX = 4096  # newest blocks that a reorganisation may undo; older ones are sealed

Order = Literal["reward", "wins", "votes", "rounds"]


class PeerStanding(msgspec.Struct, frozen=True):
    """One peer's sums."""

    peer: str
    account: str = ""  # empty if only votes name the peer
    reward: int = 0  # sum of its rewards, as the contract's integers
    rounds: int = 0  # rounds with a reward
    stages: int = 0  # number of rewards
    wins: int = 0  # votes that it received
    votes: int = 0  # votes that it cast


class PeerTotals(msgspec.Struct, array_like=True):
    """One peer's sums so far; `reward` in decimal digits, because it may exceed 64 bits."""

    account: str = ""
    reward: str = "0"
    stages: int = 0
    wins: int = 0
    votes: int = 0
    rounds: set[int] = set()

    def copy(self) -> "PeerTotals":
        return msgspec.structs.replace(self, rounds=set(self.rounds))

    def to_standing(self, peer: str) -> PeerStanding:
        return PeerStanding(peer, self.account, int(self.reward), len(self.rounds), self.stages, self.wins, self.votes)


class ChainStandings(msgspec.Struct, array_like=True):
    """The fold of `ChainBlock` and `ChainReorged`, which can be encoded, decoded and continued.

    Attributes:
        first: the earliest block that counts, None if there is none.
        sealed: the sums of older blocks, by peer; `sealed_to` is the number of the last one.
        open: the newest blocks, which a reorganisation may undo, oldest first.
    """

    first: BlockRef | None = None
    sealed: dict[str, PeerTotals] = {}
    sealed_to: int = -1
    open: list[ChainBlock] = []

    @property
    def last_block_number(self) -> int:
        """Number of the latest block that stands, -1 for none."""
        return self.open[-1].block.number if self.open else self.sealed_to

    def apply_event(self, event: ChainBlock | ChainReorged) -> None:
        """Add a block, or undo those above a fork. Raises ChainError if they are sealed."""
        if isinstance(event, ChainReorged):
            self._drop_blocks_above(event.fork.number)
        else:
            self._add_block(event)

    def _add_block(self, event: ChainBlock) -> None:
        number = event.block.number
        if number <= self.last_block_number:
            known = next((each for each in self.open if each.block.number == number), None)
            if known is not None and known.block.hash == event.block.hash:
                return  # reported twice
            self._drop_blocks_above(number - 1)
        self.first = self.first or event.block
        self.open.append(event)
        if len(self.open) > OPEN_BLOCKS_MAX:
            oldest = self.open.pop(0)
            _add_logs(self.sealed, oldest.logs)
            self.sealed_to = oldest.block.number

    def _drop_blocks_above(self, number: int) -> None:
        if number < self.sealed_to:
            raise ChainError(
                f"blocks after {number} are taken back, more than {OPEN_BLOCKS_MAX} with events: too many to undo"
            )
        while self.open and self.open[-1].block.number > number:
            self.open.pop()
        if self.last_block_number < 0:
            self.first = None

    def standings_by_peer(self, up_to: int | None = None) -> dict[str, PeerStanding]:
        """Return the standings by peer: of all blocks, or of those up to a number (at least the sealed ones)."""
        counts = {peer: count.copy() for peer, count in self.sealed.items()}
        for each in self.open:
            if up_to is None or each.block.number <= up_to:
                _add_logs(counts, each.logs)
        return {peer: count.to_standing(peer) for peer, count in counts.items()}


def rank_standings(standings: Iterable[PeerStanding], by: Order = "reward") -> list[PeerStanding]:
    """Return the best first, ties by peer id."""
    return sorted(standings, key=lambda standing: (-getattr(standing, by), standing.peer))


def _add_logs(counts: dict[str, PeerTotals], logs: Iterable[AnyChainLog]) -> None:
    for log in logs:
        if not isinstance(log, RegistrationLog | RewardLog | VoteLog):
            continue
        count = counts.setdefault(log.peer, PeerTotals())
        count.account = count.account or log.account
        if isinstance(log, RewardLog):
            count.reward = str(int(count.reward) + int(log.reward))
            count.stages += 1
            count.rounds.add(log.round)
        elif isinstance(log, VoteLog):
            count.votes += 1
            for winner in log.winners:
                counts.setdefault(winner, PeerTotals()).wins += 1
