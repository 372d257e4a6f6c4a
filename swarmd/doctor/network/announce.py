"""How others are to reach this node: what it announces, what kind of addresses it has, and what NAT takes away."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator, Sequence

import psutil

from swarmd.config import Config
from swarmd.dht.p2p.multiaddrs import is_loopback, tcp_place
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.network.ports import port_of
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread

DIAL_S = 4.0
SHARED = ipaddress.ip_network("100.64.0.0/10")  # carrier-grade NAT
DEFAULT_PORT = 38331

ANNOUNCE_ANY = FindingKind(
    "announce.any",
    "error",
    "The node announces an address that is none",
    '0.0.0.0 and :: mean "any address of this machine"; nobody can dial them.',
    "Put the address into dht.announce under which others reach this machine",
)
ANNOUNCE_LOOPBACK = FindingKind(
    "announce.loopback",
    "warning",
    "The node announces an address of this machine alone",
    "Nodes on other machines dial themselves at it.",
    "Put the address into dht.announce under which others reach this machine, or leave it empty",
)
ANNOUNCE_PRIVATE = FindingKind(
    "announce.private",
    "note",
    "The node announces a private address",
    "Only nodes in the same private network reach it.",
    "For others, announce the public address and forward the port",
)
ANNOUNCE_NAT = FindingKind(
    "announce.nat",
    "warning",
    "The node seems to be behind a NAT, and announces nothing",
    "It can dial others, but others cannot dial it, unless the router forwards ports by UPnP. It takes part; its "
    "rollouts travel by way of others.",
    "Forward the port on the router and announce the public address; a follower may set dht.client_mode = true instead",
)
ANNOUNCE_INSIDE = FindingKind(
    "announce.inside",
    "note",
    "Only the same network can join through this node",
    "It has private addresses and announces nothing. That is right for a swarm within one network.",
    "For others, forward the port on the router and announce the public address",
)
ANNOUNCE_PORT = FindingKind(
    "announce.port",
    "note",
    "The announced port is not the one that the node listens on",
    "That is right where a router forwards the one to the other, and wrong otherwise.",
    "See that the router forwards it",
)
ANNOUNCE_SILENT = FindingKind(
    "announce.unanswered",
    "note",
    "Nobody answers at the announced address, seen from here",
    "Many routers do not lead a machine back to itself, so this alone proves nothing.",
    "Try from another network: `nc -vz HOST PORT`",
)
ANNOUNCE_UNKNOWN = FindingKind(
    "announce.name",
    "warning",
    "An announced name cannot be resolved",
    "Others look it up and find nothing.",
    "Correct the name, or announce an address",
)
CLIENT_COORDINATOR = FindingKind(
    "announce.client",
    "warning",
    "The coordinator accepts no connections",
    "With dht.client_mode it only dials. Nobody can join through it.",
    "Set dht.client_mode = false on the coordinator's node, and forward its port",
)


async def check_announce(subject: Subject) -> list[Finding]:
    """Announced addresses, and what it means to have none."""
    config = subject.whole[0]
    found = [*_examine_role(config), *_examine_announced(config)]
    if not config.dht.announce and not config.dht.client_mode:
        hosts = await in_thread(bootstrap_hosts, config, subject.offline)
        found += _examine_nat(config, await in_thread(own_addresses), hosts)
    if not subject.offline:
        found += await _examine_answers(subject)
    shown = ", ".join(config.dht.announce) or ("dials only" if config.dht.client_mode else "what libp2p finds out")
    return found or [well("announce", "Announced addresses", shown)]


def _examine_role(config: Config) -> Iterator[Finding]:
    if config.role == "coordinator" and config.dht.client_mode:
        yield CLIENT_COORDINATOR.found("role is coordinator, dht.client_mode is true")


def _examine_announced(config: Config) -> Iterator[Finding]:
    abroad = [address for address in config.dht.bootstrap if not is_loopback(address)]
    ports = {port_of(address) for address in config.dht.listen} - {0}
    for address in config.dht.announce:
        kind = kind_of(address)
        if kind == "any":
            yield ANNOUNCE_ANY.found(f"dht.announce has {address}")
        elif kind == "loopback" and (abroad or not config.dht.bootstrap):
            yield ANNOUNCE_LOOPBACK.found(f"dht.announce has {address}")
        elif kind == "private":
            yield ANNOUNCE_PRIVATE.found(f"dht.announce has {address}")
        if ports and port_of(address) not in ports | {0}:
            heard = ", ".join(map(str, sorted(ports)))
            yield ANNOUNCE_PORT.found(f"dht.announce has {address}, dht.listen has port {heard}")


def kind_of(address: str) -> str:
    """ "any", "loopback", "private" or "public", by a multiaddr's host; "name" where it is one."""
    place = tcp_place(address)
    host = place[0] if place else [*address.split("/"), "", ""][2]
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return "name"
    if found.is_unspecified:
        return "any"
    if found.is_loopback:
        return "loopback"
    shared = found.version == 4 and found in SHARED
    return "private" if found.is_private or found.is_link_local or shared else "public"


