"""A node's log as the source of both pages: the swarm as the node knows it, and all that the node did."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from swarmd import __version__
from swarmd.config import Config
from swarmd.core.applied import AppliedEvent
from swarmd.core.state import State
from swarmd.dht.wire.bodies import read_standings
from swarmd.errors import NotFoundError, SwarmdError
from swarmd.eventlog.blobs import Blobs
from swarmd.observe.control import DaemonReply, ask_status
from swarmd.observe.metrics import Metrics
from swarmd.observe.status import ProcessState, Status, measure_log, status_from_log
from swarmd.paths import NodeDirectory
from swarmd.web.endpoints import WorkPool
from swarmd.web.gossip import GossipFeed
from swarmd.web.moments import charts_view, event_row, moment_of, plain, recipe_view
from swarmd.web.reading import LogReading, is_long
from swarmd.web.shapes import (
    ChangeSignal,
    ChartsView,
    EventPage,
    EventRow,
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

FOLDING_THREADS = 2  # for questions about the log's past
THREADS = 2  # for all others that take time
STATUS_FRESH_S = 0.4  # a status this young is given again
ASK_S = 2.0  # longest wait for the daemon


class LogNode(SwarmSource):
    """Follows the log of one node.

    Args:
        paths: its data directory; the daemon may be up or down.
        config: the node's; None if it is not known.
        metrics: counts the events of the log.
        archive: a log that does not grow, in place of the directory's own; its daemon is not asked.

    Attributes:
        told: called in the event loop with each batch of new events; None for nobody.
    """

    def __init__(
        self,
        paths: NodeDirectory,
        config: Config | None = None,
        metrics: Metrics | None = None,
        archive: Path | None = None,
    ) -> None:
        super().__init__(THREADS)
        self.paths = paths
        self.metrics = metrics or Metrics(paths)
        self.told: Callable[[Sequence[AppliedEvent]], None] | None = None
        self._config = config
        self._live = archive is None
        self._directory = archive or paths.events
        self._blobs = Blobs(paths.blobs)
        self._whole = LogReading(
            self._directory, self._blobs, partial(self._hear, True), (self.metrics,), grows=self._live
        )
        self._recent: LogReading | None = None  # what is shown until the whole of a long log has been read
        self._told_seq: int | None = None  # the event that is told next
        self._folds = WorkPool("folds", FOLDING_THREADS)
        self._watch = WorkPool("watch", 1, bounded=False)  # so that health is answered however much else is asked
        self._standings_stamp = 0
        self._status: Status | None = None
        self._status_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        """Begin to read; returns at once."""
        self._loop = asyncio.get_running_loop()
        self.changes = ChangeSignal()
        if is_long(self._directory):
            hear = partial(self._hear, False)
            self._recent = LogReading(self._directory, self._blobs, hear, grows=self._live, recent=True)
            self._recent.tail.start()
            self._whole.tail.after = self._recent.tail.caught_up
        self._whole.tail.start()

    async def stop(self) -> None:
        """End the reading threads."""
        await asyncio.to_thread(self._whole.tail.stop)
        if self._recent is not None:
            await asyncio.to_thread(self._recent.tail.stop)
        for work in (self._folds, self._answers, self._watch):
            work.stop()

    @property
    def _shown(self) -> LogReading:
        """The whole log once it has been read; before, the newest part of a long one."""
        recent = self._recent
        return (
            recent
            if recent is not None and recent.is_sound and not self._whole.tail.caught_up.is_set()
            else self._whole
        )

    def _hear(self, whole: bool, batch: list[AppliedEvent]) -> None:
        """Called in the thread that reads all of the log, or in the one that reads its newest part."""
        self._loop.call_soon_threadsafe(self._ring, batch, whole)

    def _ring(self, batch: list[AppliedEvent], whole: bool) -> None:
        """Pass on the events of one reading."""
        recent = self._recent
        if recent is not None:
            batch = self._once(batch, whole, recent)
        elif not whole:
            batch = []  # it was on its way when the other reading took over
        if batch and self.told is not None:
            self.told(batch)
        self.changes.notify()

    def _once(self, batch: list[AppliedEvent], whole: bool, recent: LogReading) -> list[AppliedEvent]:
        """Pass on each event of the two readings once and in order; the whole one takes over when it has caught up."""
        seq = self._told_seq
        if not batch or not whole:
            self._told_seq = batch[-1].seq + 1 if batch else seq
            return batch
        if seq is not None and batch[0].seq > seq and recent.is_sound:
            return []  # the other reading has what lies between, and will bring these too
        self._recent = None
        recent.tail.stopping.set()
        return [applied for applied in batch if seq is None or applied.seq >= seq]

    # --- the swarm ---

    @contextlib.contextmanager
    def _books(self) -> Iterator[tuple[State, PeerLedger]]:
        self._settle()
        shown = self._shown
        with shown.history.lock:
            yield shown.history.state, shown.ledger

    @property
    def _feed(self) -> GossipFeed:
        return self._shown.feed

    def _view(self, peers_max: int) -> SwarmView:
        process: ProcessState = "mute"
        with contextlib.suppress(SwarmdError):
            process = self._fresh_status().process.state
        self._settle()
        shown = self._shown
        history = shown.history
        with history.lock:
            kind = self._config.swarm.kind if self._config is not None else ""
            around = ViewContext(kind, history.at, history.first, self._notes(), process)
            return swarm_view(history.state, shown.ledger, around, peers_max)

    def _settle(self) -> None:
        """Take over the coordinator's sums if the network worker has read newer ones."""
        shown = self._shown
        settings = shown.history.state.settings
        if not self._live or settings is None or settings.role != "follower" or not shown.tail.caught_up.is_set():
            return
        with contextlib.suppress(OSError):
            stamp = self.paths.standings.stat().st_mtime_ns
            if stamp == self._standings_stamp and shown.ledger.settled_round >= 0:
                return
            self._standings_stamp = stamp
            kept = read_standings(self.paths.standings, settings.swarm)
            if kept is not None:
                with shown.history.lock:
                    shown.ledger.settle(kept.round, kept.standings, stamp / 1e9)

    def _notes(self) -> tuple[str, ...]:
        trouble, share = self._shown.tail.trouble, self._whole.tail.share_read
        notes = (f"The log cannot be read to its end: {trouble}.",) if trouble else ()
        return notes + ((f"The log is being read: {share:.0%} so far{self._whole.reread_words}.",) if share < 1 else ())

    # --- the node ---

    @property
    def state(self) -> State:
        """The state after the last event read."""
        return self._shown.history.state

    @property
    def next_seq(self) -> int:
        """Sequence number of the next event."""
        return self._shown.history.next_seq

    @property
    def generation(self) -> int:
        """How often reading began again; another number means that it may be another log."""
        return self._shown.history.generation

    def here(self) -> PageSource:
        """What this server shows: version, node, directory, how much was read."""
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
            trouble=str(self._shown.tail.trouble or ""),
            read=self._whole.tail.share_read,
            recent=self._shown is self._recent,
        )

    async def events(self, first: int, count: int) -> EventPage:
        """Events from `first` on; a negative one counts from the end. Raises NotFoundError, LogDamaged."""
        return await self._folds.do(self._events, first, count)

    def _events(self, first: int, count: int) -> EventPage:
        history = self._shown.history
        begin, end = history.first, history.next_seq
        start = max(begin, end + first) if first < 0 else max(begin, first)
        rows = tuple(map(event_row, history.fold_from(start, min(count, max(0, end - start)))))
        return EventPage(begin, end, rows)

    async def rows_between(self, first: int, end: int) -> tuple[EventRow, ...]:
        """Events `first` to `end - 1`, as far as the log has them."""
        return (await self.events(first, end - first)).events if first < end else ()

    async def moment(self, seq: int) -> Moment:
        """An event and all that came of it. Raises NotFoundError, LogDamaged."""
        return await self._folds.do(self._moment, seq)

    def _moment(self, seq: int) -> Moment:
        return moment_of(self._shown.history.moment(seq))

    def charts(self) -> ChartsView:
        """The charts and the state of each."""
        return charts_view(self.state)

    def stages(self) -> StagesView:
        """What was done of each stage."""
        shown = self._shown
        with shown.history.lock:
            return shown.stages.view()

    def training(self) -> TrainingView:
        """What each trained stage gave."""
        shown = self._shown
        with shown.history.lock:
            return shown.trained.view()

    def recipe(self) -> RecipeView:
        """What is trained, and how."""
        return recipe_view(self.state, self._shown.trained.trainer, self._config)

    async def story(self, round_: int) -> dict[str, Any]:
        """What became of a round, as `swarmd explain` tells it. Raises NotFoundError, LogDamaged."""
        status = await self.status()
        now = time.time() if status.source == "daemon" or status.process.state == "mute" else None
        shown = plain(await self._folds.do(self._shown.stories.story, round_, now))
        assert isinstance(shown, dict)
        return shown

    async def overview(self, since: float | None, until: float | None, buckets: int) -> Overview:
        """Counts of events over time."""
        return await self._answers.do(self._overview, since, until, buckets)

    def _overview(self, since: float | None, until: float | None, buckets: int) -> Overview:
        shown = self._shown
        with shown.history.lock:
            return shown.timeline.overview(since, until, buckets, shown.history.first)

    async def render_metrics(self, accept: str) -> tuple[bytes, str]:
        """Body and content type of the metrics."""
        return await self._answers.do(self._render_metrics, accept)

    def _render_metrics(self, accept: str) -> tuple[bytes, str]:
        status: Status | None = None
        with contextlib.suppress(SwarmdError):
            status = self._fresh_status()
        return self.metrics.render(status, accept)

    @property
    def latest_status(self) -> Status | None:
        """The status that was asked for last; `keep_status` keeps it fresh."""
        return self._status

    async def keep_status(self, every_s: float) -> None:
        """Ask for the status again and again until cancelled."""
        while True:
            with contextlib.suppress(SwarmdError):
                await self.status()
            await asyncio.sleep(every_s)

    async def status(self) -> Status:
        """How the node is: from its daemon, or from its log. Raises Unavailable if neither can be read."""
        return await self._watch.do(self._fresh_status)

    async def shown_status(self) -> dict[str, Any]:
        """The status for anybody to see: without what looks like a secret."""
        shown = plain(await self.status())
        assert isinstance(shown, dict)
        return shown

    def _fresh_status(self) -> Status:
        with self._status_lock:
            if self._status is None or not 0 <= time.time() - self._status.at < STATUS_FRESH_S:
                before, self._status = self._status, self._ask()
                if before is not None and before.process.state != self._status.process.state:
                    # No event tells that a node has died: the views of the swarm are made again.
                    self._loop.call_soon_threadsafe(self.changes.notify)
            return self._status

    def _ask(self) -> Status:
        reply = ask_status(self.paths.control, ASK_S) if self._live else DaemonReply()
        if reply.status is not None:
            return reply.status
        if not self._shown.tail.caught_up.is_set():
            raise Unavailable("no daemon answers, and the log is still being read", "Ask again in a moment")
        try:
            log = measure_log(self._directory, self.next_seq, self._shown.history.at)
        except (NotFoundError, OSError) as error:
            raise Unavailable(f"neither daemon nor log can be read: {error}") from error
        return status_from_log(self.paths, self.state, log, reply.mute, self._config)
