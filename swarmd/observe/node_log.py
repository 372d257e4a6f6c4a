"""One node's log, reduced to the events that concern other nodes, for the rounds asked for.

- The log is read once, forward, and only as far as needed. Events of rounds that are done with are dropped, so memory
  does not grow with the log.
- Events that concern only the node itself are left out, and so are signed records and long texts within the others.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from swarmd.animals import animal_name
from swarmd.core import events
from swarmd.core.evidence import EQUIVOCATIONS_KEPT
from swarmd.core.ids import is_command_of_kind
from swarmd.core.values import RolloutsRef, Settings
from swarmd.eventlog.fold import oldest_base, peer_id_of_log
from swarmd.eventlog.frame import Commit
from swarmd.eventlog.reader import LogReader
from swarmd.eventlog.segment import first_seq_of, list_segments

MARGIN = 8  # rounds kept before and after those asked for, to fit clocks by
MOMENTS_MAX = 200_000  # events kept of one log; beyond that the oldest are dropped
CHANGES_MAX = 4096  # the same bound for a node's link changes and for its outages
RECENT_COMMITS = 64  # a clock step is noticed late: it is looked for among this many commits
STEP_SHARE = 0.9  # share of a step that must show between two commits for it to be found there
NOWHERE = -1


class StageOpened(msgspec.Struct, frozen=True, gc=False, tag="opened", tag_field="type"):
    """A coordinator opened a stage. Not an event of its log: derived from its own announcement of the stage."""

    round: int
    stage: int
    opened_at: float
    deadline_at: float
    final: bool = False


class LoggedEvent(msgspec.Struct, gc=False):
    """One event of one node.

    Attributes:
        node: index of its log.
        at: POSIX seconds by that node's clock, with steps of the clock taken out.
        near: its round, or the round that the node was at.
        index: its position among the moments of a `Timeline`.
    """

    node: int
    seq: int
    at: float
    near: int
    event: events.Event | StageOpened
    index: int = 0


class Outage(NamedTuple):
    """A time in which a node was down.

    Attributes:
        seq: of the start that ended it.
        near: the round that the node knew of at that start.
        seconds: from the last event before to that start.
        reason: of an orderly stop; None if the process ended without one.
    """

    seq: int
    near: int
    seconds: float
    reason: str | None


class RoundRange(NamedTuple):
    """The rounds asked for, both ends included; if `first` is None, the newest ones."""

    first: int | None = None
    last: int = sys.maxsize


class NodeLog:
    """The part of one node's log that is kept.

    Args:
        number: index of the log.
        place: its directory of segments.
        wanted: the rounds asked for; if its `first` is None, the newest at any time.
        newest: how many those are, not counting the last one.

    Attributes:
        peer: id of the node.
        moments: its events, in the order of the log.
        dropped: number of events that were kept before those and then dropped.
        evidence: all equivocations, of all rounds, because each counts for many.
        links: changes of its link, of all rounds.
        outages: of all rounds.
        clock_changes: events after which its clock may differ: it was set, or could have been while the node was down.
        stopped: the reason of its orderly stop, if the log ends with one; else None.
        left_out: the last round of which something was dropped because MOMENTS_MAX was reached; -1 for none.
        reached: the highest round that the node knows of; -1 before the first.
        trained: the last round that it trained; -1 before any.
        ended_with: the number of rounds that the swarm has run, if it has ended; else -1.
        first_near: the round that the log begins at; -1 while unknown.
        settings: as of its last start; None if the log does not hold one.
        ended_at: when its last event was committed, by its own clock as in `LoggedEvent`.
    """

    def __init__(self, number: int, place: Path, wanted: RoundRange, newest: int = MARGIN) -> None:
        self.number = number
        self.place = place
        self.peer = peer_id_of_log(place)
        self.moments: deque[LoggedEvent] = deque()
        self.dropped = 0
        self.evidence: deque[LoggedEvent] = deque(maxlen=EQUIVOCATIONS_KEPT)
        self.links: deque[LoggedEvent] = deque(maxlen=CHANGES_MAX)
        self.outages: deque[Outage] = deque(maxlen=CHANGES_MAX)
        self.clock_changes: deque[int] = deque(maxlen=CHANGES_MAX)
        self.stopped: str | None = None
        self.left_out = self.reached = self.trained = self.ended_with = self.first_near = NOWHERE
        begins = first_seq_of(list_segments(place)[0]) > 0
        self.settings: Settings | None = oldest_base(place).state.settings if begins else None
        self.ended_at = 0.0
        self._wanted = wanted
        self._first = wanted.first
        self._newest = newest
        self._reader = LogReader(place)
        self._commits: Iterator[Commit] | None = None  # an unfinished pass over the log
        self._set_by_s = 0.0
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT_COMMITS)  # first event and time of each commit
        self._seq, self._at = NOWHERE, 0.0  # of the event being added
        self._heard = (NOWHERE, NOWHERE, False)
        self._worked = NOWHERE  # the last round that it gathered for, trained or skipped; earlier ones are complete
        self._linked: tuple[str, str] | None = None
        self._stops = False
        self._same: dict[str, str] = {}  # peer ids, interned

    @property
    def next_seq(self) -> int:
        """Sequence number of the next event to read."""
        return self._reader.next_seq

    @property
    def name(self) -> str:
        """The node's configured name, or the one made from its peer id."""
        return (self.settings.name if self.settings else "") or animal_name(self.peer)

    def read(self, past: int = sys.maxsize) -> bool:
        """Read on to the log's present end, or until the node is past a round. Returns whether there is more. Raises
        LogDamaged, LogForeign, OtherVersion: as `LogReader.read`."""
        self._commits = self._commits or self._reader.read()
        for commit in self._commits:
            self.add_commit(commit)
            if self._worked > past:
                return True
        self._commits = None
        return False

    def drop_before(self, round: int) -> None:
        """Drop events of rounds before this one, except the last MARGIN rounds."""
        self._first = round
        while self.moments and self.moments[0].near < round - MARGIN:
            self._drop_oldest()

    def _drop_oldest(self) -> LoggedEvent:
        self.dropped += 1
        return self.moments.popleft()

    def close(self) -> None:
        self._reader.close()

    def renumber(self, number: int) -> None:
        self.number = number
        for moment in (*self.moments, *self.evidence, *self.links):
            moment.node = number

    def add_commit(self, commit: Commit) -> None:
        """Keep the relevant events of the next commit."""
        self._recent.append((commit.seq, commit.at))
        for seq, event in enumerate(commit.events, commit.seq):
            keep = _KEEP.get(type(event))
            if keep is not None:
                self._seq, self._at = seq, commit.at
                for kept in keep(self, event):
                    self._add_event(seq, commit.at, kept)
        self.ended_at = commit.at - self._set_by_s

    def _add_event(self, seq: int, at: float, event: events.Event | StageOpened) -> None:
        own = getattr(event, "round", NOWHERE)
        if isinstance(event, HERE) and own >= 0:
            if self.first_near < 0:
                self.first_near = own
            self.reached = max(self.reached, own - getattr(event, "final", False))
            if isinstance(event, events.StageTrained | events.RolloutsGathered):
                self._worked = max(self._worked, own)
        at = min(at, event.opened_at) if isinstance(event, StageOpened) else at
        moment = LoggedEvent(self.number, seq, at - self._set_by_s, own if own >= 0 else self.reached, event)
        if isinstance(event, events.Equivocated):
            self.evidence.append(moment)
        elif isinstance(event, LINK):
            self.links.append(moment)
        first = self.reached - self._newest if self._first is None else self._first - MARGIN
        last = self._wanted.last + MARGIN
        if isinstance(event, events.RoundsSkipped):  # logged afterwards, possibly for many rounds at once
            moment.near = max(event.first, min(event.last, self._wanted.last))
            self._worked = max(self._worked, event.last)
        if not first <= moment.near <= last:
            return
        index = len(self.moments)
        while isinstance(event, StageOpened) and index and self.moments[index - 1].at > moment.at:
            index -= 1
        self.moments.insert(index, moment)
        while self._first is None and self.moments[0].near < first:
            self._drop_oldest()
        if len(self.moments) > MOMENTS_MAX:
            self.left_out = max(self.left_out, self._drop_oldest().near)

    def _intern_text(self, text: str) -> str:
        return self._same.setdefault(text, text)

    # --- what is kept of each type of event ---

    def _keep_started(self, event: events.NodeStarted) -> Iterable[events.Event]:
        if self.settings is not None:
            away_s = self._at - self._set_by_s - self.ended_at
            self.outages.append(Outage(self._seq, self.reached, away_s, self.stopped))
            self.clock_changes.append(self._seq)
        self.settings, self.stopped, self._linked, self._stops = event.settings, None, None, False
        yield event

    def _keep_stopped(self, event: events.NodeStopped) -> Iterable[events.Event]:
        self.stopped = event.reason
        yield event

    def _keep_clock_set(self, event: events.ClockSet) -> Iterable[events.Event]:
        began = self._find_clock_step(event.step_s)
        for moment in reversed(self.moments):
            if moment.seq < began:
                break
            moment.at -= event.step_s
        self._set_by_s += event.step_s
        self.clock_changes.append(began)
        yield event

    def _find_clock_step(self, step_s: float) -> int:
        """Sequence number of the first event after a clock step, which is noticed some commits later."""
        before: tuple[int, float] | None = None
        for seq, at in reversed(self._recent):
            if before is not None and (before[1] - at) / step_s > STEP_SHARE:
                return before[0]
            before = seq, at
        return self._seq

    def _keep_link(self, event: events.LinkUp | events.LinkDegraded | events.LinkDown) -> Iterable[events.Event]:
        """Keep only link changes: events that just report another number of peers are frequent."""
        linked = (type(event).__name__, getattr(event, "isolated", ""))
        if linked != self._linked:
            self._linked = linked
            yield event

    def _keep_announced(self, event: events.RoundAnnounced) -> Iterable[events.Event | StageOpened]:
        """Keep only the first announcement of each stage; at the coordinator as `StageOpened`."""
        heard = (event.round, event.stage, not event.final)
        if heard <= self._heard:
            return
        self._heard = heard
        self.ended_with = event.round if event.final else NOWHERE
        if self.settings is not None and self.settings.coordination is not None and self.settings.chain is None:
            yield StageOpened(event.round, event.stage, event.opened_at, event.deadline_at, event.final)
        else:
            yield event

    def _keep_seen(self, event: events.ReportSeen | events.ReportsSeen) -> Iterable[events.Event]:
        for each in events.reports_in(event):
            if each.peer == self.peer:
                continue  # a coordinator also logs its own report
            yield events.ReportSeen(self._intern_text(each.peer), each.round, each.stage, each.reward, each.digest)

    def _keep_gathered(self, event: events.RolloutsGathered) -> Iterable[events.Event]:
        rollouts = tuple(
            RolloutsRef(self._intern_text(ref.peer), ref.round, ref.stage, ref.digest, ref.size_bytes, ref.groups)
            for ref in event.rollouts
        )
        yield replace(event, rollouts=rollouts)

    def _keep_trained(self, event: events.StageTrained) -> Iterable[events.Event]:
        self.trained = max(self.trained, event.round)
        yield replace(event, flat=None, skills=(), scored="")

    def _keep_evidence(self, event: events.Equivocated) -> Iterable[events.Event]:
        yield replace(event, first=b"", second=b"")

    def _keep_failed(self, event: events.CommandFailed) -> Iterable[events.Event]:
        return (event,) if is_command_of_kind(event.command, "gather", "report", "announce", "weights") else ()

    def _keep_timer(self, event: events.TimerFired) -> Iterable[events.Event]:
        return (event,) if event.name in ("gather", "train") else ()

    def _keep_exit(self, event: events.WorkerExited) -> Iterable[events.Event]:
        return () if event.planned or self._stops else (event,)

    def _keep_stop(self, event: events.StopRequested) -> Iterable[events.Event]:
        """Keep nothing now: note that worker exits from here on belong to the stop, which `NodeStopped` reports."""
        self._stops = True
        return ()

    def _keep_refusal(self, event: events.RecordsRejected) -> Iterable[events.Event]:
        return (event,) if event.peer else ()

    def _keep_whole(self, event: events.Event) -> Iterable[events.Event]:
        return (event,)


