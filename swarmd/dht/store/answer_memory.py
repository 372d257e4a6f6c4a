"""What peers' answers have brought of some keys, so that they need not bring it again. No hivemind in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable

from swarmd.dht.wire.find_parts import Cursor, Part
from swarmd.dht.wire.records import SignedRecord

KEYS_MAX = 64
BYTES_MAX = 8 * 1024 * 1024  # of all keys, with what records cost beside their values
KEY_BYTES_MAX = 2 * 1024 * 1024  # of one: a larger one is read whole each time
RECORD_BYTES = 500
PEERS_MAX = 256  # whose answers about one key are remembered


class _Key:
    """What is remembered of one key."""

    def __init__(self) -> None:
        self.records: dict[str, SignedRecord] = {}
        self.cursors: OrderedDict[Hashable, Cursor] = OrderedDict()
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
        self._keys: OrderedDict[Hashable, _Key] = OrderedDict()  # the one used last behind

    def cursor(self, key: Hashable, peer: Hashable) -> Cursor:
        """How far a peer's answers about a key have come."""
        known = self._keys.get(key)
        return Cursor() if known is None else known.cursors.get(peer, Cursor())

    def records(self, key: Hashable, now: float) -> list[SignedRecord]:
        """The records of a key that were shown and have not expired."""
        known = self._keys.get(key)
        if known is None:
            return []
        self._keys.move_to_end(key)
        for owner in [owner for owner, signed in known.records.items() if signed.expiration < now]:
            known.size_bytes -= _size(known.records.pop(owner))
        return [*known.records.values()]

    def note(self, key: Hashable, peer: Hashable, part: Part, genuine: Collection[SignedRecord]) -> None:
        """Remember a peer's answer, of which these records count.

        Where some do not count, which they may later, the peer is asked for them again.
        """
        known = self._keys.setdefault(key, _Key())
        self._keys.move_to_end(key)
        for signed in genuine:
            known.merge(signed)
        if len(genuine) == len(part.records):
            known.cursors[peer] = Cursor(part.life, part.last)
        while len(known.cursors) > PEERS_MAX:
            known.cursors.popitem(last=False)
        if known.size_bytes > KEY_BYTES_MAX:
            del self._keys[key]
        while len(self._keys) > KEYS_MAX or self.size_bytes() > BYTES_MAX:
            self._keys.popitem(last=False)

    def size_bytes(self) -> int:
        """Bytes of all that is remembered, about."""
        return sum(known.size_bytes for known in self._keys.values())

    def clear(self) -> None:
        """Forget everything: the rules by which records count have changed."""
        self._keys.clear()


def _size(signed: SignedRecord) -> int:
    return len(signed.value) + RECORD_BYTES
