"""What is made of an immutable value is made once, for all nodes that would each make it for themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
M = TypeVar("M")


class Once(Generic[T, M]):
    """Remembers what was made of the latest values, told apart by what they are and not by what is in them.

    Args:
        make: makes something of a value, always the same; nobody changes what it made.
        kept: values that are remembered, the latest.
    """

    def __init__(self, make: Callable[[T], M], kept: int) -> None:
        self._make = make
        self._kept = kept
        self._made: dict[int, tuple[T, M]] = {}  # by identity; the value is kept, so that no other gets its identity

    def __call__(self, value: T) -> M:
        """What is made of it. Raises what making it raises."""
        known = self._made.get(id(value))
        return self._remember(value) if known is None else known[1]

    def _remember(self, value: T) -> Any:
        made = self._make(value)
        if len(self._made) >= self._kept:
            del self._made[next(iter(self._made))]
        self._made[id(value)] = (value, made)
        return made
