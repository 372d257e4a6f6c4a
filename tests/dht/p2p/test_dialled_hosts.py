"""Addresses that members announce: they cannot make a swarm call a stranger's host, or services of its own hosts."""

import json
import socket
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from swarmd.config import parse_config
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.hivemind_api import PeerID
from swarmd.dht.p2p.peers import ALONE_STRANGERS, MISSING, PEERS_KEPT, AddressBook, RejoinLoop, _run_with_limit
from swarmd.dht.session import _check_config
from swarmd.dht.wire.addresses import (
    PAUSE,
    RANGE_PEERS_MAX,
    DialBackoff,
    address_range,
    find_surplus_peers,
    may_be_remote,
)
from swarmd.errors import ConfigError
from tests.dht.making import ALICE, BOB
from tests.dht.network import VirtualTime

pytestmark = pytest.mark.anyio


def test_a_host_where_nobody_answers_is_left_alone_ever_longer_whatever_the_port() -> None:
    clock = VirtualTime()
    hosts, dialled = DialBackoff(clock), 0
    while clock.now < 24 * 3600:
        place = f"/ip4/203.0.113.9/tcp/{1000 + dialled}"
        if hosts.may_dial(place):
            dialled += 1
            hosts.record_dial(place, reached=False)
        clock.now += 10.0
    assert dialled <= 24 * 3600 / PAUSE.most_s + 10
    assert hosts.may_dial("/ip4/203.0.113.10/tcp/1000")


@pytest.mark.parametrize(
    ("place", "elsewhere"),
    [
        ("/ip4/127.0.0.1/tcp/6379", False),
        ("/ip4/169.254.169.254/tcp/80", False),
        ("/ip4/0.0.0.0/tcp/1", False),
        ("/ip4/224.0.0.1/tcp/1", False),
        ("/ip6/::1/tcp/1", False),
        ("/ip6/::ffff:127.0.0.1/tcp/1", False),
        ("/dns4/localhost/tcp/1", False),
        ("/dns/Redis.Localhost./tcp/1", False),
        ("/ip6zone/lo/ip6/::1/tcp/1", False),
        ("/ip4/10.0.0.7/tcp/1", True),
        ("/dns4/node.example.org/tcp/1", True),
        ("/", True),
    ],
)
def test_what_is_of_one_machine_alone_is_told(place: str, elsewhere: bool) -> None:
    assert may_be_remote(place) == elsewhere


@pytest.mark.parametrize("local", [False, True])
async def test_a_node_that_is_reached_from_elsewhere_dials_no_service_of_its_machine(
    local: bool, tmp_path: Path
) -> None:
    book = AddressBook(tmp_path / "peers.json", [], ALICE.peer_id, local)
    book.remember_peer(BOB.peer_id, [f"/ip4/127.0.0.1/tcp/6379/p2p/{BOB.peer_id}"])
    assert len(book.remembered_addresses()) == local
    await book.save(1)
    AddressBook(tmp_path / "peers.json", [], ALICE.peer_id, local)
    assert len(book.remembered_addresses()) == local


@pytest.mark.parametrize("known", [False, True])
async def test_names_are_kept_of_those_alone_whom_the_swarm_knows(known: bool, tmp_path: Path) -> None:
    book = AddressBook(tmp_path / "peers.json", [], ALICE.peer_id)
    book.remember_peer(
        BOB.peer_id, ["/dns4/slow.example/tcp/1", "/dns/slow.example/tcp/1", "/dnsaddr/slow.example"], known
    )
    assert len(book.remembered_addresses()) == (3 if known else 0)
    book.remember_peer(BOB.peer_id, ["/dns4/slow.example/tcp/1", "/ip4/203.0.113.9/tcp/1"], known)
    assert [place for place, _ in book.remembered_addresses()][-1] == "/ip4/203.0.113.9/tcp/1"
    await book.save(1)
    assert AddressBook(tmp_path / "peers.json", [], ALICE.peer_id).remembered_addresses() == book.remembered_addresses()


