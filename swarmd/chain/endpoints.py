"""RPC endpoints of the chain: JSON-RPC over HTTP or a websocket, and fail-over between endpoints.

An answer is decoded from bytes directly into the wanted type. web3's own providers decode everything into dicts first,
do not bound what an endpoint may send, and put the URL, including its key, into their errors.

- Endpoints are tried in the order of the configuration. One that fails is paused, longer each time, and then probed in
  the background, so that no call waits for it; once it answers it is preferred again.
- An endpoint is used only after it has returned the configured chain id, and is asked for it again after every failure.
- No message shows more of a URL than scheme, host and port.
"""

import asyncio
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import anyio
import msgspec

from swarmd.bounds import DECODE_ERRORS, Backoff
from swarmd.chain.fees import LEGACY_FIX, NO_BASE_FEE, parse_quantity
from swarmd.chain.logs import BlockHeader, Quantity, replace_unprintable
from swarmd.core.values import BlockRef
from swarmd.errors import ChainMismatch, ConfigError, EndpointFailed, RpcRefused
from swarmd.files import read_start
from swarmd.http_server import is_loopback
from swarmd.logger import get_logger
from swarmd.secret_files import CREDENTIAL, SecretKind, locate_secret

ANSWER_BYTES_MAX = 64 * 1024 * 1024  # a larger answer is refused, as a provider refuses too long a range
LARGE = ("eth_getLogs",)  # methods whose answers may be that large
SMALL_BYTES_MAX = 9 * 1024 * 1024  # for all other methods: `RESULT_BYTES_MAX` in hex; sixteen may be pending at once
REASON_CHARS_MAX = 300  # of an endpoint's error message
DATA_CHARS_MAX = 64 * 1024  # of the revert data in an error; the rest is cut off
WRAPPINGS_MAX = 4  # nested objects around that data
RETRY_AFTER_MAX_S = 300.0
PING_S = 20.0
THROTTLED = re.compile(
    r"rate.?limit|too many requests|request count|quota|capacity|unauthori[sz]ed|invalid (api )?(key|project)|api.?key",
    re.IGNORECASE,
)

T = TypeVar("T")


# Called with a subscription's name and a notification's content; must return at once and not raise.
NotificationListener = Callable[[str, msgspec.Raw], None]
log = get_logger(__name__)


CHECK_ENDPOINTS = "Check the endpoints' addresses and keys, or name another one"


class EndpointThrottled(EndpointFailed):
    """The endpoint requests a pause of `retry_s` seconds."""

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(message, "Wait, or name an endpoint that takes more requests")
        self.retry_s = retry_s


class RpcErrorBody(msgspec.Struct):
    """A JSON-RPC error; endpoints are careless with its types."""

    code: Any = 0
    message: Any = ""
    data: Any = None


class SubscriptionNotification(msgspec.Struct):
    """The params of a subscription's notification."""

    subscription: str
    result: msgspec.Raw


class RpcMessage(msgspec.Struct):
    """Any JSON-RPC message from an endpoint."""

    id: int | str | None = None
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"")
    result: msgspec.Raw = msgspec.Raw(b"")
    error: RpcErrorBody | None = None


_answers = msgspec.json.Decoder(RpcMessage)
_notices = msgspec.json.Decoder(SubscriptionNotification)


