"""The facts about submissions, as they are told to the core."""

from __future__ import annotations

import logging
from collections.abc import Callable

from swarmd.chain.submitting.resolution import ContractRefusal
from swarmd.chain.submitting.tracking import TrackedSubmission
from swarmd.core.events import (
    CommandFailed,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionLost,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionSent,
)
from swarmd.core.values import BlockRef, Prepared
from swarmd.worker.ports import EventSink
from swarmd.worker.runtime import LOOP, Runtime

log = logging.getLogger(__name__)


class SubmissionReporter:
    """Notes what became of a submission, and tells it.

    Args:
        emit: takes the facts.
        forget: is called with a submission that comes to its end here.
        runtime: the clock.
    """

    def __init__(self, emit: EventSink, forget: Callable[[TrackedSubmission], None], runtime: Runtime = LOOP) -> None:
        self._emit = emit
        self._forget = forget
        self._runtime = runtime

    def prepared(self, following: TrackedSubmission, attempt: Prepared) -> None:
        """The next attempt waits to be in the log."""
        following.add(attempt, self._runtime.now())
        self._emit(SubmissionPrepared(following.submission, attempt))

    def sent(self, following: TrackedSubmission, attempt: Prepared, name: str) -> None:
        """An attempt was taken; told once in a process's life."""
        if following.mark_sent(attempt):
            self._emit(SubmissionSent(following.submission, name))

    def included(self, following: TrackedSubmission, block: BlockRef, hash: str) -> None:
        """Report that the submission was mined in `block`."""
        following.include(block, hash)
        self._emit(SubmissionIncluded(following.submission, block, hash))

    def confirmed(self, following: TrackedSubmission, block: BlockRef) -> None:
        """Report that the submission's block is at the confirmed depth."""
        self._emit(SubmissionConfirmed(following.submission, block))
        self._forget(following)

    def refused(self, following: TrackedSubmission, refusal: ContractRefusal) -> None:
        """The contract will never take it."""
        self._emit(SubmissionRefused(following.submission, refusal.code, refusal.reason, refusal.permanent))
        self._forget(following)

    def lost(self, following: TrackedSubmission, reason: str) -> None:
        """No attempt can be mined any more."""
        self._emit(SubmissionLost(following.submission, reason))
        self._forget(following)

    def failed(self, following: TrackedSubmission, reason: str) -> None:
        """It is given back, and will come again."""
        log.info("%s: %s", following.command.id, reason)
        self._emit(CommandFailed(following.command.id, reason))
        self._forget(following)

    def troubled(self, following: TrackedSubmission, reason: str) -> None:
        """Something failed, but it may be under way: it is looked after here all the same."""
        log.info("%s: %s", following.command.id, reason)
        self._emit(CommandFailed(following.command.id, reason))