HERE = (events.StageTrained, events.RolloutsGathered, events.RoundAnnounced, StageOpened)  # they show the node's round
LINK = (events.LinkUp, events.LinkDegraded, events.LinkDown)
_KEEP: dict[type[events.EventBase], Callable[[NodeLog, Any], Iterable[events.Event | StageOpened]]] = {
    events.NodeStarted: NodeLog._keep_started,
    events.StopRequested: NodeLog._keep_stop,
    events.NodeStopped: NodeLog._keep_stopped,
    events.ClockSet: NodeLog._keep_clock_set,
    **dict.fromkeys(LINK, NodeLog._keep_link),
    events.RoundAnnounced: NodeLog._keep_announced,
    events.ReportSeen: NodeLog._keep_seen,
    events.ReportsSeen: NodeLog._keep_seen,
    events.RolloutsGathered: NodeLog._keep_gathered,
    events.StageTrained: NodeLog._keep_trained,
    events.Equivocated: NodeLog._keep_evidence,
    events.CommandFailed: NodeLog._keep_failed,
    events.TimerFired: NodeLog._keep_timer,
    events.WorkerExited: NodeLog._keep_exit,
    events.RecordsRejected: NodeLog._keep_refusal,
    **dict.fromkeys(
        (
            events.SpaceLow,
            events.SpaceFreed,
            events.RoundsSkipped,
            events.ReportPublished,
            events.TrainingCancelled,
            events.WeightsFetched,
            events.WeightsRefused,
            events.WeightsAdopted,
        ),
        NodeLog._keep_whole,
    ),
}


def tag_of(event: events.EventBase | StageOpened) -> str:
    """The tag of an event's type."""
    return str(type(event).__struct_config__.tag)
