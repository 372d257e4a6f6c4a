"""What goes out of a node: once an id in a port's life, the same under the same id, and only after its cause."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from swarmd.core.commands import (
    CHAIN_COMMANDS,
    NETWORK_COMMANDS,
    TRAINER_COMMANDS,
    Announce,
    Command,
    Gather,
    KillWorker,
    PublishReport,
    StartWorker,
    StopWorkers,
    Train,
)
from swarmd.core.events import ClockSet, CommandFailed, Event, LinkUp, NodeStarted, TrainerReady, TrainingCancelled
from swarmd.core.ids import command_id
from swarmd.core.state import State
from swarmd.core.values import Worker

if TYPE_CHECKING:
    from swarmd.core.applied import Applied
    from swarmd.sim.node import SimNode
    from swarmd.sim.world import World

Port = Literal["network", "trainer", "chain", "supervisor"]

RENEWING = (LinkUp, TrainerReady, NodeStarted, CommandFailed, TrainingCancelled)
PORTS: dict[type, Port] = {
    **dict.fromkeys(NETWORK_COMMANDS, "network"),
    **dict.fromkeys(TRAINER_COMMANDS, "trainer"),
    **dict.fromkeys(CHAIN_COMMANDS, "chain"),
    **dict.fromkeys((StartWorker, StopWorkers, KillWorker), "supervisor"),
}


class CommandChecks:
    """The commands of one node.

    Attributes:
        content: every command ever sent, by id.
        sent: when each id was last ordered in the present life of its port: the network's since the link came up, the
            trainer's since it was ready, the chain's and the supervisor's since the daemon started.
    """

    def __init__(self, world: World, node: SimNode) -> None:
        self.world = world
        self.node = node
        self.content: dict[str, Command] = {}
        ports: tuple[Port, ...] = ("network", "trainer", "chain", "supervisor")
        self.sent: dict[Port, dict[str, tuple[float, int]]] = {port: {} for port in ports}  # at, jumps of the clock
        self.announced: tuple[int, int, bool] = (-1, -1, False)
        self.open_until = math.inf  # the deadline of that
        self.clock_sets = 0  # events that say so
        self.killed: dict[Worker, str] = {}  # id of the last order to kill a worker
        self.allowed: dict[str, int] = {}  # how often durable commits of this life ordered an id, not yet dispatched

    def apply(self, applied: Applied) -> None:
        """A new life of a port begins; a command that failed may be sent again."""
        envelope, before, commands = applied.envelope, applied.before, applied.commands
        if type(envelope.event) in RENEWING:
            self._renew(envelope.event, before)
        if isinstance(envelope.event, ClockSet):
            self.open_until = -math.inf  # it is brought back
            self.clock_sets += 1
        for command in commands:
            if applied.after.low_space is not None and isinstance(command, Gather | Train):
                self._fail(f"{command.id} goes out although the disk is nearly full")
            self.allowed[command.id] = self.allowed.get(command.id, 0) + 1
            self._check_once(command, envelope.at)
            if isinstance(command, Announce):
                self._check_announcement(applied, command)
            elif isinstance(command, KillWorker):
                self.killed[command.worker] = command.id

    def _renew(self, event: Event, before: State) -> None:
        """Forget what was ordered where it may be ordered again."""
        if isinstance(event, LinkUp):
            if before.link.chart != "up":
                self.sent["network"].clear()
        elif isinstance(event, TrainerReady):
            self.sent["trainer"].clear()
        elif isinstance(event, NodeStarted):
            self.allowed.clear()
            for sent in self.sent.values():
                sent.clear()
        elif isinstance(event, CommandFailed | TrainingCancelled):
            _, _, place = event.command.partition("/")
            for sent in self.sent.values():
                sent.pop(event.command, None)
            self.sent["trainer"].pop(command_id("cancel", place), None)  # the stage may be trained and left once more

    def _check_announcement(self, applied: Applied, command: Announce) -> None:
        """The clock goes forward; the same stage is announced under a new id only when the link has come back."""
        place = (command.round, command.stage, not command.final)
        again = command.id in self.content or isinstance(applied.event, LinkUp)
        again = again or command.deadline_at > self.open_until  # a contract that was taken back and moved on again
        if place < self.announced or (place == self.announced and not again):
            self._fail(f"{command.id} announces {place} after {self.announced}")
        self.announced, self.open_until = place, command.deadline_at

    def killed_workers(self, state: State) -> tuple[Worker, ...]:
        """Workers whose present process was ordered killed."""
        attempts: dict[Worker, int] = {
            "network": state.network.attempt,
            "trainer": state.training.attempt,
            "chain": state.chaining.attempt,
        }
        return tuple(
            worker
            for worker, order in self.killed.items()
            if order == command_id("kill", f"{worker}/{state.run}/{attempts[worker]}")
        )

    def on_dispatch(self, command: Command) -> None:
        known = self.content.setdefault(command.id, command)
        if known is not command and known != command:
            self._fail(f"{command.id} goes out with another content: {command}, before: {known}")
        allowed = self.allowed.pop(command.id, 0)
        if allowed < 1:
            self._fail(f"{command.id} goes out without a durable commit that causes it")
        if allowed > 1:
            self.allowed[command.id] = allowed - 1

    def _check_once(self, command: Command, at: float) -> None:
        """A report that was not acknowledged in time is sent again, nothing else."""
        sent = self.sent[PORTS[type(command)]]
        last, sets = sent.get(command.id, (None, 0))
        if last is not None and not (isinstance(command, PublishReport) and self._is_overdue(at - last, sets)):
            self._fail(f"{command.id} is ordered twice in one life of its port, after {at - last:.3f} s")
        sent[command.id] = (at, self._times_set())

    def _is_overdue(self, since_s: float, sets: int) -> bool:
        """Whether time enough has passed, or so it seemed: the clock was set meanwhile."""
        return since_s >= self.node.settings.publish_s - 0.001 or sets != self._times_set()

    def _times_set(self) -> int:
        """How often the clock was set so far: in the world, and in the log, which may be read long after."""
        return self.node.jumps + self.clock_sets

    def _fail(self, what: str) -> None:
        self.world.fail(self.node, what)
