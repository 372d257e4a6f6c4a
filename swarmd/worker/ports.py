"""What the workers' parts are given to report by, and to have things run beside them.

Each is a protocol with one call, so that a part takes a bound method: of the worker process in a node, of the simulated
worker in `swarmd.sim`. Parameters are positional: whoever implements one names them as it likes.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from swarmd.core.events import Event


class EventSink(Protocol):
    """Takes events for the log: `swarmd.worker.child.Outbox.observe`, `swarmd.sim.ports.worker.SimWorker.tell`.

    The daemon reads them off the pipe and brings them to its own `swarmd.shell.ports.FactSink`; whoever watches a swarm
    without being a node of it (`swarmd.web.observer`) puts them into a ledger instead.
    """

    def __call__(self, event: Event, /) -> None:
        """Take one event; those of one caller keep their order.

        Raises:
            BrokenPipeError: the daemon is gone, and this process ends.
            FrameError: the event is larger than a frame may be.
        """


class CoroutineFunction(Protocol):
    """Makes a coroutine to run."""

    def __call__(self) -> Coroutine[Any, Any, None]:
        """What to run; it may raise whatever its maker says."""


class TaskStarter(Protocol):
    """Runs something beside its caller: `TaskGroup.start_soon` of anyio, or the simulator's runtime."""

    def __call__(self, run: CoroutineFunction, /) -> object:
        """Have it begun, and return at once. What it raises ends the worker."""
