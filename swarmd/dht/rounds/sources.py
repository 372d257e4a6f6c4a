"""From whom a stage's rollouts are gathered. No hivemind in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from swarmd.dht.store.seniority import Places, Rank, pick

PEERS_MAX = 256  # gathered from at most so many peers that the swarm knows, at random, where a stage has no shards
NEWCOMERS_MAX = 64  # and of newcomers from so many: those that worked most, then by lot
IDLE_MAX = 16  # of those that have not worked

Sample = Callable[[Sequence[str], int], list[str]]


class Sources:
    """The peers that one stage is gathered from: whoever is not among them is neither fetched from nor waited for.

    Args:
        sample: as `random.sample`.
        known_max: of peers that the swarm knows.
        newcomers_max, idle_max: of those that have worked, and of those that have not.
        fill: whether newcomers that have worked may also have what those that the swarm knows leave free.
    """

    def __init__(
        self,
        sample: Sample,
        known_max: int = PEERS_MAX,
        newcomers_max: int = NEWCOMERS_MAX,
        idle_max: int = IDLE_MAX,
        fill: bool = False,
    ) -> None:
        self.peers: dict[str, None] = {}  # in the order in which they were chosen
        self._sample = sample
        self._room = known_max
        self._fill = fill
        self._places = Places(0, newcomers_max, idle_max)

    def choose(self, ranks: Mapping[str, Rank]) -> None:
        """Of peers not yet among them: at random of those known, and of newcomers those who come first."""
        fresh = {peer: rank for peer, rank in ranks.items() if peer not in self.peers}
        known = [peer for peer, rank in fresh.items() if rank.known]
        chosen = self._sample(known, min(len(known), self._room))
        self._room -= len(chosen)
        chosen += pick({peer: rank for peer, rank in fresh.items() if not rank.known}, self._try_newcomer)
        self.peers |= dict.fromkeys(chosen)

    def _try_newcomer(self, rank: Rank) -> bool:
        if self._places.try_occupy(rank):
            return True
        fills = self._fill and rank.worked and self._room > 0
        self._room -= fills
        return fills

    def replace(self) -> None:
        """One of them gave nothing that counts: another may take its place."""
        self._room += 1
