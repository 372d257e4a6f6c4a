"""Checks addresses in configurations, and classifies multiaddrs. Does not import hivemind.

- A configuration's addresses are checked before anything starts.
- A peer may claim any address: a host that all nodes of a swarm would then call repeatedly, or a service of this
  machine. So a host where the expected peer did not answer is not dialled for a while, longer each time, and a node
  that is reachable from other machines does not dial loopback or link-local addresses.
- Peer ids cost nothing, addresses do: many ids may share an address. So bounds apply to the prefix of an address, and
  one range of addresses gets few slots in the routing table.
"""

import errno
import ipaddress
import re
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from cachetools import FIFOCache

from swarmd.bounds import Backoff
from swarmd.config import Config
from swarmd.dht.identity.identity import is_peer_id
from swarmd.errors import ConfigError
from swarmd.worker.runtime import TimeSource

HOSTS = ("ip4", "ip6", "ip6zone", "dns", "dns4", "dns6", "dnsaddr")
PORT_MAX = 65535
LENGTH_MAX = 256  # characters; peers refuse a membership with a longer one

_PEER_ID_FIX = "A peer id begins with 12D3Koo or Qm; `swarmd identity show` prints a node's"

IP4, IP6 = b"\x04", b"\x29"  # codes of multiaddr
CIRCUIT = b"\xa2\x02"  # /p2p-circuit
RELAYED = "relayed"
ELSEWHERE = "elsewhere"
HOST_BYTES = {IP4: 8, IP6: 20}  # bytes of an address with its port, which must not be searched for protocol codes
V6_PREFIX_BYTES = 7  # a /56, which is what one customer gets

RANGE_PEERS_MAX = 16  # in the routing table, of one /24 of IPv4 or one /56 of IPv6
V4_PREFIX, V6_PREFIX = 24, 56

PAUSE = Backoff(20.0, 600.0)
HOSTS_MAX = 1024  # hosts that failed; the one that failed longest ago is dropped
ZONE = "ip6zone/"  # prefix of an address that is valid on one network interface only


def check_addresses(config: Config) -> None:
    """Check every peer id and address of a configuration. Raises ConfigError, which names the key."""
    if config.role == "follower" and (config.swarm.coordinator or config.chain is None):
        _check_peer_id("swarm.coordinator", config.swarm.coordinator)
    for peer in config.dht.members:
        _check_peer_id("dht.members", peer)
    if config.dht.peer:
        _check_peer_id("dht.peer", config.dht.peer)
    check_bootstrap(config.dht.bootstrap)
    _check_multiaddrs("dht.listen", config.dht.listen)
    _check_multiaddrs("dht.announce", config.dht.announce)
    check_dialable("dht.announce", config.dht.announce)


def check_bootstrap(addresses: Iterable[str], key: str = "dht.bootstrap") -> None:
    """Check addresses of nodes to join through. Raises ConfigError, which names `key`, where they were configured."""
    for address in addresses:
        _check_multiaddrs(key, [split_address(address, key)[0]])
        check_dialable(key, [address])


def _check_peer_id(key: str, peer: str) -> None:
    if not is_peer_id(peer):
        raise ConfigError(f"{key}: {peer!r} is not a peer id", _PEER_ID_FIX)


def _check_multiaddrs(key: str, addresses: Iterable[str]) -> None:
    for address in addresses:
        if not is_multiaddr(address):
            raise ConfigError(f"{key}: {address!r} is not an address", suggest_address(address))