class RpcEndpoint(ABC):
    """One RPC endpoint, identified by its URL."""

    def __init__(self, url: str, call_s: float) -> None:
        self.url = url
        self.name = url_without_secrets(url)
        self.call_s = call_s
        self.losses = 0  # connections that broke: another node may answer on the next one
        self._secrets = secret_parts_of_url(url)
        self._numbers = itertools.count(1)

    async def call(self, method: str, params: Sequence[Any], kind: type[T]) -> T:
        """Return the result of one call, as `kind`. Raises EndpointFailed: no answer in time, or a malformed one;
        EndpointThrottled if it requests a pause; RpcRefused: the endpoint answered that the request cannot be done."""
        number = next(self._numbers)
        request = msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": list(params)})
        try:
            with anyio.fail_after(self.call_s):
                answer = await self._send_request(number, request, method in LARGE)
        except TimeoutError:
            raise self.make_failure(f"did not answer {method} within {self.call_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self.make_failure(f"cannot be reached ({_describe_error(error)})") from None
        if answer.error is not None:
            raise self._error_from_body(answer.error)
        try:
            return msgspec.json.decode(answer.result, type=kind)
        except DECODE_ERRORS as error:
            raise self.make_failure(f"answered {method} with something else than asked for ({error})") from None

    @abstractmethod
    async def _send_request(self, number: int, request: bytes, large: bool) -> RpcMessage:
        """Send a request and wait for its answer, of up to ANSWER_BYTES_MAX if `large`."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    def make_failure(self, what: str) -> EndpointFailed:
        """Return an error that names the endpoint without its secrets."""
        return EndpointFailed(f"{self.name} {self._remove_secrets(what)}", CHECK_ENDPOINTS)

    def parse_message(self, encoded: bytes) -> RpcMessage:
        """Decode one message. Raises EndpointFailed if it is not JSON-RPC."""
        try:
            answer = _answers.decode(encoded)
        except DECODE_ERRORS:
            raise self.make_failure("answered with something that is not JSON-RPC") from None
        if not (answer.result or answer.error or answer.method):
            raise self.make_failure("answered with something that is not JSON-RPC")
        return answer

    def check_answer_size(self, size_bytes: int, large: bool) -> None:
        """Raise for an answer that is too large: RpcRefused if the caller can request less, else EndpointFailed."""
        if large and size_bytes > ANSWER_BYTES_MAX:
            raise self.answer_too_large_error()
        if not large and size_bytes > SMALL_BYTES_MAX:
            raise self.make_failure(f"answered with more than {SMALL_BYTES_MAX} bytes")

    def answer_too_large_error(self) -> RpcRefused:
        """Return the error for too large an answer to a call that can request less."""
        return RpcRefused(0, f"the answer of {self.name} has more than {ANSWER_BYTES_MAX} bytes")

    def check_http_status(self, status: int, headers: Mapping[str, str]) -> None:
        """Raise EndpointFailed for an HTTP status that means that the endpoint does not serve."""
        if status == HTTPStatus.TOO_MANY_REQUESTS or (status >= 500 and "Retry-After" in headers):
            retry_s = parse_retry_after_s(headers.get("Retry-After", ""))
            raise EndpointThrottled(f"{self.name} answered HTTP {status}, which asks for fewer requests", retry_s)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise self.make_failure(f"answered HTTP {status}: it does not take the key in its URL, or wants one")
        if status >= 500 or 300 <= status < 400:
            raise self.make_failure(f"answered HTTP {status}")

    def _error_from_body(self, error: RpcErrorBody) -> EndpointFailed | RpcRefused:
        code = error.code if isinstance(error.code, int) else 0
        words = error.message if isinstance(error.message, str) else ""
        message = replace_unprintable(self._remove_secrets(words)[:REASON_CHARS_MAX])
        reverts = code == 3 or "revert" in words.lower()
        if code == HTTPStatus.TOO_MANY_REQUESTS or (THROTTLED.search(message) and not reverts):
            return EndpointThrottled(f"{self.name} refuses to serve: {message}", 0.0)
        return RpcRefused(code, message, extract_revert_data(error.data))

    def _remove_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class HttpEndpoint(RpcEndpoint):
    """An endpoint over HTTP, with one request per call."""

    def __init__(self, url: str, call_s: float) -> None:
        super().__init__(url, call_s)
        self._proxy = http_proxy_for(url)
        self._session: aiohttp.ClientSession | None = None

    async def _send_request(self, number: int, request: bytes, large: bool) -> RpcMessage:
        try:
            return await self._post_request(request, large)
        except aiohttp.ServerDisconnectedError:  # it had closed an idle connection
            self.losses += 1
            return await self._post_request(request, large)

    async def _post_request(self, request: bytes, large: bool) -> RpcMessage:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers={"Content-Type": "application/json"})
        async with self._session.post(self.url, data=request, allow_redirects=False, proxy=self._proxy) as response:
            self.check_http_status(response.status, response.headers)
            encoded = bytearray()
            async for chunk in response.content.iter_any():
                encoded += chunk
                self.check_answer_size(len(encoded), large)
            if response.status >= 400 and not encoded.lstrip().startswith(b"{"):
                raise self.make_failure(f"answered HTTP {response.status}")
            return self.parse_message(bytes(encoded))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class _PendingCall(NamedTuple):
    """A call over a websocket, waiting for its answer."""

    answer: asyncio.Future[RpcMessage]
    large: bool


class WebSocketEndpoint(RpcEndpoint):
    """An endpoint over a websocket, which stays open between calls and delivers notifications.
    `on_notification(subscription, result)` is called for each notification, `on_close()` if the connection is lost."""

    def __init__(self, url: str, call_s: float) -> None:
        super().__init__(url, call_s)
        self.on_notification: NotificationListener = lambda subscription, result: None
        self.on_close: Callable[[], None] = lambda: None
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._waiting: dict[int, _PendingCall] = {}

    async def _send_request(self, number: int, request: bytes, large: bool) -> RpcMessage:
        socket = await self._get_connection()
        answer: asyncio.Future[RpcMessage] = asyncio.get_running_loop().create_future()
        self._waiting[number] = _PendingCall(answer, large)
        try:
            await socket.send_str(request.decode())
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def _get_connection(self) -> aiohttp.ClientWebSocketResponse:
        async with self._connecting:
            if self._socket is None:
                self._session = self._session or aiohttp.ClientSession(trace_configs=[_redirect_refusing_trace()])
                self._socket = await self._open_connection(self._session)
                self._reader = asyncio.create_task(self._receive_messages(self._socket))
            return self._socket

    async def _open_connection(self, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        try:
            return await session.ws_connect(self.url, max_msg_size=ANSWER_BYTES_MAX, heartbeat=PING_S)
        except aiohttp.WSServerHandshakeError as error:
            self.check_http_status(error.status, error.headers or {})
            raise self.make_failure(
                f"answered HTTP {error.status} instead of opening a WebSocket: it may answer with http in place of ws"
            ) from None

    async def _receive_messages(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        reason = self.make_failure("closed the connection")
        try:
            async for message in socket:
                if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    self._handle_message(message.data.encode() if isinstance(message.data, str) else message.data)
                elif socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                    reason = self.make_failure(f"sent a message of more than {ANSWER_BYTES_MAX} bytes")
                    # A message was too large to read: the answer to one of the calls that may have a large one.
                    for waiting in self._waiting.values():
                        if waiting.large and not waiting.answer.done():
                            waiting.answer.set_exception(self.answer_too_large_error())
        except EndpointFailed as error:
            reason = error
        finally:
            await self._abandon_connection(socket, reason)

    def _handle_message(self, encoded: bytes) -> None:
        answer = self.parse_message(encoded)
        if answer.method:
            self._handle_notification(answer.params)
        elif isinstance(answer.id, int) and (waiting := self._waiting.get(answer.id)) and not waiting.answer.done():
            try:
                self.check_answer_size(len(encoded), waiting.large)
                waiting.answer.set_result(answer)
            except (EndpointFailed, RpcRefused) as error:
                waiting.answer.set_exception(error)

    def _handle_notification(self, params: msgspec.Raw) -> None:
        try:
            notice = _notices.decode(params)
        except DECODE_ERRORS:
            raise self.make_failure("sent a malformed notification") from None
        self.on_notification(notice.subscription, notice.result)

    async def disconnect(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._socket is not None:
            await self._abandon_connection(self._socket, self.make_failure("was given up"))

    async def _abandon_connection(self, socket: aiohttp.ClientWebSocketResponse, reason: EndpointFailed) -> None:
        if self._socket is not socket:
            return
        self._socket = None
        self.losses += 1
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(reason)
        self.on_close()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await socket.close()

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})
        if self._session is not None:
            await self._session.close()
        self._session = self._reader = None


def _redirect_refusing_trace() -> aiohttp.TraceConfig:
    """Refuse a websocket's redirects, which aiohttp would follow anywhere, even to services of this machine."""

    async def refuse_redirect(*_: object) -> None:
        raise aiohttp.ClientError("redirected")

    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(refuse_redirect)
    return tracing


def make_endpoint(url: str, call_s: float) -> RpcEndpoint:
    """Return the endpoint for a URL. Raises ConfigError for an invalid URL."""
    check_endpoint_url(url)
    return WebSocketEndpoint(url, call_s) if url.startswith("ws") else HttpEndpoint(url, call_s)


def parse_retry_after_s(header: str) -> float:
    """Parse a Retry-After header into seconds, at most RETRY_AFTER_MAX_S; 0 if it is malformed."""
    try:
        asked_s = float(header) if header.strip().isdigit() else parsedate_to_datetime(header).timestamp() - time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(asked_s, 0.0), RETRY_AFTER_MAX_S)


