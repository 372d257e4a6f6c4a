"""What must hold of reports that are stored with whoever collects them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.core.events import ReportSeen
from swarmd.dht.rounds.report_collector import NEWCOMERS_MAX
from swarmd.dht.wire.records import ReportRecord, is_sharded
from swarmd.sim.ports.dht import Written

if TYPE_CHECKING:
    from swarmd.sim.ports.network import NetworkWorker
    from swarmd.sim.world import World

ROUNDING_S = 1e-6
BROUGHT_S = 1.0  # longest from a report that its owner brings to the fact that it was seen

Place = tuple[int, int]  # round, stage


class BroughtReports:
    """Reports that are stored with a node which collects them from shards are told before long."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._told: dict[int, tuple[Place, set[str]]] = {}  # pid → (stage, whose reports of it were told)

    def on_seen(self, worker: NetworkWorker, event: ReportSeen) -> None:
        """A worker tells of a report."""
        self._told_of(worker, (event.round, event.stage)).add(event.peer)

    def on_stored(self, worker: NetworkWorker, record: Written) -> None:
        """A record was stored with a worker by its owner.

        Where there are more newcomers than a stage has places for, some are not told.
        """
        content = record.content
        if self.world.profile.nodes > NEWCOMERS_MAX or not isinstance(content, ReportRecord):
            return
        if is_sharded(content) and content.key in worker.session.watches:
            self._check_later(worker, record.owner, content)

    def _check_later(self, worker: NetworkWorker, owner: str, content: ReportRecord) -> None:
        worker.later(BROUGHT_S, self._check, worker, owner, content, self.world.now + BROUGHT_S)

    def _check(self, worker: NetworkWorker, owner: str, content: ReportRecord, due: float) -> None:
        if self.world.now > due + ROUNDING_S:  # the process stood still, and goes on with all that waited just now
            self._check_later(worker, owner, content)
            return
        place = (content.round, content.stage)
        if content.key in worker.session.watches and owner not in self._told_of(worker, place):
            self.world.fail(worker.node, f"{owner} has brought its report of {place}, and it is not told")

    def _told_of(self, worker: NetworkWorker, place: Place) -> set[str]:
        """Whose reports of a stage a process has told of; of the stage that it is at alone."""
        if worker.pid not in self._told or self._told[worker.pid][0] != place:
            self._told[worker.pid] = (place, set())
        return self._told[worker.pid][1]
