"""Server-sent events. Each client has its own small queue; a client that does not read is disconnected."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from swarmd.core.applied import AppliedEvent
from swarmd.errors import SwarmdError
from swarmd.uvicorn_server import close_connection, shrink_send_buffers_of
from swarmd.web.endpoints import encode, refusal, request_origin
from swarmd.web.moments import chart_states, event_row
from swarmd.web.node import NodeLogSource
from swarmd.web.shapes import EVENTS_PAGE_MAX, GOSSIP_KEPT
from swarmd.web.source import SwarmSource

CLIENTS_MAX = 32


class ClientSlots:
    """The clients of the stream. At the limit, an address with fewer clients displaces the newest client of the address
    that has most."""

    def __init__(self) -> None:
        self._origins: dict[Client, str] = {}  # oldest first

    def __iter__(self) -> Iterator[Client]:
        return iter(self._origins)

    def __len__(self) -> int:
        return len(self._origins)

    def has_room(self, origin: str) -> bool:
        """Whether a client of this address would be admitted."""
        return len(self._origins) < CLIENTS_MAX or self._find_client_to_end(origin) is not None

    def admit_client(self, listener: Client, origin: str) -> bool:
        """Admit a client if there is room, disconnecting the one that it displaces. Returns whether it was admitted."""
        if len(self._origins) >= CLIENTS_MAX:
            leaves = self._find_client_to_end(origin)
            if leaves is None:
                return False
            del self._origins[leaves]
            leaves.end()
        self._origins[listener] = origin
        return True

    def remove_client(self, listener: Client) -> None:
        """Remove a client, if it is still there."""
        self._origins.pop(listener, None)

    def _find_client_to_end(self, origin: str) -> Client | None:
        """The client to displace; None if no address has at least two more clients than this one."""
        held = Counter(self._origins.values())
        crowd, most = held.most_common(1)[0]
        if most < held[origin] + 2:
            return None
        return next(each for each, of in reversed(self._origins.items()) if of == crowd)


EVENTS_WAITING_MAX = 4096  # per client; with more waiting, a client is disconnected, and may reconnect
HEARTBEAT_S = 15.0
SEND_S = 10.0  # longest wait for a client to read what was sent
RETRY_MS = 2000  # delay after which clients should reconnect
STATUS_LEAST_S = 2.0  # least time between two status messages; charts and events are sent at once
STATUS_EVERY_S = 5.0
SWARM_LEAST_S = 1.0
SWARM_S_A_PEER = 0.002  # added for each peer: a view of many is large, and changes all the time


class Client:
    """The queue of one client. `generation`: `NodeLogSource.read_generation` when the client connected."""

    def __init__(self, generation: int = 0) -> None:
        self.generation = generation
        self.lost = False
        self._events: deque[tuple[int, bytes]] = deque()
        self._latest: dict[str, bytes] = {}  # the newest charts, status and swarm view
        self._messages: deque[bytes] = deque(maxlen=GOSSIP_KEPT)
        self._wake = asyncio.Event()

    def put_event(self, seq: int, chunk: bytes) -> None:
        """Queue an event of the log. At the limit the client is disconnected."""
        if len(self._events) >= EVENTS_WAITING_MAX:
            self.lost = True
        else:
            self._events.append((seq, chunk))
        self._wake.set()

    def put_latest(self, kind: str, chunk: bytes) -> None:
        """Queue data that replaces earlier data of its kind."""
        self._latest[kind] = chunk
        self._wake.set()

    def put_message(self, chunk: bytes) -> None:
        """Queue a gossip message; at the limit the oldest is dropped."""
        self._messages.append(chunk)
        self._wake.set()

    def end(self) -> None:
        self.lost = True
        self._wake.set()

    async def wait_for_events(self, after_seq: int) -> tuple[bytes, int]:
        """Wait for data; return the SSE bytes newer than `after_seq` (a comment as heartbeat) and the last seq in
        them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_S):
                await self._wake.wait()
        self._wake.clear()
        events = [(seq, chunk) for seq, chunk in self._events if seq > after_seq]
        self._events.clear()
        parts = [chunk for _, chunk in events] + list(self._latest.values()) + list(self._messages)
        self._latest.clear()
        self._messages.clear()
        return b"".join(parts) or b": \n\n", events[-1][0] if events else after_seq


def encode_sse_event(kind: str, content: Any, seq: int | None = None) -> bytes:
    """One server-sent event; JSON has no line breaks."""
    return b"event: %s\n%sdata: %s\n\n" % (kind.encode(), b"" if seq is None else b"id: %d\n" % seq, encode(content))


