"""Looking up the names in multiaddrs, in threads of its own: a name may take a minute, as whoever owns it likes.

The event loop's own threads are few, and shared: lookups that hang there would keep all others from them.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import anyio

from swarmd.dht.p2p.multiaddrs import tcp_place

LOOKUPS_AT_ONCE = 4
LOOKUP_S = 1.5
ADDRESSES_MAX = 4  # of one name
_FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


def is_name(place: str) -> bool:
    """Whether a multiaddr has a name where others have an address."""
    return place.strip("/").split("/")[0] in (*_FAMILIES, "dnsaddr")


class NameLookup:
    """Finds the addresses behind names, `LOOKUPS_AT_ONCE`; of further ones nothing is heard in time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS_AT_ONCE, "names")

    async def places_of(self, place: str) -> list[str]:
        """A multiaddr with each of its name's addresses instead, or as it is where it is no TCP place with a name.

        Nothing where the name is not known, or its addresses were not told within `LOOKUP_S`.
        """
        target, family = tcp_place(place), _FAMILIES.get(place.strip("/").split("/")[0])
        if target is None or family is None:
            return [place]
        loop = asyncio.get_running_loop()
        try:
            with anyio.fail_after(LOOKUP_S):
                found = await loop.run_in_executor(
                    self._threads, socket.getaddrinfo, *target, family, socket.SOCK_STREAM
                )
        except (OSError, TimeoutError, UnicodeError):
            return []
        _, _, *rest = place.strip("/").split("/")
        return [_multiaddr(str(address[0]), rest) for *_, address in found][:ADDRESSES_MAX]


def _multiaddr(address: str, rest: list[str]) -> str:
    return "/".join(["", "ip6" if ":" in address else "ip4", address, *rest])