def extract_revert_data(data: Any) -> str:
    """Return an error's revert data as hex, cut to DATA_CHARS_MAX; nodes wrap it in different ways."""
    for _ in range(WRAPPINGS_MAX):
        if isinstance(data, dict):
            data = data.get("data") or data.get("result")
    if not isinstance(data, str):
        return ""
    return data[:DATA_CHARS_MAX].removeprefix("Reverted ").strip()


def _describe_error(error: BaseException) -> str:
    """Return an error's reason, without the host or URL that aiohttp's errors repeat."""
    cause = getattr(error, "os_error", error)
    return (cause.strerror if isinstance(cause, OSError) else None) or type(error).__name__


ENDPOINTS_MAX = 32
FILE_BYTES_MAX = 64 * 1024  # of a file of URLs
URLS = SecretKind("file of chain.rpc's URLs", ConfigError, FILE_BYTES_MAX)
SECRET_CHARS_MIN = 6  # shorter parts of a URL are ordinary words


def read_endpoint_urls(entries: Sequence[str], root: Path) -> list[str]:
    """Return the URLs in chain.rpc, including those in its files and credentials; paths are relative to `root`, the
    data directory. Raises ConfigError: a file cannot be read, there is no endpoint, there are too many, or one is not a
    URL."""
    urls = [url for entry in entries for url in _read_entry_urls(entry, root)]
    if not 0 < len(urls) <= ENDPOINTS_MAX:
        files = "".join(f" in {entry}" for entry in entries if entry.startswith(("file:", CREDENTIAL)))
        raise ConfigError(
            f"chain.rpc names {len(urls)} endpoints{files}; 1 to {ENDPOINTS_MAX} are possible",
            "Give for each a URL as https://host/path, http://host:port or wss://host/path, in a file one on each line",
        )
    for url in urls:
        check_endpoint_url(url)
    return list(dict.fromkeys(urls))


