"""Which hosts are dialled for peers that the swarm has not credited. Pure.

Anybody may say that it is reached at somebody else's address: at a host that all nodes of a swarm would then call again
and again, or at a service of this very machine. So a host where nobody answered who should is left alone for a while,
longer each time, and what is of one machine alone is not dialled by a node that is to be reached from others.
"""

from __future__ import annotations

import ipaddress
import time

from cachetools import FIFOCache

from swarmd.bounds import Backoff
from swarmd.worker.runtime import TimeSource

PAUSE = Backoff(20.0, 600.0)
HOSTS_MAX = 1024  # that failed; the one that did longest ago is forgotten
ZONE = "ip6zone/"  # before an address that counts on one interface of a machine


def host_of(place: str) -> str:
    """The host of a multiaddr: an address or a name."""
    return [*place.strip("/").split("/"), ""][1].lower()


def is_elsewhere(place: str) -> bool:
    """Whether a multiaddr may be another machine's: not of this one alone, nor of whatever is on the same wire."""
    host = host_of(place)
    if place.strip("/").startswith(ZONE):
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.rstrip(".") != "localhost" and not host.rstrip(".").endswith(".localhost")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    odd = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    return not odd


class DialledHosts:
    """Remembers where dialling led to nobody.

    Args:
        now: a monotone clock in seconds.
    """

    def __init__(self, now: TimeSource = time.monotonic) -> None:
        self._now = now
        self._failed: FIFOCache[str, tuple[int, float]] = FIFOCache(
            HOSTS_MAX
        )  # host → how often, until when it is left

    def may_dial(self, place: str) -> bool:
        """Whether a place may be dialled now."""
        _, until = self._failed.get(host_of(place), (0, 0.0))
        return self._now() >= until

    def note(self, place: str, reached: bool) -> None:
        """A place was dialled, and the peer was reached there or not."""
        failures, until = self._failed.pop(host_of(place), (0, 0.0))
        if reached:
            return
        if self._now() >= until:  # others of the host were under way already
            failures += 1
            until = self._now() + PAUSE.after(failures)
        self._failed[host_of(place)] = failures, until
