"""Finds peers and stays connected to them: bootstrap, cached addresses, and the rejoin loop.

libp2p reconnects by itself after a partition, but a peer evicted from hivemind's routing table stays out until it is
pinged again. So every few seconds each node pings the bootstrap peers, and connected peers that are not in its table.
"""

import asyncio
import json
import random
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio

from swarmd.bounds import Backoff
from swarmd.dht.p2p.hivemind_api import Multiaddr, PeerID
from swarmd.dht.p2p.node import DhtNode, NodeRun
from swarmd.dht.wire.addresses import (
    PORT_MAX,
    DialBackoff,
    connection_origin,
    find_surplus_peers,
    is_multiaddr,
    may_be_remote,
    split_address,
    tcp_endpoint,
)
from swarmd.errors import ConfigError, NetworkDown
from swarmd.files import replace_durably
from swarmd.logger import get_logger

LOOKUPS_AT_ONCE = 4
LOOKUP_S = 1.5
ADDRESSES_MAX = 4  # of one host name

_FAMILIES = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}

REJOIN_S = 10.0
ALONE = Backoff(0.2, 5.0)  # back-off between rounds without a peer
DIAL_S = 4.0
PROBE_S = 1.5
DIALS_AT_ONCE = 8
STRANGERS = 4  # cached addresses to dial per round while the table has peers, to rejoin the halves of a split network
ALONE_STRANGERS = 32  # the same while it is empty; more dead addresses would delay the next round
MISSING = 32  # connected peers outside the table to ping per round: a crowd may connect and not answer
CHECKED = 8  # peers of the table to ping per round
PEERS_KEPT = 64
MUTE_MAX = 2  # rounds without an answer from p2pd before it is killed

log = get_logger(__name__)


def has_host_name(place: str) -> bool:
    """Return whether a multiaddr begins with a host name instead of an IP address."""
    return place.strip("/").split("/")[0] in (*_FAMILIES, "dnsaddr")


class HostNameResolver:
    """Resolves up to `LOOKUPS_AT_ONCE` host names in daemon threads: a hanging one does not keep the process alive."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def resolve_address(self, place: str) -> list[str]:
        """Return the multiaddr with its host name replaced by each IP address, or unchanged if it has no host name.
        Empty if the name is unknown, or was not resolved within `LOOKUP_S`."""
        kind, name, *rest = [*place.strip("/").split("/"), ""]
        family = _FAMILIES.get(kind)
        if family is None or not name:
            return [place]
        found: list[Any] = []
        with anyio.move_on_after(LOOKUP_S):
            await self._free.acquire()
            answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            query = (name, None, family, socket.SOCK_STREAM)
            threading.Thread(
                target=self._resolve_in_thread, args=(answer, query), name="name lookup", daemon=True
            ).start()
            found = await answer
        hosts = [str(address[0]) for *_, address in found][:ADDRESSES_MAX]
        return ["/".join(["", "ip6" if ":" in host else "ip4", host, *rest[:-1]]) for host in hosts]

    def _resolve_in_thread(self, answer: asyncio.Future[list[Any]], query: tuple[Any, ...]) -> None:
        found: list[Any] = []
        with suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(*query)
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            answer.get_loop().call_soon_threadsafe(self._set_answer, answer, found)

    def _set_answer(self, answer: asyncio.Future[list[Any]], found: list[Any]) -> None:
        self._free.release()
        if not answer.done():
            answer.set_result(found)


T = TypeVar("T")


class AddressBook:
    """Addresses of peers: the configured ones, and a bounded number of others, saved on disk. `port`: this node's TCP
    port when the file was saved, or 0. `local`: whether loopback addresses count, too."""

    def __init__(self, path: Path, bootstrap: Iterable[str], own: str, local: bool = True) -> None:
        self._path = path
        self._local = local
        self._own = own
        self.bootstrap = [pair for pair in map(split_address, bootstrap) if pair[1] != own]
        self.port = 0
        self._met: dict[str, list[str]] = {}
        self._known: set[str] = set()  # those of `_met` that the swarm has credited
        self._load()

    def _load(self) -> None:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if not isinstance(kept["port"], int) or not 0 <= kept["port"] <= PORT_MAX:
                raise ValueError(f"the port {kept['port']!r:.40}")
            self.port = kept["port"]
            for address in list(kept["peers"])[:PEERS_KEPT]:
                place, peer = split_address(str(address))
                if self.is_plausible_address(place):
                    self._met.setdefault(peer, []).append(place)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
            log.warning("the cached peers in %s are left aside: %s", self._path, error)

    def remember_peer(self, peer: str, addresses: Iterable[str], known: bool = False) -> None:
        """Remember a member's addresses; above the limit, credited and then the latest members stay.

        Host names are kept for credited peers only: with a host name, a peer could make nodes query any DNS server and
        wait. `known` says if the swarm has credited the peer.
        """
        places = [address.rpartition("/p2p/")[0] or address for address in addresses]
        places = [place for place in places if self.is_plausible_address(place) and (known or not has_host_name(place))]
        if peer == self._own or not places:
            return
        self._met.pop(peer, None)
        self._met[peer] = places[:4]
        (self._known.add if known else self._known.discard)(peer)
        while len(self._met) > PEERS_KEPT:
            gone = next((other for other in self._met if other not in self._known), next(iter(self._met)))
            self._known.discard(gone)
            del self._met[gone]

    def is_plausible_address(self, place: str) -> bool:
        """Return whether a peer may have this address: loopback and link-local ones only if `local` is set."""
        if not is_multiaddr(place):
            return False
        return self._local or may_be_remote(place)

    def remembered_addresses(self) -> list[tuple[str, str]]:
        """Return (multiaddr, peer id) of all remembered peers."""
        return [(place, peer) for peer, places in self._met.items() for place in places]

    def is_known(self, peer: str) -> bool:
        """Return whether the swarm has credited this peer or the configuration names it."""
        return peer in self._known or any(peer == other for _, other in self.bootstrap)

    async def save(self, port: int) -> None:
        """Write the cache with this node's port, in a thread. A failure only makes the next start slower."""
        peers = [f"{place}/p2p/{peer}" for place, peer in self.remembered_addresses()][-PEERS_KEPT:]
        await asyncio.to_thread(self._write_file, json.dumps({"port": port, "peers": peers}))

    def _write_file(self, encoded: str) -> None:
        try:
            replace_durably(self._path, encoded.encode())
        except OSError as error:
            log.warning("the peers met cannot be kept in %s: %s", self._path, error)


