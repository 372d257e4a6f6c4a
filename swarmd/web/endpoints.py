"""Endpoints of the HTTP interface: checked parameters, typed answers, refusals of one shape, the OpenAPI document
generated from them, and limits on the work that requests cause."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from inspect import isawaitable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from swarmd import __version__
from swarmd.errors import LogDamaged, NotFoundError, SwarmdError
from swarmd.http_server import UNKNOWN
from swarmd.logger import get_logger
from swarmd.observe.status import Health
from swarmd.uvicorn_server import json_response as json_answer
from swarmd.web.shapes import Failure, Unavailable

request_origin: ContextVar[str] = ContextVar("request_origin", default=UNKNOWN)  # see `swarmd.http_server.origin_of`


RESTART_S = 5.0  # delay before a failed task restarts

Background = Callable[[], Awaitable[None]]

log = get_logger("swarmd.web")


async def restart_on_error(task: Background) -> None:
    """Run a task until it returns or this is cancelled; log each error, and start the task again."""
    while True:
        try:
            await task()
            return
        except Exception:
            log.exception("a task beside the server broke, and begins again in %g s", RESTART_S)
        await asyncio.sleep(RESTART_S)


WAITING_MAX = 16  # calls running or waiting, of all clients
WAITING_OF_ONE_MAX = 8  # of one client address
RETRY_S = 1  # retry-after header of a refusal

T = TypeVar("T")


class ServerBusy(SwarmdError):
    """Too many requests at once; the client may repeat its request after `RETRY_S`."""


class WorkPool:
    """Threads for one kind of calls. Equal calls that overlap share one run.

    Args:
        name: of the threads.
        threads: number of calls that run at once.
        bounded: refuse calls beyond WAITING_MAX and WAITING_OF_ONE_MAX.
    """

    def __init__(self, name: str, threads: int, bounded: bool = True) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._bounded = bounded
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}
        self._of: Counter[str] = Counter()

    async def run_call(self, call: Callable[..., T], *args: Any) -> T:
        """Run `call(*args)` in a thread; returns its result or raises its error. Raises ServerBusy: too many calls
        wait."""
        key = (call, args)
        future = self._under_way.get(key)
        if future is None:
            future = self._start_call(key, request_origin.get())
        result: T = await asyncio.shield(future)  # a client that leaves does not cancel the call for others
        return result

    def _start_call(self, key: tuple[Callable[..., Any], tuple[Any, ...]], origin: str) -> asyncio.Future[Any]:
        if self._bounded and (len(self._under_way) >= WAITING_MAX or self._of[origin] >= WAITING_OF_ONE_MAX):
            raise ServerBusy("too much is asked of this server at once", f"Ask again in {RETRY_S} s")
        call, args = key
        future = asyncio.get_running_loop().run_in_executor(self._pool, call, *args)
        self._under_way[key] = future
        self._of[origin] += 1

        def finish_call(ended: asyncio.Future[Any]) -> None:
            del self._under_way[key]
            self._of[origin] -= 1
            if not self._of[origin]:
                del self._of[origin]
            if not ended.cancelled():
                ended.exception()  # retrieved, because nobody may be left to await it

        future.add_done_callback(finish_call)
        return future

    def stop(self) -> None:
        """Refuse further calls and cancel waiting ones."""
        self._pool.shutdown(wait=False, cancel_futures=True)


encode = msgspec.json.Encoder().encode  # NaN becomes null
# Each error status: the short word for it in the JSON answer, and its meaning.
STATUSES = {
    400: ("bad-request", "a parameter or the body makes no sense"),
    401: ("unauthorized", "a token is needed"),
    403: ("forbidden", "the request comes from another site's page"),
    404: ("not-found", "there is no such thing, or not any more"),
    405: ("method-not-allowed", "not with this method"),
    408: ("too-slow", "the request came too slowly"),
    413: ("too-large", "the body is too large"),
    414: ("too-long", "the address is too long"),
    421: ("misdirected", "the Host header names another server"),
    429: ("too-many", "too many wrong tokens"),
    500: ("internal", "the server met an error that it does not know"),
    503: ("unavailable", "it cannot be told now"),
}


class BadRequest(SwarmdError):
    """A parameter or a body is invalid."""


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """A refusal as a JSON response."""
    return json_answer(status, Failure(STATUSES[status][0], message), headers)


def make_error_response(error: SwarmdError) -> Response:
    """Turn an error into a response."""
    if isinstance(error, BadRequest):
        return refusal(400, str(error))
    if isinstance(error, ServerBusy):
        return refusal(503, str(error), {"retry-after": str(RETRY_S)})
    if isinstance(error, Unavailable | LogDamaged):
        return refusal(503, str(error))
    return refusal(404 if isinstance(error, NotFoundError) else 503, str(error))


SEQ_MAX = 10**15

Serve = Callable[..., Any]  # takes the parameters by name; returns the answer, or an awaitable of it
ServeRequest = Callable[[Request], Awaitable[Response]]


def integer_type(least: int = 0, most: int = SEQ_MAX) -> Any:
    """The type of an integer within bounds, both included."""
    return Annotated[int, Meta(ge=least, le=most)]


class Parameter(NamedTuple):
    """One query or path parameter. `type`: of one value, with its bounds. `many`: how often it may be given, which
    makes the value a tuple; 0: once, a plain value."""

    name: str
    type: Any
    summary: str
    default: Any = None
    required: bool = False
    many: int = 0
    in_path: bool = False

    def read_value(self, request: Request) -> Any:
        """Read and check the value. Raises BadRequest."""
        given = [request.path_params[self.name]] if self.in_path else request.query_params.getlist(self.name)
        if self.many:
            if len(given) > self.many:
                raise BadRequest(f"{self.name}: at most {self.many} of them")
            return tuple(self._convert_value(text) for text in given)
        if not given:
            if self.required:
                raise BadRequest(f"{self.name} is missing")
            return self.default
        if len(given) > 1:
            raise BadRequest(f"{self.name} is given twice")
        return self._convert_value(given[0])

    def _convert_value(self, text: str) -> Any:
        try:
            return msgspec.convert(text, self.type, strict=False)  # numbers arrive as text
        except msgspec.ValidationError as error:
            raise BadRequest(f"{self.name}: {error}") from None


class Endpoint(NamedTuple):
    """One route of the HTTP interface. `answer`: type of the JSON answer, or a content type. `refusals`: error statuses
    besides those that every endpoint may return."""

    path: str
    summary: str
    answer: Any
    serve: Serve | None = None
    parameters: tuple[Parameter, ...] = ()
    serve_request: ServeRequest | None = None
    refusals: tuple[int, ...] = ()

    def to_route(self) -> Route:
        """The endpoint as a Starlette route."""
        return Route(self.path, self.serve_request or self._serve_request, methods=["GET"])

    async def _serve_request(self, request: Request) -> Response:
        assert self.serve is not None
        answer = self.serve(**{parameter.name: parameter.read_value(request) for parameter in self.parameters})
        answer = await answer if isawaitable(answer) else answer
        return answer if isinstance(answer, Response) else json_answer(200, answer)


# --- the OpenAPI document ---

ALWAYS = (400, 401, 403, 404, 414, 421, 503)


def openapi(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    endpoints = tuple(endpoints)
    types = [*(each.answer for each in endpoints if not _has_text_answer(each)), Failure]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    failure = schemas[-1]
    by_endpoint = iter(schemas[:-1])
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        schema = None if _has_text_answer(endpoint) else next(by_endpoint)
        paths[endpoint.path] = {"get": _operation(endpoint, schema, failure)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "swarmd",
            "version": __version__,
            "description": "What a node of a swarm knows and does. Nothing here changes anything.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "swarmd_pass"},
            },
        },
        "security": [{}, {"bearer": []}, {"cookie": []}],
    }


def _has_text_answer(endpoint: Endpoint) -> bool:
    return isinstance(endpoint.answer, str)


def _operation(endpoint: Endpoint, schema: Any, failure: Any) -> dict[str, Any]:
    content_type = endpoint.answer if schema is None else "application/json"
    good = {"description": endpoint.summary, "content": {content_type: {"schema": schema or {"type": "string"}}}}
    responses: dict[str, Any] = {"200": good}
    for status in sorted({*ALWAYS, *endpoint.refusals}):
        shapes = [schema, failure] if status == 503 and endpoint.answer is Health else [failure]
        content = {"application/json": {"schema": {"anyOf": shapes} if len(shapes) > 1 else failure}}
        responses[str(status)] = {"description": STATUSES[status][1], "content": content}
    operation: dict[str, Any] = {
        "operationId": endpoint.path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace("-", "_"),
        "summary": endpoint.summary,
        "responses": responses,
    }
    if endpoint.parameters:
        operation["parameters"] = [_parameter(parameter) for parameter in endpoint.parameters]
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = msgspec.json.schema(parameter.type)
    if parameter.default is not None:
        schema["default"] = parameter.default
    if parameter.many:
        schema = {"type": "array", "items": schema, "maxItems": parameter.many}
    return {
        "name": parameter.name,
        "in": "path" if parameter.in_path else "query",
        "required": parameter.required,
        "description": parameter.summary,
        "schema": schema,
    }
