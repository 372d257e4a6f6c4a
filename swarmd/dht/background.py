"""Tasks that outlive the call that began them, kept from the garbage collector until they end by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from swarmd.logger import get_logger

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()
log = get_logger(__name__)


def spawn(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run something that has an end of its own, a request's timeout as a rule; a failure is logged at debug level."""
    task = asyncio.ensure_future(coroutine)
    _running.add(task)
    task.add_done_callback(_finished)
    return task


def _finished(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.debug("a task in the background failed: %r", task.exception())
