"""One network full of free identities has a bounded part of the routing table and of the address book."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.peers import PEERS_KEPT, AddressBook
from swarmd.dht.p2p.routing_diversity import RANGE_PEERS_MAX, range_of, surplus


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/ip4/8.8.4.4/tcp/1", "8.8.4.0/24"),
        ("/ip4/8.8.4.200/udp/1/quic", "8.8.4.0/24"),
        ("/ip6/2600:1:2:3456::1/tcp/1", "2600:1:2:3400::/56"),
        ("/ip6/::ffff:8.8.4.4/tcp/1", "8.8.4.0/24"),
        ("/ip4/127.0.0.1/tcp/1", ""),
        ("/ip4/10.1.2.3/tcp/1", ""),
        ("/ip6/::1/tcp/1", ""),
        ("/ip4/8.8.4.4/tcp/1/p2p/x/p2p-circuit", ""),
        ("/dns4/example.org/tcp/1", ""),
        ("/ip4/nonsense/tcp/1", ""),
        ("", ""),
    ],
)
def test_what_shares_a_range(address: str, expected: str) -> None:
    assert range_of(address) == expected


def test_a_range_has_so_many_places_and_those_that_came_first_keep_them() -> None:
    crowd = [f"crowd {number}" for number in range(3 * RANGE_PEERS_MAX)]
    addresses = {peer: [f"/ip4/8.8.4.{number}/tcp/1"] for number, peer in enumerate(crowd)}
    addresses |= {"elsewhere": ["/ip4/9.9.9.9/tcp/1"], "boot": ["/ip4/8.8.4.9/tcp/1"], "home": ["/ip4/10.0.0.1/tcp/1"]}
    gone = surplus([*crowd, "elsewhere", "boot", "home", "away"], addresses, ["boot"])
    assert gone == crowd[RANGE_PEERS_MAX:]
    near = {f"near {number}": ["/ip4/127.0.0.1/tcp/1"] for number in range(100)}
    assert surplus(near, near, []) == [], "on one machine nobody pays for addresses"


def test_addresses_of_a_crowd_do_not_push_out_those_of_members(tmp_path: Path) -> None:
    book = AddressBook(tmp_path / "peers.json", (), "own")
    members = [generate_identity().peer_id for _ in range(5)]
    for peer in members:
        book.meet(peer, ["/ip4/9.9.9.9/tcp/1"], known=True)
    for _ in range(2 * PEERS_KEPT):
        book.meet(generate_identity().peer_id, ["/ip4/8.8.4.4/tcp/1"])
    met = {peer for _, peer in book.met()}
    assert len(met) == PEERS_KEPT and set(members) <= met
    for _ in range(2 * PEERS_KEPT):
        book.meet(generate_identity().peer_id, ["/ip4/9.9.9.9/tcp/1"], known=True)
    assert len(book.met()) == PEERS_KEPT
