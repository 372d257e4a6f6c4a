"""Lines of swarmd's loggers, captured as structlog would write them."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog
from structlog import testing


@contextmanager
def capture_logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged meanwhile; without structlog set up, lines would go to the standard library."""
    if not structlog.is_configured():
        structlog.configure()
    with testing.capture_logs() as lines:
        yield lines
