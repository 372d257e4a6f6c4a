"""Ports that the node is to listen on: are they free, and if not, who has them?"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from swarmd.config import Config
from swarmd.daemon.process import TAG_VARIABLE
from swarmd.dht.p2p.multiaddrs import is_free, tcp_place
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import SwarmdError
from swarmd.http_server import PAGE_PORT, parse_listen

PRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")

PORT_TAKEN = FindingKind(
    "ports.taken",
    "error",
    "A port is taken",
    "The node cannot listen there: its network worker ends with code 78.",
    "Stop what listens there, or choose another port",
)
PORT_ELSEWHERE = FindingKind(
    "ports.address",
    "error",
    "This machine has no such address",
    "Nothing can listen there, so nobody reaches the node at it. Behind a router the public address is the router's.",
    "Listen on 0.0.0.0 or on an address of this machine; the one that others use belongs into dht.announce",
)
PORT_PRIVILEGED = FindingKind(
    "ports.privileged",
    "error",
    "A port is reserved for root",
    "This user may not listen on so low a port.",
    "Choose a port of 1024 or more, 38331 for example",
)
PORT_CHANGING = FindingKind(
    "ports.changing",
    "warning",
    "A node that others join through has no fixed port",
    "After a restart its address may be another one, and the one in the manifest leads nowhere.",
    "Fix the port in dht.listen, for example /ip4/0.0.0.0/tcp/38331",
)


async def check_ports(subject: Subject) -> list[Finding]:
    """Every fixed port of the configuration; the running node's own are its own."""
    config, data = subject.whole
    places = list(places_of(config))
    own = str(await in_thread(data.root.resolve)) if (await subject.life()).runs else ""
    found = await in_thread(lambda: [finding for place in places for finding in _examine(*place, own)])
    if config.role == "coordinator" and not config.dht.client_mode and all(port_of(a) == 0 for a in config.dht.listen):
        found.append(PORT_CHANGING.found(f"dht.listen is {', '.join(config.dht.listen)}"))
    shown = ", ".join(f"{key} {address}" for key, address in places) or "any free one"
    return found or [well("ports", "Ports", shown)]


def places_of(config: Config) -> Iterator[tuple[str, str]]:
    """(key, multiaddr) of what the node listens on with a fixed port."""
    if not config.dht.client_mode:
        for address in config.dht.listen:
            if port_of(address):
                yield "dht.listen", address
    if not config.web.listen:
        return
    try:
        host, port = parse_listen(config.web.listen, PAGE_PORT)
    except SwarmdError:
        return  # the check of the configuration says so
    if port:
        yield "web.listen", f"/{'ip6' if ':' in host else 'ip4'}/{_numeric(host)}/tcp/{port}"


def _numeric(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host


def port_of(address: str) -> int:
    """The TCP port of a multiaddr, 0 where any will do or there is none."""
    place = tcp_place(address)
    return place[1] if place else 0


def _examine(key: str, address: str, own: str) -> Iterator[Finding]:
    port = port_of(address)
    if port < first_free_for_all() and os.geteuid() != 0:
        yield PORT_PRIVILEGED.found(f"{key}: port {port}, the first for everybody is {first_free_for_all()}")
        return
    if is_elsewhere(address):
        yield PORT_ELSEWHERE.found(f"{key}: {address} is of no interface of this machine")
        return
    if is_free(address):
        return
    pids = holders_of(port)
    if own and any(_belongs_to(pid, own) for pid in pids):
        return
    who = ", ".join(_described(pid) for pid in pids) or "a process of another user"
    fix = f"Stop it (`ss -ltnp sport = :{port}` shows it), or choose another port in {key}"
    yield PORT_TAKEN.found(f"{key}: port {port} is taken by {who}", fix)


def is_elsewhere(address: str) -> bool:
    """Whether no interface of this machine has a multiaddr's IP address; of a name that is not asked."""
    host, _ = tcp_place(address) or ("", 0)
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        return False
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return error.errno == errno.EADDRNOTAVAIL
    return False


def first_free_for_all() -> int:
    """The lowest port that needs no rights; 0 where the system does not tell."""
    try:
        return int(PRIVILEGED.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def holders_of(port: int) -> list[int]:
    """Pids of the processes that listen on a port, as far as this user may know."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return []
    listening = (each for each in connections if each.status == psutil.CONN_LISTEN and each.laddr.port == port)
    return sorted({each.pid for each in listening if each.pid})


def _belongs_to(pid: int, data: str) -> bool:
    """Is it a process of the node whose data directory this is?"""
    try:
        return str(psutil.Process(pid).environ().get(TAG_VARIABLE, "")).endswith(f"@{data}")
    except (psutil.Error, OSError):
        return False


def _described(pid: int) -> str:
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"process {pid}"
