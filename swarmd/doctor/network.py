"""Checks of the network: ports, announced addresses, NAT, and the bootstrap nodes."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from swarmd.config import Config
from swarmd.daemon.process import read_process_tag
from swarmd.dht.wire.addresses import can_listen_at, is_loopback, tcp_endpoint
from swarmd.doctor.examination import Finding, Subject, error, note, ok_finding, warning
from swarmd.errors import SwarmdError
from swarmd.http_server import PAGE_PORT, parse_listen

PRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
CONNECT_S = 4.0
SHARED = ipaddress.ip_network("100.64.0.0/10")  # RFC 6598, carrier-grade NAT
DEFAULT_PORT = 38331


def check_ports(subject: Subject) -> Iterator[Finding]:
    """Whether the configured ports are free and fixed, and whether others can dial the announced addresses."""
    config, data = subject.config_and_data
    own = str(data.root.resolve()) if subject.daemon.is_running else ""
    places = list(listening_places(config))
    for key, address in places:
        yield from _examine_port(key, address, own)
    coordinator, client = config.role == "coordinator", config.dht.client_mode
    if coordinator and client:
        fix = "Set dht.client_mode = false on the coordinator's node, and forward its port"
        evidence = "role is coordinator, dht.client_mode is true"
        yield warning("announce.client", "Nobody can join through the coordinator: it only dials", evidence, fix)
    elif coordinator and not any(map(port_of, config.dht.listen)):
        evidence = f"dht.listen is {', '.join(config.dht.listen)}"
        fix = "Fix the port in dht.listen, for example /ip4/0.0.0.0/tcp/38331"
        yield warning("ports.changing", "A node that others join through has no fixed port", evidence, fix)
    yield from _examine_announced(config)
    if not config.dht.announce and not client:
        yield from _examine_nat(config, own_addresses(), bootstrap_hosts(config, subject.offline))
    if not subject.offline:
        yield from _dial_announced(config, subject.daemon.is_running)
    yield ok_finding(", ".join(f"{key} {address}" for key, address in places) or "any free port")


def listening_places(config: Config) -> Iterator[tuple[str, str]]:
    """(key, multiaddr) of each fixed port that the node listens on."""
    for address in () if config.dht.client_mode else config.dht.listen:
        if port_of(address):
            yield "dht.listen", address
    try:
        host, port = parse_listen(config.web.listen, PAGE_PORT) if config.web.listen else ("", 0)
    except SwarmdError:
        return  # `check_config` reports it
    if port:
        host = "127.0.0.1" if host == "localhost" else host
        yield "web.listen", f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"


def port_of(address: str) -> int:
    """The TCP port of a multiaddr; 0 if unspecified or any."""
    place = tcp_endpoint(address)
    return place[1] if place else 0


def _examine_port(key: str, address: str, own: str) -> Iterator[Finding]:
    port = port_of(address)
    try:
        lowest = int(PRIVILEGED.read_text(encoding="ascii"))
    except (OSError, ValueError):
        lowest = 0
    if port < lowest and os.geteuid() != 0:
        evidence = f"{key}: port {port}, the first for everybody is {lowest}"
        fix = "Choose a port of 1024 or more, 38331 for example"
        yield error("ports.privileged", "A port is reserved for root", evidence, fix)
    elif is_foreign_address(address):
        fix = "Listen on 0.0.0.0 or on an address of this machine; what others reach this node under belongs into "
        fix += "dht.announce"
        evidence = f"{key}: {address} is of no interface of this machine"
        yield error("ports.address", "This machine has no such address", evidence, fix)
    elif not can_listen_at(address):
        holders = list(_find_port_holders(port))
        if own and any(tag.endswith(f"@{own}") for _, tag in holders):
            return  # held by the running node itself
        who = ", ".join(name for name, _ in holders) or "a process of another user"
        fix = f"Stop it (`ss -ltnp sport = :{port}` shows it), or choose another port in {key}"
        yield error("ports.taken", "A port is taken", f"{key}: port {port} is taken by {who}", fix)


def is_foreign_address(address: str) -> bool:
    """Whether a multiaddr's IP address belongs to no interface of this machine; names are not resolved."""
    host, _ = tcp_endpoint(address) or ("", 0)
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        return False
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError as failure:
        return failure.errno == errno.EADDRNOTAVAIL
    return False


