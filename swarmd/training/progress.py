"""What a stage is doing, for people: an activity with its progress, and a note about the current moment.

An activity, such as "training" or "writing the checkpoint", takes seconds to hours; notes change from token to token.
Reporting is cheap, so every change is reported; the worker forwards the newest a few times a second.
"""

import threading
from collections.abc import Callable, Mapping

from swarmd.worker.messages import ProgressMessage

ETA = "eta_s"

ProgressSink = Callable[[ProgressMessage], None]
NoteSink = Callable[[str], None]  # called with the current action, such as "drawing 18 of 32 tokens"
CountSink = Callable[[int, int], None]  # called with how many are done, and the total


class StageProgress:
    """Progress of one trainer, stage after stage. `sink` is called with every change, by one thread at a time."""

    def __init__(self) -> None:
        self.sink: ProgressSink = lambda progress: None
        self._now = ProgressMessage("")
        self._lock = threading.Lock()  # completions may be drawn while a step is trained

    def start_stage(self, what: str) -> None:
        """Begin a stage with this activity; drops metrics of the stage before."""
        with self._lock:
            self._publish(ProgressMessage(what))

    def start_activity(self, what: str, total: int = 0) -> None:
        """Begin the next activity of the stage, with `total` parts if they can be counted."""
        with self._lock:
            figures = {name: value for name, value in self._now.figures.items() if name != ETA}
            self._publish(ProgressMessage(what, 0, total, figures=figures))

    def report_count(self, done: int, total: int, figures: Mapping[str, float] | None = None) -> None:
        """Report how many parts of the activity are done, and the stage's new metrics, if any."""
        with self._lock:
            known = self._now.figures if figures is None else dict(figures)
            self._publish(ProgressMessage(self._now.what, done, total, figures=known))

    def set_note(self, words: str) -> None:
        """Report the current action, until the next note or part."""
        with self._lock:
            now = self._now
            self._publish(ProgressMessage(now.what, now.done, now.total, words, now.figures))

    def _publish(self, progress: ProgressMessage) -> None:
        self._now = progress
        self.sink(progress)