class Stream:
    """Sends changes to all clients; does nothing while there are none. `swarm`: source of the views. `node`: the node's
    log; None for an observer."""

    def __init__(self, swarm: SwarmSource, node: NodeLogSource | None) -> None:
        self._swarm = swarm
        self._node = node
        self._clients = ClientSlots()
        self._somebody = asyncio.Event()
        self._charts: dict[str, str] = {}
        if node is not None:
            node.told = self._send_events

    @property
    def client_count(self) -> int:
        return len(self._clients)

    async def run(self) -> None:
        """Follow the sources until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_swarm())
                tasks.create_task(self._follow_gossip())
                if self._node is not None:
                    tasks.create_task(self._follow_status(self._node))
        finally:
            self.end()

    def end(self) -> None:
        for client in self._clients:
            client.end()

    # --- changes ---

    def _send_events(self, batch: Sequence[AppliedEvent]) -> None:
        charts = chart_states(batch[-1].after)
        moved, self._charts = charts != self._charts, charts
        if not self._clients:
            return
        for client in self._clients:
            if self._node is not None and client.generation != self._node.read_generation:
                client.end()  # reading restarted since: it may be another log, with other events
        for applied in batch:
            told = encode_sse_event("event", event_row(applied), applied.seq)
            for client in self._clients:
                client.put_event(applied.seq, told)
        if moved:
            self._send_latest_to_all("charts", encode_sse_event("charts", charts))

    def _send_latest_to_all(self, kind: str, told: bytes) -> None:
        for client in self._clients:
            client.put_latest(kind, told)

    async def _follow_swarm(self) -> None:
        """Send the swarm view when it has changed, at most every `SWARM_LEAST_S`."""
        version, last, peers = -1, b"", 0
        while True:
            await self._somebody.wait()
            newest = await self._swarm.changes.newer_than(version)
            with contextlib.suppress(SwarmdError):  # too many requests just now: try a moment later
                view = await self._swarm.view()
                version = newest
                told, peers = encode_sse_event("swarm", view), len(view.peers)
                if told != last:
                    self._send_latest_to_all("swarm", last := told)
            await asyncio.sleep(SWARM_LEAST_S + SWARM_S_A_PEER * peers)

    async def _follow_status(self, node: NodeLogSource) -> None:
        version, told_at = -1, 0.0
        while True:
            await self._somebody.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(told_at + STATUS_EVERY_S - time.monotonic()):
                    version = await node.changes.newer_than(version)
            with contextlib.suppress(SwarmdError):
                self._send_latest_to_all("status", encode_sse_event("status", await node.redacted_status()))
            told_at = time.monotonic()
            await asyncio.sleep(STATUS_LEAST_S)

    async def _follow_gossip(self) -> None:
        version, count = -1, -1
        while True:
            await self._somebody.wait()
            newest = await self._swarm.changes.newer_than(version)
            with contextlib.suppress(SwarmdError):  # as above
                fresh, count = await self._swarm.messages_since(count)
                version = newest
                for told in [encode_sse_event("gossip", message) for message in fresh]:
                    for client in self._clients:
                        client.put_message(told)
            await asyncio.sleep(SWARM_LEAST_S)

    # --- clients ---

    async def open_stream(self, request: Request) -> Response:
        """Handle GET /api/v1/stream."""
        if not self._clients.has_room(request_origin.get()):
            why = f"{CLIENTS_MAX} clients listen already, and no other address has more of them than yours"
            return refusal(503, why, {"retry-after": "10"})
        return _SseResponse(self, last_seq(request.headers.get("last-event-id", "")))

    async def feed_client(self, after_seq: int | None) -> AsyncGenerator[bytes, None]:
        """Yield one client's data, from now on or after an event; nothing if there is no longer room for it."""
        client = Client(self._node.read_generation if self._node is not None else 0)
        if not self._clients.admit_client(client, request_origin.get()):
            return
        self._somebody.set()
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            sent = -1
            if self._node is not None:
                sent = self._node.next_seq - 1
                if after_seq is not None:
                    yield await self._missed_events(self._node, after_seq, sent + 1)
            for told in await self._initial_chunks():
                yield told
            while not client.lost:
                told, sent = await client.wait_for_events(sent)
                yield told
        finally:
            self._clients.remove_client(client)
            if not self._clients:
                self._somebody.clear()

    async def _missed_events(self, node: NodeLogSource, after_seq: int, end: int) -> bytes:
        """The events after `after_seq`, at most the latest `EVENTS_PAGE_MAX`."""
        first = max(after_seq + 1, end - EVENTS_PAGE_MAX)
        rows = (await node.events(first, end - first)).events if first < end else ()
        return b"".join(encode_sse_event("event", row, row.seq) for row in rows)

    async def _initial_chunks(self) -> Iterable[bytes]:
        """The present charts, status and swarm view, for a new client."""
        told = []
        if self._node is not None:
            told.append(encode_sse_event("charts", chart_states(self._node.state)))
            with contextlib.suppress(SwarmdError):
                told.append(encode_sse_event("status", await self._node.redacted_status()))
        with contextlib.suppress(SwarmdError):
            told.append(encode_sse_event("swarm", await self._swarm.view()))
        return told


def last_seq(text: str) -> int | None:
    """The sequence number in a Last-Event-ID header; None if it is malformed."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


class _SseResponse(Response):
    """A response that goes on until the client leaves or the stream ends."""

    def __init__(self, stream: Stream, after_seq: int | None) -> None:
        super().__init__(media_type="text/event-stream", headers={"x-accel-buffering": "no"})  # for nginx
        del self.headers["content-length"]
        self._stream = stream
        self._after_seq = after_seq

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        shrink_send_buffers_of(scope)
        sending = asyncio.create_task(self._send_chunks(scope, send))
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        await close_connection(scope)  # at once: nobody may be left to read what is still to be written

    async def _send_chunks(self, scope: Scope, send: Send) -> None:
        feed = self._stream.feed_client(self._after_seq)
        async with contextlib.aclosing(feed) as chunks:
            async for told in chunks:
                async with asyncio.timeout(SEND_S):
                    await send({"type": "http.response.body", "body": told, "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        continue
