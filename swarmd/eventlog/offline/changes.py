"""What differs between two states, field by field."""

from __future__ import annotations

from typing import Any

import msgspec

from swarmd.core.by_peer import ByPeer


class Change(msgspec.Struct, frozen=True):
    """One field that differs; of a list of values only the part that differs is held."""

    path: str  # dotted, as in "link.chart"
    before: Any
    after: Any


def changes_between(before: msgspec.Struct, after: msgspec.Struct, prefix: str = "") -> tuple[Change, ...]:
    """Differences between two Structs of the same class, in field order."""
    changes: list[Change] = []
    for name in before.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old is not new:
            changes += _changes_of(f"{prefix}{name}", old, new)
    return tuple(changes)


def _changes_of(path: str, old: Any, new: Any) -> tuple[Change, ...]:
    if isinstance(old, msgspec.Struct) and type(old) is type(new):
        return changes_between(old, new, f"{path}.")
    if isinstance(old, ByPeer) and isinstance(new, ByPeer):
        old, new = _of_changed_peers(old, new)
    if old == new or (old != old and new != new):  # NaN stays NaN
        return ()
    if isinstance(old, tuple) and isinstance(new, tuple) and _has_structs(old or new):
        old, new = _differing(old, new)
    return (Change(path, old, new),)


def _of_changed_peers(old: ByPeer[Any], new: ByPeer[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The values of those peers alone whose values may differ, where that is known; else all."""
    if not new.follows(old):
        return tuple(old), tuple(new)
    peers = list(dict.fromkeys(new.put_since(old.size)))
    return tuple(filter(None, map(old.get, peers))), tuple(filter(None, map(new.get, peers)))


def _has_structs(values: tuple[Any, ...]) -> bool:
    return bool(values) and isinstance(values[0], msgspec.Struct)


def _differing(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Both without the values they begin and end with in common."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return old[head : len(old) - tail], new[head : len(new) - tail]
