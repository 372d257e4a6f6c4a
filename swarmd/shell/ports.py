"""Where the shell meets the world: what ports are told, what they report, where commits go, and what each may raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar, assert_never

from swarmd.core.commands import ChainCommand, Command, NetworkCommand, SupervisorCommand, TrainerCommand
from swarmd.core.events import Event
from swarmd.core.state import State

Told = TypeVar("Told", contravariant=True)


class CommandPort(Protocol[Told]):
    """Carries out one kind of commands: the network's, the trainer's, the chain's or the supervisor's."""

    def perform(self, command: Told) -> None:
        """Take a command and return at once; what comes of it, or goes wrong, is a fact, later. Raises nothing.

        A port knows commands by their ids, and one that is not there drops them: they are given again when it is up.
        """
        ...


class FactSink(Protocol):
    """Takes events for the log, from workers and the operator: `swarmd.daemon.engine.Engine`, or the simulator's."""

    async def observe(self, event: Event) -> None:
        """Bring a fact; waits while the inbox is full. The facts that one caller brings keep their order.

        Raises nothing: a node whose log cannot be written ends, and this is cancelled.
        """
        ...


class CommitLog(Protocol):
    """Where commits are made durable; `swarmd.eventlog.store.EventLog`, or a simulated disk."""

    @property
    def next_seq(self) -> int:
        """Sequence number the next event gets."""
        ...

    def append(self, at: float, events: Sequence[Event], commands_digest: bytes) -> object:
        """Write one commit and make it durable; blocks.

        Raises CommitTooLarge, where nothing was written; and LogWriteFailed or NoSpaceLeft, where it may or may not be
        durable, and the process must end.
        """
        ...

    @property
    def snapshot_due(self) -> bool:
        """Whether a snapshot of the state should be taken now."""
        ...

    def write_snapshot(self, state: State) -> object:
        """Keep the fold of all events so far, and let the oldest segments go by budget; blocks.

        Raises LogWriteFailed, NoSpaceLeft, LogDamaged: there is no such snapshot; the log goes on without it.
        """
        ...


class Ports(NamedTuple):
    """All ports of a node; `chain` in swarms with a contract only."""

    supervisor: CommandPort[SupervisorCommand]
    network: CommandPort[NetworkCommand]
    trainer: CommandPort[TrainerCommand]
    chain: CommandPort[ChainCommand] | None = None

    def perform(self, command: Command) -> None:
        """Hand a command to the port that it is for."""
        if isinstance(command, NetworkCommand):
            self.network.perform(command)
        elif isinstance(command, TrainerCommand):
            self.trainer.perform(command)
        elif isinstance(command, ChainCommand):
            assert self.chain is not None, f"{command.id} is for a contract, and this swarm has none"
            self.chain.perform(command)
        elif isinstance(command, SupervisorCommand):
            self.supervisor.perform(command)
        else:
            assert_never(command)
