"""HTTP servers: a Starlette application under uvicorn, bounded in connections, sizes and time.

The page, the signer and the reference server all run on it.

- Idle connections lock nobody out. At the limit, a new connection replaces one that waits for its client: the
  longest-waiting connection of the address that has most. If all are busy, a few more are accepted for health probes
  only.
- A complete request must arrive within `SILENT_S`, and a client must keep reading its answer.
- An orderly stop closes the socket, finishes running requests within a bound, and returns.
"""

import asyncio
import logging
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any

import h11
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from swarmd.errors import AddressInUse, SwarmdError
from swarmd.http_server import Address, bears_token, client_network_of, is_ip_or_localhost
from swarmd.logger import get_logger

SILENT_S = 10.0  # a connection that sends no complete request for this long is closed
CONNECTIONS_MAX = 256
RESERVED_MAX = 16  # connections beyond `CONNECTIONS_MAX`, for health probes only
HEAD_BYTES_MAX = 16 * 1024  # request line and headers together; more is answered with 400
UNSENT_BYTES_MAX = 64 * 1024  # of a stream, in this process; the kernel buffers as much again
UNREAD_S = 60.0  # closed if the client reads nothing of a finished answer for this long
IDLE_S = 10.0  # a keep-alive connection is closed after this
STOP_S = 2.0  # time for running requests when the server stops
BACKLOG = 128
ABORT = "swarmd.abort"  # key in a request's state: a callable that closes the connection at once
NARROW = "swarmd.narrow"  # likewise: shrinks the send buffers, so that a client that does not read is noticed
RESERVED = "swarmd.reserved"  # likewise: whether the connection is for health probes only
HEALTH = "/healthz"

log = get_logger(__name__)


class BoundedProtocol(H11Protocol):
    """One connection.

    A complete request must arrive within `SILENT_S` of the connection's start or, after an answer, of its first byte.
    The application bounds the time of its answers. While part of a finished answer is unread, the client must read
    something within each `UNREAD_S`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self.app_state = {**self.app_state, ABORT: self.abort, NARROW: self.shrink_send_buffers, RESERVED: False}
        self.origin = ""
        self.quiet_since = 0.0  # loop time at which the last answer ended, or the connection began

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.origin, self.quiet_since = client_network_of((self.client or ("",))[0]), self.loop.time()
        if self._accept_or_replace():
            self._update_silence_timer(True)
        else:
            self.abort()

    def _accept_or_replace(self) -> bool:
        """Whether to accept the connection; may close another one to make room."""
        all_of_them = [each for each in self.connections if isinstance(each, BoundedProtocol)]
        others = [each for each in all_of_them if each is not self and each.counts_towards_limit]
        if len(others) < CONNECTIONS_MAX:
            return True
        waiting = [each for each in others if each.is_waiting_for_client]
        if waiting:
            counts = Counter(each.origin for each in others)
            max(waiting, key=lambda each: (counts[each.origin], -each.quiet_since)).abort()
            return True
        self.app_state[RESERVED] = True
        return len(others) < CONNECTIONS_MAX + RESERVED_MAX

    @property
    def is_waiting_for_client(self) -> bool:
        """Whether the connection waits for its client to send or read something."""
        idle = not self._is_answering() and self.conn.their_state is h11.IDLE
        sends = self.conn.their_state is h11.SEND_BODY or idle
        return sends or self.transport.get_write_buffer_size() > 0

    @property
    def counts_towards_limit(self) -> bool:
        """Whether it is open, or closing with data still to be written."""
        return not self.transport.is_closing() or self.transport.get_write_buffer_size() > 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._update_silence_timer(False)
        if self._reading is not None:
            self._reading.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_silence_timer(self._is_request_pending())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.quiet_since = self.loop.time()
        self._update_silence_timer(self._is_request_pending() and self.conn.their_state is h11.SEND_BODY)
        self._check_reading_progress()

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to malformed bytes; just close the connection if another answer has begun or ended."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once and drop unwritten data, even if it is closing already."""
        self.transport.abort()

    def shrink_send_buffers(self) -> None:
        """Make the send buffers small from now on, so that a client that does not read is noticed."""
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        endpoint = self.transport.get_extra_info("socket")
        if endpoint is not None:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT_BYTES_MAX)

    def _check_reading_progress(self, unread_bytes: int | None = None) -> None:
        """Check periodically that the client reads the rest of an answer; a plain close would wait for it for ever."""
        if self._reading is not None:
            self._reading.cancel()
        left_bytes = self.transport.get_write_buffer_size()
        if self._is_answering():
            return  # the next answer is running, and checks again at its end
        if unread_bytes is not None and left_bytes >= unread_bytes:
            self.abort()
        elif left_bytes:
            self._reading = self.loop.call_later(UNREAD_S, self._check_reading_progress, left_bytes)

    def _is_request_pending(self) -> bool:
        """Whether part of a request has arrived and the rest must follow."""
        return not self._is_answering() and self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _update_silence_timer(self, owed: bool) -> None:
        if not owed and self._patience is not None:
            self._patience.cancel()
            self._patience = None
        elif owed and self._patience is None:
            self._patience = self.loop.call_later(SILENT_S, self._abort_if_silent)

    def _abort_if_silent(self) -> None:
        self._patience = None
        if self._is_request_pending():
            self.abort()


