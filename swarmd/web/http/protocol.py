"""uvicorn's HTTP protocol with what it lacks: a bound on connections, and on how slowly a request may come.

Nobody is shut out by connections on which nothing comes: at the bound, one that waits for its client makes room for the
new one, of the address that has the most of them the one that has waited longest. Where all are busy, some more are let
in for health probes alone.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from swarmd.http_server import CONNECTIONS_MAX, SILENT_S, origin_of

HEAD_BYTES_MAX = 16 * 1024  # request line and headers together; more is answered with 400
RESERVED_MAX = 16  # connections beyond `CONNECTIONS_MAX`, which answer health probes only
UNSENT_BYTES_MAX = 64 * 1024  # of a stream: in this process, and as much again in the kernel
UNREAD_S = 60.0  # a connection whose client takes nothing of a whole answer for so long is given up
ABORT = "swarmd.abort"  # key in a request's state: closes its connection at once
NARROW = "swarmd.narrow"  # likewise: lets little wait to be sent, so that a client which does not read is noticed
RESERVED = "swarmd.reserved"  # likewise: whether the connection is one for health probes only


class BoundedProtocol(H11Protocol):
    """One connection.

    From its start, and from each answer's end on, a whole request must have come within `SILENT_S`, head and body,
    counted from its first byte; else the connection is closed. What an answer waits for is the application's to bound.
    Of an answer that is whole the client must take something within `UNREAD_S`, again and again until it has it all.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self.app_state = {**self.app_state, ABORT: self.abort, NARROW: self.narrow, RESERVED: False}
        self.origin = ""
        self.quiet_since = 0.0  # by the loop's clock: when the last answer ended, or the connection began

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.origin, self.quiet_since = origin_of((self.client or ("",))[0]), self.loop.time()
        if self._find_place():
            self._watch(True)
        else:
            self.abort()

    def _find_place(self) -> bool:
        """Whether the connection is let in; another one may have to go."""
        all_of_them = [each for each in self.connections if isinstance(each, BoundedProtocol)]
        others = [each for each in all_of_them if each is not self and each.takes_room]
        if len(others) < CONNECTIONS_MAX:
            return True
        waiting = [each for each in others if each.waits_for_client]
        if waiting:
            counts = Counter(each.origin for each in others)
            max(waiting, key=lambda each: (counts[each.origin], -each.quiet_since)).abort()
            return True
        self.app_state[RESERVED] = True
        return len(others) < CONNECTIONS_MAX + RESERVED_MAX

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing goes on here but for what the client does: it is to send, or to read."""
        idle = not self._is_answering() and self.conn.their_state is h11.IDLE
        sends = self.conn.their_state is h11.SEND_BODY or idle
        return sends or self.transport.get_write_buffer_size() > 0

    @property
    def takes_room(self) -> bool:
        """Whether it is open, or closed with something still to be written."""
        return not self.transport.is_closing() or self.transport.get_write_buffer_size() > 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch(False)
        if self._reading is not None:
            self._reading.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch(self._is_owed())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.quiet_since = self.loop.time()
        self._watch(self._is_owed() and self.conn.their_state is h11.SEND_BODY)
        self._look_after_reading()

    def send_400_response(self, msg: str) -> None:
        """Say that it is no request; where the answer has begun, or is through, nothing more can be said."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection without waiting for what is still to be written, be it closing already."""
        self.transport.abort()

    def narrow(self) -> None:
        """Let little wait to be sent from now on."""
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        endpoint = self.transport.get_extra_info("socket")
        if endpoint is not None:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT_BYTES_MAX)

    def _look_after_reading(self, unread_bytes: int | None = None) -> None:
        """Look again and again whether less is left of an answer; closing alone would wait for its client for ever."""
        if self._reading is not None:
            self._reading.cancel()
        left_bytes = self.transport.get_write_buffer_size()
        if self._is_answering():
            return  # the next answer is on its way, and looks again at its end
        if unread_bytes is not None and left_bytes >= unread_bytes:
            self.abort()
        elif left_bytes:
            self._reading = self.loop.call_later(UNREAD_S, self._look_after_reading, left_bytes)

    def _is_owed(self) -> bool:
        """Whether the client is in the middle of a request that nobody answers yet, or answers no more."""
        return not self._is_answering() and self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self, owed: bool) -> None:
        if not owed and self._patience is not None:
            self._patience.cancel()
            self._patience = None
        elif owed and self._patience is None:
            self._patience = self.loop.call_later(SILENT_S, self._lose_patience)

    def _lose_patience(self) -> None:
        self._patience = None
        if self._is_owed():
            self.abort()


def narrow(scope: Mapping[str, Any]) -> None:
    """Notice early that a client does not read; nothing where another server runs the request."""
    call = scope.get("state", {}).get(NARROW)
    if call is not None:
        call()


async def cut(scope: Mapping[str, Any]) -> None:
    """Close a request's connection at once, and let its end be noticed; nothing where another server runs it."""
    abort = scope.get("state", {}).get(ABORT)
    if abort is not None:
        abort()
        await asyncio.sleep(0)
