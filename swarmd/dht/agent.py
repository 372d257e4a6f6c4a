"""Carries out the network worker's commands concurrently, each command id once at a time. Does not import hivemind.

A command that fails is answered with `CommandFailed`, and the daemon's core sends it again.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from swarmd.core import commands
from swarmd.core.events import CommandFailed
from swarmd.dht.gather import Gathering, WaitPolicy
from swarmd.dht.gossip import Gossip
from swarmd.dht.membership import Members
from swarmd.dht.ports import Bodies, OwnNode
from swarmd.dht.publisher import Publisher
from swarmd.dht.record_store import RecordStore
from swarmd.dht.report_collector import ReportCollector
from swarmd.dht.rounds import LeaderboardFetcher, StagePublisher, SwarmClock
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.weights import WeightsFetcher
from swarmd.dht.wire.bodies import LeaderboardBody
from swarmd.errors import SwarmdError
from swarmd.logger import get_logger

COMMANDS_MAX = 64  # commands run at once; one more fails, and the core sends it again

log = get_logger(__name__)


class NetworkAgent:
    def __init__(
        self,
        view: SwarmView,
        store: RecordStore,
        publisher: Publisher,
        gossip: Gossip,
        bodies: Bodies,
        node: OwnNode,
        members: Members,
        weights: WeightsFetcher | None = None,
    ) -> None:
        self._view = view
        self._gossip = gossip
        self._node = node
        self.members = members
        followed = LeaderboardFetcher(view, store, bodies, self._apply_leaderboard)
        self._clock = SwarmClock(view, store, publisher, gossip, followed.watch_previous_leaderboard)
        stages = StagePublisher(view, store, publisher, bodies, node, self._apply_leaderboard)
        gathered = (view, store, gossip, bodies, WaitPolicy(), members.require_member)
        self._actions: dict[type[Any], Callable[[Any], Coroutine[Any, Any, None]]] = {
            commands.Register: self.members.register,
            commands.ReadClock: self._clock.read_clock,
            commands.Announce: self._clock.announce,
            commands.Gather: lambda command: Gathering(*gathered, command).run(),
            commands.PublishReport: stages.publish_report,
            commands.CollectReports: ReportCollector(view, store, gossip, members.presences).collect,
            commands.PublishLeaderboard: stages.publish_leaderboard,
            commands.AdmitPeers: self.members.admit_peers,
            commands.NoteEvidence: gossip.evidence.note_evidence,
        }
        if weights is not None:
            self._actions[commands.FetchWeights] = weights.handle_command
        self._running: set[str] = set()

    def start(self) -> None:
        """Start the tasks that no command starts: follow the clock, and watch for another node with this identity."""
        self._view.runtime.start(self.members.watch_for_duplicate())
        self._clock.watch_clock()

    def start_command(self, command: commands.Command) -> None:
        """Start a command unless one with the same id is running."""
        if command.id in self._running:
            return
        if type(command) not in self._actions:
            self._report_failure(command, "this is not a command for the network worker")
        elif len(self._running) >= COMMANDS_MAX:
            self._report_failure(command, f"{COMMANDS_MAX} commands are being done already")
        else:
            if isinstance(command, commands.Gather | commands.PublishReport | commands.CollectReports):
                self._view.policy.raise_round(command.round)
            self._running.add(command.id)
            self._view.runtime.start(self._run_command(command))

    async def _run_command(self, command: commands.Command) -> None:
        try:
            await self._actions[type(command)](command)
        except (SwarmdError, OSError) as error:
            self._report_failure(command, str(error))
        except Exception as error:
            log.exception("%s failed", command.id)
            self._report_failure(command, f"{type(error).__name__}: {error}")
        finally:
            self._running.discard(command.id)

    def _report_failure(self, command: commands.Command, reason: str) -> None:
        log.info("%s: %s", command.id, reason)
        self._view.emit(CommandFailed(command.id, reason))

    def _apply_leaderboard(self, board: LeaderboardBody) -> None:
        """Apply a leaderboard: update and save the peers' credit, and compare the reports that it quotes."""
        self._view.seniority.update_standings(board.standings)
        self._gossip.comparison.compare_quoted_reports(board.reports)
        self._view.runtime.start(self._node.save_standings(board))
