"""A node's log as the source of both pages: the swarm as the node sees it, and the node itself."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from swarmd import __version__
from swarmd.config import Config
from swarmd.core.applied import AppliedEvent
from swarmd.core.state import State
from swarmd.dht.wire.bodies import read_standings
from swarmd.errors import NotFoundError, SwarmdError
from swarmd.eventlog.blobs import BlobStore
from swarmd.observe.control import DaemonReply, ask_status
from swarmd.observe.metrics import Metrics
from swarmd.observe.status import ProcessState, Status, measure_log, status_from_log
from swarmd.paths import NodeDirectory
from swarmd.web.endpoints import WorkPool
from swarmd.web.gossip import GossipFeed
from swarmd.web.moments import charts_view, event_row, moment_of, recipe_view, to_json_value
from swarmd.web.reading import LogReading
from swarmd.web.shapes import (
    ChangeSignal,
    ChartsView,
    EventPage,
    Moment,
    Overview,
    PageSource,
    RecipeView,
    StagesView,
    SwarmView,
    TrainingView,
    Unavailable,
)
from swarmd.web.source import SwarmSource
from swarmd.web.swarm import PeerLedger, ViewContext, swarm_view

FOLDING_THREADS = 2  # for requests about earlier events
THREADS = 2  # for other slow requests
STATUS_FRESH_S = 0.4  # a status this young is returned again
ASK_S = 2.0  # longest wait for the daemon


class NodeLogSource(SwarmSource):
    """Follows the log of one node.

    Args:
        paths: its data directory; the daemon may be up or down.
        config: the node's; None if unknown.
        archive: a log that does not grow, read instead of the directory's own; no daemon is asked.

    Attributes:
        told: called in the event loop with each batch of new events; None for no call.
    """

    def __init__(
        self,
        paths: NodeDirectory,
        config: Config | None = None,
        archive: Path | None = None,
    ) -> None:
        super().__init__(THREADS)
        self.paths = paths
        self.metrics = Metrics(paths, config)
        self.told: Callable[[Sequence[AppliedEvent]], None] | None = None
        self._config = config
        self._live = archive is None
        self._directory = archive or paths.events
        self._reading = LogReading(
            self._directory,
            BlobStore(paths.blobs),
            self._on_batch,
            (self.metrics,),
            grows=self._live,
        )
        self._folds = WorkPool("folds", FOLDING_THREADS)
        self._watch = WorkPool("watch", 1, bounded=False)  # so that health is answered however much else is asked
        self._standings_stamp = 0
        self._status: Status | None = None
        self._status_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        """Start reading in a thread; returns at once."""
        self._loop = asyncio.get_running_loop()
        self.changes = ChangeSignal()
        self._reading.tail.start()

    async def stop(self) -> None:
        """Stop the threads."""
        await asyncio.to_thread(self._reading.tail.stop)
        for work in (self._folds, self._answers, self._watch):
            work.stop()

    def _on_batch(self, batch: list[AppliedEvent]) -> None:
        """Publish a batch in the event loop; called in the thread that reads the log."""
        self._loop.call_soon_threadsafe(self._publish_batch, batch)

    def _publish_batch(self, batch: list[AppliedEvent]) -> None:
        """Notify listeners of the events that were read."""
        if batch and self.told is not None:
            self.told(batch)
        self.changes.notify()

    # --- the swarm ---

    @contextlib.contextmanager
    def _lock_state_and_ledger(self) -> Iterator[tuple[State, PeerLedger]]:
        self._adopt_coordinator_sums()
        with self._reading.history.lock:
            yield self._reading.history.state, self._reading.ledger

    @property
    def _gossip_feed(self) -> GossipFeed:
        return self._reading.feed

    def _view(self, peers_max: int) -> SwarmView:
        process: ProcessState = "mute"
        with contextlib.suppress(SwarmdError):
            process = self._fresh_status().process.state
        self._adopt_coordinator_sums()
        history = self._reading.history
        with history.lock:
            kind = self._config.swarm.kind if self._config is not None else ""
            around = ViewContext(kind, history.at, history.first_seq, self._notes(), process)
            return swarm_view(history.state, self._reading.ledger, around, peers_max)

    def _adopt_coordinator_sums(self) -> None:
        """Adopt the coordinator's sums if the network worker has read newer ones."""
        settings = self._reading.history.state.settings
        if (
            not self._live
            or settings is None
            or settings.role != "follower"
            or not self._reading.tail.caught_up.is_set()
        ):
            return
        with contextlib.suppress(OSError):
            stamp = self.paths.standings.stat().st_mtime_ns
            if stamp == self._standings_stamp and self._reading.ledger.settled_round >= 0:
                return
            self._standings_stamp = stamp
            kept = read_standings(self.paths.standings, settings.swarm)
            if kept is not None:
                with self._reading.history.lock:
                    self._reading.ledger.adopt_coordinator_sums(kept.round, kept.standings, stamp / 1e9)

    def _notes(self) -> tuple[str, ...]:
        trouble, share = self._reading.tail.trouble, self._reading.tail.share_read
        notes = (f"The log cannot be read to its end: {trouble}.",) if trouble else ()
        return notes + (
            (f"The log is being read: {share:.0%} so far{self._reading.reread_reason}.",) if share < 1 else ()
        )

    # --- the node ---

    @property
    def state(self) -> State:
        return self._reading.history.state

    @property
    def next_seq(self) -> int:
        return self._reading.history.next_seq

    @property
    def read_generation(self) -> int:
        """Number of restarts of reading; after a restart it may be another log."""
        return self._reading.history.generation

    def describe_source(self) -> PageSource:
        settings = self.state.settings
        return PageSource(
            version=__version__,
            node=True,
            swarm=True,
            live=self._live,
            peer=settings.peer if settings else "",
            name=settings.name if settings else "",
            swarm_id=settings.swarm if settings else "",
            data=self.paths.root.resolve().name,
            trouble=str(self._reading.tail.trouble or ""),
            read=self._reading.tail.share_read,
        )

    async def events(self, first: int, count: int) -> EventPage:
        """`count` events from `first` on; a negative `first` counts from the end. Raises NotFoundError, LogDamaged."""
        return await self._folds.run_call(self._events, first, count)

    def _events(self, first: int, count: int) -> EventPage:
        history = self._reading.history
        begin, end = history.first_seq, history.next_seq
        start = max(begin, end + first) if first < 0 else max(begin, first)
        rows = tuple(map(event_row, history.fold_events(start, min(count, max(0, end - start)))))
        return EventPage(begin, end, rows)

    async def moment(self, seq: int) -> Moment:
        """An event and what it changed and caused. Raises NotFoundError, LogDamaged."""
        return await self._folds.run_call(self._moment, seq)

    def _moment(self, seq: int) -> Moment:
        return moment_of(self._reading.history.fold_event(seq))

    def charts(self) -> ChartsView:
        return charts_view(self.state)

    def stages(self) -> StagesView:
        """What this node did of each stage."""
        with self._reading.history.lock:
            return self._reading.stages.view()

    def training(self) -> TrainingView:
        """The results of each trained stage."""
        with self._reading.history.lock:
            return self._reading.trained.view()

    def recipe(self) -> RecipeView:
        return recipe_view(self.state, self._reading.trained.trainer, self._config)

    async def story(self, round_: int) -> dict[str, Any]:
        """The story of a round, as `swarmd explain` tells it. Raises NotFoundError, LogDamaged."""
        status = await self.status()
        now = time.time() if status.source == "daemon" or status.process.state == "mute" else None
        shown = to_json_value(await self._folds.run_call(self._reading.stories.story, round_, now))
        assert isinstance(shown, dict)
        return shown

    async def overview(self, since: float | None, until: float | None, buckets: int) -> Overview:
        """The number of events over time, in buckets."""
        return await self._answers.run_call(self._overview, since, until, buckets)

    def _overview(self, since: float | None, until: float | None, buckets: int) -> Overview:
        with self._reading.history.lock:
            return self._reading.timeline.overview(since, until, buckets, self._reading.history.first_seq)

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """The metrics' body and content type."""
        return await self._answers.run_call(self._render_metrics, accept)

    def _render_metrics(self, accept: str) -> tuple[bytes, str]:
        status: Status | None = None
        with contextlib.suppress(SwarmdError):
            status = self._fresh_status()
        return self.metrics.render(status, accept)

    @property
    def latest_status(self) -> Status | None:
        """The last status that was read; `keep_status_fresh` keeps it fresh."""
        return self._status

    async def keep_status_fresh(self, every_s: float) -> None:
        """Read the status again and again until cancelled."""
        while True:
            with contextlib.suppress(SwarmdError):
                await self.status()
            await asyncio.sleep(every_s)

    async def status(self) -> Status:
        """The node's status, from its daemon or from its log. Raises Unavailable if neither can be read."""
        return await self._watch.run_call(self._fresh_status)

    async def redacted_status(self) -> dict[str, Any]:
        """The status with everything that looks like a secret redacted."""
        shown = to_json_value(await self.status())
        assert isinstance(shown, dict)
        return shown

    def _fresh_status(self) -> Status:
        with self._status_lock:
            if self._status is None or not 0 <= time.time() - self._status.at < STATUS_FRESH_S:
                before, self._status = self._status, self._ask_for_status()
                if before is not None and before.process.state != self._status.process.state:
                    # No event says that a node has died, so the views of the swarm must be made again.
                    self._loop.call_soon_threadsafe(self.changes.notify)
            return self._status

    def _ask_for_status(self) -> Status:
        reply = ask_status(self.paths.control, ASK_S) if self._live else DaemonReply()
        if reply.status is not None:
            return reply.status
        if not self._reading.tail.caught_up.is_set():
            raise Unavailable("no daemon answers, and the log is still being read", "Ask again in a moment")
        try:
            log = measure_log(self._directory, self.next_seq, self._reading.history.at)
        except (NotFoundError, OSError) as error:
            raise Unavailable(f"neither daemon nor log can be read: {error}") from error
        return status_from_log(self.paths, self.state, log, reply.mute, self._config)
