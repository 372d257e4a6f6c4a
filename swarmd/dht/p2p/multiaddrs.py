"""Where multiaddrs point to: host and port, whether of this host alone, whether still free. No hivemind in it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


def is_free(address: str) -> bool:
    """Could one listen at this multiaddr? True also for what is not plain TCP over IP."""
    place = tcp_place(address)
    if place is None or place[1] == 0:
        return True
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
            probe.listen(1)
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def tcp_place(address: str) -> tuple[str, int] | None:
    """(host, port) of a multiaddr that is plain TCP over IP or DNS, else None."""
    parts = address.strip("/").split("/")
    if len(parts) < 4 or parts[2] != "tcp" or parts[0] not in ("ip4", "ip6", "dns", "dns4", "dns6"):
        return None
    return (parts[1], int(parts[3])) if parts[3].isdecimal() else None


def readable(addresses: Iterable[Any]) -> list[str]:
    """Those of hivemind's multiaddrs as text of which hivemind knows every protocol: p2pd knows more, and uses them."""
    texts = list[str]()
    for address in addresses:
        with suppress(ValueError):
            texts.append(str(address))
    return texts


def origin_of(address: Any) -> str:
    """Where a connection comes from, as text: its multiaddr up to the first protocol that hivemind does not know."""
    parts = [""]
    with suppress(ValueError):
        for protocol, value in address.items():
            parts += [protocol.name] if value is None else [protocol.name, value]
    return "/".join(parts)


def is_loopback(address: str) -> bool:
    """Is this multiaddr of this host only?"""
    return address.startswith(("/ip4/127.", "/ip6/::1/"))
