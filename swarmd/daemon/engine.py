"""Runs the loop of `swarmd.shell.loop` with a real clock, disk and signals.

- Commits are written in a thread, so that supervisors, signals and status are not blocked.
- The first SIGTERM or SIGINT requests an orderly stop, a second one ends everything at once.
"""

import signal
from collections.abc import AsyncIterator, Callable, Sequence

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from swarmd.core.chart import GAPS
from swarmd.core.events import ClockSet, Event, NodeStarted, NodeStopped, StopRequested
from swarmd.core.state import State
from swarmd.daemon.notify import ServiceNotifier
from swarmd.logger import get_logger
from swarmd.shell.loop import NodeLoop, ObserveEvent
from swarmd.worker.runtime import ClockStepDetector, TimeSource

POLL_S = 1.0
HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = get_logger("swarmd.engine")


async def watch_clock(observe: ObserveEvent, every_s: float = POLL_S) -> None:
    """Emit an event if the wall clock was set, since the core's deadlines use that clock; checked every `every_s`. The
    daemon does this, because a worker might itself be waiting for a deadline, such as its next start."""
    watch = ClockStepDetector()
    while True:
        await anyio.sleep(every_s)
        if step_s := watch.take_clock_step_s():
            await observe(ClockSet(step_s))


async def handle_signals(
    received: AsyncIterator[signal.Signals], observe: ObserveEvent, end_at_once: Callable[[int], None], tasks: TaskGroup
) -> None:
    """Handle SIGTERM, SIGINT and SIGHUP until cancelled. The stop request is emitted from its own task in `tasks`, so
    that a full inbox cannot delay a second signal."""
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
            tasks.start_soon(observe, StopRequested(f"signal {name}"))


class Engine:
    """Waits for facts and deadlines, and has the loop commit them; every fact enters here. Each turn of the loop also
    tells the service manager's watchdog that the daemon is alive."""

    def __init__(self, loop: NodeLoop, clock: TimeSource, notifier: ServiceNotifier) -> None:
        self.loop = loop
        self._clock = clock
        self._notifier = notifier
        self._news: anyio.Event | None = None  # set when a fact is offered
        self._room: anyio.Event | None = None  # set when facts leave the inbox

    @property
    def state(self) -> State:
        """The state after all durable events."""
        return self.loop.state

    async def observe(self, event: Event) -> None:
        """Offer a fact to the loop; waits while the inbox is full."""
        while not self.loop.offer_fact(event):
            self._room = self._room or anyio.Event()
            await self._room.wait()
        if self._news is not None:
            self._news.set()

    async def record_start(self, started: NodeStarted) -> None:
        """Commit the start of this run, and carry out the commands it causes."""
        self.loop.start_run(started)
        await self.commit(self.loop.take_next_facts(self._clock()))

    async def run(self) -> NodeStopped:
        """Commit facts until the node has stopped. Raises LogWriteFailed; the facts of the failed commit had no
        effect."""
        while self.loop.ended is None:
            self._notifier.notify_alive()
            if facts := self.loop.take_next_facts(self._clock()):
                if self._room is not None:
                    self._room.set()
                    self._room = None
                await self.commit(facts)
            else:
                await self._wait_for_work()
        return self.loop.ended

    async def commit(self, facts: Sequence[Event]) -> None:
        """Write a batch of facts durably, then adopt the new state and issue commands. Only `record_start` and `run`
        call this."""
        failed = self.loop.snapshots.failed
        written = await to_thread.run_sync(self.loop.write_commits, self._clock(), facts)
        self.loop.adopt_commits(written)
        if self.loop.snapshots.failed > failed:
            log.warning(self.loop.snapshots.failure_note)
        for gap in GAPS.take_lines():
            log.warning("no chart says what this means here; nothing was changed", gap=gap, seq=self.loop.next_seq - 1)

    async def _wait_for_work(self) -> None:
        """Wait until a fact arrives, or a deadline or the next watchdog notification is due."""
        self._news = anyio.Event()
        with anyio.move_on_after(min(self._notifier.pulse_interval_s, self.loop.idle_s(self._clock()))):
            await self._news.wait()
