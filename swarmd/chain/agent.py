"""What a chain worker does with its orders, apart from its process and its connections."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from swarmd.chain.fees import Budget
from swarmd.chain.submitter import Submitter
from swarmd.chain.watcher import Watcher
from swarmd.core.commands import Broadcast, Command, Submit, WatchChain
from swarmd.core.events import CommandFailed, SubmissionRefused
from swarmd.worker.messages import EventSink


class ChainAgent:
    """Hands each order to whom it is for.

    Args:
        watcher: follows the contract.
        submitter: brings submissions about; None where this node submits nothing.
        budget: of the account, None where nothing is signed here.
        emit: takes the facts.
        begin: runs a coroutine function beside whatever else runs.
    """

    def __init__(
        self,
        watcher: Watcher,
        submitter: Submitter | None,
        budget: Budget | None,
        emit: EventSink,
        begin: Callable[[Callable[[], Coroutine[Any, Any, None]]], object],
    ) -> None:
        self._watcher = watcher
        self._submitter = submitter
        self._budget = budget
        self._emit = emit
        self._begin = begin
        self._watching = False
        if submitter is not None:
            watcher.on_head = submitter.on_head

    def run(self) -> None:
        """Begin what goes on for ever."""
        self._begin(self._watcher.membership.run)
        if self._submitter is not None:
            self._begin(self._submitter.run)

    def take(self, command: Command) -> None:
        """Take an order; what comes of it is told as facts."""
        if isinstance(command, WatchChain):
            self._watch(command)
        elif isinstance(command, Submit | Broadcast) and self._submitter is not None:
            self._submitter.take(command)
        elif isinstance(command, Submit):
            reason = 'chain.sender is "none": this node follows the chain and submits nothing'
            self._emit(SubmissionRefused(command.submission, "follows-only", reason))
        else:
            self._emit(CommandFailed(command.id, "this is no command for the chain worker"))

    def _watch(self, order: WatchChain) -> None:
        if self._budget is not None:
            self._budget.restore(order.spent_day, int(order.spent_wei))
        if self._watching:
            self._watcher.say_again()
        else:
            self._watching = True
            self._begin(partial(self._watcher.run, order))
