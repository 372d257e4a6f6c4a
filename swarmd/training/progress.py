"""What a stage is at, for people: an activity with how far it is, and what is done of it just now.

An activity, such as "training" or "writing the checkpoint", goes on for seconds to hours; within it notes change from
token to token. Telling is cheap, so that whoever works says all of it; the worker passes on what is newest, a few times
a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swarmd.worker.messages import Progress

ETA = "eta_s"

ProgressSink = Callable[[Progress], None]
NoteSink = Callable[[str], None]  # what is done just now, as "drawing 18 of 32 tokens"
CountSink = Callable[[int, int], None]  # how many are done, of how many


class StageProgress:
    """Of one trainer, stage after stage. `sink` takes each change."""

    def __init__(self) -> None:
        self.sink: ProgressSink = lambda progress: None
        self._now = Progress("")

    def start(self, what: str) -> None:
        """A stage begins, with this activity: the figures of the one before are gone."""
        self._tell(Progress(what))

    def enter(self, what: str, total: int = 0) -> None:
        """The next activity of the stage begins, in so many parts where they can be counted."""
        figures = {name: value for name, value in self._now.figures.items() if name != ETA}
        self._tell(Progress(what, 0, total, figures=figures))

    def count(self, done: int, total: int, figures: Mapping[str, float] | None = None) -> None:
        """So many parts of the activity are done; figures of the stage, where there are new ones."""
        known = self._now.figures if figures is None else dict(figures)
        self._tell(Progress(self._now.what, done, total, figures=known))

    def note(self, words: str) -> None:
        """What is done just now, until the next note or part."""
        now = self._now
        self._tell(Progress(now.what, now.done, now.total, words, now.figures))

    def _tell(self, progress: Progress) -> None:
        self._now = progress
        self.sink(progress)
