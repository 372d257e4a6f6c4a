"""Which groups of a stage are published for peers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from swarmd.swarms.rollouts import COMPLETION_CHARACTERS_MAX
from swarmd.training.batches.groups import TrainingGroup


class Publication:
    """Keeps the latest groups of a stage: informative ones first, filled up with flat ones.

    Args:
        groups_max: published of a stage.
    """

    def __init__(self, groups_max: int) -> None:
        self._groups_max = groups_max
        self._kept: dict[tuple[bool, str], deque[tuple[int, TrainingGroup]]] = {}  # by flatness and task, with its time
        self._time = 0

    def add(self, group: TrainingGroup) -> None:
        """Take note of a group; one with a text too long for the wire is left out, for nobody would read the body."""
        if any(len(text) > COMPLETION_CHARACTERS_MAX for text in group.texts):
            return
        key = (group.is_flat, group.question.task)
        self._kept.setdefault(key, deque(maxlen=self._groups_max)).append((self._time, group))
        self._time += 1

    def choose(self) -> list[TrainingGroup]:
        """The groups to publish, the latest informative one first, each question once."""
        chosen: list[TrainingGroup] = []
        counts: Counter[str] = Counter()
        seen = set()
        for group in (*self._latest(flat=False), *self._latest(flat=True)):
            task, question = group.question.task, group.question.reference.base
            if len(chosen) < self._groups_max and counts[task] < self._groups_max and question not in seen:
                chosen.append(group)
                counts[task] += 1
                seen.add(question)
        return chosen

    def _latest(self, flat: bool) -> Iterator[TrainingGroup]:
        kept = [entry for (is_flat, _), entries in self._kept.items() if is_flat == flat for entry in entries]
        for _, group in sorted(kept, key=lambda entry: entry[0], reverse=True):
            yield group
