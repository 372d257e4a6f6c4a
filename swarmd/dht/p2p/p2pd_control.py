"""Replaces hivemind's client of p2pd by one with bounds, which keeps nothing of a call after its end.

- hivemind keeps the task of a call, and with it the frame that it arrived in, if the answer is larger than a frame or
  if the peer cancels the call. Here a call passes `PeerLimits` before a task is created for it, and has a timeout.
- Streams are accepted here too. A refused stream is closed with p2pd's header unread, because only then p2pd resets it;
  otherwise p2pd would hold it open for as long as the peer likes.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Generator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import anyio

from swarmd.dht.identity.identity import encode_varint
from swarmd.dht.p2p import hivemind_api
from swarmd.dht.p2p.limits import ANSWER_BYTES_MAX, PeerLimits, RemotePeer, UnreachablePeers
from swarmd.dht.wire.addresses import address_prefix
from swarmd.errors import RecordRejected
from swarmd.logger import get_logger
from swarmd.worker.tasks import spawn_in_background

CALL_S = 10.0  # timeout for answering a call; its sender waits for 3 s
ASK_S = 30.0  # timeout for p2pd's answer on the kept connection
BACKLOG = 128
ABUSED_STREAM = 16  # weight of a refusal for an idle or slow stream
HEADER_BYTES = 4096  # what p2pd writes about a stream before the stream's data
HEADER_S = 5.0
SEARCH_S = 1.0  # a call cancelled sooner tells nothing about the peer
ACCEPT_AGAIN_S = 0.2
WAITING_MAX = 1024  # messages that p2pd has not read; above it, none is read from p2pd

T = TypeVar("T")

log = get_logger(__name__)


class TimedCoroutine(Awaitable[T]):
    """A coroutine that measures the processor time of its own steps."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.spent_s = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        resume = partial(self._coroutine.send, None)
        while True:
            began = time.thread_time()
            try:
                waited_for = resume()
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.spent_s += time.thread_time() - began
            try:
                resume = partial(self._coroutine.send, (yield waited_for))
            except BaseException as error:
                resume = partial(self._coroutine.throw, error)

    def close(self) -> None:
        """Close the coroutine; does nothing if it has ended or was never started."""
        self._coroutine.close()


