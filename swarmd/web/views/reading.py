"""One reading of a node's log, and all that follows it: of the whole log, or of its last events."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from swarmd.errors import NotFoundError
from swarmd.eventlog.blobs import Blobs
from swarmd.eventlog.segment import first_seq_of, list_segments
from swarmd.eventlog.snapshot import list_snapshots, snapshot_seq
from swarmd.web.views.gossip import GossipFeed
from swarmd.web.views.history import Follower, LogHistory
from swarmd.web.views.keeping import Keeping, is_kept
from swarmd.web.views.ledger import PeerLedger
from swarmd.web.views.overview import Timeline
from swarmd.web.views.stages import StageFollower
from swarmd.web.views.stories import Stories
from swarmd.web.views.tail import JournalListener, LogTail
from swarmd.web.views.trained import TrainedStages

LONG_EVENTS = 50_000  # before the newest snapshot: from here on the last events are shown while all is read


class LogReading:
    """A history, its followers and the thread that feeds them.

    Args:
        directory: of the segments.
        blobs: the node's.
        told: as `LogTail` tells it.
        others: further followers.
        grows: False for an archive.
        recent: only of the last events, as `LogTail` has it.
    """

    def __init__(
        self,
        directory: Path,
        blobs: Blobs,
        told: JournalListener,
        others: Sequence[Follower] = (),
        *,
        grows: bool = True,
        recent: bool = False,
    ) -> None:
        self.ledger, self.stages, self.timeline = PeerLedger(), StageFollower(), Timeline()
        self.feed = GossipFeed(blobs, self.ledger)
        self.trained = TrainedStages()
        own: tuple[Follower, ...] = (self.ledger, self.stages, self.timeline, self.feed, self.trained)
        self.history = LogHistory(directory, (*own, *others))
        self.stories = Stories(self.history, self.stages, self.timeline)
        self.keeping = Keeping(self.history) if grows and not recent else None
        self.tail = LogTail(self.history, told, grows, recent, self.keeping)

    @property
    def why_anew(self) -> str:
        """What is to be said besides where it is read whole though something of it was kept."""
        anew = self.keeping.anew if self.keeping is not None else ""
        return f"; what was kept of it is made anew: {anew}" if anew else ""

    @property
    def is_sound(self) -> bool:
        """Whether the log's end was reached, without trouble."""
        return self.tail.caught_up.is_set() and self.tail.trouble is None


def is_long(directory: Path) -> bool:
    """Whether so much lies before a log's newest snapshot, and of that so little is kept, that reading it takes a
    while."""
    with contextlib.suppress(OSError, NotFoundError):
        segments, snapshots = list_segments(directory), list_snapshots(directory)
        if segments and snapshots:
            long = snapshot_seq(snapshots[-1]) - first_seq_of(segments[0]) >= LONG_EVENTS
            return long and not is_kept(directory)
    return False
