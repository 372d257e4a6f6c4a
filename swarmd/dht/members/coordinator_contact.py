"""Whether a node hears its coordinator: one may be connected to many peers, and all of them keep it in the dark."""

from __future__ import annotations

import time

from swarmd.worker.runtime import TimeSource

SILENT_S = 30.0  # without a word of the coordinator, and a stage that should be over, before it is said
MISSED_MIN = 3  # answers that are missing before it is said of a coordinator that used to answer


class CoordinatorContact:
    """What was heard, and when.

    Args:
        follows: has the node a coordinator, other than itself?
        wall: the clock that deadlines are in, POSIX seconds.
        steady: one that nobody sets, seconds.
    """

    def __init__(self, follows: bool, wall: TimeSource = time.time, steady: TimeSource = time.monotonic) -> None:
        self._follows = follows
        self._wall = wall
        self._steady = steady
        self._heard_at = steady()
        self._deadline_at = 0.0  # of the stage that was announced last
        self._final = False
        self._reached = False  # has the coordinator itself ever answered?
        self._silent_s = SILENT_S
        self._unanswered = 0  # stages of this coordinator that nobody else reported in, one after another

    def asked_every(self, s: float) -> None:
        """So many seconds lie between two questions to the coordinator: a single missing answer says nothing."""
        self._silent_s = max(SILENT_S, MISSED_MIN * s)

    def answered(self) -> None:
        """The coordinator itself answered; it is asked now and then."""
        self._heard_at = self._steady()
        self._reached = True

    def announced(self, deadline_at: float, final: bool) -> None:
        """A newer announcement came, by whatever way: its signature says whose it is."""
        self._heard_at = self._steady()
        self._deadline_at, self._final = deadline_at, final

    def closed(self, others_reported: bool, others: int) -> None:
        """A stage of this coordinator is over, in a swarm with so many other members."""
        self._unanswered = 0 if others_reported or not others else self._unanswered + 1

    def isolation(self, peers: int) -> str:
        """Why this node counts as cut off although it is connected; empty when it does not.

        Of a coordinator that used to answer when it was asked, silence alone says so. Where it never did, this node may
        hear it through others only, and then nothing is amiss before a stage should be over.
        """
        if not peers:
            return ""
        if self._unanswered:
            return (
                f"connected to {peers} peers, and no member's report came in the last {self._unanswered} stages: "
                "the members are away, or this node is cut off from them"
            )
        silent_s = self._steady() - self._heard_at
        waits = self._final or not self._follows or silent_s < self._silent_s
        if waits or (not self._reached and self._wall() < self._deadline_at + SILENT_S / 2):
            return ""
        return (
            f"connected to {peers} peers, but nothing was heard of the coordinator for {silent_s:.0f} s, neither from "
            "it nor through others: it is away, or this node is cut off from it"
        )
