"""Values of peers in an order, immutable, of which a changed one is made without copying the others.

All versions that came of one another share one list of what was ever put or removed, and each knows how much of it is
its own: what comes later is behind that, and does not count. So the newest version takes one more value in O(1), and
every older one stays as it was; only where an older one is changed too, or most of the list is out of date, is there a
copy. Versions may be read in any thread while a further one is made, by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Generic, Protocol, Self, TypeVar

STALE_MIN = 64  # entries out of date from whose number on, and from half of all on, they are dropped
NEVER = 1 << 62  # the place at which something was replaced that was not


class OfPeer(Protocol):
    """What belongs to one peer."""

    @property
    def peer(self) -> str:
        """The peer's id."""


T = TypeVar("T", bound=OfPeer)


class _Entries(Generic[T]):
    """What was put and removed, in order; `None` stands for a removal.

    Attributes:
        values, peers: of each entry.
        before: place of the same peer's entry before it, -1 where there is none.
        until: place of the same peer's entry after it, `NEVER` where there is none.
        latest: place of each peer's last entry.
        memo: what somebody has counted of these entries, to go on from it; anything may be there.
    """

    __slots__ = ("before", "latest", "memo", "peers", "until", "values")

    def __init__(self) -> None:
        self.values: list[T | None] = []
        self.peers: list[str] = []
        self.before: list[int] = []
        self.until: list[int] = []
        self.latest: dict[str, int] = {}
        self.memo: Any = None

    def add(self, peer: str, value: T | None) -> None:
        """Add an entry. Whoever reads meanwhile knows of none at its place or later."""
        place, before = len(self.values), self.latest.get(peer, -1)
        self.peers.append(peer)
        self.before.append(before)
        self.until.append(NEVER)
        self.values.append(value)
        if before >= 0:
            self.until[before] = place
        self.latest[peer] = place


class ByPeer(Generic[T]):
    """Values of peers, one each, in the order in which they were put last. `none` and `of` make one."""

    __slots__ = ("_count", "_entries", "_size")

    def __init__(self) -> None:
        self._entries: _Entries[T] = _Entries()
        self._size = 0  # entries that are this version's
        self._count = 0  # values

    @classmethod
    def of(cls, values: Iterable[T]) -> Self:
        """These values, in order; of several of one peer the last."""
        made = cls._fresh(values)
        return made if made._count else cls.none()

    @classmethod
    @cache
    def none(cls) -> Self:
        """No values: always the same object, so that msgspec leaves a field out that has it by default."""
        return cls()

    @classmethod
    def _fresh(cls, values: Iterable[T]) -> Self:
        made = cls()
        for value in values:
            made._note(made.get(value.peer), value)
            made._entries.add(value.peer, value)
            made._size += 1
        return made

    def put(self, value: T) -> Self:
        """With this value last, in place of the one that its peer has now."""
        return self._changed(value.peer, value)

    def without(self, peer: str) -> Self:
        """Without the value of a peer."""
        return self._changed(peer, None) if peer in self else self

    def _changed(self, peer: str, value: T | None) -> Self:
        stale = self._size - self._count
        current = self._size == len(self._entries.values) and (stale < STALE_MIN or stale < self._count)
        base = self if current and self._size else self._fresh(self)
        made = base._twin()
        made._note(base.get(peer), value)
        made._entries.add(peer, value)
        made._size += 1
        return made if made._count else self.none()

    def _twin(self) -> Self:
        """This version once more, to be made the next one."""
        made = object.__new__(type(self))
        made._entries, made._size, made._count = self._entries, self._size, self._count
        return made

    def _note(self, before: T | None, after: T | None) -> None:
        """Count that a peer's value was one and is another."""
        self._count += (after is not None) - (before is not None)

    def get(self, peer: str) -> T | None:
        """The value of a peer."""
        return self.get_before(peer, self._size)

    def get_before(self, peer: str, size: int) -> T | None:
        """The value that a peer had when this version, or an earlier one of which it came, had that `size`."""
        entries = self._entries
        place = entries.latest.get(peer, -1)
        while place >= size:
            place = entries.before[place]
        return entries.values[place] if place >= 0 else None

    def put_since(self, size: int) -> list[str]:
        """The peers of the entries from place `size` on: whoever's value changed since a version had that `size`."""
        return self._entries.peers[size : self._size]

    def follows(self, earlier: ByPeer[T]) -> bool:
        """Whether this came of an earlier version by `put_since(earlier.size)` alone; so does all of an empty one."""
        same = self._entries is earlier._entries and earlier._size <= self._size
        return same or not earlier._size

    @property
    def size(self) -> int:
        """How many changes this version is made of."""
        return self._size

    @property
    def memo(self) -> Any:
        """What was kept with `keep_memo` by this version, or one that it came of or that came of it."""
        return self._entries.memo

    def keep_memo(self, memo: object) -> None:
        """Keep what was counted, for the versions that follow. It may not refer to any of them: they refer to it."""
        self._entries.memo = memo

    def __contains__(self, peer: object) -> bool:
        return isinstance(peer, str) and self.get(peer) is not None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        size = self._size
        values, until = self._entries.values[:size], self._entries.until[:size]
        return iter([value for value, end in zip(values, until, strict=True) if end >= size and value is not None])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByPeer):
            return NotImplemented
        same = self._entries is other._entries and self._size == other._size
        return same or (len(self) == len(other) and list(self) == list(other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of, (list(self),)
