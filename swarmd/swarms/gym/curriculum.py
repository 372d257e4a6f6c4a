"""The level of a task that a node trains on, moved by its own results."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from swarmd.plugin import SwarmError, TaskConfig

Accuracy = Annotated[float, msgspec.Meta(ge=0, le=1)]


class LadderState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ladder as it stands in a checkpoint."""

    level: Annotated[int, msgspec.Meta(ge=0)]
    recent: tuple[Accuracy, ...] = ()


class Ladder:
    """Levels from 0 up. `note` takes the mean accuracy of each own group at the present level.

    When the last `window` groups at a level average `raise_at` or more, the next level is taken; at `lower_at` or less,
    the one below. Each level begins with an empty window, so that two moves are at least `window` groups apart.
    """

    def __init__(self, levels: int, raise_at: float, lower_at: float, window: int) -> None:
        self.levels = levels
        self.level = 0
        self._raise_at = raise_at
        self._lower_at = lower_at
        self._recent: deque[float] = deque(maxlen=window)

    def note(self, accuracy: float) -> None:
        """Take one group of the present level into account."""
        self._recent.append(accuracy)
        if len(self._recent) < (self._recent.maxlen or 0):
            return
        mean = sum(self._recent) / len(self._recent)
        move = 1 if mean >= self._raise_at else -1 if mean <= self._lower_at else 0
        level = min(max(self.level + move, 0), self.levels - 1)
        if level != self.level:
            self.level = level
            self._recent.clear()

    def read(self) -> dict[str, Any]:
        """Level and window as plain values."""
        return {"level": self.level, "recent": list(self._recent)}

    def load(self, remembered: Any) -> None:
        """Take up what `read` gave, perhaps of a ladder with other levels.

        Raises:
            SwarmError: it is nothing that `read` gives.
        """
        try:
            known = msgspec.convert(remembered, LadderState)
        except msgspec.ValidationError as error:
            raise SwarmError(f"the level of a curriculum cannot be read: {error}") from error
        self.level = min(known.level, self.levels - 1)
        self._recent.clear()
        if self.level == known.level:
            self._recent.extend(known.recent)


def make_ladder(config: TaskConfig, levels: int) -> Ladder:
    """The ladder of one entry of `swarm.tasks`. Raises SwarmError when its thresholds contradict each other."""
    if config.lower_at >= config.raise_at:
        raise SwarmError(
            f"the task {config.name}: lower_at ({config.lower_at}) must be below raise_at ({config.raise_at})"
        )
    return Ladder(levels, config.raise_at, config.lower_at, config.window)


def load_ladders(ladders: Mapping[str, Ladder], remembered: Any) -> None:
    """Give each task what is remembered of it; tasks that are trained no more are forgotten. Raises SwarmError."""
    if not isinstance(remembered, Mapping):
        raise SwarmError(f"the levels of the curricula cannot be read: {type(remembered).__name__} is no table")
    for name, ladder in ladders.items():
        if name in remembered:
            ladder.load(remembered[name])
