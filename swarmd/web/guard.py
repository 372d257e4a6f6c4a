"""Checks on every request before the application sees it, headers of every answer, and the login form.

- The Host header must name this server; otherwise a page of another name could read it through the browser (DNS
  rebinding).
- Requests that a browser sends from another site's page are refused.
- If there is a token, `/api/`, `/metrics` and the health probes answer only to clients that present it.
"""

import asyncio
import contextlib
import hashlib
import hmac
import re
from collections.abc import Callable, Collection
from typing import NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swarmd.bounds import RateLimiter
from swarmd.http_server import Address, bears_token, client_network_of, is_loopback
from swarmd.logger import get_logger
from swarmd.uvicorn_server import RESERVED, close_connection, read_body
from swarmd.web.endpoints import BadRequest, refusal, request_origin

TARGET_BYTES_MAX = 4096  # path and query
REQUEST_S = 15.0  # longest request, including body and answer; the stream has no limit
LAST_WORD_S = 1.0  # time for saying that a request took too long, to a client that may not read
STREAM = "/api/v1/stream"
PROBES = ("/livez", "/readyz", "/productivez")
BUSY_S = 2  # retry-after header while all connections are taken
METHODS = ("GET", "HEAD", "POST")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAPPED = "::ffff:"  # prefix of an IPv4 address on a socket that accepts IPv6, too
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

log = get_logger("swarmd.web")


class AccessRules(NamedTuple):
    """Which hosts, origins and tokens may access the server.

    Attributes:
        listen: where the server listens.
        token: bearer token; if it is empty, anyone who reaches the address is let in.
        hosts: further host names.
    """

    listen: Address
    token: str = ""
    hosts: tuple[str, ...] = ()


class RequestGuard:
    """ASGI middleware that checks every request before the application sees it. `end_streams`: called when the server
    stops, so that it need not wait for the streams' clients."""

    def __init__(self, app: ASGIApp, rules: AccessRules, end_streams: Callable[[], None] = lambda: None) -> None:
        self.end_streams = end_streams
        self._app = app
        self._rules = rules
        self._hosts = known_hosts(rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _ResponseSender(scope, send)
        request_origin.set(client_network_of((scope.get("client") or ("",))[0]))
        denied = self._find_refusal(scope, Headers(scope=scope))
        try:
            if scope["path"] == STREAM and denied is None:
                await self._app(scope, receive, answer.send)
                return
            async with asyncio.timeout(REQUEST_S):
                await (denied or self._app)(scope, receive, answer.send)
        except TimeoutError:
            status = 408 if scope["method"] == "POST" else 503
            await answer.replace_or_close(
                refusal(status, f"this took longer than {REQUEST_S:g} s", {"connection": "close"})
            )
        except Exception as error:
            if answer.ended or not isinstance(error, OSError):  # else the client is gone
                log.exception("ERROR a request failed: %s %.200r", scope["method"], scope["path"])
            await answer.replace_or_close(None)

    def _find_refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal of a request, or None if it may pass."""
        path = scope["path"]
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > TARGET_BYTES_MAX:
            return refusal(414, f"the address is longer than {TARGET_BYTES_MAX} bytes", {"connection": "close"})
        if scope.get("state", {}).get(RESERVED) and path not in PROBES:
            again = {"retry-after": str(BUSY_S), "connection": "close"}
            return refusal(503, "all connections are taken; those that are kept free are for health probes", again)
        if not path.startswith("/"):
            return refusal(400, "the address is not a path of this server")
        if not self._is_known_host(headers, scope):
            return refusal(
                421, "this server does not go by that name; name it in web.hosts (--host) to reach it by that"
            )
        if scope["method"] not in METHODS:
            return refusal(405, "only GET, HEAD and POST", {"allow": ", ".join(METHODS)})
        fetched_elsewhere = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")  # the browser says so
        if is_cross_origin(headers) or (fetched_elsewhere and not is_page_visit(scope, headers)):
            return refusal(403, "the request comes from a page of another site")
        is_closed = path.startswith("/api/") or path in ("/metrics", "/api", *PROBES)
        if is_closed and not is_authorized(headers, self._rules.token):
            return refusal(401, "a token is needed: Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"})
        return None

    def _is_known_host(self, headers: Headers, scope: Scope) -> bool:
        named = headers.getlist("host")
        if len(named) != 1:
            return False
        host = host_of(named[0])
        local = scope.get("server")
        reached_at = str(local[0]).removeprefix(MAPPED) if local is not None else ""
        return host in self._hosts or (reached_at != "" and host == bracket_ipv6_host(reached_at))


def known_hosts(rules: AccessRules) -> Collection[str]:
    """Host names of the server, besides the address that a connection came in at."""
    named = {bracket_ipv6_host(rules.listen.host), *(host_of(host) for host in rules.hosts)}
    if is_loopback(rules.listen.host) or rules.listen.host in ("0.0.0.0", "::"):
        named.update(LOOPBACK_NAMES)
    return frozenset(named)


def bracket_ipv6_host(host: str) -> str:
    """A host as written in a URL: lower case, IPv6 addresses in brackets."""
    return f"[{host}]".lower() if ":" in host and not host.startswith("[") else host.lower()


def host_of(text: str) -> str:
    """The host of HOST[:PORT], in lower case and without a final dot; empty if the text is malformed."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or text.rstrip().endswith("]"):
        host, port = text.strip(), "0"
    return host.lower().removesuffix(".") if port.isascii() and port.isdigit() else ""


