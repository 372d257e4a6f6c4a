"""What the simulated network and trainer workers have in common: a process that can die or freeze."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from swarmd.core.commands import Command
from swarmd.core.events import Event
from swarmd.core.values import Worker
from swarmd.worker.messages import Fault, Observed

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode


class SimWorker(ABC):
    """A child process of one daemon life."""

    kind: Worker

    def __init__(self, node: SimNode, pid: int) -> None:
        self.node = node
        self.supervisor = node.supervisor
        self.world = node.world
        self.random = node.world.random
        self.life = node.life
        self.pid = pid
        self.alive = True
        self.status: int | None = None  # that it ended with, negative the number of a signal
        self.outside = False  # others ended it
        self.fault: Fault | None = None  # that it reported before it ended
        self.watched = False  # its pings are counted
        self.ignores_stop = False  # neither the wish that it end nor SIGTERM has it end
        self.frozen_until = 0.0
        self.backlog: deque[Command] = deque()  # commands that came while it was frozen

    @abstractmethod
    def begin(self) -> None:
        """Come up after the process was started."""

    def take(self, command: Command) -> None:
        """Read a command from the pipe, in their order."""
        if self.backlog or self.frozen_until > self.world.now:
            self.backlog.append(command)
            self.later(0.0, self._take_next)
        else:
            self.perform(command)

    def _take_next(self) -> None:
        self.perform(self.backlog.popleft())

    @abstractmethod
    def perform(self, command: Command) -> None:
        """Do what the daemon wants; facts follow later, never from within."""

    def tell(self, event: Event) -> None:
        """Report a fact to the daemon."""
        if self.alive:
            self.supervisor.hear(self, Observed(event))

    def later(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Go on with `act` after a while, unless the process is dead by then; a frozen one does it when it thaws."""
        self.world.call_in(delay_s, self._act, act, args)

    def _act(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.frozen_until > self.world.now:
            self.world.call_at(self.frozen_until, self._act, act, args)
        else:
            act(*args)

    def freeze(self, until: float) -> None:
        """Stand still, as after SIGSTOP."""
        self.frozen_until = max(self.frozen_until, until)
        self.supervisor.watch(self)

    def end(self) -> None:
        """Be gone, whatever was being done."""
        self.alive = False
