"""Fetching bodies from their owners over a libp2p stream of our own.

Request: the 32 bytes of the digest. Answer: the size as an unsigned 64-bit big-endian number, then so many bytes; a
size of 2**64 - 1 means that the peer has no such body, or will not give it now.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio

from swarmd.dht.bodies import BlobStore
from swarmd.dht.hive import PeerID
from swarmd.dht.node import Life, Node
from swarmd.dht.quota import Quota
from swarmd.dht.records import BODY_BYTES_MAX
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError

PROTOCOL = "/swarmd/body/1"
DIGEST_BYTES = 32
ABSENT = 2**64 - 1
CHUNK_BYTES = 64 * 1024
SERVED_AT_ONCE = 8
SERVE_S = 60.0
REQUEST_S = 5.0
BYTES_BURST, BYTES_PER_S = 4.0 * BODY_BYTES_MAX, BODY_BYTES_MAX / 8.0  # given to one peer

log = logging.getLogger(__name__)


class BodyServer:
    """Gives bodies out of the blob store to those who may take part.

    Args:
        node: gets the stream's handler.
        blobs: what there is.
        admits: who may ask.
    """

    def __init__(self, node: Node, blobs: BlobStore, admits: Callable[[str], bool]) -> None:
        self._blobs = blobs
        self._admits = admits
        self._quota = Quota(BYTES_BURST, BYTES_PER_S, time.monotonic)
        self._serving = 0
        node.streams[PROTOCOL] = self.serve

    async def serve(self, stream: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        self._serving += 1
        try:
            with anyio.move_on_after(SERVE_S):
                await self._answer(stream.peer_id.to_base58(), reader, writer)
        except (OSError, EOFError) as error:
            log.debug("a body was not taken to its end: %r", error)
        finally:
            self._serving -= 1
            writer.close()

    async def _answer(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with anyio.fail_after(REQUEST_S):
            digest = (await reader.readexactly(DIGEST_BYTES)).hex()
        body = await self._body_for(peer, digest)
        if body is None:
            writer.write(ABSENT.to_bytes(8, "big"))
            await writer.drain()
            return
        writer.write(len(body).to_bytes(8, "big"))
        for start in range(0, len(body), CHUNK_BYTES):
            writer.write(body[start : start + CHUNK_BYTES])
            await writer.drain()

    async def _body_for(self, peer: str, digest: str) -> bytes | None:
        if not self._admits(peer) or self._serving > SERVED_AT_ONCE or not self._blobs.has(digest):
            return None
        with suppress(SwarmdError, OSError):
            body = await anyio.to_thread.run_sync(self._blobs.get, digest)
            return body if self._quota.take(peer, len(body)) else None
        return None


async def fetch_body(node: Node, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
    """Fetch a body from its owner.

    Raises:
        NetworkDown: the peer is not there, has no such body, or is too slow.
        RecordRejected: what it sends has another size or digest.
    """
    return await node.call(lambda life: _fetch(life, peer, digest, size_bytes), timeout_s)


async def _fetch(life: Life, peer: str, digest: str, size_bytes: int) -> bytes:
    _, reader, writer = await life.p2p.call_binary_stream_handler(PeerID.from_base58(peer), PROTOCOL)
    try:
        writer.write(bytes.fromhex(digest))
        await writer.drain()
        stated = int.from_bytes(await reader.readexactly(8), "big")
        if stated == ABSENT:
            raise NetworkDown(f"{peer} has no body {digest[:12]}")
        if stated != size_bytes or stated > BODY_BYTES_MAX:
            raise RecordRejected("oversized", f"{stated} bytes instead of {size_bytes}")
        body: bytes = await reader.readexactly(size_bytes)
    finally:
        writer.close()
    if hashlib.sha256(body).hexdigest() != digest:
        raise RecordRejected("wrong-digest", "the body is not the one that was announced")
    return body