def is_cross_origin(headers: Headers) -> bool:
    """Whether a page of another origin sent the request; programs other than browsers send no Origin."""
    origins = headers.getlist("origin")
    if not origins:
        return False
    try:
        netloc = urlsplit(origins[0]).netloc.lower()
    except ValueError:
        return True
    return len(origins) > 1 or not netloc or netloc != headers.get("host", "").lower()


def is_page_visit(scope: Scope, headers: Headers) -> bool:
    """Whether the browser opens a page, which links on other sites may lead to."""
    navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return scope["method"] == "GET" and navigates and not scope["path"].startswith("/api/")


class _ResponseSender:
    """Sends an answer with the common headers. `ended`: all of it was sent."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._begun = self.ended = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
        await self._send(message)

    async def replace_or_close(self, instead: Response | None) -> None:
        """Send `instead`; if an answer has begun, or the client does not read, close the connection."""
        if not self._begun and instead is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD_S):
                    await instead(self._scope, _receive_disconnect, self.send)
        if not self.ended:
            await close_connection(self._scope)


async def _receive_disconnect() -> Message:
    return {"type": "http.disconnect"}


COOKIE = "swarmd_pass"  # shared by all servers of a host, because cookies do not distinguish ports
PASSES_MAX = 8  # passes in a cookie, one for each server; beyond that the oldest are dropped
FORM_BYTES_MAX = 4096
NEXT_CHARACTERS_MAX = 512
FAILURES_MAX = 10  # wrong tokens per address within FAILURES_S; more are refused, but the right token never is
FAILURES_S = 60.0
_PASS = re.compile(r"\b[0-9a-f]{64}\b")


def is_authorized(headers: Headers, token: str) -> bool:
    """Whether the request carries the token, or a cookie with the token's pass."""
    if not token or bears_token(headers.get("authorization", ""), token):
        return True
    wanted = derive_cookie_pass(token).encode()
    return any(hmac.compare_digest(each.encode(), wanted) for each in _read_cookie_passes(headers))


def _read_cookie_passes(headers: Headers) -> list[str]:
    """The passes in a request's cookie, oldest first."""
    return _PASS.findall(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""))[-PASSES_MAX:]


def derive_cookie_pass(token: str) -> str:
    """The pass that a cookie holds: valid as long as the token stays the same, and does not reveal it."""
    return hmac.new(token.encode(), b"swarmd dashboard", hashlib.sha256).hexdigest()


class Login:
    """Handles the form of the login page."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._failures = RateLimiter(FAILURES_MAX, FAILURES_MAX / FAILURES_S)  # by address

    async def handle_login(self, request: Request) -> Response:
        """POST /login. Raises BadRequest, HttpRefusal."""
        try:
            form = parse_qs(
                (await read_body(request, FORM_BYTES_MAX, REQUEST_S)).decode("utf-8", "replace"), max_num_fields=8
            )
        except ValueError as error:
            raise BadRequest(f"the form cannot be read: {error}") from error
        onward = safe_path(form.get("next", ["/"])[0])
        given = form.get("token", [""])[0].strip()
        if self._token and not hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode()):
            if not self._failures.try_charge(request_origin.get()):
                return refusal(429, "too many wrong tokens; wait a minute", {"retry-after": str(int(FAILURES_S))})
            return RedirectResponse(f"/login?failed=1&next={quote(onward, safe='')}", 303)
        answer = RedirectResponse(onward, 303)
        if self._token:
            own = derive_cookie_pass(self._token)
            others = [each for each in _read_cookie_passes(request.headers) if each != own]
            passes = ".".join([*others[1 - PASSES_MAX :], own])
            answer.set_cookie(COOKIE, passes, httponly=True, samesite="strict")
        return answer


def safe_path(text: str) -> str:
    """The text if it is a path of this server, else the start page."""
    plain = text.isascii() and text.isprintable() and len(text) <= NEXT_CHARACTERS_MAX
    return text if plain and text.startswith("/") and not text.startswith(("//", "/\\")) else "/"
