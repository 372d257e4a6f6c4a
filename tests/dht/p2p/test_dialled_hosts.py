"""Addresses that members announce: nobody has a swarm call somebody else again and again, or services of a machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.dht.p2p.dialled_hosts import HOSTS_MAX, PAUSE_MAX_S, PAUSE_S, DialledHosts, is_elsewhere
from swarmd.dht.p2p.peers import AddressBook, Rejoin
from tests.dht.making import ALICE, BOB

pytestmark = pytest.mark.anyio


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_host_where_nobody_answers_is_left_alone_ever_longer_whatever_the_port() -> None:
    clock = Clock()
    hosts, dialled = DialledHosts(clock), 0
    while clock.now < 24 * 3600:
        place = f"/ip4/203.0.113.9/tcp/{1000 + dialled}"
        if hosts.may_dial(place):
            dialled += 1
            hosts.note(place, reached=False)
        clock.now += 10.0
    assert dialled <= 24 * 3600 / PAUSE_MAX_S + 10
    assert hosts.may_dial("/ip4/203.0.113.10/tcp/1000")


def test_a_host_that_is_reached_is_dialled_again_at_once() -> None:
    clock = Clock()
    hosts, place = DialledHosts(clock), "/ip4/203.0.113.9/tcp/1"
    hosts.note(place, reached=False)
    assert not hosts.may_dial(place)
    clock.now += PAUSE_S
    hosts.note(place, reached=True)
    assert hosts.may_dial(place)


def test_so_many_hosts_are_remembered() -> None:
    hosts = DialledHosts()
    for number in range(2 * HOSTS_MAX):
        hosts.note(f"/dns4/host-{number}.example/tcp/1", reached=False)
    assert len(hosts._failed) == HOSTS_MAX


@pytest.mark.parametrize(
    ("place", "elsewhere"),
    [
        ("/ip4/127.0.0.1/tcp/6379", False),
        ("/ip4/127.9.9.9/tcp/1", False),
        ("/ip4/169.254.169.254/tcp/80", False),
        ("/ip4/0.0.0.0/tcp/1", False),
        ("/ip4/224.0.0.1/tcp/1", False),
        ("/ip6/::1/tcp/1", False),
        ("/ip6/fe80::1/tcp/1", False),
        ("/ip6/::ffff:127.0.0.1/tcp/1", False),
        ("/dns4/localhost/tcp/1", False),
        ("/dns/Redis.Localhost./tcp/1", False),
        ("/ip4/10.0.0.7/tcp/1", True),
        ("/ip4/203.0.113.9/tcp/1", True),
        ("/dns4/node.example.org/tcp/1", True),
        ("/", True),
    ],
)
def test_what_is_of_one_machine_alone_is_told(place: str, elsewhere: bool) -> None:
    assert is_elsewhere(place) == elsewhere


@pytest.mark.parametrize("local", [False, True])
def test_a_node_that_is_reached_from_elsewhere_dials_no_service_of_its_machine(local: bool, tmp_path: Path) -> None:
    book = AddressBook(tmp_path / "peers.json", [], ALICE.peer_id, local)
    book.meet(BOB.peer_id, [f"/ip4/127.0.0.1/tcp/6379/p2p/{BOB.peer_id}"])
    assert len(book.met()) == local
    book.save()
    AddressBook(tmp_path / "peers.json", [], ALICE.peer_id, local)
    assert len(book.met()) == local


@pytest.mark.parametrize("credited", [False, True])
async def test_who_is_not_where_it_says_is_dialled_less_and_less_unless_it_is_known(
    credited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def nobody(place: str) -> bool:
        asked.append(place)
        return False

    monkeypatch.setattr("swarmd.dht.p2p.peers.answers", nobody)
    book = AddressBook(tmp_path / "peers.json", [], ALICE.peer_id)
    book.meet(BOB.peer_id, ["/ip4/203.0.113.9/tcp/1"], known=credited)
    node = cast(Any, SimpleNamespace(attendants=[]))
    rejoin, life = Rejoin(node, book), cast(Any, SimpleNamespace(peers=1))
    for _ in range(5):
        for place, peer in rejoin._to_dial({"somebody"}):
            await asyncio.wait_for(cast(Any, rejoin._dialling(life, place, peer)()), 5.0)
    assert len(asked) == (5 if credited else 1)