NO_ADDRESSES = [
    "/ip4/slow.example/tcp/1",  # a name, which whoever connects there looks up
    "/ip6/slow.example/tcp/1",
    "/ip4/127.1/tcp/6379",  # this machine, as the C library reads it
    "/ip4/0x7f000001/tcp/6379",
    "/ip4/2130706433/tcp/6379",
    "/ip4/203.0.113.9/tcp/99999999999999999999",
    "/unix/run/docker.sock",
]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("place", NO_ADDRESSES)
def test_what_is_no_address_is_no_place(place: str, known: bool, tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    for local in (False, True):
        book = AddressBook(path, [], ALICE.peer_id, local)
        book.remember_peer(BOB.peer_id, [place, "/ip4/203.0.113.9/tcp/1"], known)
        assert book.remembered_addresses() == [("/ip4/203.0.113.9/tcp/1", BOB.peer_id)]
        path.write_text(json.dumps({"port": 1, "peers": [f"{place}/p2p/{BOB.peer_id}"]}))
        assert AddressBook(path, [], ALICE.peer_id, local).remembered_addresses() == []
        path.unlink()


class Names:
    """Stands for the system's resolver: of `slow` names nothing is heard until `end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> None:
        self.addresses, self.end = addresses, threading.Event()
        self._asked = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        if host.startswith("slow"):
            self.end.wait()
        elif not host.endswith(".example"):
            return self._asked(host, port, *rest, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.addresses]


def rejoin_of(book: AddressBook, monkeypatch: pytest.MonkeyPatch) -> tuple[RejoinLoop, list[str]]:
    """It, and the places that it asks whether somebody listens there; nobody does."""
    asked: list[str] = []

    async def nobody(place: str) -> bool:
        asked.append(place)
        return False

    monkeypatch.setattr("swarmd.dht.p2p.peers.accepts_connections", nobody)
    return RejoinLoop(cast(Any, SimpleNamespace(attendants=[])), book), asked


async def dial_all(rejoin: RejoinLoop) -> None:
    run = cast(Any, SimpleNamespace(peer_count=1))
    await _run_with_limit(
        [partial(rejoin._dial, run, place, peer) for place, peer in rejoin._choose_addresses_to_dial({"somebody"})]
    )


class Crowded:
    """A run of p2pd that is connected to a crowd, which is in nobody's table."""

    def __init__(self, connected: list[str]) -> None:
        self._listed = [SimpleNamespace(peer_id=PeerID.from_base58(peer), addrs=()) for peer in connected]
        self.attendants: list[Any] = []
        self.port, self.peer_count, self.routing_table = 0, 0, SimpleNamespace(peer_id_to_uid={})
        self.p2p = SimpleNamespace(list_peers=self.list_peers)

    async def list_peers(self) -> list[Any]:
        return self._listed

    async def call(self, operation: Any) -> Any:
        return await operation(self)


async def test_a_crowd_holds_up_no_round_of_rejoining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is connected and answers nothing, and has said that it is reached where nothing is."""
    crowd, friends = ([generate_identity().peer_id for _ in range(count)] for count in (200, 3))
    book = AddressBook(tmp_path / "peers.json", [f"/ip4/203.0.113.1/tcp/1/p2p/{BOB.peer_id}"], ALICE.peer_id)
    for number, peer in enumerate(crowd[:64]):
        book.remember_peer(peer, [f"/ip4/203.0.113.9/tcp/{4 * number + place}" for place in range(1, 5)])
    for peer in friends:
        book.remember_peer(peer, ["/ip4/203.0.113.2/tcp/1"], known=True)
    crowded = cast(Any, Crowded([*crowd, *friends]))
    _, dialled = rejoin_of(book, monkeypatch)
    pinged: list[str] = []

    async def ping(run: Any, peer: str) -> bool:
        pinged.append(peer)
        return False

    monkeypatch.setattr("swarmd.dht.p2p.peers._ping", ping)
    await RejoinLoop(crowded, book)._run_round(crowded)
    assert "/ip4/203.0.113.1/tcp/1" in dialled and len(dialled) == 1 + ALONE_STRANGERS
    assert set(friends) <= set(pinged) and len(pinged) == len(friends) + MISSING


@pytest.mark.parametrize("configured", [False, True])
async def test_a_name_leads_to_this_machine_only_where_it_is_configured(
    configured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Names(monkeypatch, ["127.0.0.1", "203.0.113.9"])
    place, bootstrap = "/dns4/node.example/tcp/6379", []
    if configured:
        bootstrap.append(f"{place}/p2p/{BOB.peer_id}")
    book = AddressBook(tmp_path / "peers.json", bootstrap, ALICE.peer_id, local=False)
    book.remember_peer(BOB.peer_id, [place], known=True)
    rejoin, asked = rejoin_of(book, monkeypatch)
    await dial_all(rejoin)
    assert asked == ["/ip4/127.0.0.1/tcp/6379"] * configured + ["/ip4/203.0.113.9/tcp/6379"]


@pytest.mark.parametrize(
    ("place", "dialled"),
    [
        ("/dns4/node.example/udp/1/quic-v1", ["/ip4/203.0.113.9/udp/1/quic-v1"]),
        ("/dns/node.example/tcp/1/ws", ["/ip4/203.0.113.9/tcp/1/ws"]),
        ("/dnsaddr/node.example", []),
    ],
)
async def test_p2pd_is_given_no_name_of_a_peer(
    place: str, dialled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Names(monkeypatch, ["127.0.0.1", "203.0.113.9"])
    book = AddressBook(tmp_path / "peers.json", [], ALICE.peer_id, local=False)
    book.remember_peer(BOB.peer_id, [place], known=True)
    rejoin, asked = rejoin_of(book, monkeypatch)
    await dial_all(rejoin)
    assert asked == dialled


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/ip4/8.8.4.4/tcp/1", "8.8.4.0/24"),
        ("/ip6/2600:1:2:3456::1/tcp/1", "2600:1:2:3400::/56"),
        ("/ip6/::ffff:8.8.4.4/tcp/1", "8.8.4.0/24"),
        ("/ip4/127.0.0.1/tcp/1", ""),
        ("/ip6/::1/tcp/1", ""),
        ("/ip4/8.8.4.4/tcp/1/p2p/x/p2p-circuit", ""),
        ("/dns4/example.org/tcp/1", ""),
        ("/ip4/nonsense/tcp/1", ""),
    ],
)
def test_what_shares_a_range(address: str, expected: str) -> None:
    assert address_range(address) == expected


def test_a_range_has_so_many_places_and_those_that_came_first_keep_them() -> None:
    crowd = [f"crowd {number}" for number in range(3 * RANGE_PEERS_MAX)]
    addresses = {peer: [f"/ip4/8.8.4.{number}/tcp/1"] for number, peer in enumerate(crowd)}
    addresses |= {"elsewhere": ["/ip4/9.9.9.9/tcp/1"], "boot": ["/ip4/8.8.4.9/tcp/1"], "home": ["/ip4/10.0.0.1/tcp/1"]}
    gone = find_surplus_peers([*crowd, "elsewhere", "boot", "home", "away"], addresses, ["boot"])
    assert gone == crowd[RANGE_PEERS_MAX:]
    near = {f"near {number}": ["/ip4/127.0.0.1/tcp/1"] for number in range(100)}
    assert find_surplus_peers(near, near, []) == [], "on one machine nobody pays for addresses"


def test_addresses_of_a_crowd_do_not_push_out_those_of_members(tmp_path: Path) -> None:
    book = AddressBook(tmp_path / "peers.json", (), "own")
    members = [generate_identity().peer_id for _ in range(5)]
    for peer in members:
        book.remember_peer(peer, ["/ip4/9.9.9.9/tcp/1"], known=True)
    for _ in range(2 * PEERS_KEPT):
        book.remember_peer(generate_identity().peer_id, ["/ip4/8.8.4.4/tcp/1"])
    met = {peer for _, peer in book.remembered_addresses()}
    assert len(met) == PEERS_KEPT and set(members) <= met
    for _ in range(2 * PEERS_KEPT):
        book.remember_peer(generate_identity().peer_id, ["/ip4/9.9.9.9/tcp/1"], known=True)
    assert len(book.remembered_addresses()) == PEERS_KEPT


@pytest.mark.parametrize(
    "dht",
    [
        'listen = ["/ip4/0.0.0.0/tcp/1/foo"]',
        'listen = ["/ip6/fe80::1%eth0/tcp/1"]',
        'announce = ["/ip4/192.0.2.1/udp/1/quic-v1/webtransport"]',
        f'bootstrap = ["/ip4/192.0.2.1/tcp/1/foo/p2p/{ALICE.peer_id}"]',
    ],
    ids=["odd end", "scope", "transport", "bootstrap"],
)
def test_an_address_that_hivemind_cannot_read_is_named(dht: str) -> None:
    config = parse_config(f'role = "coordinator"\n[swarm]\nid = "s"\n[dht]\n{dht}\n', "node.toml")
    with pytest.raises(ConfigError, match=f"^dht.{dht.split()[0]}: '/ip.*' is not an address"):
        _check_config(config)


def test_the_book_is_kept_bounded_and_survives(tmp_path: Path) -> None:
    path, own = tmp_path / "peers.json", generate_identity().peer_id
    book = AddressBook(path, [f"/ip4/1.1.1.1/tcp/1/p2p/{ALICE.peer_id}", f"/ip4/1.1.1.1/tcp/2/p2p/{own}"], own)
    assert book.bootstrap == [("/ip4/1.1.1.1/tcp/1", ALICE.peer_id)]
    for number in range(PEERS_KEPT + 10):
        peer = generate_identity().peer_id
        book.remember_peer(peer, [f"/ip4/10.0.0.{number}/tcp/1/p2p/{peer}"])
    book.remember_peer(own, ["/ip4/9.9.9.9/tcp/1"])
    anyio.run(book.save, 4242)
    again = AddressBook(path, [], own)
    assert len(again.remembered_addresses()) == PEERS_KEPT and again.port == 4242
    assert again.remembered_addresses()[-1] == (f"/ip4/10.0.0.{PEERS_KEPT + 9}/tcp/1", peer)


PORTS = ("98331", "-1", "1e999", "NaN", "null", 5_000 * "9", 100_000 * "[")
DAMAGED = ["", "{}", "[]", '{"port": 0, "peers": ["x"]}', '{"port": "x", "peers": 3}']
DAMAGED += [f'{{"peers": [], "port": {port}}}' for port in PORTS]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_cache_is_left_aside(tmp_path: Path, content: str) -> None:
    path = tmp_path / "peers.json"
    path.write_text(content)
    book = AddressBook(path, [], BOB.peer_id)
    assert book.remembered_addresses() == [] and book.port == 0
