"""Immutable ordered values by peer; a changed version is made without copying the values.

Versions derived from one another share one append-only list of puts and removals, and each version knows its own length
of that list, so later entries do not affect it. The newest version takes one more value in O(1), and every older one
stays unchanged; only changing an older version, or one with mostly stale entries, copies the list. Versions may be read
in any thread while one thread at a time makes the next one.

For several changes without visible versions in between, `put_in_place` makes one new version, and changes that version
until `freeze`.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Generic, Protocol, Self, TypeVar

STALE_MIN = 64  # stale entries are dropped once there are this many and they are half of all


class HasPeer(Protocol):
    """A value that belongs to one peer."""

    @property
    def peer(self) -> str:
        """The peer's id."""


T = TypeVar("T", bound=HasPeer)


class _Entries(Generic[T]):
    """Puts and removals, in order.

    Attributes:
        values: value of each entry, `None` for a removal.
        removed: index of a removal → peer.
        latest: peer → index of its last entry.
        before: index of an entry → index of the same peer's preceding entry, if there is one.
    """

    __slots__ = ("before", "latest", "removed", "values")

    def __init__(self, values: list[T], latest: dict[str, int]) -> None:
        self.values: list[T | None] = values  # type: ignore[assignment]  # the list is not shared
        self.removed: dict[int, str] = {}
        self.latest = latest
        self.before: dict[int, int] = {}

    def peers_between(self, start: int, end: int) -> list[str]:
        """Return the peers of the entries from `start` up to `end`."""
        return [
            self.removed[place] if value is None else value.peer
            for place, value in enumerate(self.values[start:end], start)
        ]


class ValuesByPeer(Generic[T]):
    """Values of peers, one each, in the order in which they were last put. Made by `empty` and `from_values`. `count`:
    number of values, as `len`. `size`: number of this version's entries, that is, of changes."""

    __slots__ = ("_entries", "_open", "count", "size")

    def __init__(self, values: Iterable[T] = ()) -> None:
        listed = [*values]
        latest = {value.peer: place for place, value in enumerate(listed)}
        if len(latest) < len(listed):
            listed = [listed[place] for place in sorted(latest.values())]
            latest = {value.peer: place for place, value in enumerate(listed)}
        self._set_entries(listed, latest)

    def _set_entries(self, values: list[T], latest: dict[str, int]) -> None:
        self._entries: _Entries[T] = _Entries(values, latest)
        self._open = False
        self.count = self.size = len(values)

    @classmethod
    def from_values(cls, values: Iterable[T]) -> Self:
        """Return these values in order; the last one if a peer has several."""
        made = cls(values)
        return made if made.count else cls.empty()

    @classmethod
    @cache
    def empty(cls) -> Self:
        """Return the one empty instance, so that msgspec omits a field that has it by default."""
        return cls()

    def put(self, value: T) -> Self:
        """Return a version with this value last, in place of its peer's present one."""
        made = self._copy_for_change()
        made._append_entry(value.peer, value)
        return made

    def without_peer(self, peer: str) -> Self:
        if peer not in self:
            return self
        made = self._copy_for_change()
        made._append_entry(peer, None)
        return made if made.count else self.empty()

    def put_in_place(self, value: T) -> Self:
        """Put into this version itself if it is open, else into a new, open version. Returns the version."""
        made = self if self._open and self.size < 2 * self.count + STALE_MIN else self._copy_for_change()
        made._open = True
        made._append_entry(value.peer, value)
        return made

    def freeze(self) -> None:
        """Make this version immutable from now on."""
        self._open = False

    def with_new_values(self, values: list[T]) -> Self:
        """Return a version with the same peers in the same order, each with a new value."""
        if self.size != self.count or self.size != len(self._entries.values):
            return type(self).from_values(values)
        made = object.__new__(type(self))
        made._set_entries(values, self._entries.latest.copy())
        self._copy_counts_to(made)
        return made

    def _append_entry(self, peer: str, value: T | None) -> None:
        """Append an entry. Readers in other threads never read at its index or beyond."""
        entries, place = self._entries, self.size
        earlier = entries.latest.get(peer, -1)
        before = None
        if earlier >= 0:
            before = entries.values[earlier]
            entries.before[place] = earlier
        if value is None:
            entries.removed[place] = peer
        entries.values.append(value)
        entries.latest[peer] = place
        self.size = place + 1
        self.count += (value is not None) - (before is not None)
        self._update_counts(before, value)

    def _copy_for_change(self) -> Self:
        """Return a copy of this version, to be changed into the next one."""
        self._open = False  # the next version owns the entries from here on
        size, count = self.size, self.count
        stale = size - count
        if not size or size != len(self._entries.values) or (stale >= STALE_MIN and stale >= count):
            return type(self)(self)
        made = object.__new__(type(self))
        made._entries, made._open, made.count, made.size = self._entries, False, count, size
        self._copy_counts_to(made)
        return made

    def _copy_counts_to(self, made: Self) -> None:
        """Copy a subclass's counts to a new version."""

    def _update_counts(self, before: T | None, after: T | None) -> None:
        """Update a subclass's counts after a peer's value has changed."""

    def get(self, peer: str) -> T | None:
        place = self._entries.latest.get(peer, -1)
        if place < self.size:
            return self._entries.values[place] if place >= 0 else None
        return self.get_at_size(peer, self.size)

    def get_at_size(self, peer: str, size: int) -> T | None:
        """Return the value that a peer had when this version, or one it derives from, had that `size`."""
        entries = self._entries
        place = entries.latest.get(peer, -1)
        while place >= size:
            place = entries.before.get(place, -1)
        return entries.values[place] if place >= 0 else None

    def peers_changed_since(self, size: int) -> list[str]:
        """Return the peers whose values changed since a version had that `size`, one for each entry since."""
        return self._entries.peers_between(size, self.size)

    def is_successor_of(self, earlier: "ValuesByPeer[T]") -> bool:
        """Return whether this differs from `earlier` in `peers_changed_since(earlier.size)` only."""
        same = self._entries is earlier._entries and earlier.size <= self.size
        return same or not earlier.size

    def __contains__(self, peer: str) -> bool:
        place = self._entries.latest.get(peer, -1)
        if place >= self.size:
            return self.get_at_size(peer, self.size) is not None
        return place >= 0 and self._entries.values[place] is not None

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[T]:
        entries = self._entries.values[: self.size]
        if self.size == self.count:
            return iter(entries)  # type: ignore[arg-type]  # nothing was removed
        last = {peer: place for place, peer in enumerate(self._entries.peers_between(0, self.size))}
        return iter([value for place in sorted(last.values()) if (value := entries[place]) is not None])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValuesByPeer):
            return NotImplemented
        same = self._entries is other._entries and self.size == other.size
        return same or (len(self) == len(other) and list(self) == list(other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_values, (list(self),)
