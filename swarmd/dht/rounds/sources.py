"""From whom a stage's rollouts are gathered. No hivemind in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from swarmd.dht.store.seniority import Places, Rank, pick

PEERS_MAX = 256  # gathered from at most so many peers that the swarm knows, at random
NEWCOMERS_MAX = 64  # and of newcomers from so many: those that worked most, then by lot
IDLE_MAX = 16  # of those that have not worked

Sample = Callable[[Sequence[str], int], list[str]]


class Sources:
    """The peers that one stage is gathered from.

    Args:
        sample: as `random.sample`.
    """

    def __init__(self, sample: Sample) -> None:
        self.peers: dict[str, None] = {}  # in the order in which they were chosen
        self._sample = sample
        self._known = 0
        self._places = Places(0, NEWCOMERS_MAX, IDLE_MAX)

    def choose(self, ranks: Mapping[str, Rank]) -> None:
        """Of peers not yet among them: at random of those known, and of newcomers those who come first."""
        known = [peer for peer, rank in ranks.items() if rank.known]
        chosen = self._sample(known, min(len(known), PEERS_MAX - self._known))
        self._known += len(chosen)
        chosen += pick({peer: rank for peer, rank in ranks.items() if not rank.known}, self._places.try_occupy)
        self.peers |= dict.fromkeys(chosen)


def choose_expected(ranks: Mapping[str, Rank], idle: int = IDLE_MAX) -> set[str]:
    """Of peers whose reports name rollouts, those whose rollouts are looked for; with `idle` 0, waited for."""
    return set(pick(ranks, Places(PEERS_MAX, NEWCOMERS_MAX, idle).try_occupy))
