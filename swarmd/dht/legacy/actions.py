"""What the network worker does with each command in a legacy network."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from swarmd.core.commands import (
    AdmitPeers,
    Announce,
    CollectReports,
    Gather,
    PublishLeaderboard,
    PublishOutputs,
    PublishReport,
    ReadClock,
    Register,
)
from swarmd.core.events import Registered
from swarmd.dht.legacy.clock import LegacyClock
from swarmd.dht.legacy.gather import gather
from swarmd.dht.legacy.session import LegacySession
from swarmd.dht.legacy.stages import LegacyStages


class LegacyActions:
    """The actions, by command.

    Args:
        session: the network.
    """

    def __init__(self, session: LegacySession) -> None:
        self._session = session
        self._clock = LegacyClock(session)
        stages = LegacyStages(session, self._clock)
        self.by_command: dict[type[Any], Callable[[Any], Coroutine[Any, Any, None]]] = {
            Register: self._register,
            ReadClock: self._clock.read,
            Announce: self._clock.announce,
            Gather: lambda command: gather(session, command),
            PublishReport: stages.publish_report,
            PublishOutputs: stages.publish_outputs,
            CollectReports: stages.collect,
            PublishLeaderboard: stages.publish_leaderboard,
            AdmitPeers: self._admit,
        }

    def begin(self) -> None:
        """Follow the clock from now on."""
        self._session.start(self._clock.follow)

    async def leave(self) -> None:
        """Do nothing: v0.4 has no record of leaving."""

    async def _register(self, command: Register) -> None:
        """v0.4 has no memberships: a peer takes part from its first reward on."""
        self._session.emit(Registered(command.id))

    async def _admit(self, command: AdmitPeers) -> None:
        """Take rewards and outputs of the listed peers only, or of whom the configuration admits."""
        if command.open:
            self._session.policy.admit_configured()
        else:
            self._session.policy.admit(command.peers)