def _read_entry_urls(entry: str, root: Path) -> list[str]:
    if not entry.startswith(("file:", CREDENTIAL)):
        return [entry]
    path = locate_secret(entry.removeprefix("file:"), root, URLS).path
    try:
        lines = [line.strip() for line in read_start(path, FILE_BYTES_MAX).decode("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"chain.rpc: the file {path} cannot be read: {reason}", "One URL a line") from None
    return [line for line in lines if line and not line.startswith("#")]


def check_endpoint_url(url: str) -> None:
    """Raise ConfigError unless this is a complete URL of a known scheme; the message shows no secret."""
    if not is_url(url, "http", "https", "ws", "wss"):
        raise ConfigError(
            # not the text itself, which may be a bare key
            f"chain.rpc: one of the endpoints, of {len(url)} characters, is not the URL of a chain's node",
            "Write it as https://host/path, http://host:port or wss://host/path",
        )


def is_url(url: str, *schemes: str) -> bool:
    """Return whether this is a complete URL of one of these schemes."""
    try:
        parts = urlsplit(url)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def url_without_secrets(url: str) -> str:
    """Return scheme://host:port, the part of a URL that may be shown."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"


def http_proxy_for(url: str) -> str | None:
    """Return the proxy that HTTP_PROXY or HTTPS_PROXY name for an endpoint; None for a local endpoint."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)


def secret_parts_of_url(url: str) -> tuple[str, ...]:
    """Return the parts of a URL that no message may show, longest first."""
    parts = urlsplit(url)
    pieces = {url, parts.path, parts.query, parts.username or "", parts.password or "", *parts.path.split("/")}
    pieces |= {value for pair in parts.query.split("&") for value in pair.split("=")}
    return tuple(sorted((piece for piece in pieces if len(piece) >= SECRET_CHARS_MIN), key=len, reverse=True))


BACKOFF = Backoff(0.25, 15.0)
BLOCK = "eth_getBlockByNumber"
CALL_S = 10.0  # every call to an endpoint ends within this
BEHIND_BLOCKS = 8  # an endpoint further behind another one is paused
ALONE_S = 60.0  # for this long
FOREIGN_S = 300.0  # an endpoint of another chain is tried again after this time


class EndpointHealth:
    """The health of one endpoint."""

    def __init__(self, endpoint: RpcEndpoint) -> None:
        self.endpoint = endpoint
        self.failures = 0  # in a row
        self.retry_at = 0.0  # monotonic time until which it is paused
        self._verified_at = -1  # `endpoint.losses` when it last returned the right chain id
        self.served = False  # whether it has ever returned the right chain id
        self.foreign = 0  # the wrong chain id that it returned last
        self.distrusted = False  # whether it showed another chain or contract
        self.reason = ""

    @property
    def is_healthy(self) -> bool:
        return self.failures == 0 and not self.foreign

    @property
    def is_chain_verified(self) -> bool:
        """Whether it has returned the right chain id since its last failure."""
        return self._verified_at == self.endpoint.losses

    async def verify_chain_id(self, chain_id: int) -> None:
        """Check its chain id. Raises EndpointFailed if it is the wrong one."""
        said = await read_endpoint_chain_id(self.endpoint)
        self.foreign = 0 if said == chain_id else said
        if self.foreign:
            raise self.endpoint.make_failure(f"is a node of chain {said}, not of {chain_id}")
        self._verified_at, self.served = self.endpoint.losses, True

    def record_failure(self, error: EndpointFailed) -> None:
        """Pause the endpoint. A failure during a pause is ignored: its call began before the pause."""
        self._verified_at = -1
        if self.failures and monotonic() < self.retry_at:
            return
        if self.failures == 0:
            log.warning("%s", error.message)
        self.failures += 1
        self.reason = error.message
        pause_s = BACKOFF.after(self.failures)
        if isinstance(error, EndpointThrottled):
            pause_s = max(pause_s, error.retry_s)
        self.retry_at = monotonic() + (FOREIGN_S if self.foreign else pause_s)

    def pause(self, why: str) -> None:
        """Pause the endpoint for ALONE_S, although it answers."""
        self.record_failure(EndpointThrottled(f"{self.endpoint.name} {why}", ALONE_S))

    def record_success(self) -> None:
        """Record a successful call: reset failures and back-off."""
        if self.failures:
            log.info("%s answers again", self.endpoint.name)
        self.failures, self.foreign, self.reason, self.distrusted = 0, 0, "", False


class RpcPool:
    """JSON-RPC calls over several endpoints, and their health: see `swarmd.chain.ports.EndpointPool`. `urls`: best
    first. `has_base_fee`: the chain's blocks have a base fee, so an endpoint whose head has none has failed; set before
    signing (`detect_base_fee`), unless the configuration says that the chain has none."""

    def __init__(self, urls: Sequence[str], chain_id: int, call_s: float = CALL_S) -> None:
        self._chain_id = chain_id
        self.healths = [EndpointHealth(make_endpoint(url, call_s)) for url in urls]
        self._probes: dict[str, asyncio.Task[None]] = {}
        self.current = ""  # name of the endpoint that answered last
        self.has_base_fee = False

    async def call(self, method: str, params: Sequence[Any], kind: type[T]) -> T:
        """Return the result of a JSON-RPC call, from the first endpoint with an answer of this type. Raises
        EndpointFailed: no endpoint answers; RpcRefused: a node answered with an error about the request itself;
        ChainMismatch: all that answer are of another chain."""
        for health in self._usable_endpoints():
            with suppress(EndpointFailed):
                return await self.call_endpoint(health, method, params, kind)
        raise self._no_answer_error()

    async def detect_base_fee(self) -> None:
        if not self.has_base_fee:
            answers = await self.call_all_endpoints(BLOCK, ["latest", False], dict[str, Any])
            shown = sum(_shows_base_fee(block) for _, block in answers)
            self.has_base_fee = 0 < len(answers) <= 2 * shown

    def _usable_endpoints(self) -> list[EndpointHealth]:
        """Return healthy endpoints, then those whose pause is over; if any is healthy, the latter are also probed."""
        well = [health for health in self.healths if health.is_healthy]
        due = [health for health in self.healths if not health.is_healthy and health.retry_at <= monotonic()]
        if well:
            for health in due:
                self._start_probe(health)
        return well + due

    def pause_current_endpoint(self, reason: str) -> None:
        """Pause the endpoint that answered last, if another one is healthy, because its answers are useless."""
        current = [health for health in self.healths if health.is_healthy and health.endpoint.name == self.current]
        if current and any(health.is_healthy for health in self.healths if health not in current):
            for health in current:
                health.pause(f"answers, but its answers do not help: {reason}")

    def distrust_current_endpoint(self, reason: str) -> bool:
        """Pause the endpoint that answered last, because it shows another chain or contract. Returns whether another
        endpoint may contradict it: one that is healthy or has served, and is not distrusted."""
        current = [health for health in self.healths if health.endpoint.name == self.current]
        others = [health for health in self.healths if health not in current and not health.distrusted]
        if not any((health.is_healthy or health.served) and not health.foreign for health in others):
            return False
        for health in current:
            health.pause(f"is not trusted: {reason}")
            health.distrusted = True
        return True

    async def has_block(self, block: BlockRef) -> bool:
        asked = [hex(block.number), False]
        answers = await self.call_all_endpoints(BLOCK, asked, BlockHeader | None)  # type: ignore[arg-type]
        if not any(header is not None and header.hash == block.hash for _, header in answers):
            return False
        for health, header in answers:
            if header is None:
                health.pause(f"has no block {block.number} yet, others have")
        return True

    async def pause_lagging_endpoints(self) -> None:
        """Pause endpoints that are more than BEHIND_BLOCKS behind the highest head."""
        answers = await self.call_all_endpoints("eth_blockNumber", [], Quantity)
        farthest = max((int(number, 16) for _, number in answers), default=0)
        for health, number in answers:
            if int(number, 16) < farthest - BEHIND_BLOCKS:
                health.pause(f"has no block {farthest} yet, others have")

    async def call_endpoint(self, health: EndpointHealth, method: str, params: Sequence[Any], kind: type[T]) -> T:
        endpoint = health.endpoint
        try:
            if not health.is_chain_verified:
                await health.verify_chain_id(self._chain_id)
            result = await endpoint.call(method, params, kind)
            # Without a base fee, a price of the endpoint's choice would be signed, and paid in full.
            of_head = self.has_base_fee and method == BLOCK and params[0] == "latest"
            if of_head and isinstance(result, dict) and not _shows_base_fee(result):
                raise EndpointFailed(f"{NO_BASE_FEE.format(endpoint.name)}. {LEGACY_FIX}")
        except EndpointFailed as error:
            health.record_failure(error)
            raise
        except RpcRefused:
            self._record_answer(health)
            raise
        self._record_answer(health)
        return result

    async def call_all_endpoints(
        self, method: str, params: Sequence[Any], kind: type[T]
    ) -> list[tuple[EndpointHealth, T]]:
        """Return the answers of all endpoints that are not paused, without those that fail."""
        asked = [health for health in self.healths if health.is_healthy or health.retry_at <= monotonic()]
        results = await asyncio.gather(
            *(self.call_endpoint(health, method, params, kind) for health in asked), return_exceptions=True
        )
        pairs = zip(asked, results, strict=True)
        return [(health, result) for health, result in pairs if not isinstance(result, BaseException)]

    def _record_answer(self, health: EndpointHealth) -> None:
        health.record_success()
        self.current = health.endpoint.name

    def _start_probe(self, health: EndpointHealth) -> None:
        name = health.endpoint.url
        if name not in self._probes:
            self._probes[name] = asyncio.create_task(self._probe_endpoint(health))
            self._probes[name].add_done_callback(lambda task: self._probes.pop(name, None))

    async def _probe_endpoint(self, health: EndpointHealth) -> None:
        try:
            await health.verify_chain_id(self._chain_id)
            health.record_success()
        except EndpointFailed as error:
            health.record_failure(error)

    def _no_answer_error(self) -> EndpointFailed | ChainMismatch:
        foreign = [health for health in self.healths if health.foreign]
        if foreign and not any(health.served and not health.foreign for health in self.healths):
            return ChainMismatch(
                f"{foreign[0].endpoint.name} is a node of chain {foreign[0].foreign}, "
                f"chain.chain_id is {self._chain_id}",
                "Name endpoints of that chain in chain.rpc, or correct chain.chain_id",
            )
        return EndpointFailed(
            "no endpoint answers: " + "; ".join(health.reason for health in self.healths),
            CHECK_ENDPOINTS,
        )

    @property
    def websocket_endpoints(self) -> list[EndpointHealth]:
        """The endpoints with notifications, best first."""
        return [health for health in self.healths if isinstance(health.endpoint, WebSocketEndpoint)]

    async def close(self) -> None:
        """Close the connections of all endpoints."""
        for task in list(self._probes.values()):
            task.cancel()
        for health in self.healths:
            await health.endpoint.close()


async def read_endpoint_chain_id(endpoint: RpcEndpoint) -> int:
    """Return the chain id that an endpoint reports. Raises EndpointFailed."""
    try:
        answer = await endpoint.call("eth_chainId", [], str)
    except RpcRefused:
        answer = ""
    try:
        return parse_quantity(answer, "chain id")
    except EndpointFailed:
        raise endpoint.make_failure("does not say its chain id") from None


def _shows_base_fee(block: dict[str, Any]) -> bool:
    return block.get("baseFeePerGas") is not None
