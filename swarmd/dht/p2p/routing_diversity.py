"""How many places of the routing table one network address range may have: places cost peer ids, which are free, and
addresses, which are not."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping

RANGE_PEERS_MAX = 16  # in the routing table, of one /24 of IPv4 or one /56 of IPv6
V4_PREFIX, V6_PREFIX = 24, 56


def range_of(address: str) -> str:
    """The range that a multiaddr belongs to; empty where nobody pays for it: this host, a private network, a relay."""
    kind, _, rest = address.lstrip("/").partition("/")
    if kind not in ("ip4", "ip6") or "p2p-circuit" in address:
        return ""
    try:
        host = ipaddress.ip_address(rest.partition("/")[0])
    except ValueError:
        return ""
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    if not host.is_global:
        return ""
    return str(ipaddress.ip_network((host, V4_PREFIX if host.version == 4 else V6_PREFIX), strict=False))


def surplus(peers: Iterable[str], addresses: Mapping[str, Iterable[str]], trusted: Iterable[str]) -> list[str]:
    """Peers of a routing table beyond `RANGE_PEERS_MAX` of their range.

    Args:
        peers: peer ids, those first that stay rather.
        addresses: peer id → multiaddrs that it is connected from; whoever is not connected stays.
        trusted: peer ids that always stay.
    """
    counts, always, gone = Counter[str](), frozenset(trusted), []
    for peer in peers:
        ranges = {range_of(address) for address in addresses.get(peer, ())} - {""}
        if peer not in always and any(counts[each] >= RANGE_PEERS_MAX for each in ranges):
            gone.append(peer)
        else:
            counts.update(ranges)
    return gone
