"""What the network worker does with each command."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from swarmd.core.commands import (
    AdmitPeers,
    Announce,
    CollectReports,
    FetchWeights,
    Gather,
    NoteEvidence,
    PublishLeaderboard,
    PublishReport,
    ReadClock,
    Register,
)
from swarmd.dht.members.membership import Members
from swarmd.dht.network_session import NetworkSession
from swarmd.dht.rounds.clock import SwarmClock
from swarmd.dht.rounds.gather import gather
from swarmd.dht.rounds.report_collector import ReportCollector
from swarmd.dht.rounds.stages import Stages
from swarmd.dht.rounds.standings import LeaderboardFollower
from swarmd.dht.weights.taking import WeightsTaking


class SignedActions:
    """The actions, by command.

    Args:
        session: the network.
    """

    def __init__(self, session: NetworkSession) -> None:
        self._session = session
        self.members = Members(session)
        self._clock = SwarmClock(session, LeaderboardFollower(session, session.learn).reach)
        stages = Stages(session)
        self.by_command: dict[type[Any], Callable[[Any], Coroutine[Any, Any, None]]] = {
            Register: self.members.register,
            ReadClock: self._clock.read,
            Announce: self._clock.announce,
            Gather: lambda command: gather(session, command),
            PublishReport: stages.publish_report,
            CollectReports: ReportCollector(session, self.members.presences).collect,
            PublishLeaderboard: stages.publish_leaderboard,
            AdmitPeers: self.members.admit,
            NoteEvidence: session.exchange.note,
            FetchWeights: WeightsTaking(session).take,
        }

    def begin(self) -> None:
        """Follow the clock and look for a twin from now on."""
        self._session.start(self.members.watch_for_twin)
        self._clock.follow()

    async def leave(self) -> None:
        """Announce the leaving."""
        await self.members.leave()
