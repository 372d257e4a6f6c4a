"""In which order the records that a node holds came, so that who asks again is shown what is new. No hivemind in it."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Hashable, Iterator

from swarmd.dht.wire.find_parts import LIFE_BYTES, Cursor

GHOSTS_MAX = 64  # notes of records that are held no more, beyond as many as there are records


class Changes:
    """Numbers every record that is stored, from 1 on; a record that takes another's place gets a new number."""

    def __init__(self) -> None:
        self.life = secrets.token_bytes(LIFE_BYTES)  # of these numbers
        self.last = 0
        self._numbers: dict[Hashable, dict[str, int]] = {}  # key → owner → number, the latest behind

    def note(self, key: Hashable, owner: str, held: Collection[str]) -> None:
        """A record was stored; under its key those of so many owners are held."""
        self.last += 1
        numbers = self._numbers.setdefault(key, {})
        numbers.pop(owner, None)
        numbers[owner] = self.last
        if len(numbers) > 2 * len(held) + GHOSTS_MAX:
            self._numbers[key] = {each: number for each, number in numbers.items() if each in held}

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """Forget all keys but these, once most of those that are noted are not among them."""
        if len(self._numbers) > 2 * len(keys) + GHOSTS_MAX:
            self._numbers = {key: numbers for key, numbers in self._numbers.items() if key in keys}

    def knows(self, cursor: Cursor) -> bool:
        """Is a cursor one of these numbers?"""
        return cursor.life == self.life and cursor.last <= self.last

    def since(self, key: Hashable, cursor: Cursor) -> Iterator[str]:
        """Owners whose records came after a cursor that is known, the latest first."""
        for owner, number in reversed(self._numbers.get(key, {}).items()):
            if number <= cursor.last:
                return
            yield owner
