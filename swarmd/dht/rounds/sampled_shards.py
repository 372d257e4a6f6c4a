"""Which keys of a stage a gathering reads, and how many peers it takes from them. No hivemind in it."""

from __future__ import annotations

from swarmd.dht.rounds.shard_counts import Shard
from swarmd.dht.rounds.sources import Sample, Sources

READ_MAX = 8  # shards of one stage, where the first ones hold too few peers
SPARE = 4  # of so many peers one more is asked than is needed, so that nobody waits for single ones
NEWCOMERS = 4  # beside so many peers that the swarm knows, there is a place for a newcomer
IDLE_MAX = 4  # peers that have not worked


class SampledShards:
    """A stage's shards that are read: one drawn by chance, and another as long as peers are missing.

    By this node's own chance, so that nobody knows where it will look. A stage without shards is read whole.

    Args:
        shards: of the stage, 0 for none.
        wanted: number of peers to gather from, of a stage with shards.
        sample: as `random.sample`.
    """

    def __init__(self, shards: int, wanted: int, sample: Sample) -> None:
        numbers = sample([str(shard) for shard in range(shards)], min(shards, READ_MAX))
        self._unread = [Shard(shards, int(number)) for number in numbers] or [Shard(0, 0)]
        self._wanted = wanted
        self.is_sample = shards > 0
        self.read: list[Shard] = []  # so far
        most = wanted + wanted // SPARE
        few = Sources(sample, most, wanted // NEWCOMERS, IDLE_MAX, fill=True)
        self.sources = few if self.is_sample else Sources(sample)  # the peers to gather from

    def next(self) -> Shard | None:
        """One more shard to read; None where there is none, or enough were read."""
        if not self._unread:
            return None
        self.read.append(self._unread.pop())
        return self.read[-1]

    def lacks(self, useless: int) -> bool:
        """Whether too few peers were found yet, of whom so many gave nothing."""
        return self.is_sample and len(self.sources.peers) - useless < self._wanted

    def is_exhausted(self, useless: int) -> bool:
        """Whether too few were found, of whom so many gave nothing, and there is no shard left to read."""
        return self.lacks(useless) and not self._unread

    def is_full(self, gathered: int) -> bool:
        """Whether so many peers' rollouts are all that is wanted."""
        return self.is_sample and gathered >= self._wanted
