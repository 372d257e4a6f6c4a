"""Signals: the first SIGTERM or SIGINT asks for an orderly stop, a second one ends everything at once."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable

from anyio.abc import TaskGroup

from swarmd.core.events import StopRequested
from swarmd.logger import get_logger
from swarmd.shell.ports import FactSink

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = get_logger("swarmd.signals")


async def heed_signals(
    received: AsyncIterator[signal.Signals],
    facts: FactSink,
    end_at_once: Callable[[int], None],
    tasks: TaskGroup,
) -> None:
    """Handle SIGTERM, SIGINT and SIGHUP until cancelled.

    Args:
        received: the signals, as `anyio.open_signal_receiver(*HEEDED)` gives them.
        facts: takes the stop request, in a task of its own, so that a full inbox cannot hide a second signal.
        end_at_once: kills the workers and exits with the given code.
        tasks: where that task runs.
    """
    stopping = False
    async for number in received:
        name = signal.Signals(number).name
        if number == signal.SIGHUP:
            log.info("SIGHUP has no meaning here; restart the node to read its configuration again")
        elif stopping:
            log.warning("second signal: ending at once", signal=name)
            end_at_once(128 + number)
        else:
            stopping = True
            log.info("stopping; a second signal ends at once", signal=name)
            tasks.start_soon(facts.observe, StopRequested(f"signal {name}"))
