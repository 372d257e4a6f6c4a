"""A stream of bodies at this node's end, over a socket whose other end does as a peer likes."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from swarmd.dht.limits.door import RequestLimits
from swarmd.dht.p2p.hivemind_api import PeerID
from swarmd.dht.rounds import fetch
from swarmd.dht.rounds.fetch import DIGEST_BYTES, BodyServer
from swarmd.errors import RecordRejected
from tests.dht.making import ALICE

pytestmark = pytest.mark.anyio

BODY = bytes(48 * 1024)  # less than a transport takes before anybody has to wait
ASKED = bytes(DIGEST_BYTES)


class Stream:
    """A request under way, and the peer's end of its socket."""

    def __init__(self, peers: socket.socket, writer: asyncio.StreamWriter, serving: asyncio.Task[None]) -> None:
        self.peers = peers
        self.writer = writer
        self.serving = serving


async def begin() -> Stream:
    """Have the body asked for, over a socket that holds little."""
    server = BodyServer(
        cast(Any, SimpleNamespace(door=RequestLimits(lambda *refusal: None), streams={})),
        cast(Any, SimpleNamespace(has=lambda digest: True, get=lambda digest: BODY)),
        lambda peer: True,
    )
    own, peers = socket.socketpair()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    reader, writer = await asyncio.open_unix_connection(sock=own)
    peers.sendall(ASKED)
    asker = SimpleNamespace(peer_id=PeerID.from_base58(ALICE.peer_id))
    return Stream(peers, writer, asyncio.ensure_future(server.serve(asker, reader, writer)))


async def test_whoever_takes_all_but_the_end_of_a_body_holds_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CHUNK_S", 0.2)
    stream = await begin()
    with anyio.fail_after(30.0), pytest.raises(RecordRejected, match="the end of what it asked for"):
        await stream.serving
    await asyncio.sleep(0.05)
    assert stream.writer.transport.get_write_buffer_size() == 0
    assert stream.writer.get_extra_info("socket").fileno() == -1, "the file is open still"
    stream.peers.close()


async def all_of(stream: Stream) -> bytes:
    stream.peers.setblocking(False)
    got = b""
    while len(got) < 8 + len(BODY):
        got += await asyncio.get_running_loop().sock_recv(stream.peers, 65536)
    return got


async def test_a_stream_is_open_until_who_asked_has_closed_it() -> None:
    """p2pd may drop the last of a stream that the giver closes first."""
    stream = await begin()
    await all_of(stream)
    await asyncio.sleep(0.1)
    assert not stream.serving.done() and not stream.writer.is_closing()
    stream.peers.close()
    with anyio.fail_after(fetch.CHUNK_S / 2):
        await stream.serving


async def test_a_stream_that_nobody_closes_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CHUNK_S", 0.2)
    stream = await begin()
    await all_of(stream)
    with anyio.fail_after(30.0):
        await stream.serving
    assert stream.writer.is_closing()
    stream.peers.close()
