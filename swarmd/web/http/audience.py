"""Who listens to the stream: a bounded number, in which one address keeps nobody else out.

Behind a proxy on this machine all have one address: they share the places, and none has to give way to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

CLIENTS_MAX = 32


class Listening(Protocol):
    """One who listens; `swarmd.web.http.stream.Client`."""

    def end(self) -> None:
        """End its stream soon. Raises nothing."""


ListenerT = TypeVar("ListenerT", bound=Listening)


class Audience(Generic[ListenerT]):
    """Gives places; at the bound whoever comes last of the address with most gives way to an address with fewer."""

    def __init__(self) -> None:
        self._origins: dict[ListenerT, str] = {}  # the longest here first

    def __iter__(self) -> Iterator[ListenerT]:
        return iter(self._origins)

    def __len__(self) -> int:
        return len(self._origins)

    def has_room(self, origin: str) -> bool:
        """Whether somebody of an address finds a place, free or given up."""
        return len(self._origins) < CLIENTS_MAX or self._who_gives_way(origin) is not None

    def take_place(self, listener: ListenerT, origin: str) -> bool:
        """Give a place, if there is room; whoever gives way is told to end and counts no more."""
        if len(self._origins) >= CLIENTS_MAX:
            leaves = self._who_gives_way(origin)
            if leaves is None:
                return False
            del self._origins[leaves]
            leaves.end()
        self._origins[listener] = origin
        return True

    def leave(self, listener: ListenerT) -> None:
        """Free a listener's place, if it still has it."""
        self._origins.pop(listener, None)

    def _who_gives_way(self, origin: str) -> ListenerT | None:
        """None where no other address would be left with as many as this one then has."""
        held = Counter(self._origins.values())
        crowd, most = held.most_common(1)[0]
        if most < held[origin] + 2:
            return None
        return next(each for each, of in reversed(self._origins.items()) if of == crowd)
