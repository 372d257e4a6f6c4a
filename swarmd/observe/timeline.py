"""The logs of several nodes merged so that no event comes before its cause.

- Within a log the order is the log's own. Across logs an event comes after its cause: a node's stage is trained before
  its rollouts are gathered and its report is seen; the coordinator opens a stage before its announcement is heard;
  weights are fetched after the round that they come from. A node acts only on what it has logged, so the cause is in
  its log before anybody can know of it. This order needs no clock.
- The same pairs bound the differences of the clocks (`swarmd.observe.clocks`). With these corrections, events without a
  common cause are ordered, and all times are shown by the first node's clock.
- Long logs are read and merged some rounds at a time (`read_parts`).
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from swarmd.animals import animal_name
from swarmd.core import events
from swarmd.observe.clocks import Message, fit_clocks
from swarmd.observe.node_log import MARGIN, NOWHERE, LoggedEvent, NodeLog, RoundRange, StageOpened

PART_PLACES = 1024  # rounds times logs merged at once
PART_ROUNDS_MIN = 16
SLACK_S = 1.0  # more than a system's time service usually steps a clock by
CLOCKS_MAX = 128

Place = tuple[int, int]  # round and stage


class Timeline:
    """Several logs merged, as far as they were read.

    Args:
        logs: of different nodes of one swarm; times are shown by the first one's clock.

    Attributes:
        names: of the nodes; names that are alike get the name made from the peer id added.
        moments: of each node, in the order of its log.
        clocks: corrections; a clock that was set in between counts as several.
    """

    def __init__(self, logs: Sequence[NodeLog]) -> None:
        self.logs = logs
        self.names = _unique([log.name for log in logs], [log.peer for log in logs])
        self.number = {log.peer: log.number for log in logs}
        self.moments = [list(log.moments) for log in logs]
        self._found: list[dict[type, dict[tuple[str, int, int], LoggedEvent]]] = [{} for _ in logs]
        for moments in self.moments:
            for index, moment in enumerate(moments):
                moment.index = index
                self._index_event(moment)
        self._effects: dict[tuple[int, int], list[LoggedEvent]] = defaultdict(list)
        self._causes = [[self._find_causes(moment) for moment in moments] for moments in self.moments]
        self._link_effects()
        self._changes: list[list[int]] = [[] for _ in logs]  # events at which each node's clock was changed
        self._first_clock = list(range(len(logs)))
        self.clocks = fit_clocks(len(logs), self._list_messages())
        if self.clocks.slack_s > SLACK_S:
            self._fit_changed_clocks()

    def estimate_time(self, moment: LoggedEvent) -> float:
        """The time of an event by the first node's clock, POSIX seconds."""
        return moment.at + self.clocks.corrections[self._clock_of(moment)]

    def time_between_s(self, first: LoggedEvent, second: LoggedEvent) -> tuple[float, float]:
        """The least and the longest time between two events that the logs allow, in seconds."""
        return self.clocks.gap_s(self._clock_of(first), first.at, self._clock_of(second), second.at)

    def last_clock(self, node: int) -> int:
        """The index of a node's most recent clock."""
        return self._first_clock[node] + len(self._changes[node])

    def _clock_of(self, moment: LoggedEvent) -> int:
        """The index of the clock that an event's time is by."""
        changes = self._changes[moment.node]
        return self._first_clock[moment.node] + (bisect_right(changes, moment.seq) if changes else 0)

    def find_event(self, node: int, kind: type, place: Place, peer: str = "") -> LoggedEvent | None:
        """The first event of a type in a node's log for a round and stage; for seen reports also by peer."""
        return self._found[node].get(kind, {}).get((peer, *place))

    def causes_of(self, moment: LoggedEvent) -> Sequence[LoggedEvent]:
        """The events of other nodes that caused this one."""
        return self._causes[moment.node][moment.index]

    def effects_of(self, moment: LoggedEvent) -> Sequence[LoggedEvent]:
        """The events of other nodes that this one caused."""
        return self._effects.get((moment.node, moment.index), ())

    def merge(self, begin: Sequence[int] = ()) -> Iterator[LoggedEvent]:
        """Iterate over all events, causes before effects, else by corrected time. `begin`: for each node, the index of
        its first event; earlier ones count as done."""
        done = list(begin) or [0] * len(self.logs)
        waiting: dict[int, list[LoggedEvent]] = defaultdict(list)  # keyed by the node whose events they wait for
        ready: list[tuple[float, int, int]] = []

        def offer(moment: LoggedEvent) -> None:
            for cause in self.causes_of(moment):
                if done[cause.node] <= cause.index:
                    waiting[cause.node].append(moment)
                    return
            heapq.heappush(ready, (self.estimate_time(moment), moment.node, moment.index))

        for moments, index in zip(self.moments, done, strict=True):
            if index < len(moments):
                offer(moments[index])
        while ready or any(waiting.values()):
            if not ready:  # two logs contradict each other: the earliest event goes first anyway
                stuck = min((each for held in waiting.values() for each in held), key=self.estimate_time)
                for held in waiting.values():
                    held[:] = [each for each in held if each is not stuck]
                heapq.heappush(ready, (self.estimate_time(stuck), stuck.node, stuck.index))
            _, node, index = heapq.heappop(ready)
            yield self.moments[node][index]
            done[node] = index + 1
            if index + 1 < len(self.moments[node]):
                offer(self.moments[node][index + 1])
            for held_up in waiting.pop(node, ()):
                offer(held_up)

    def name_of(self, peer: str) -> str:
        """The name of a peer: as its log has it, else made from its id."""
        node = self.number.get(peer)
        return animal_name(peer) if node is None else self.names[node]

    def place_after(self, place: Place) -> Place:
        """The stage that uses a stage's rollouts: the next one, or the first of the next round."""
        stages = next((log.settings.stages for log in self.logs if log.settings), 1)
        return (place[0], place[1] + 1) if place[1] + 1 < stages else (place[0] + 1, 0)

    # --- building the index ---

    def _index_event(self, moment: LoggedEvent) -> None:
        """Index an event of a stage by its type, round and stage."""
        event = moment.event
        stage = getattr(event, "stage", NOWHERE)
        if stage >= 0:
            peer = event.peer if isinstance(event, events.ReportSeen) else ""
            found = self._found[moment.node].setdefault(type(event), {})
            found.setdefault((peer, event.round, stage), moment)  # type: ignore[union-attr]

    def _find_causes(self, moment: LoggedEvent) -> Sequence[LoggedEvent]:
        event = moment.event
        if isinstance(event, events.RolloutsGathered):
            found = [self._find_trained(ref.peer, ref.round, ref.stage) for ref in event.rollouts]
        elif isinstance(event, events.ReportSeen):
            found = [self._find_trained(event.peer, event.round, event.stage)]
        elif isinstance(event, events.WeightsFetched):
            found = [self._find_trained(event.weights.peer, event.weights.round, 0)]
        elif isinstance(event, events.RoundAnnounced):
            found = [self._find_opening(moment.node, event)]
        else:
            return ()
        return [each for each in found if each is not None and each.node != moment.node]

    def _find_trained(self, peer: str, round: int, stage: int) -> LoggedEvent | None:
        node = self.number.get(peer)
        return None if node is None else self.find_event(node, events.StageTrained, (round, stage))

    def _find_opening(self, node: int, event: events.RoundAnnounced) -> LoggedEvent | None:
        """The coordinator's opening of an announced stage; None if its log is not here, or it opened the stage
        twice."""
        opener = self._coordinator_of(node)
        opened = None if opener is None else self.find_event(opener, StageOpened, (event.round, event.stage))
        same = (
            opened is not None and isinstance(opened.event, StageOpened) and opened.event.opened_at == event.opened_at
        )
        return opened if same else None

    def _link_effects(self) -> None:
        """Index effects by their causes."""
        for moments, causes in zip(self.moments, self._causes, strict=True):
            for effect, found in zip(moments, causes, strict=True):
                for cause in found:
                    self._effects[cause.node, cause.index].append(effect)

    def _list_messages(self) -> Iterator[Message]:
        """A message for each cause and effect, and one across each change of a node's clock."""
        for moments, causes in zip(self.moments, self._causes, strict=True):
            before = None
            for effect, found in zip(moments, causes, strict=True):
                clock = self._clock_of(effect)
                for cause in found:
                    yield Message(self._clock_of(cause), cause.at, clock, effect.at)
                if before is not None and self._clock_of(before) != clock:
                    yield Message(self._clock_of(before), before.at, clock, effect.at)
                before = effect

    def _fit_changed_clocks(self) -> None:
        """Fit again with each change of a clock counted as a new clock, unless there are too many."""
        changes = []
        for log, moments in zip(self.logs, self.moments, strict=True):
            first = moments[0].seq if moments else 0
            changes.append([seq for seq in log.clock_changes if seq > first])
        clocks = len(self.logs) + sum(map(len, changes))
        if clocks <= CLOCKS_MAX:
            self._changes = changes
            self._first_clock = [number + sum(map(len, changes[:number])) for number in range(len(changes))]
            self.clocks = fit_clocks(clocks, self._list_messages())

    def _coordinator_of(self, node: int) -> int | None:
        """The number of the coordinator's log; None if it is not here, or if a contract opens the stages."""
        settings = self.logs[node].settings
        return None if settings is None or settings.chain is not None else self.number.get(settings.coordinator)


