"""Where the request comes from that is being answered, as far as bounds go."""

from __future__ import annotations

from contextvars import ContextVar

from swarmd.http_server import UNKNOWN

asker: ContextVar[str] = ContextVar("asker", default=UNKNOWN)  # see `swarmd.http_server.origin_of`
