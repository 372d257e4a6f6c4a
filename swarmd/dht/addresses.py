"""The peers and addresses of a configuration, checked before anything starts. Loads nothing heavy."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from swarmd.config import Config
from swarmd.dht.identity.identity import is_peer_id
from swarmd.errors import ConfigError

HOSTS = ("ip4", "ip6", "ip6zone", "dns", "dns4", "dns6", "dnsaddr")
PORT_MAX = 65535
LENGTH_MAX = 256  # characters; peers take no membership with a longer one, nor with what cannot be printed

_PEER_ID_FIX = "A peer id begins with 12D3Koo or Qm; `swarmd identity show` prints a node's"


def check_addresses(config: Config) -> None:
    """Every peer id and address of the file.

    Raises:
        ConfigError: one is none; the message names the key.
    """
    if config.role == "follower" and (config.swarm.coordinator or config.chain is None):
        _check_peer("swarm.coordinator", config.swarm.coordinator)
    for peer in config.dht.members:
        _check_peer("dht.members", peer)
    if config.dht.peer:
        _check_peer("dht.peer", config.dht.peer)
    check_bootstrap(config.dht.bootstrap)
    _check_places("dht.listen", config.dht.listen)
    _check_places("dht.announce", config.dht.announce)
    _check_called("dht.announce", config.dht.announce)


def check_bootstrap(addresses: Iterable[str], key: str = "dht.bootstrap") -> None:
    """Addresses of nodes to join through. Raises ConfigError, which says by `key` where they were given."""
    for address in addresses:
        _check_places(key, [split_address(address, key)[0]])
        _check_called(key, [address])


def _check_peer(key: str, peer: str) -> None:
    if not is_peer_id(peer):
        raise ConfigError(f"{key}: {peer!r} is no peer id", _PEER_ID_FIX)


def _check_places(key: str, addresses: Iterable[str]) -> None:
    for address in addresses:
        if not is_address(address):
            raise ConfigError(f"{key}: {address!r} is no address", "Write for example /ip4/0.0.0.0/tcp/38331")


def _check_called(key: str, addresses: Iterable[str]) -> None:
    """Can anybody's p2pd call there?"""
    for address in addresses:
        if re.search("/(tcp|udp)/0+(/|$)", address):
            raise ConfigError(f"{key}: {address!r} names no port", "Write the port at which the node is reached")
        if address.startswith("/ip6zone/"):
            fix = "Write another address of the node: a global one, one that begins with fd, or a name"
            raise ConfigError(f"{key}: {address!r} is of one network interface, and p2pd calls no such address", fix)


def split_address(address: str, key: str = "dht.bootstrap") -> tuple[str, str]:
    """(multiaddr, peer id) of a multiaddr that ends in /p2p/<peer id>.

    Args:
        key: where it was given, for people.

    Raises:
        ConfigError: it does not.
    """
    place, _, peer = address.rpartition("/p2p/")
    if not place.startswith("/") or not is_peer_id(peer):
        fix = "It must end in /p2p/ and the peer id that `swarmd identity show` prints"
        raise ConfigError(f"{key}: {address!r} is not the address of a node", fix)
    return place, peer


def is_address(text: str) -> bool:
    """Does a multiaddr begin with a host and, where one is named, a port? What follows is left to libp2p."""
    if len(text) > LENGTH_MAX or not text.isprintable():
        return False
    root, host, name, transport, port = (text.split("/") + [""] * 5)[:5]
    if root or host not in HOSTS or not _is_host(host, name):
        return False
    return transport not in ("tcp", "udp") or _is_port(port)


def _is_host(kind: str, text: str) -> bool:
    if kind not in ("ip4", "ip6"):
        return bool(text)
    try:
        return ipaddress.ip_address(text).version == int(kind[-1])
    except ValueError:
        return False


def _is_port(text: str) -> bool:
    return text.isdecimal() and int(text) <= PORT_MAX
