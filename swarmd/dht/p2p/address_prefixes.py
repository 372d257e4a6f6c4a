"""The part of an address that costs something: many peer ids may stand behind one."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

IP4, IP6 = b"\x04", b"\x29"  # codes of multiaddr
CIRCUIT = b"\xa2\x02"  # /p2p-circuit
RELAYED = "relayed"
ELSEWHERE = "elsewhere"
HOST_BYTES = {IP4: 8, IP6: 20}  # of an address with its port: whatever stands in these is no protocol's code
V6_PREFIX_BYTES = 7  # a /56, what one customer gets


def prefix_of(address: bytes) -> str:
    """Of an encoded multiaddr: an IPv4 address, 56 bits of an IPv6 address, or "relayed", which all of those share."""
    kind = address[:1]
    if CIRCUIT in address[HOST_BYTES.get(kind, 0) :]:
        return RELAYED
    if len(address) >= 5 and kind == IP4:
        return str(IPv4Address(address[1:5]))
    if len(address) >= 17 and kind == IP6:
        return prefix_of_v6(address[1:17])
    return ELSEWHERE


def prefix_of_v6(packed: bytes) -> str:
    """Of the 16 bytes of an IPv6 address; one that stands for an IPv4 address counts as that."""
    address = IPv6Address(packed)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(packed[:V6_PREFIX_BYTES] + bytes(16 - V6_PREFIX_BYTES))}/56"
