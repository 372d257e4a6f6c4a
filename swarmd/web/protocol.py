"""uvicorn's HTTP protocol with what it lacks: a bound on connections, and on how slowly a request may come."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from swarmd.serving import CONNECTIONS_MAX, SILENT_S

HEAD_BYTES_MAX = 16 * 1024  # request line and headers together; more is answered with 400
ABORT = "swarmd.abort"  # key in a request's state: closes its connection at once


class BoundedProtocol(H11Protocol):
    """One connection.

    From its start, and from each answer's end on, a whole request must have come within `SILENT_S`, head and body,
    counted from its first byte; else the connection is closed. What an answer waits for is the application's to bound.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience: asyncio.TimerHandle | None = None
        self.app_state = {**self.app_state, ABORT: self.abort}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if len(self.connections) > CONNECTIONS_MAX:
            self.abort()
        else:
            self._watch(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch(False)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch(self._is_owed())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch(self._is_owed() and self.conn.their_state is h11.SEND_BODY)

    def abort(self) -> None:
        """Close the connection without waiting for what is still to be written."""
        if not self.transport.is_closing():
            self.transport.abort()

    def _is_owed(self) -> bool:
        """Whether the client is in the middle of a request that nobody answers yet, or answers no more."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return not answering and self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

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


async def cut(scope: Mapping[str, Any]) -> None:
    """Close a request's connection at once, and let its end be noticed; nothing where another server runs it."""
    abort = scope.get("state", {}).get(ABORT)
    if abort is not None:
        abort()
        await asyncio.sleep(0)
