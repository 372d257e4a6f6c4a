"""Immutable values by peer, in an order; a changed version is made without copying the values.

All versions that came of one another share one list of what was ever put or removed, and each knows how much of it is
its own: what comes later is behind that, and does not count. So the newest version takes one more value in O(1), and
every older one stays as it was; only where an older one is changed too, or most of the list is out of date, is there a
copy. Versions may be read in any thread while a further one is made, by one thread at a time.

For several changes of which nobody sees what lies between there is `grow`: it makes one further version, and changes
that same one until it is closed.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Generic, Protocol, Self, TypeVar

STALE_MIN = 64  # entries out of date from whose number on, and from half of all on, they are dropped


class HasPeer(Protocol):
    """What belongs to one peer."""

    @property
    def peer(self) -> str:
        """The peer's id."""


T = TypeVar("T", bound=HasPeer)


class _Entries(Generic[T]):
    """What was put and removed, in order.

    Attributes:
        values: of each entry, `None` for a removal.
        removed: whose value it was, by the place of a removal.
        latest: place of each peer's last entry.
        before: place of the same peer's entry before it, by the place of an entry that is not its peer's first.
    """

    __slots__ = ("before", "latest", "removed", "values")

    def __init__(self, values: list[T], latest: dict[str, int]) -> None:
        self.values: list[T | None] = values  # type: ignore[assignment]  # nobody else has this list
        self.removed: dict[int, str] = {}
        self.latest = latest
        self.before: dict[int, int] = {}

    def peers_between(self, start: int, end: int) -> list[str]:
        """Whose the entries are, of some places."""
        return [
            self.removed[place] if value is None else value.peer
            for place, value in enumerate(self.values[start:end], start)
        ]


class ValuesByPeer(Generic[T]):
    """Values of peers, one each, in the order in which they were put last. `none` and `of` make one. `count`: how many
    there are, as `len` says. `size`: entries that are this version's: how many changes it is made of."""

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
        """These values, in order; of several of one peer the last."""
        made = cls(values)
        return made if made.count else cls.empty()

    @classmethod
    @cache
    def empty(cls) -> Self:
        """No values: always the same object, so that msgspec leaves a field out that has it by default."""
        return cls()

    def put(self, value: T) -> Self:
        """With this value last, in place of the one that its peer has now."""
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
        """As `put`, into this version itself if it is open, else into a further one that is."""
        made = self if self._open and self.size < 2 * self.count + STALE_MIN else self._copy_for_change()
        made._open = True
        made._append_entry(value.peer, value)
        return made

    def freeze(self) -> None:
        """Let this version stay as it is from now on."""
        self._open = False

    def with_new_values(self, values: list[T]) -> Self:
        """The same peers in the same order, each with a new value."""
        if self.size != self.count or self.size != len(self._entries.values):
            return type(self).from_values(values)
        made = object.__new__(type(self))
        made._set_entries(values, self._entries.latest.copy())
        self._copy_counts_to(made)
        return made

    def _append_entry(self, peer: str, value: T | None) -> None:
        """Add an entry. Readers in other threads know of none at its place or later."""
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
        """This version once more, to be made the next one."""
        self._open = False  # the entries that it would take are the next one's
        size, count = self.size, self.count
        stale = size - count
        if not size or size != len(self._entries.values) or (stale >= STALE_MIN and stale >= count):
            return type(self)(self)
        made = object.__new__(type(self))
        made._entries, made._open, made.count, made.size = self._entries, False, count, size
        self._copy_counts_to(made)
        return made

    def _copy_counts_to(self, made: Self) -> None:
        """Give a further version what this one has counted."""

    def _update_counts(self, before: T | None, after: T | None) -> None:
        """Count that a peer's value was one and is another."""

    def get(self, peer: str) -> T | None:
        place = self._entries.latest.get(peer, -1)
        if place < self.size:
            return self._entries.values[place] if place >= 0 else None
        return self.get_at_size(peer, self.size)

    def get_at_size(self, peer: str, size: int) -> T | None:
        """The value that a peer had when this version, or an earlier one of which it came, had that `size`."""
        entries = self._entries
        place = entries.latest.get(peer, -1)
        while place >= size:
            place = entries.before.get(place, -1)
        return entries.values[place] if place >= 0 else None

    def peers_changed_since(self, size: int) -> list[str]:
        """The peers of the entries from place `size` on: those whose values changed since a version had that `size`."""
        return self._entries.peers_between(size, self.size)

    def is_successor_of(self, earlier: "ValuesByPeer[T]") -> bool:
        """Whether this came of an earlier version by `peers_changed_since(earlier.size)` alone, or of an empty one."""
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
