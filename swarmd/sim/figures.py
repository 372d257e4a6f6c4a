"""How quick a simulated swarm is, and what a round costs it, counted while it is played."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from swarmd.core.commands import Announce
from swarmd.core.events import Event, ReportPublished, RolloutsGathered, RoundAnnounced
from swarmd.dht.wire.records import Payload, ReportRecord
from swarmd.sim.simulation import Place

DELAYS_MAX = 200_000  # of each kind that are kept, the first ones


class RunMetrics(msgspec.Struct, frozen=True):
    """Figures of a whole run; times in seconds, shares between 0 and 1.

    Attributes:
        announced_s: from the coordinator's decision to announce a stage to the new state of a node that was there for
            the stage before; p50, p99.
        closed_s: from the last report of a stage that was stored to the next announcement; p50, greatest.
        full: gatherings that brought as many peers' rollouts as are wanted, or as there were.
        reported: nodes with a report, of all nodes, in a stage.
        stayed: nodes with a report, of the followers that had heard of the stage before, in a stage.
        asked: in a round and for each node: look-ups by kind of key, `store` for records stored and `body` for bodies
            fetched.
    """

    stages: int = 0
    announced_s: tuple[float, float] = (0.0, 0.0)
    closed_s: tuple[float, float] = (0.0, 0.0)
    full: float = 0.0
    reported: float = 0.0
    stayed: float = 0.0
    asked: dict[str, float] = {}


class MetricsCollector:
    """Counts while a world goes on."""

    def __init__(self, nodes: int, wanted: int) -> None:
        self._nodes = nodes
        self._wanted = wanted
        self._opened: dict[Place, float] = {}  # first announcement of each stage
        self._place: Place = (-1, -1)  # that is open
        self._before: Place = (-1, -1)
        self._last_report: dict[Place, float] = {}
        self._reporters: defaultdict[Place, set[int]] = defaultdict(set)
        self._heard: dict[int, Place] = {}  # by node, the latest
        self._followed: dict[Place, set[int]] = {}  # nodes that had heard of the stage before, when a stage opened
        self._announced: list[float] = []
        self._closed: list[float] = []
        self._gathered = [0, 0]  # all, full ones

    def on_announce(self, command: Announce, now: float) -> None:
        """The coordinator is about to announce a stage, perhaps not for the first time."""
        place = (command.round, command.stage)
        if place in self._opened or command.final:
            return
        if self._place in self._last_report and len(self._closed) < DELAYS_MAX:
            self._closed.append(now - self._last_report[self._place])
        self._followed[place] = {node for node, heard in self._heard.items() if heard == self._place}
        self._opened[place], self._before, self._place = now, self._place, place

    def on_record_stored(self, content: Payload, now: float) -> None:
        """Those who keep it have a record; its owner may not know yet."""
        if isinstance(content, ReportRecord):
            self._last_report[content.round, content.stage] = now

    def on_event(self, node: int, event: Event, now: float) -> None:
        if isinstance(event, RoundAnnounced):
            self._record_announcement_delay(node, (event.round, event.stage), now)
        elif isinstance(event, ReportPublished):
            self._reporters[event.round, event.stage].add(node)
        elif isinstance(event, RolloutsGathered) and event.round > 0:
            others = len(self._reporters.get((event.round - 1, event.stage), set()) - {node})
            self._gathered[0] += 1
            self._gathered[1] += len(event.rollouts) >= min(self._wanted, others)

    def _record_announcement_delay(self, node: int, place: Place, now: float) -> None:
        """Measure nodes that heard of the stage before; the others were not there when this one was announced."""
        if not node or place != self._place or self._heard.get(node) == place:
            return
        if self._heard.get(node) == self._before and len(self._announced) < DELAYS_MAX:
            self._announced.append(now - self._opened[place])
        self._heard[node] = place

    def compute_metrics(self, asked: Counter[str]) -> RunMetrics:
        """The figures of the stages that have closed; `asked`: as in `Simulation`."""
        closed = [place for place in self._opened if place != self._place]
        reported = [len(self._reporters[place]) / self._nodes for place in closed]
        followed = [(self._followed[place], self._reporters[place]) for place in closed if self._followed[place]]
        stayed = [len(nodes & reporters) / len(nodes) for nodes, reporters in followed]
        rounds = max(1, len({round for round, _ in self._opened}))
        return RunMetrics(
            stages=len(closed),
            announced_s=(quantile(self._announced, 0.5), quantile(self._announced, 0.99)),
            closed_s=(quantile(self._closed, 0.5), quantile(self._closed, 1.0)),
            full=self._gathered[1] / max(1, self._gathered[0]),
            reported=sum(reported) / max(1, len(reported)),
            stayed=sum(stayed) / max(1, len(stayed)),
            asked={what: count / rounds / self._nodes for what, count in sorted(asked.items())},
        )


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0