def shrink_send_buffers_of(scope: Mapping[str, Any]) -> None:
    """Shrink a request's send buffers, to notice early that a client does not read; a no-op under another server."""
    call = scope.get("state", {}).get(NARROW)
    if call is not None:
        call()


async def close_connection(scope: Mapping[str, Any]) -> None:
    """Close a request's connection at once, and let its handler notice; a no-op under another server."""
    abort = scope.get("state", {}).get(ABORT)
    if abort is not None:
        abort()
        await asyncio.sleep(0)


def bind(address: Address, else_any: bool = False) -> socket.socket:
    """Open a listening socket; with `else_any`, on any free port if this one is taken. Raises AddressInUse."""
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
    """The server's URL, for clients on this machine."""
    host, port = endpoint.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """uvicorn with the bounds above, for an application that handles ASGI's lifespan.

    Args:
        ready: called once requests are answered.
        end_streams: called when the stop begins, to end streams that would delay it.
        stop_s: longest time for running requests then.
    """

    def __init__(
        self,
        app: ASGIApp,
        ready: Callable[[], None] = lambda: None,
        end_streams: Callable[[], None] = lambda: None,
        stop_s: float = STOP_S,
        on_signals: bool = True,
    ) -> None:
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
                timeout_graceful_shutdown=max(1, round(stop_s)),
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            )
        )
        # At lower levels uvicorn logs each malformed request, with which anyone could fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._ready = ready
        self._let_go = end_streams
        self._on_signals = on_signals

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals() if self._on_signals else nullcontext():
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._let_go()
        await super().shutdown(sockets)
        self._captured_signals.clear()  # an orderly stop: without this, uvicorn would raise the signal again


def configure_logging() -> None:
    """Log this process's warnings to stderr, one a line, prefixed with their level."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def serve(
    app: ASGIApp,
    endpoint: socket.socket,
    ready: Callable[[], None] = lambda: None,
    end_streams: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT. Blocks, and closes the socket at the end. Arguments as for `HttpServer`."""
    configure_logging()
    HttpServer(app, ready, end_streams).run([endpoint])


