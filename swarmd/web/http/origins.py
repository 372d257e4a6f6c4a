"""Where a request comes from, as far as bounds go: an address, of IPv6 the network that one customer has."""

from __future__ import annotations

import ipaddress
from contextvars import ContextVar

NETWORK_BITS = 64  # of an IPv6 address; whoever has one has 2**64 of them
UNKNOWN = "?"

asker: ContextVar[str] = ContextVar("asker", default=UNKNOWN)  # of the request that is being answered


def origin_of(host: str) -> str:
    """The address, or its network, whose requests count together."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host or UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), NETWORK_BITS), strict=False))