def check_dialable(key: str, addresses: Iterable[str]) -> None:
    """Raise ConfigError for an address that p2pd cannot dial."""
    for address in addresses:
        if re.search("/(tcp|udp)/0+(/|$)", address):
            raise ConfigError(f"{key}: {address!r} names no port", "Write the port at which the node is reached")
        if re.search(r"/udp/\d+(/(?!quic)|$)", address):
            fix = "Write it with /tcp/PORT, or with /udp/PORT/quic-v1 if the node listens so"
            raise ConfigError(f"{key}: {address!r} is UDP without QUIC, which no node speaks", fix)
        if address.startswith(("/ip4/0.0.0.0/", "/ip6/::/")):
            fix = "Write the address that others reach this machine under, such as /ip4/192.0.2.1/tcp/38331"
            raise ConfigError(f"{key}: {address!r} is an address to listen on, which nobody else can call", fix)
        if address.startswith("/ip6zone/"):
            fix = "Write another address of the node: a global one, one that begins with fd, or a name"
            raise ConfigError(f"{key}: {address!r} is of one network interface, and p2pd calls no such address", fix)


def split_address(address: str, key: str = "dht.bootstrap") -> tuple[str, str]:
    """Split a multiaddr that ends in /p2p/<peer id> into (multiaddr, peer id). Raises ConfigError for any other."""
    place, _, peer = address.rpartition("/p2p/")
    if not place.startswith("/") or not is_peer_id(peer):
        fix = "It must end in /p2p/ and the peer id that `swarmd identity show` prints"
        raise ConfigError(f"{key}: {address!r} is not the address of a node", fix)
    return place, peer


def suggest_address(text: str) -> str:
    """Suggest a multiaddr for a wrong one, such as a plain host and port."""
    found = re.fullmatch(r"(?:\w+://)?([\w.-]+?)(?::(\d{1,5}))?/?", text)
    _, kind, host = ("/" + text.strip("/") + "//").split("/")[:3]
    if text.startswith("/ip") and kind in HOSTS and not _is_host(kind, host):
        example = {"ip4": "192.0.2.1", "ip6": "2001:db8::1"}.get(kind, "node.example.org")
        return f"{host!r} is not a valid {kind} address: write for example /{kind}/{example}/tcp/38331"
    if found is None or text.startswith("/"):
        return "Write for example /ip4/0.0.0.0/tcp/38331"
    host, port = found[1], found[2] or "38331"
    if host.isdecimal() and len(host) <= 5:
        return f"Write /ip4/0.0.0.0/tcp/{host}, with the address to listen on"
    return f"Write /{'ip4' if re.fullmatch(r'[0-9.]+', host) else 'dns4'}/{host}/tcp/{port}"


def is_multiaddr(text: str) -> bool:
    """Return whether a multiaddr begins with a valid host and, if present, a valid port. libp2p checks the rest."""
    if len(text) > LENGTH_MAX or not text.isprintable():
        return False
    root, host, name, transport, port = (text.split("/") + [""] * 5)[:5]
    if root or host not in HOSTS or not _is_host(host, name):
        return False
    return transport not in ("tcp", "udp") or (port.isdecimal() and int(port) <= PORT_MAX)


def _is_host(kind: str, text: str) -> bool:
    if kind not in ("ip4", "ip6"):
        return bool(text)
    try:
        return ipaddress.ip_address(text).version == int(kind[-1])
    except ValueError:
        return False


def can_listen_at(address: str) -> bool:
    """Return whether a process could listen at this multiaddr; True also if it is not plain TCP over IP."""
    place = tcp_endpoint(address)
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


def tcp_endpoint(address: str) -> tuple[str, int] | None:
    """Return (host, port) of a multiaddr that is plain TCP over IP or DNS, else None."""
    parts = address.strip("/").split("/")
    if len(parts) < 4 or parts[2] != "tcp" or parts[0] not in ("ip4", "ip6", "dns", "dns4", "dns6"):
        return None
    return (parts[1], int(parts[3])) if parts[3].isdecimal() else None


def multiaddrs_to_text(addresses: Iterable[Any]) -> list[str]:
    """Return hivemind's multiaddrs as text, without those with a protocol that only p2pd knows."""
    texts = list[str]()
    for address in addresses:
        with suppress(ValueError):
            texts.append(str(address))
    return texts