def own_addresses() -> list[str]:
    """Addresses of this machine's interfaces, as multiaddrs, but for loopback and link-local ones."""
    kinds = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}
    listed = [
        f"/{kinds[each.family]}/{each.address.partition('%')[0]}"
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family in kinds
    ]
    return [address for address in listed if not is_loopback(address + "/") and not address.startswith("/ip6/fe80")]


def bootstrap_hosts(config: Config, offline: bool) -> list[str]:
    """Addresses of the bootstrap nodes; names are looked up unless that is not wanted."""
    hosts, flags = [], socket.AI_NUMERICHOST if offline else 0
    for address in config.dht.bootstrap:
        place = tcp_place(address.rpartition("/p2p/")[0])
        if place is None:
            continue
        try:
            hosts += [
                str(row[4][0]) for row in socket.getaddrinfo(place[0], place[1], type=socket.SOCK_STREAM, flags=flags)
            ]
        except (OSError, UnicodeError):  # UnicodeError: a name that no name server takes
            continue  # the check of the bootstrap nodes says so
    return hosts


def _examine_nat(config: Config, own: Sequence[str], others: Sequence[str]) -> Iterator[Finding]:
    """Only private addresses here, and public ones there: others will not find the way back by themselves."""
    if all(is_loopback(address) for address in config.dht.listen):
        return
    if config.role == "coordinator" and not any(kind_of(address) == "public" for address in own):
        evidence = f"this machine has {', '.join(own) or 'no address'}, and dht.announce is empty"
        yield ANNOUNCE_INSIDE.found(evidence, advise_forwarding(config, own))
        return
    public_there = any(kind_of(f"/{'ip6' if ':' in host else 'ip4'}/{host}") == "public" for host in others)
    if not public_there or any(kind_of(address) == "public" for address in own):
        return
    evidence = f"this machine has {', '.join(own) or 'no address'}; the bootstrap nodes are public"
    yield ANNOUNCE_NAT.found(evidence, advise_forwarding(config, own))


def advise_forwarding(config: Config, own: Sequence[str]) -> str:
    """What to set on the router and in the configuration."""
    port = next((port_of(address) for address in config.dht.listen if port_of(address)), 0)
    listen = "" if port else f'Set dht.listen = ["/ip4/0.0.0.0/tcp/{DEFAULT_PORT}"]. '
    port = port or DEFAULT_PORT
    inside = next((address.split("/")[2] for address in own if address.startswith("/ip4/")), "this machine")
    otherwise = (
        "run the coordinator on a machine that others reach: all others join through it"
        if config.role == "coordinator"
        else "set dht.client_mode = true"
    )
    return (
        f"{listen}On the router, forward TCP port {port} to {inside}, and set dht.announce = "
        f'["/ip4/PUBLIC-ADDRESS/tcp/{port}"]. Where that cannot be done, {otherwise}'
    )


async def _examine_answers(subject: Subject) -> list[Finding]:
    """While the node runs, somebody must answer at what it announces."""
    announced = [address for address in subject.whole[0].dht.announce if kind_of(address) in ("public", "name")]
    found: list[Finding] = []
    runs = (await subject.life()).runs
    for address, outcome in zip(announced, await asyncio.gather(*map(_dial, announced)), strict=True):
        if outcome == "unknown":
            found.append(ANNOUNCE_UNKNOWN.found(f"dht.announce has {address}"))
        elif outcome and runs:
            host, port = tcp_place(address) or ("HOST", 0)
            fix = f"Try from another network: `nc -vz {host} {port}`"
            found.append(ANNOUNCE_SILENT.found(f"{address}: {outcome}", fix))
    return found


async def _dial(address: str) -> str:
    """Empty when somebody accepts a connection, "unknown" for a name that nobody knows, else the reason."""
    place = tcp_place(address)
    if place is None:
        return ""
    try:
        async with asyncio.timeout(DIAL_S):
            _, writer = await asyncio.open_connection(*place)
    except TimeoutError:
        return f"no answer within {DIAL_S:g} s"
    except (socket.gaierror, UnicodeError):
        return "unknown"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return ""
