"""Bodies, and chunks of weights, are served and fetched over libp2p streams.

- Bodies and weights have separate protocols and bounds, so that weights never use up what bodies need.
- The request is the 32-byte digest. The answer is the size as an unsigned 64-bit big-endian number, then that many
  bytes. A size of 2**64 - 1 means that the peer does not have the body, or will not send it now; then it names a few
  peers that fetched the body from it (`encode_peer_ids`), and the requester asks these instead.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import anyio
import msgspec
from cachetools import FIFOCache

from swarmd.dht.identity.identity import is_peer_id
from swarmd.dht.p2p.hivemind_api import PeerID
from swarmd.dht.p2p.limits import ConcurrencyBudget, PeerBounds, PeerCheck, RateBudget, RemotePeer
from swarmd.dht.p2p.node import CALL_ERRORS, DhtNode, NodeRun
from swarmd.dht.wire.bodies import BodySource
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS, check_plain_msgpack
from swarmd.dht.wire.records import BODY_BYTES_MAX
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError
from swarmd.logger import get_logger
from swarmd.weights.manifest import CHUNK_BYTES_MAX
from swarmd.weights.offered import SERVED_BYTES_PER_S

BODIES_MAX = 256  # bodies whose holders are remembered
HOLDERS_MAX = 16  # holders of one body: the latest to fetch it
NAMED_MAX = 4  # holders named in one answer
NAMES_BYTES_MAX = 1024

Name = Annotated[str, msgspec.Meta(max_length=120)]
_names: msgspec.msgpack.Decoder[list[Name]] = msgspec.msgpack.Decoder(list[Name])

PROTOCOL = "/swarmd/body/1"
DIGEST_BYTES = 32
ABSENT = 2**64 - 1
CHUNK_BYTES = 64 * 1024
SERVED = PeerBounds(2, 8, 16)  # bodies being sent at once
SERVED_BYTES = PeerBounds(BODY_BYTES_MAX, 1.5 * BODY_BYTES_MAX, 2.0 * BODY_BYTES_MAX)  # bytes of bodies being sent
READ_AT_ONCE = 2  # concurrent reads from disk
SERVE_S = 60.0
REQUEST_S = 5.0
CHUNK_S = 5.0  # time for a peer to send or accept the next 64 KiB
BYTES_PER_S = PeerBounds(BODY_BYTES_MAX / 8, BODY_BYTES_MAX * 0.75, BODY_BYTES_MAX * 1.5)  # bytes sent per second
BURST_S = 32.0
OTHERS_MAX = 2  # other holders to ask, of those that the owner named
OTHERS_S = 3.0  # time for each of them


class BodyHolders:
    """Peers that have fetched a whole body, by digest; the oldest are dropped first."""

    def __init__(self) -> None:
        self._holders: FIFOCache[str, FIFOCache[str, None]] = FIFOCache(BODIES_MAX)

    def add_holder(self, digest: str, peer: str) -> None:
        holders = self._holders.get(digest) or FIFOCache(HOLDERS_MAX)
        holders[peer] = None
        self._holders[digest] = holders

    def sample_holders(self, digest: str, asker: str) -> list[str]:
        """Return a few random holders of a body, so that they share the load; never the asker itself."""
        holders = [peer for peer in self._holders.get(digest, ()) if peer != asker]
        return random.sample(holders, min(len(holders), NAMED_MAX))


def encode_peer_ids(peers: list[str]) -> bytes:
    """Encode peer ids as a msgpack array, after its length as two bytes, big-endian."""
    encoded = msgspec.msgpack.encode(peers)
    return len(encoded).to_bytes(2, "big") + encoded


def decode_peer_ids(encoded: bytes) -> list[str]:
    """Return the first `NAMED_MAX` peer ids that another node names. Raises RecordRejected: "malformed", "nested"."""
    check_plain_msgpack(encoded)
    try:
        return [name for name in _names.decode(encoded)[:NAMED_MAX] if is_peer_id(name)]
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"not names of peers: {error!s:.200}") from error


class StreamBounds(msgspec.Struct, frozen=True):
    """A stream protocol, and bounds on what a node sends over it."""

    protocol: str
    size_bytes_max: int  # size of one body
    served: PeerBounds  # concurrent bodies
    served_bytes: PeerBounds  # bytes in memory of the bodies being sent
    bytes_per_s: PeerBounds
    others_s: float = OTHERS_S  # time for each peer that an owner names


BODIES = StreamBounds(PROTOCOL, BODY_BYTES_MAX, SERVED, SERVED_BYTES, BYTES_PER_S)
WEIGHTS = StreamBounds(
    "/swarmd/weights/1",
    CHUNK_BYTES_MAX,
    PeerBounds(2, 4, 8),
    PeerBounds(2 * CHUNK_BYTES_MAX, 4 * CHUNK_BYTES_MAX, 8 * CHUNK_BYTES_MAX),
    PeerBounds(SERVED_BYTES_PER_S, 2 * SERVED_BYTES_PER_S, 4 * SERVED_BYTES_PER_S),
    others_s=20.0,  # 4 MiB at 210 KiB a second
)


log = get_logger(__name__)
T = TypeVar("T")


class BodyServer:
    """Serves bodies from the blob store, or chunks of weights, to admitted peers. `part_of` maps a digest to the digest
    of the whole: a peer that fetched one part is named as a holder of all parts."""

    def __init__(
        self,
        node: DhtNode,
        blobs: BodySource,
        admits: PeerCheck,
        bounds: StreamBounds = BODIES,
        part_of: Callable[[str], str] = lambda digest: digest,
    ) -> None:
        self._blobs = blobs
        self._admits = admits
        self._peer_limits = node.peer_limits
        self._flow = RateBudget(bounds.bytes_per_s, BURST_S)
        self._serving = ConcurrencyBudget(bounds.served)
        self._bytes = ConcurrencyBudget(bounds.served_bytes)
        self._reading = anyio.CapacityLimiter(READ_AT_ONCE)
        self._holders = BodyHolders()
        self._part_of = part_of
        node.streams[bounds.protocol] = self.serve

    async def serve(self, stream: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; the stream keeps its slot until the peer has read the whole answer. Raises
        RecordRejected: "idle" if no request comes, "slow" if the peer does not read the body."""
        try:
            with anyio.move_on_after(SERVE_S):
                if await self._answer_request(stream.peer_id.to_base58(), reader, writer):
                    await _wait_until_peer_closes(reader)
        except (OSError, EOFError) as error:
            log.debug("a body was not taken to its end: %r", error)
        finally:
            await _close_stream(writer)

    async def _answer_request(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send the requested body, or refuse it. Returns whether a body was sent."""
        digest = (
            await _await_within(reader.readexactly(DIGEST_BYTES), REQUEST_S, "idle", "it asked for nothing")
        ).hex()
        caller = self._peer_limits.remote_peer_of(peer)
        if not self._admits(peer):
            await _write_chunk(writer, ABSENT.to_bytes(8, "big"))
        elif not self._blobs.has(digest) or not self._serving.try_acquire(caller):
            await self._send_other_holders(caller, digest, writer)
        else:
            try:
                return await self._send_body(caller, digest, writer)
            finally:
                self._serving.release(caller)
        return False

    async def _send_other_holders(self, caller: RemotePeer, digest: str, writer: asyncio.StreamWriter) -> None:
        """Send no body, but the ids of some peers that have it."""
        await _write_chunk(
            writer,
            ABSENT.to_bytes(8, "big")
            + encode_peer_ids(self._holders.sample_holders(self._part_of(digest), caller.peer)),
        )

    async def _send_body(self, caller: RemotePeer, digest: str, writer: asyncio.StreamWriter) -> bool:
        async with self._reading:
            body = await self._read_body(digest)
        if body is None or not self._bytes.try_acquire(caller, len(body)):
            await self._send_other_holders(caller, digest, writer)
            return False
        try:
            if not self._flow.try_charge(caller, len(body)):
                self._peer_limits.count_refusal(caller.peer, "bytes-out", "too many bytes of bodies")
                await self._send_other_holders(caller, digest, writer)
                return False
            writer.write(len(body).to_bytes(8, "big"))
            for start in range(0, len(body), CHUNK_BYTES):
                await _write_chunk(writer, body[start : start + CHUNK_BYTES])
            if caller.known:
                self._holders.add_holder(self._part_of(digest), caller.peer)
            return True
        finally:
            self._bytes.release(caller, len(body))

    async def _read_body(self, digest: str) -> bytes | None:
        with suppress(SwarmdError, OSError):
            return await anyio.to_thread.run_sync(self._blobs.get, digest)
        return None


async def _write_chunk(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    writer.write(chunk)
    try:
        await _await_within(writer.drain(), CHUNK_S, "slow", "it does not take the body that it asked for")
    except RecordRejected:
        writer.transport.abort()  # the rest would never be written
        raise


async def _wait_until_peer_closes(reader: asyncio.StreamReader) -> None:
    """Wait until the peer closes the stream, which it does when it has everything; at most `CHUNK_S`. If this side
    closes first, p2pd resets the stream, sometimes before the last 32 KiB are sent."""
    with anyio.move_on_after(CHUNK_S):
        await reader.read(1)


async def _close_stream(writer: asyncio.StreamWriter) -> None:
    """Close a stream. If the peer does not read what is left, drop it and raise RecordRejected("slow")."""
    writer.close()
    try:
        with suppress(OSError):
            await _await_within(writer.wait_closed(), CHUNK_S, "slow", "it does not take the end of what it asked for")
    except BaseException:
        writer.transport.abort()  # otherwise the peer could keep the stream open in this process
        raise


async def _await_within(step: Awaitable[T], within_s: float, reason: str, what: str) -> T:
    """Await a step. Raises RecordRejected with the reason if it takes longer than `within_s`."""
    with anyio.move_on_after(within_s):
        return await step
    raise RecordRejected(reason, f"{what} within {within_s:g} s")


async def fetch_body(
    node: DhtNode, peer: str, digest: str, size_bytes: int, timeout_s: float, bounds: StreamBounds = BODIES
) -> bytes:
    """Fetch a body from its owner or, if the owner refuses, from other holders that it names.

    With `WEIGHTS`, fetch a chunk or a manifest from a peer that offers it, or from one that has fetched it. Raises
    NetworkDown: the owner is unreachable, too slow or does not have it, and no named holder sends it; RecordRejected:
    the owner sends a body of another size or digest, or stops sending.
    """
    return await node.call(lambda run: _fetch_from_owner_or_holders(run, peer, digest, size_bytes, bounds), timeout_s)


async def _fetch_from_owner_or_holders(
    run: NodeRun, owner: str, digest: str, size_bytes: int, bounds: StreamBounds
) -> bytes:
    body, others = await _request_body(run, owner, digest, size_bytes, bounds)
    own = run.p2p.peer_id.to_base58()
    for other in [peer for peer in others if peer not in (own, owner)][:OTHERS_MAX]:
        if body is None:
            body = await _try_fetch_from_holder(run, other, digest, size_bytes, bounds)
    if body is None:
        raise NetworkDown(f"{owner} has no body {digest[:12]}, nor has anybody whom it names")
    return body


async def _try_fetch_from_holder(
    run: NodeRun, peer: str, digest: str, size_bytes: int, bounds: StreamBounds
) -> bytes | None:
    """Return the body from a holder that the owner has named; None on any failure."""
    with suppress(RecordRejected, *CALL_ERRORS), anyio.move_on_after(bounds.others_s):
        return (await _request_body(run, peer, digest, size_bytes, bounds))[0]
    log.debug("%s was named for the body %s and does not give it", peer, digest)
    return None


async def _request_body(
    run: NodeRun, peer: str, digest: str, size_bytes: int, bounds: StreamBounds
) -> tuple[bytes | None, list[str]]:
    """Return the body and no peers, or None and the peers that have it. Raises RecordRejected, `CALL_ERRORS`."""
    _, reader, writer = await run.p2p.call_binary_stream_handler(PeerID.from_base58(peer), bounds.protocol)
    try:
        writer.write(bytes.fromhex(digest))
        await writer.drain()
        stated = int.from_bytes(await _await_within(reader.readexactly(8), REQUEST_S, "slow", "no answer"), "big")
        if stated == ABSENT:
            return None, await _read_holder_names(reader)
        if stated != size_bytes or stated > bounds.size_bytes_max:
            raise RecordRejected("oversized", f"{stated} bytes instead of {size_bytes}")
        body = await _receive_body(reader, size_bytes)
    finally:
        writer.close()
    if hashlib.sha256(body).hexdigest() != digest:
        raise RecordRejected("wrong-digest", "the body is not the one that was announced")
    return body, []


async def _read_holder_names(reader: asyncio.StreamReader) -> list[str]:
    """Read the ids of other holders that replace a body, if any. Raises RecordRejected."""
    try:
        size = int.from_bytes(await _await_within(reader.readexactly(2), REQUEST_S, "slow", "no answer"), "big")
        if size > NAMES_BYTES_MAX:
            raise RecordRejected("oversized", f"{size} bytes of names")
        return decode_peer_ids(await _await_within(reader.readexactly(size), REQUEST_S, "slow", "no answer"))
    except (EOFError, OSError):
        return []


async def _receive_body(reader: asyncio.StreamReader, size_bytes: int) -> bytes:
    """Read `size_bytes`, each chunk within `CHUNK_S`. Raises RecordRejected("slow"), EOFError."""
    body = bytearray()
    while len(body) < size_bytes:
        wanted = min(CHUNK_BYTES, size_bytes - len(body))
        body += await _await_within(reader.readexactly(wanted), CHUNK_S, "slow", "the body stopped coming")
    return bytes(body)