def connection_origin(address: Any) -> str:
    """Return the multiaddr of a connection's remote end, up to the first protocol that hivemind does not know."""
    parts = [""]
    with suppress(ValueError):
        for protocol, value in address.items():
            parts += [protocol.name] if value is None else [protocol.name, value]
    return "/".join(parts)


def is_loopback(address: str) -> bool:
    return address.startswith(("/ip4/127.", "/ip6/::1/"))


def address_prefix(address: bytes) -> str:
    """Return the prefix of an encoded multiaddr: an IPv4 address, 56 bits of an IPv6 address, or "relayed"."""
    kind = address[:1]
    if CIRCUIT in address[HOST_BYTES.get(kind, 0) :]:
        return RELAYED
    if len(address) >= 5 and kind == IP4:
        return str(IPv4Address(address[1:5]))
    if len(address) >= 17 and kind == IP6:
        host = _parse_host(address[1:17])
        packed = address[1 : 1 + V6_PREFIX_BYTES] + bytes(16 - V6_PREFIX_BYTES)
        return str(host) if host.version == 4 else f"{IPv6Address(packed)}/56"
    return ELSEWHERE


def _parse_host(host: str | bytes) -> IPv4Address | IPv6Address:
    """Parse an IP address; an IPv4-mapped IPv6 address becomes IPv4. Raises ValueError."""
    address = ipaddress.ip_address(host)
    return (address.version == 6 and address.ipv4_mapped) or address


def address_range(address: str) -> str:
    """Return a multiaddr's range; empty for addresses that cost nothing: local, private and relayed ones."""
    kind, _, rest = address.lstrip("/").partition("/")
    if kind not in ("ip4", "ip6") or "p2p-circuit" in address:
        return ""
    try:
        host = _parse_host(rest.partition("/")[0])
    except ValueError:
        return ""
    if not host.is_global:
        return ""
    return str(ipaddress.ip_network((host, V4_PREFIX if host.version == 4 else V6_PREFIX), strict=False))


def find_surplus_peers(
    peers: Iterable[str], addresses: Mapping[str, Iterable[str]], trusted: Iterable[str]
) -> list[str]:
    """Return the peers beyond `RANGE_PEERS_MAX` of their address range, counting `peers` in order. `addresses`: peer id
    → multiaddrs that it is connected from. Peers without addresses and `trusted` ones stay."""
    counts, always, gone = Counter[str](), frozenset(trusted), []
    for peer in peers:
        ranges = {address_range(address) for address in addresses.get(peer, ())} - {""}
        if peer not in always and any(counts[each] >= RANGE_PEERS_MAX for each in ranges):
            gone.append(peer)
        else:
            counts.update(ranges)
    return gone


def host_of(place: str) -> str:
    """Return the host of a multiaddr: an IP address or a name."""
    return [*place.strip("/").split("/"), ""][1].lower()


def may_be_remote(place: str) -> bool:
    """Return whether a multiaddr may be another machine's: not loopback, and not link-local."""
    host = host_of(place)
    if place.strip("/").startswith(ZONE):
        return False
    try:
        address = _parse_host(host)
    except ValueError:
        return host.rstrip(".") != "localhost" and not host.rstrip(".").endswith(".localhost")
    odd = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    return not odd


class DialBackoff:
    """Remembers hosts at which dialling has failed."""

    def __init__(self, now: TimeSource = time.monotonic) -> None:
        self._now = now
        self._failed: FIFOCache[str, tuple[int, float]] = FIFOCache(
            HOSTS_MAX
        )  # host → number of failures, end of the pause

    def may_dial(self, place: str) -> bool:
        _, until = self._failed.get(host_of(place), (0, 0.0))
        return self._now() >= until

    def record_dial(self, place: str, reached: bool) -> None:
        failures, until = self._failed.pop(host_of(place), (0, 0.0))
        if reached:
            return
        if self._now() >= until:  # otherwise several dials of one host were running at once
            failures += 1
            until = self._now() + PAUSE.after(failures)
        self._failed[host_of(place)] = failures, until
