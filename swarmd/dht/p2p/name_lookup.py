"""Looking up the names in multiaddrs, in threads of its own: a name may take a minute, as whoever owns it likes.

The event loop's own threads are few, and shared: lookups that hang there would keep all others from them. Nor does a
process wait for these when it ends.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any

import anyio

from swarmd.logger import get_logger

LOOKUPS_AT_ONCE = 4
LOOKUP_S = 1.5
ADDRESSES_MAX = 4  # of one name

log = get_logger(__name__)
_FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


def is_name(place: str) -> bool:
    """Whether a multiaddr has a name where others have an address."""
    return place.strip("/").split("/")[0] in (*_FAMILIES, "dnsaddr")


class NameLookup:
    """Finds the addresses behind names, `LOOKUPS_AT_ONCE`; further ones wait for a thread as long as for an answer."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def places_of(self, place: str) -> list[str]:
        """A multiaddr with each of its name's addresses instead, or as it is where it has no name that has addresses.

        Nothing where the name is not known, or its addresses were not told within `LOOKUP_S`.
        """
        kind, name, *rest = [*place.strip("/").split("/"), ""]
        family = _FAMILIES.get(kind)
        if family is None or not name:
            return [place]
        found: list[Any] = []
        with anyio.move_on_after(LOOKUP_S):
            await self._free.acquire()
            answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            query = (name, None, family, socket.SOCK_STREAM)
            self._start(answer, query)
            found = await answer
        return [_multiaddr(str(address[0]), rest[:-1]) for *_, address in found][:ADDRESSES_MAX]

    def _start(self, answer: asyncio.Future[list[Any]], query: tuple[Any, ...]) -> None:
        try:
            threading.Thread(target=self._look_up, args=(answer, query), name="name lookup", daemon=True).start()
        except RuntimeError as error:  # the machine has no thread to spare
            log.warning("%s is not looked up: %s", query[0], error)
            self._tell(answer, [])

    def _look_up(self, answer: asyncio.Future[list[Any]], query: tuple[Any, ...]) -> None:
        found: list[Any] = []
        try:
            with suppress(OSError, UnicodeError):
                found = socket.getaddrinfo(*query)
        finally:  # whatever became of it, the next name has the thread's place
            with suppress(RuntimeError):  # the event loop has ended meanwhile
                answer.get_loop().call_soon_threadsafe(self._tell, answer, found)

    def _tell(self, answer: asyncio.Future[list[Any]], found: list[Any]) -> None:
        self._free.release()
        if not answer.done():
            answer.set_result(found)


def _multiaddr(address: str, rest: list[str]) -> str:
    return "/".join(["", "ip6" if ":" in address else "ip4", address, *rest])