class TimelinePart(NamedTuple):
    """Some rounds of a long timeline.

    Attributes:
        timeline: of these rounds and those around them.
        first, last: the rounds.
        moments: events after those of earlier parts.
    """

    timeline: Timeline
    first: int
    last: int
    moments: list[LoggedEvent]


def read_parts(logs: Sequence[NodeLog], wanted: RoundRange) -> Iterator[TimelinePart]:
    """Read logs together, some rounds at a time to bound memory; all in causal order. `wanted`: the rounds, as given to
    the logs. Raises LogDamaged, LogForeign, OtherVersion: as `NodeLog.read`."""
    at_once = max(PART_ROUNDS_MIN, PART_PLACES // max(len(logs), 1))
    first = wanted.first or 0
    passed = [0] * len(logs)  # events of each log that earlier parts contain
    while True:
        last = min(first + at_once - 1, wanted.last)
        more = [log.read(past=last + MARGIN) for log in logs]
        timeline = Timeline(logs)
        begin = [max(0, count - log.dropped) for count, log in zip(passed, logs, strict=True)]
        moments = list(timeline.merge(begin))
        while moments and moments[-1].near > last:
            moments.pop()
        for moment in moments:
            passed[moment.node] = logs[moment.node].dropped + moment.index + 1
        yield TimelinePart(timeline, first, last, moments)
        if last == wanted.last or (not any(more) and last >= max(log.reached for log in logs)):
            return
        first = last + 1
        for log in logs:
            log.drop_before(first)


def _unique(names: Sequence[str], peers: Sequence[str]) -> list[str]:
    return [
        name if names.count(name) == 1 else f"{name} ({animal_name(peer)})"
        for name, peer in zip(names, peers, strict=True)
    ]
