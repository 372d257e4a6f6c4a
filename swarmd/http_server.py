"""What every HTTP server of swarmd shares: where it listens, who may reach it, its bearer token, its orderly end."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from swarmd.errors import AddressInUse, ConfigError, ExitCode
from swarmd.secret_files import SecretKind, locate_secret, read_secret

if TYPE_CHECKING:
    from aiohttp import web

SILENT_S = 10.0  # a connection without a whole request's head is closed after this
CONNECTIONS_MAX = 256
NETWORK_BITS = 64  # of an IPv6 address; whoever has one has 2**64 of them
UNKNOWN = "?"
PAGE_PORT = 8800  # of a node's page, by default and as an example
TOKEN_CHARS_MIN = 16
TOKEN = SecretKind("token file", ConfigError, 4096, "Write a random token into it: `openssl rand -hex 32`, mode 0600")


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


def parse_listen(text: str, port: int, key: str = "--listen") -> Address:
    """HOST:PORT. Raises ConfigError.

    Args:
        port: an example for the error.
        key: where it was given, for people.
    """
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\s]+)):(\d{1,5})", text)
    if found is None or int(found[3]) > 65535:
        raise ConfigError(f"{key} {text!r} is no HOST:PORT", f"For example 127.0.0.1:{port} or [::1]:{port}")
    return Address(found[1] or found[2], int(found[3]))


def check_listen(address: Address, token: str, what: str) -> None:
    """Raise ConfigError where strangers could reach `what` and need no token."""
    if not is_loopback(address.host) and not token:
        raise ConfigError(
            f"{what} would listen on {address.host}, where others can reach it, and asks for no token",
            "Give --token-file FILE, or listen on 127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_address(host: str) -> bool:
    """Whether a Host header gives an IP address or localhost, with or without a port.

    A stranger's name can be made to lead here (DNS rebinding), and the stranger's page is then read as this server's.
    """
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+))(?::\d{1,5})?", host)
    if found is None:
        return False
    name = found[1] or found[2]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower().removesuffix(".") == "localhost"
    return True


def load_token(named: str, root: Path, kind: SecretKind = TOKEN) -> str:
    """The bearer token in a file or a credential; empty where none is named.

    Args:
        named: a path, or `credential:NAME`.
        root: what a relative path is relative to.
        kind: what it is called and raised as in errors.

    Raises:
        SwarmdError: `kind.error` (ConfigError by default): it cannot be read, others may read it, or it is too short
            or no plain text.
    """
    if not named:
        return ""
    secret = locate_secret(named, root, kind)
    token = read_secret(secret, kind).decode("ascii", "replace").strip()
    if len(token) < TOKEN_CHARS_MIN or not re.fullmatch(r"[!-~]+", token):
        raise kind.error(
            f"there is no token in {secret.path}", f"One of {TOKEN_CHARS_MIN} or more letters and digits, on one line"
        ).ending(ExitCode.BAD_DATA)
    return token


def carries_token(request: web.Request, token: str) -> bool:
    """Whether the request may be made, as far as the token says; an empty token lets everybody in."""
    return bears_token(request.headers.get("Authorization", ""), token)


def bears_token(authorization: str, token: str) -> bool:
    """Whether an Authorization header carries the token; an empty token lets everybody in."""
    if not token:
        return True
    scheme, _, given = authorization.partition(" ")
    right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return scheme.lower() == "bearer" and right


def origin_of(host: str) -> str:
    """The address, or of IPv6 the network that one customer has, whose connections and requests count together."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host or UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), NETWORK_BITS), strict=False))


class _TooMany(asyncio.Protocol):
    """Takes the place of a connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Places:
    """Makes the protocols of a server's connections. At the bound a new one takes the place of one on which nothing is
    answered, of the address that has most of them the oldest: whoever holds connections keeps nobody out.
    """

    def __init__(self, app: web.Application) -> None:
        self.http: web.Server | None = None
        self._answering: set[asyncio.BaseProtocol] = set()
        # Kept here, for a protocol forgets its own when that begins to close. Until it is asked something it keeps it.
        self._transports: dict[asyncio.BaseProtocol, asyncio.Transport | None] = {}
        app.middlewares.insert(0, self._note())

    def __call__(self) -> asyncio.Protocol:
        assert self.http is not None, "the server is set up"
        return self.http() if self._make_room() else _TooMany()

    def _make_room(self) -> bool:
        """Close a connection where there are too many. False where all of them are being answered."""
        assert self.http is not None
        self._transports = {each: each.transport or self._transports.get(each) for each in self.http.connections}
        alive = [(each, transport) for each, transport in self._transports.items() if transport and _is_held(transport)]
        if len(alive) < CONNECTIONS_MAX:
            return True
        origins = Counter(_peer_of(transport) for _, transport in alive)
        waiting = [transport for each, transport in alive if each not in self._answering]
        if waiting:
            max(waiting, key=lambda transport: origins[_peer_of(transport)]).abort()
        return bool(waiting)

    def _note(self) -> Any:
        from aiohttp import web

        @web.middleware
        async def note(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            self._answering.add(request.protocol)
            self._transports[request.protocol] = request.transport
            try:
                return await handler(request)
            finally:
                self._answering.discard(request.protocol)

        return note


def _is_held(transport: asyncio.Transport) -> bool:
    """Whether a connection takes its place still: one that is closing does while its client takes what it was sent."""
    return not transport.is_closing() or transport.get_write_buffer_size() > 0


def _peer_of(transport: asyncio.BaseTransport) -> str:
    return origin_of((transport.get_extra_info("peername") or ("",))[0])


def _is_of_here(record: logging.LogRecord) -> bool:
    """Whether a line of aiohttp's tells of something here: not of a malformed request, with which anybody who reaches
    the address, without a token, could fill the log, a trace each.
    """
    from aiohttp.http_exceptions import HttpProcessingError

    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


@asynccontextmanager
async def listening(app: web.Application, address: Address, stop_s: float) -> AsyncIterator[str]:
    """Serve until the block ends; gives the URL, with the port that was chosen.

    Args:
        stop_s: requests under way may take so long when the block ends.

    Raises:
        AddressInUse: the address cannot be listened on.
    """
    from aiohttp import log, web  # here: other servers have no use for its memory

    log.server_logger.addFilter(_is_of_here)
    places = _Places(app)
    runner = web.AppRunner(
        app, access_log=None, keepalive_timeout=SILENT_S, auto_decompress=False, shutdown_timeout=stop_s
    )
    await runner.setup()
    places.http = runner.server
    try:
        server = await asyncio.get_running_loop().create_server(places, *address)
    except OSError as error:
        await runner.cleanup()
        raise AddressInUse(
            f"{address.host}:{address.port} cannot be listened on: {error.strerror}", "Choose another --listen"
        ) from None
    try:
        found = server.sockets[0].getsockname()
        yield f"http://[{found[0]}]:{found[1]}" if ":" in found[0] else f"http://{found[0]}:{found[1]}"
    finally:
        server.close()
        await runner.cleanup()


def on_signals() -> asyncio.Future[None]:
    """Done at the first SIGTERM or SIGINT; the second one has its usual effect."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        stopped.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return stopped