class BoundedControl(hivemind_api.ControlClient):  # type: ignore[misc]
    """hivemind's control client, with every call and stream bounded by `PeerLimits`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peer_limits = PeerLimits()  # the node sets its own before any handler is registered
        self._kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._asking = asyncio.Lock()
        self._drained = asyncio.Event()
        self.over = asyncio.Event()  # set when the connection that carries calls has ended
        self.unreached = UnreachablePeers()

    # --- calls ---

    async def _read_from_persistent_conn(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                if self._pending_messages.qsize() > WAITING_MAX:
                    self._drained.clear()
                    await self._drained.wait()
                message = hivemind_api.p2pd_pb2.PersistentConnectionResponse()
                await hivemind_api.read_pbmsg_safe(reader, message)
                call_id = UUID(bytes=message.callId)
                if message.HasField("requestHandling"):
                    self._begin_call(call_id, message.requestHandling)
                elif message.HasField("cancel") and call_id in self._handler_tasks:
                    self._handler_tasks[call_id].cancel()
                elif call_id in self._pending_calls:
                    _set_call_result(self._pending_calls[call_id], message)
        except (EOFError, OSError):
            return  # p2pd is gone
        finally:
            self.over.set()

    def _begin_call(self, call_id: UUID, request: Any) -> None:
        caller = self.peer_limits.remote_peer_of(hivemind_api.PeerID(request.peer).to_base58())
        self.unreached.record_contact(caller.peer)
        size_bytes = len(request.data)
        try:
            self.peer_limits.acquire_call_slot(caller, request.proto, size_bytes)
        except RecordRejected as error:
            self._pending_messages.put_nowait((_error_response(call_id, error), None, 0))
            return
        answering = TimedCoroutine(self._answer_call(call_id, caller, request))
        task = asyncio.ensure_future(_await_with_timeout(answering))
        self._handler_tasks[call_id] = task
        task.add_done_callback(partial(self._end_call, call_id, caller, size_bytes, answering))

    def _end_call(
        self,
        call_id: UUID,
        caller: RemotePeer,
        size_bytes: int,
        answering: TimedCoroutine[None],
        task: asyncio.Task[None],
    ) -> None:
        if self._handler_tasks.get(call_id) is task:
            del self._handler_tasks[call_id]
        answering.close()  # it was never started if the call was cancelled at once
        self.peer_limits.release_call_slot(caller, size_bytes, answering.spent_s)
        if not task.cancelled() and task.exception() is not None:
            log.debug("a call of %s failed: %r", caller.peer, task.exception())

    async def _answer_call(self, call_id: UUID, caller: RemotePeer, request: Any) -> None:
        try:
            handler = self.unary_handlers[request.proto]
            answer = await handler(request.data, hivemind_api.PeerID(request.peer))
            if len(answer) > ANSWER_BYTES_MAX:
                raise self.peer_limits.count_refusal(caller.peer, "oversized", f"an answer of {len(answer)} bytes")
            if self.over.is_set():
                return
            self.peer_limits.acquire_answer_bytes(caller, len(answer))
        except Exception as error:
            await self._pending_messages.put((_error_response(call_id, error), None, 0))
            return
        response = hivemind_api.p2pd_pb2.CallUnaryResponse(response=answer)
        message = hivemind_api.p2pd_pb2.PersistentConnectionRequest(callId=call_id.bytes, unaryResponse=response)
        self._pending_messages.put_nowait((message, caller, len(answer)))

    async def _write_to_persistent_conn(self, writer: asyncio.StreamWriter) -> None:
        try:
            with closing(writer), suppress(OSError):
                while True:
                    queued = await self._pending_messages.get()
                    if self._pending_messages.qsize() <= WAITING_MAX:
                        self._drained.set()
                    try:
                        await write_message(writer, queued[0] if isinstance(queued, tuple) else queued)
                    finally:
                        _release_queued(self.peer_limits, queued)
        finally:  # the counts outlive p2pd, queued messages do not
            self.over.set()
            self._drained.set()
            while not self._pending_messages.empty():
                _release_queued(self.peer_limits, self._pending_messages.get_nowait())

    async def call_unary_handler(self, peer_id: hivemind_api.PeerID, proto: str, data: bytes) -> bytes:
        """Call a peer as hivemind does, unless it was unreachable lately. Configured peers, and connected ones that are
        only slow, are called in any case."""
        peer, began = peer_id.to_base58(), time.monotonic()
        if self.unreached.is_backing_off(peer) and not self.peer_limits.is_configured(peer):
            raise hivemind_api.P2PDaemonError(f"{peer} was not reached lately")
        try:
            answer: bytes = await super().call_unary_handler(peer_id, proto, data)
        except hivemind_api.P2PHandlerError:
            self.unreached.record_contact(peer)
            raise
        except hivemind_api.P2PDaemonError:
            self.unreached.record_failure(peer, time.monotonic() - began)
            raise
        except asyncio.CancelledError:
            waited_s = time.monotonic() - began
            if waited_s > SEARCH_S and peer not in self.peer_limits.connected:
                self.unreached.record_failure(peer, waited_s)
            raise
        self.unreached.record_contact(peer)
        return answer

    async def connect(self, peer_id: hivemind_api.PeerID, maddrs: Any) -> None:
        """Connect as hivemind does, and end the back-off from the peer."""
        await super().connect(peer_id, maddrs)
        self.unreached.record_contact(peer_id.to_base58())

    # --- streams ---

    @asynccontextmanager
    async def listen(self) -> "AsyncIterator[BoundedControl]":
        """Accept streams for as long as the block runs."""
        listening = socket.socket(socket.AF_UNIX)
        with closing(listening):
            listening.bind(self.listen_maddr.value_for_protocol(hivemind_api.protocols.P_UNIX))
            listening.listen(BACKLOG)
            listening.setblocking(False)
            accepting = asyncio.ensure_future(self._accept_streams(listening))
            try:
                yield self
            finally:
                accepting.cancel()

    async def _accept_streams(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:  # for instance if no descriptor is left
                log.warning("a stream cannot be accepted: %s", error)
                await anyio.sleep(ACCEPT_AGAIN_S)
                continue
            spawn_in_background(self._handle_stream(accepted))

    async def _handle_stream(self, accepted: socket.socket) -> None:
        """Handle a stream if the limits allow it, otherwise close it."""
        try:
            info, caller, handler = await self._inspect_stream(accepted)
        except BaseException:
            accepted.close()
            raise
        try:
            reader, writer = await asyncio.open_unix_connection(sock=accepted)
            await hivemind_api.read_pbmsg_safe(reader, hivemind_api.p2pd_pb2.StreamInfo())
            await handler(hivemind_api.StreamInfo.from_protobuf(info), reader, writer)
        except RecordRejected as error:
            self.peer_limits.count_refusal(caller.peer, error.reason, error.message, weight=ABUSED_STREAM)
        finally:
            self.peer_limits.streams.release(caller)

    async def _inspect_stream(self, accepted: socket.socket) -> tuple[Any, RemotePeer, Any]:
        """Return p2pd's header of a stream (left unread), its caller and its handler. Raises RecordRejected."""
        accepted.setblocking(False)
        with anyio.fail_after(HEADER_S):
            await anyio.wait_readable(accepted)
        info = _decode_stream_info(accepted.recv(HEADER_BYTES, socket.MSG_PEEK))
        caller = self.peer_limits.remote_peer_of(hivemind_api.PeerID(info.peer).to_base58(), address_prefix(info.addr))
        handler = self.handlers[info.proto]
        self.peer_limits.acquire_stream_slot(caller)
        return info, caller, handler

    # --- what is asked of p2pd itself ---

    async def send_request(self, request: Any) -> Any:
        """Send p2pd a request over one kept connection, which works even if no new file can be opened."""
        async with self._asking:
            try:
                with anyio.fail_after(ASK_S):
                    if self._kept is None:
                        self._kept = await self.daemon_connector.open_connection()
                    reader, writer = self._kept
                    await write_message(writer, request)
                    response = hivemind_api.p2pd_pb2.Response()
                    await hivemind_api.read_pbmsg_safe(reader, response)
            except BaseException:  # a broken or half-read connection is useless
                self._close_kept_connection()
                raise
        hivemind_api.raise_if_failed(response)
        return response

    def _close_kept_connection(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None

    def close(self) -> None:
        super().close()
        with suppress(RuntimeError):  # the loop may be closed
            self._close_kept_connection()

    async def list_peers(self) -> tuple[Any, ...]:
        """List peers as hivemind does, over the kept connection."""
        response = await self.send_request(hivemind_api.p2pd_pb2.Request(type=hivemind_api.p2pd_pb2.Request.LIST_PEERS))
        return tuple(hivemind_api.PeerInfo.from_protobuf(peer) for peer in response.peers)

    async def list_connections(self) -> list[tuple[str, str]]:
        """Return (peer id, address prefix) of every connection."""
        response = await self.send_request(hivemind_api.p2pd_pb2.Request(type=hivemind_api.p2pd_pb2.Request.LIST_PEERS))
        return [
            (hivemind_api.PeerID(peer.id).to_base58(), address_prefix(peer.addrs[0] if peer.addrs else b""))
            for peer in response.peers
        ]

    async def disconnect(self, peer_id: hivemind_api.PeerID) -> None:
        """Disconnect a peer as hivemind does; over the kept connection if no other can be opened. This takes seconds if
        the peer does not read, and other requests on the same connection wait for it."""
        try:
            await super().disconnect(peer_id)
            return
        except OSError:
            log.debug("no further connection to p2pd can be opened")
        wanted = hivemind_api.p2pd_pb2.DisconnectRequest(peer=peer_id.to_bytes())
        await self.send_request(
            hivemind_api.p2pd_pb2.Request(type=hivemind_api.p2pd_pb2.Request.DISCONNECT, disconnect=wanted)
        )


async def _await_with_timeout(answering: TimedCoroutine[None]) -> None:
    with anyio.move_on_after(CALL_S):
        await answering


async def write_message(writer: asyncio.StreamWriter, message: Any) -> None:
    """Write a message in one piece: hivemind writes each byte of its length separately, and p2pd wakes for each."""
    encoded: bytes = message.SerializeToString()
    writer.write(encode_varint(len(encoded)) + encoded)
    await writer.drain()


def _release_queued(peer_limits: PeerLimits, queued: Any) -> None:
    """Release the bytes of a queued message: hivemind's own, or (message, caller, bytes of the answer)."""
    if isinstance(queued, tuple) and queued[1] is not None:
        peer_limits.answers.release(queued[1], queued[2])


def _set_call_result(pending: asyncio.Future[Any], message: Any) -> None:
    if pending.done():
        return
    if message.HasField("daemonError"):
        pending.set_exception(hivemind_api.P2PDaemonError(message.daemonError.message))
    elif message.callUnaryResponse.HasField("error"):
        pending.set_exception(hivemind_api.P2PHandlerError(message.callUnaryResponse.error.decode(errors="ignore")))
    elif message.callUnaryResponse.HasField("response"):
        pending.set_result(message.callUnaryResponse.response)
    else:
        pending.set_result(None)


def _error_response(call_id: UUID, error: Exception) -> Any:
    """Return the response to a call that was refused or has failed."""
    said = f"{error.reason}: {error}" if isinstance(error, RecordRejected) else repr(error)
    response = hivemind_api.p2pd_pb2.CallUnaryResponse(error=said[:256].encode())
    return hivemind_api.p2pd_pb2.PersistentConnectionRequest(callId=call_id.bytes, unaryResponse=response)


def _decode_stream_info(header: bytes) -> Any:
    """Decode the header of a stream. Raises ValueError, or protobuf's DecodeError."""
    size, at = 0, 0
    while header[at] & 0x80:
        size |= (header[at] & 0x7F) << (7 * at)
        at += 1
    size |= header[at] << (7 * at)
    return hivemind_api.p2pd_pb2.StreamInfo.FromString(header[at + 1 : at + 1 + size])


def install_control() -> None:
    """Make hivemind use `BoundedControl` for every p2pd that this process starts."""
    hivemind_api.client_module.ControlClient = BoundedControl