class RejoinLoop:
    """Dials and pings peers in rounds, so that the routing table stays filled."""

    def __init__(self, node: DhtNode, book: AddressBook) -> None:
        self._node = node
        self._book = book
        self._mute = 0
        self._dialled = DialBackoff()
        self._lookups = {True: HostNameResolver(), False: HostNameResolver()}  # by "is configured"
        self.rounds = 0
        node.attendants.append(self.run_rounds)

    async def run_rounds(self, run: NodeRun) -> None:
        """Run rounds for as long as p2pd runs: often while the table is empty, seldom afterwards."""
        alone = 0
        while True:
            grew = await self._run_round(run)
            if grew:
                await self._fill_routing_table(run)
            self.rounds += 1
            alone = 0 if run.peer_count else alone + 1
            await self._pause(run, ALONE.after(alone) if alone else REJOIN_S)

    async def _pause(self, run: NodeRun, pause_s: float) -> None:
        """Wait for `pause_s`, or until the table loses its last peer."""
        accompanied = run.peer_count > 0
        with anyio.move_on_after(pause_s * random.uniform(0.8, 1.2)):
            while not accompanied or run.peer_count:  # noqa: ASYNC110 - hivemind's table sends no notification
                await anyio.sleep(0.25)

    async def _run_round(self, run: NodeRun) -> bool:
        """Dial and ping once. Returns whether the table has grown."""
        before = run.peer_count
        addresses = await self._list_connected_peers(run)
        self._limit_address_ranges(run, addresses)
        connected = list(addresses)
        table = {peer.to_base58() for peer in run.routing_table.peer_id_to_uid}
        work: list[Callable[[], Awaitable[bool]]] = [
            partial(self._dial, run, place, peer) for place, peer in self._choose_addresses_to_dial(table)
        ]
        crowded = set(find_surplus_peers([*table, *connected], addresses, [peer for _, peer in self._book.bootstrap]))
        missing = [peer for peer in connected if peer not in table and peer not in crowded]
        known = [peer for peer in missing if self._book.is_known(peer)]
        others = [peer for peer in missing if not self._book.is_known(peer)]
        pinged = (*known, *sample_at_most(others, MISSING), *sample_at_most(sorted(table), CHECKED))
        work += [partial(_ping, run, peer) for peer in pinged]
        await _run_with_limit(work)
        await asyncio.sleep(0)  # a ping fills the table in a task of its own
        await self._book.save(self._node.port)
        return run.peer_count > before

    def _choose_addresses_to_dial(self, table: set[str]) -> list[tuple[str, str]]:
        wanted = [pair for pair in self._book.bootstrap if pair[1] not in table]
        others = [pair for pair in self._book.remembered_addresses() if pair[1] not in table and pair not in wanted]
        others = [pair for pair in others if self._book.is_known(pair[1]) or self._dialled.may_dial(pair[0])]
        return wanted + sample_at_most(others, STRANGERS if table else ALONE_STRANGERS)

    def _limit_address_ranges(self, run: NodeRun, addresses: Mapping[str, list[str]]) -> None:
        """Remove peers from the table if it has too many from one address range."""
        places = {peer.to_base58(): node_id for peer, node_id in run.routing_table.peer_id_to_uid.items()}
        trusted = [peer for _, peer in self._book.bootstrap]
        for peer in find_surplus_peers(places, addresses, trusted):
            del run.routing_table[places[peer]]

    async def _list_connected_peers(self, run: NodeRun) -> dict[str, list[str]]:
        """Return connected peers → their addresses. Kills a p2pd that repeatedly does not answer."""
        try:
            peers = await self._node.call(lambda run: run.p2p.list_peers())
        except NetworkDown:
            self._mute += 1
            if self._mute >= MUTE_MAX and run.p2p.returncode is None:
                log.warning("p2pd, process %d, gives no sign of life and is killed", run.p2p.pid)
                self._mute = 0
                run.p2p._child.kill()
            raise
        self._mute = 0
        return {peer.peer_id.to_base58(): [connection_origin(address) for address in peer.addrs] for peer in peers}

    async def _dial(self, run: NodeRun, place: str, peer: str) -> bool:
        reached = False
        try:
            for found in await self._resolve_addresses(place, peer):
                if await accepts_connections(found):
                    await run.p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(found)])
                    reached = await _ping(run, peer)
                    break
        finally:
            if reached or run.peer_count:  # without peers, this node itself may be the unreachable one
                self._dialled.record_dial(place, reached)
        return reached

    async def _resolve_addresses(self, place: str, peer: str) -> list[str]:
        """Return the IP addresses at which to dial a peer. p2pd could resolve a host name differently."""
        configured = (place, peer) in self._book.bootstrap
        found = await self._lookups[configured].resolve_address(place)
        return [
            each for each in found if configured or (self._book.is_plausible_address(each) and not has_host_name(each))
        ]

    async def _fill_routing_table(self, run: NodeRun) -> None:
        """Look up this node's own id, which adds this node and its neighbours to each other's tables."""
        try:
            await self._node.call(lambda run: run.dht.find_nearest_nodes([run.dht.node_id]))
        except NetworkDown as error:
            log.debug("the neighbourhood was not explored: %s", error)


def sample_at_most(each: list[T], most: int) -> list[T]:
    return random.sample(each, min(len(each), most))


async def _ping(run: NodeRun, peer: str) -> bool:
    return await run.dht.protocol.call_ping(PeerID.from_base58(peer)) is not None


async def _run_with_limit(work: list[Callable[[], Awaitable[bool]]]) -> None:
    """Run all actions, `DIALS_AT_ONCE` at a time, each with a timeout; failures are ignored."""
    limiter = anyio.CapacityLimiter(DIALS_AT_ONCE)

    async def attempt(action: Callable[[], Awaitable[bool]]) -> None:
        async with limiter:
            try:
                with anyio.move_on_after(DIAL_S):
                    await action()
            except Exception as error:
                log.debug("a peer was not reached: %r", error)

    async with anyio.create_task_group() as tasks:
        for action in work:
            tasks.start_soon(attempt, action)


async def accepts_connections(place: str) -> bool:
    """Return whether something listens at an address. Tested before libp2p dials, which after a failure refuses to for
    up to 5 minutes."""
    target = tcp_endpoint(place)
    if target is None:
        return True
    try:
        with anyio.fail_after(PROBE_S):
            _, writer = await asyncio.open_connection(*target)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
