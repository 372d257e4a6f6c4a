"""Tasks beside the server that must not end in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

AGAIN_S = 5.0  # before a task that broke begins again

Background = Callable[[], Awaitable[None]]

log = logging.getLogger("swarmd.web")


async def keep_up(task: Background) -> None:
    """Run a task until it returns or this is cancelled; whenever it breaks, say so and begin it again."""
    while True:
        try:
            await task()
            return
        except Exception:
            log.exception("a task beside the server broke, and begins again in %g s", AGAIN_S)
        await asyncio.sleep(AGAIN_S)
