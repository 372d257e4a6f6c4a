"""A crowd that comes under more identities than are remembered one by one has no more than all together may have."""

from __future__ import annotations

import hashlib
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.dht.limits.budget import RESERVE, Flow, PeerBounds, RemotePeer
from swarmd.dht.limits.door import RequestLimits
from swarmd.dht.limits.token_bucket import SENDERS_MAX
from swarmd.dht.rounds.fetch import ABSENT, BURST_S, BYTES_PER_S, BodyServer

pytestmark = pytest.mark.anyio

BODY = bytes(8 << 20)
CROWD = [f"peer {number}" for number in range(SENDERS_MAX + 100)]
ROUNDS = 3  # times that everybody comes, each time forgotten since


def test_a_flow_counts_all_together_whoever_it_has_forgotten() -> None:
    flow = Flow(PeerBounds(2, 10_000, 1000), burst_s=1.0, now=lambda: 0.0)
    taken = sum(
        flow.try_charge(RemotePeer(peer, f"{number}")) for _ in range(ROUNDS) for number, peer in enumerate(CROWD)
    )
    assert taken == 1000 * (1 - RESERVE)


class Taker:
    """Takes what it is given."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.transport = self

    def write(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)

    async def drain(self) -> None:
        """At once."""

    def close(self) -> None:
        """It has all."""

    async def wait_closed(self) -> None:
        """At once."""


async def test_bodies_that_a_crowd_fetches_are_bounded_for_its_address_and_in_all() -> None:
    digest = hashlib.sha256(BODY).digest()
    blobs = SimpleNamespace(has=lambda name: True, get=lambda name: BODY)
    door, began, given = RequestLimits(lambda peer, reason, detail: None), time.monotonic(), 0
    server = BodyServer(cast(Any, SimpleNamespace(streams={}, door=door)), cast(Any, blobs), lambda peer: True)

    async def readexactly(size_bytes: int) -> bytes:
        return digest

    async def read(size_bytes: int) -> bytes:
        return b""  # it has closed

    for number in range(100):
        taker, peer = Taker(), f"peer {number}"
        door.place(peer, "10.0.0.1" if number < 60 else f"10.0.0.{number}")
        stream = SimpleNamespace(peer_id=SimpleNamespace(to_base58=lambda peer=peer: peer))
        await server.serve(stream, cast(Any, SimpleNamespace(readexactly=readexactly, read=read)), cast(Any, taker))
        given += max(0, taker.size_bytes - len(ABSENT.to_bytes(8, "big")))
        if number == 59:
            assert len(BODY) <= given <= BYTES_PER_S.prefix * (BURST_S + time.monotonic() - began)
    assert given <= BYTES_PER_S.all * ((1 - RESERVE) * BURST_S + time.monotonic() - began)