def _find_port_holders(port: int) -> Iterator[tuple[str, str]]:
    """(description, node's tag) of processes listening on a port, as far as this user may see them."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return
    listening = (each for each in connections if each.status == psutil.CONN_LISTEN and each.laddr.port == port)
    for pid in sorted({each.pid for each in listening if each.pid}):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            process = psutil.Process(pid)
            yield f"process {pid} ({process.name()})", read_process_tag(process)


# --- announced addresses ---


def _examine_announced(config: Config) -> Iterator[Finding]:
    abroad = any(not is_loopback(address) for address in config.dht.bootstrap)
    fix = "Put the address that others reach this node under into dht.announce"
    for address in config.dht.announce:
        kind, evidence = classify_host(address), f"dht.announce has {address}"
        if kind == "loopback" and (abroad or not config.dht.bootstrap):
            title = "The node announces an address at which others dial themselves"
            yield warning("announce.loopback", title, evidence, f"{fix}, or leave it empty")
        elif kind == "private":
            title = "Only nodes in the same private network reach what the node announces"
            fix_private = "For others, announce the public address and forward the port"
            yield note("announce.private", title, evidence, fix_private)


def classify_host(address: str) -> str:
    """Classify a multiaddr's host: "any", "loopback", "private", "public" or "name"."""
    place = tcp_endpoint(address)
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
    """Addresses of this machine's interfaces as multiaddrs, without loopback and link-local ones."""
    kinds = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}
    listed = [
        f"/{kinds[each.family]}/{each.address.partition('%')[0]}"
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family in kinds
    ]
    return [address for address in listed if not is_loopback(address + "/") and not address.startswith("/ip6/fe80")]


def bootstrap_hosts(config: Config, offline: bool) -> list[str]:
    """IP addresses of the bootstrap nodes; names are resolved unless `offline`."""
    hosts, flags = [], socket.AI_NUMERICHOST if offline else 0
    for address in config.dht.bootstrap:
        place = tcp_endpoint(address.rpartition("/p2p/")[0])
        if place is not None:
            try:
                rows = socket.getaddrinfo(*place, type=socket.SOCK_STREAM, flags=flags)
                hosts += [str(row[4][0]) for row in rows]
            except (OSError, UnicodeError):  # UnicodeError: a name that resolvers reject
                continue  # `check_bootstrap` reports it
    return hosts


def _examine_nat(config: Config, own: Sequence[str], others: Sequence[str]) -> Iterator[Finding]:
    """Detect a NAT: others with public addresses cannot dial a machine that has only private ones."""
    if any(classify_host(address) == "public" for address in own) or all(map(is_loopback, config.dht.listen)):
        return
    shown = f"this machine has {', '.join(own) or 'no address'}"
    fix = advise_forwarding(config, own)
    if config.role == "coordinator":
        title = "Only nodes in the same network can join through this one, which is right for a swarm within it"
        yield note("announce.inside", title, f"{shown}, and dht.announce is empty", fix)
    elif any(classify_host(f"/{'ip6' if ':' in host else 'ip4'}/{host}") == "public" for host in others):
        title = "The node seems to be behind a NAT, and announces nothing: others cannot dial it"
        yield warning("announce.nat", title, f"{shown}; the bootstrap nodes are public", fix)


def advise_forwarding(config: Config, own: Sequence[str]) -> str:
    """Advice for the router and the configuration."""
    port = next(filter(None, map(port_of, config.dht.listen)), 0)
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
        f'["/ip4/PUBLIC-ADDRESS/tcp/{port}"]. If that cannot be done, {otherwise}'
    )


def _dial_announced(config: Config, runs: bool) -> Iterator[Finding]:
    """Dial the announced addresses, which must answer while the node runs."""
    for address in config.dht.announce:
        place, shown = tcp_endpoint(address), f"dht.announce has {address}"
        if place is None or classify_host(address) not in ("public", "name"):
            continue
        try:
            socket.create_connection(place, CONNECT_S).close()
        except (socket.gaierror, UnicodeError):
            fix = "Correct the name, or announce an address"
            yield warning("announce.name", "An announced name cannot be resolved", shown, fix)
        except OSError as failure:
            if runs:
                title = "Nobody answers at the announced address, seen from here; many routers do not lead back"
                fix = f"Try from another network: `nc -vz {place[0]} {place[1]}`"
                yield note("announce.unanswered", title, f"{shown}: {failure.strerror or 'no answer'}", fix)


# --- bootstrap nodes ---


async def check_bootstrap(subject: Subject) -> list[Finding]:
    """Dial every address of dht.bootstrap as a peer, except this node's own."""
    dialled = await asyncio.shield(subject.dial_results)
    if not dialled:
        return [ok_finding("none but this node is configured; others come to it")]
    good = [each for each in dialled if each.peer]
    foreign = [each for each in dialled if each.tcp and not each.peer]
    silent = [each for each in dialled if not each.tcp and not each.peer]
    title = "Somebody else answers at a bootstrap address"
    fix = "Ask the swarm's creator for the present address: the node has a new identity, or another its port"
    found = [warning("bootstrap.identity", title, f"{each.address}: {each.reason}", fix) for each in foreign]
    if not good:
        evidence = "; ".join(f"{each.address}: {each.reason}" for each in (*silent, *foreign))
        fix = "See that this machine reaches the network (a firewall may forbid outgoing TCP on that port), then ask "
        fix += "the swarm's creator for an address that works"
        return [*found, error("bootstrap.none", "No bootstrap node can be reached", evidence, fix)]
    title, fix = "A bootstrap node cannot be reached", "Ask its operator, or take its address out of dht.bootstrap"
    found += [warning("bootstrap.unreachable", title, f"{each.address}: {each.reason}", fix) for each in silent]
    quickest_ms = 1000 * min(each.rtt_s for each in good)
    return [*found, ok_finding(f"all {len(good)} answer as peers, the nearest in {quickest_ms:.0f} ms")]
