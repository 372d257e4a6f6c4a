"""What an address of the interface is: its parameters, checked in one place, and its answer's type."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from swarmd.web.http.answers import BadRequest, JsonAnswer

SEQ_MAX = 10**15

Kind = Literal["integer", "number", "string"]
Serve = Callable[[dict[str, Any]], Awaitable[Any]]
ServeRequest = Callable[[Request], Awaitable[Response]]


class Parameter(NamedTuple):
    """One query or path parameter.

    Attributes:
        least, most: of a number; of a text, of its length.
        many: may be given several times, at most `many` times; 0: once.
    """

    name: str
    kind: Kind
    summary: str
    least: float = 0
    most: float = SEQ_MAX
    default: Any = None
    required: bool = False
    many: int = 0
    in_path: bool = False

    def read(self, request: Request) -> Any:
        """The checked value. Raises BadRequest."""
        given = [request.path_params[self.name]] if self.in_path else request.query_params.getlist(self.name)
        if self.many:
            if len(given) > self.many:
                raise BadRequest(f"{self.name}: at most {self.many} of them")
            return tuple(self._value(text) for text in given)
        if not given:
            if self.required:
                raise BadRequest(f"{self.name} is missing")
            return self.default
        if len(given) > 1:
            raise BadRequest(f"{self.name} is given twice")
        return self._value(given[0])

    def _value(self, text: str) -> Any:
        if self.kind == "string":
            if not self.least <= len(text) <= self.most:
                raise BadRequest(f"{self.name} has {self.least:g} to {self.most:g} characters")
            return text
        return self._number(text)

    def _number(self, text: str) -> float:
        form = r"-?[0-9]{1,16}" if self.kind == "integer" else r"-?[0-9]{1,16}(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?"
        if not re.fullmatch(form, text):
            raise BadRequest(f"{self.name}: {text[:40]!r} is no {self.kind}")
        value = int(text) if self.kind == "integer" else float(text)
        if not (math.isfinite(value) and self.least <= value <= self.most):
            raise BadRequest(f"{self.name} is between {self.least:g} and {self.most:g}")
        return value


class Endpoint(NamedTuple):
    """One route of the HTTP interface: path, parameters and answer type.

    Attributes:
        answer: type of the answer in JSON, or a content type.
        refusals: statuses that it may answer with, beside those that all may.
    """

    path: str
    summary: str
    answer: Any
    serve: Serve | None = None
    serve_request: ServeRequest | None = None
    parameters: tuple[Parameter, ...] = ()
    refusals: tuple[int, ...] = ()

    def route(self) -> Route:
        """The endpoint as a Starlette route."""
        return Route(self.path, self.serve_request or self._serve, methods=["GET"])

    async def _serve(self, request: Request) -> Response:
        assert self.serve is not None
        answer = await self.serve({parameter.name: parameter.read(request) for parameter in self.parameters})
        return answer if isinstance(answer, Response) else JsonAnswer(answer)
