"""What peers' answers have brought of some keys, so that they need not bring it again. No hivemind in it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from itertools import count
from typing import NamedTuple

from cachetools import FIFOCache

from swarmd.dht.wire.find_parts import Cursor, Part
from swarmd.dht.wire.records import SignedRecord

KEYS_MAX = 64
BYTES_MAX = 8 * 1024 * 1024  # of all keys, with what records cost beside their values
KEY_BYTES_MAX = 2 * 1024 * 1024  # of one: a larger one is read whole each time
RECORD_BYTES = 500
PEERS_MAX = 256  # whose answers about one key are remembered


class Progress(NamedTuple):
    """How far peers' answers about a key had come when a look-up began, which asks for what is new since then.

    Not since the latest answer: that may be another look-up's, and what it has brought this one would never see.
    """

    cursors: Mapping[Hashable, Cursor] = {}  # by peer
    memory: int = 0  # number of the memory that these belong to; 0 of none

    def cursor(self, peer: Hashable) -> Cursor:
        """How far one peer's had come."""
        return self.cursors.get(peer, Cursor())


class _Key:
    """What is remembered of one key, from the number on that it got when the key was first asked for, or anew."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: dict[str, SignedRecord] = {}
        self.cursors: FIFOCache[Hashable, Cursor] = FIFOCache(PEERS_MAX)
        self.size_bytes = 0

    def merge(self, signed: SignedRecord) -> None:
        before = self.records.get(signed.owner)
        if before is not None and before.expiration >= signed.expiration:
            return
        self.size_bytes += _size(signed) - (_size(before) if before is not None else 0)
        self.records[signed.owner] = signed


class AnswerMemory:
    """Records by key, and how far each peer's answers reach. A key that is forgotten is asked for whole again."""

    def __init__(self) -> None:
        self._keys: FIFOCache[Hashable, _Key] = FIFOCache(KEYS_MAX)  # set again at each use
        self._numbers = count(1)

    def progress(self, key: Hashable) -> Progress:
        """How far peers' answers about a key have come."""
        known = self._keys.get(key)
        return Progress() if known is None else Progress(dict(known.cursors), known.number)

    def records(self, key: Hashable, now: float) -> list[SignedRecord]:
        """The records of a key that were shown and have not expired."""
        known = self._keys.get(key)
        if known is None:
            return []
        self._keys[key] = known
        for owner in [owner for owner, signed in known.records.items() if signed.expiration < now]:
            known.size_bytes -= _size(known.records.pop(owner))
        return [*known.records.values()]

    def note(
        self, key: Hashable, peer: Hashable, part: Part, genuine: Collection[SignedRecord], asked: Progress
    ) -> None:
        """Remember a peer's answer, of which these records count, to a look-up that asked from there on.

        Where some do not count, which they may later, or what was shown before is forgotten meanwhile, the peer is
        asked for them again.
        """
        known = self._keys[key] = self._keys.get(key) or _Key(next(self._numbers))
        continues = asked.memory == known.number or asked.cursor(peer) == Cursor()
        for signed in genuine:
            known.merge(signed)
        if continues and len(genuine) == len(part.records):
            known.cursors[peer] = Cursor(part.life, part.last)
        if known.size_bytes > KEY_BYTES_MAX:
            del self._keys[key]
        while self.size_bytes() > BYTES_MAX:
            self._keys.popitem()

    def size_bytes(self) -> int:
        """Bytes of all that is remembered, about."""
        return sum(known.size_bytes for known in self._keys.values())

    def clear(self) -> None:
        """Forget everything: the rules by which records count have changed."""
        self._keys.clear()


def _size(signed: SignedRecord) -> int:
    return len(signed.value) + RECORD_BYTES
