"""What a node gives out over the stream of weights: those that it offers itself, and those that it has fetched."""

from __future__ import annotations

from swarmd.weights.offered import FetchedWeights, OfferedWeights


class GivenWeights:
    """Both, as one source, see `swarmd.dht.rounds.fetch.BodySource`.

    Args:
        offered: this node's own.
        fetched: from peers.
    """

    def __init__(self, offered: OfferedWeights, fetched: FetchedWeights) -> None:
        self._offered = offered
        self._fetched = fetched

    def has(self, digest: str) -> bool:
        """Whether there is a chunk or manifest of this digest."""
        return self._offered.has(digest) or self._fetched.has(digest)

    def get(self, digest: str) -> bytes:
        """It, checked. Raises NotFoundError, OSError."""
        return self._offered.get(digest) if self._offered.has(digest) else self._fetched.get(digest)

    def part_of(self, digest: str) -> str:
        """What somebody who was given a chunk soon has all of: a manifest's file, or the chunk where none is known."""
        part = self._offered.part_of(digest)
        return self._fetched.part_of(digest) if part == digest else part
