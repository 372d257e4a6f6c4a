"""Snapshots of the log that are due. One that cannot be kept costs nothing but time at the next start: it is no end."""

from __future__ import annotations

from swarmd.core.state import State
from swarmd.errors import LogDamaged, LogWriteFailed
from swarmd.shell.ports import CommitLog


class Snapshots:
    """Takes them, and knows whether the last could be kept.

    Args:
        event_log: whose they are.

    Attributes:
        failed: how many could not be kept, one after another.
    """

    def __init__(self, event_log: CommitLog) -> None:
        self.failed = 0
        self._log = event_log
        self._error: LogDamaged | LogWriteFailed | None = None

    def keep_if_due(self, state: State) -> None:
        """Take one where it is due; where that fails, one is due again when the next segment is full.

        Args:
            state: the fold of all events so far.
        """
        if not self._log.snapshot_due:
            return
        try:
            self._log.write_snapshot(state)
        except (LogDamaged, LogWriteFailed) as error:
            self.failed, self._error = self.failed + 1, error
        else:
            self.failed, self._error = 0, None

    @property
    def note(self) -> str:
        """For the operator: that the last could not be kept, and why; empty where it was."""
        if self._error is None:
            return ""
        times = "" if self.failed == 1 else f", {self.failed} times one after another"
        return f"no snapshot of the log could be kept{times}; it is tried again with the next segment: {self._error}"
