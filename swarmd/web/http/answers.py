"""Answers: Structs as JSON, and refusals in one shape."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from swarmd.errors import LogDamaged, NotFoundError, SwarmdError
from swarmd.web.http.work import AGAIN_S, WorkBusy
from swarmd.web.shapes import Failure
from swarmd.web.sources import Unavailable

_encoder = msgspec.json.Encoder()  # NaN becomes null
REASONS = {
    400: "bad-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    408: "too-slow",
    413: "too-large",
    414: "too-long",
    421: "misdirected",
    429: "too-many",
    500: "internal",
    503: "unavailable",
}


class BadRequest(SwarmdError):
    """What was asked makes no sense."""


class JsonAnswer(Response):
    """Any value made of Structs."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)


def encode(content: Any) -> bytes:
    """JSON as answers have it."""
    return _encoder.encode(content)


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> JsonAnswer:
    """A refusal in JSON."""
    return JsonAnswer(Failure(REASONS[status], message), status, headers)


def refusal_of(error: SwarmdError) -> JsonAnswer:
    """What an error becomes."""
    if isinstance(error, BadRequest):
        return refusal(400, str(error))
    if isinstance(error, WorkBusy):
        return refusal(503, str(error), {"retry-after": str(AGAIN_S)})
    if isinstance(error, Unavailable | LogDamaged):
        return refusal(503, str(error))
    return refusal(404 if isinstance(error, NotFoundError) else 503, str(error))