@asynccontextmanager
async def serve_in_background(app: ASGIApp, address: Address, stop_s: float) -> AsyncIterator[str]:
    """Serve until the block ends. Yields the URL, with the port that was chosen. Raises AddressInUse.

    Running requests get `stop_s` when the block ends.
    """
    endpoint = bind(address)
    url = url_of(endpoint)
    ready = asyncio.Event()
    server = HttpServer(app, ready.set, stop_s=stop_s, on_signals=False)
    serving = asyncio.create_task(server.serve([endpoint]))
    started = asyncio.create_task(ready.wait())
    try:
        # A server that cannot start ends without becoming ready.
        await asyncio.wait({started, serving}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            raise AddressInUse(f"the server at {url} ended while it started", "See its log for the reason")
        yield url
    finally:
        started.cancel()
        server.should_exit = True
        await serving


# --- applications whose answers are JSON, for programs ---


class HttpRefusal(Exception):
    """An answer other than 2xx: its status, and further JSON fields besides `error`."""

    def __init__(self, status: int, error: str, **more: Any) -> None:
        super().__init__(error)
        self.status = status
        self.content = {"error": error} | more


def json_response(status: int, content: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def make_json_app(
    routes: Sequence[Route],
    check: Callable[[Request], None],
    retry_s: int,
    *malformed: type[SwarmdError],
    describe: Callable[[int, str], Any] = lambda status, error: error,
) -> ASGIApp:
    """Make an application that answers everything, refusals included, in JSON.

    Args:
        check: raises HttpRefusal for a forbidden request; called for all but GET /healthz.
        retry_s: Retry-After of 429 and 503.
        malformed: errors that become 400.
        describe: makes the value of `error` from a status and a sentence.
    """

    async def respond_refusal(request: Request, error: Exception) -> Response:
        assert isinstance(error, HttpRefusal)
        log.info("%s from %s: %d %s", request.url.path[:150], remote_of(request), error.status, error)
        headers = {"Retry-After": str(retry_s)} if error.status in (429, 503) else {}
        if error.status == 401:
            headers = {"WWW-Authenticate": "Bearer"}
        return json_response(error.status, error.content | {"error": describe(error.status, str(error))}, headers)

    async def respond_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return json_response(
            error.status_code, {"error": describe(error.status_code, error.detail.lower())}, error.headers
        )

    async def respond_malformed(request: Request, error: Exception) -> Response:
        assert isinstance(error, SwarmdError)
        return await respond_refusal(request, HttpRefusal(400, error.message))

    async def respond_unexpected(request: Request, error: Exception) -> Response:
        return json_response(500, {"error": describe(500, "unexpected"), "original": type(error).__name__})

    handlers = {HttpRefusal: respond_refusal, HTTPException: respond_http_exception, Exception: respond_unexpected}
    handlers |= dict.fromkeys(malformed, respond_malformed)
    app = Starlette(routes=routes, exception_handlers=handlers)

    async def checked_app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != HEALTH:
            request = Request(scope)
            try:
                check(request)
            except HttpRefusal as refusal:
                await (await respond_refusal(request, refusal))(scope, receive, send)
                return
        await app(scope, receive, send)

    return checked_app


def check_program(request: Request, token: str) -> None:
    """Raise HttpRefusal for browsers, a wrong token, and if there is no token, for a Host that is a name."""
    if "origin" in request.headers:  # sent by a page in a browser, which can reach loopback
        raise HttpRefusal(403, "not for browsers")
    if not bears_token(request.headers.get("authorization", ""), token):
        raise HttpRefusal(401, "unauthorized")
    if not token and not all(map(is_ip_or_localhost, request.headers.getlist("host") or [""])):
        raise HttpRefusal(403, "without a token this server goes by its address, or localhost, alone")


def remote_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def read_body(request: Request, bytes_max: int, longest_s: float) -> bytes:
    """Read the whole body. Raises HttpRefusal if it is too long, late, or cut off."""
    declared = request.headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared[:18]) > bytes_max:
        raise HttpRefusal(413, f"a body may have {bytes_max} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(longest_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise HttpRefusal(413, f"a body may have {bytes_max} bytes")
    except TimeoutError:
        raise HttpRefusal(408, "the body did not arrive in time") from None
    except ClientDisconnect:
        raise HttpRefusal(400, "the body broke off") from None
    return bytes(body)
