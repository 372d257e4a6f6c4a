"""A node's earlier groups, kept so that what it can do is not lost while it learns what peers can do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random

from swarmd.training.batches.groups import TrainingGroup

KEPT_PER_TASK = 64
TASKS_MAX = 256  # the task that was longest without a new group leaves
Mark = Sequence[tuple[str, tuple[TrainingGroup, ...]]]


class Replay:
    """The latest informative groups of each task.

    It lives as long as the trainer process: after a restart it is empty, and fills within the next stage.
    """

    def __init__(self) -> None:
        self._by_task: dict[str, deque[TrainingGroup]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_task.values()))

    def add(self, group: TrainingGroup) -> None:
        """Keep a group; flat ones teach nothing and are not kept."""
        if group.is_flat:
            return
        task = group.question.task
        kept = self._by_task.pop(task, None) or deque(maxlen=KEPT_PER_TASK)
        kept.append(group)
        self._by_task[task] = kept
        if len(self._by_task) > TASKS_MAX:
            del self._by_task[next(iter(self._by_task))]

    def mark(self) -> Mark:
        """What is kept now, for `rewind`."""
        return [(task, tuple(kept)) for task, kept in self._by_task.items()]

    def rewind(self, mark: Mark) -> None:
        """Keep what was kept then, and nothing else."""
        self._by_task = {task: deque(groups, maxlen=KEPT_PER_TASK) for task, groups in mark}

    def forget(self, unwanted: Callable[[TrainingGroup], bool]) -> None:
        """Keep these groups no longer."""
        for task, groups in list(self._by_task.items()):
            kept = [group for group in groups if not unwanted(group)]
            if kept:
                self._by_task[task] = deque(kept, maxlen=KEPT_PER_TASK)
            else:
                del self._by_task[task]

    def draw(
        self,
        count: int,
        random: Random,
        admit: Callable[[TrainingGroup], bool] = lambda group: True,
        weights: Mapping[str, float] | None = None,
    ) -> list[TrainingGroup]:
        """Up to `count` different groups: each time a task by chance, then one of its groups, if it is admitted.

        Args:
            weights: of tasks that are to be drawn so many times as often as the others.
        """
        left = {task: list(kept) for task, kept in self._by_task.items()}
        drawn: list[TrainingGroup] = []
        while len(drawn) < count and left:
            tasks = list(left)
            chances = [weights.get(each, 1.0) for each in tasks] if weights else None
            task = random.choices(tasks, chances)[0] if chances else random.choice(tasks)
            groups = left[task]
            group = groups.pop(random.randrange(len(groups)))
            if admit(group):
                drawn.append(group)
            if not groups:
                del left[task]
        return drawn
