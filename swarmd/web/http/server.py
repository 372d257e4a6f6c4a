"""Listening: one process, one thread for requests, an orderly end."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable

import uvicorn

from swarmd.errors import AddressInUse
from swarmd.http_server import Address
from swarmd.web.http.guard import RequestGuard
from swarmd.web.http.protocol import HEAD_BYTES_MAX, BoundedProtocol

STOP_S = 2.0  # requests under way may take so long when the server ends
IDLE_S = 10.0  # a connection on which nothing is asked any more
BACKLOG = 128


def bind(address: Address, else_any: bool = False) -> socket.socket:
    """A listening socket.

    Args:
        address: where.
        else_any: take any free port where this one is taken.

    Raises:
        AddressInUse: it cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    endpoint = socket.socket(family, socket.SOCK_STREAM)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        endpoint.bind(address)
        endpoint.listen(BACKLOG)
    except OSError as error:
        endpoint.close()
        if else_any and address.port:
            return bind(Address(address.host, 0))
        raise AddressInUse(
            f"{address.host}:{address.port} cannot be listened on: {error.strerror or error}", "Choose another --listen"
        ) from None
    return endpoint


def url_of(endpoint: socket.socket) -> str:
    """Where the server is reached from this machine."""
    host, port = endpoint.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """uvicorn, with a word when it listens."""

    def __init__(self, app: RequestGuard, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=BoundedProtocol,
                ws="none",
                lifespan="on",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=int(IDLE_S),
                timeout_graceful_shutdown=int(STOP_S),
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            )
        )
        self._ready = ready
        self._let_go = app.let_go

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._let_go()
        await super().shutdown(sockets)
        self._captured_signals.clear()  # an end in order, as asked for: uvicorn would die of the signal after it


def configure_logging() -> None:
    """Warnings of this process on stderr, one a line, with their level in front."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # below, every malformed request is told


def serve(app: RequestGuard, endpoint: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT. Blocks.

    Args:
        app: the application.
        endpoint: a listening socket; it is closed at the end.
        ready: called once requests are answered.
    """
    configure_logging()
    HttpServer(app, ready).run([endpoint])
