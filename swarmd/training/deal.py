"""Which of peers' groups a stage trains on, and at which step.

Left to chance, a task that few nodes can do is crowded out: it has few informative groups, so few are drawn, so nobody
learns it, and once its only specialist unlearns it, nobody supplies any. `even` gives every task the same number of
groups as far as there are so many, and spreads each task's over the whole stage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from swarmd.training.groups import TrainingGroup

T = TypeVar("T")


class Deal:
    """Hands out peers' groups over the steps of a stage, each at most once.

    Every step gets its even share, at most `share_max`; what is left beyond that may stand in for own groups that
    turned out flat.

    Args:
        groups: in random order.
        steps: of the stage.
        share_max: groups in a step.
        even: deal out tasks evenly, see `spread_tasks`; else in the order of `groups`.
    """

    def __init__(self, groups: Sequence[TrainingGroup], steps: int, share_max: int, even: bool = False) -> None:
        in_order = spread_tasks(groups, steps * share_max, lambda group: group.question.task) if even else groups
        self._left = list(in_order)
        self._steps_left = steps
        self._share_max = share_max
        self.dealt = 0

    def next_share(self) -> list[TrainingGroup]:
        """The groups of the next step."""
        even = -(-len(self._left) // max(self._steps_left, 1))
        self._steps_left -= 1
        return self._take(min(even, self._share_max))

    def spare(self, wanted: int) -> list[TrainingGroup]:
        """Up to `wanted` groups that no later step's share needs."""
        return self._take(max(0, min(wanted, len(self._left) - self._steps_left * self._share_max)))

    def _take(self, count: int) -> list[TrainingGroup]:
        taken, self._left = self._left[:count], self._left[count:]
        self.dealt += len(taken)
        return taken


def spread_tasks(items: Sequence[T], wanted: int, task_of: Callable[[T], str]) -> list[T]:
    """The items in another order: the first `wanted` hold the tasks as evenly as can be, each spread over all of them.

    What is not among the first `wanted` follows, in the order it had.
    """
    by_task: dict[str, list[T]] = defaultdict(list)
    for item in items:
        by_task[task_of(item)].append(item)
    shares = share_evenly({task: len(each) for task, each in by_task.items()}, wanted)
    placed = [
        ((place + 0.5) / shares[task], rank, item)
        for rank, (task, each) in enumerate(by_task.items())
        for place, item in enumerate(each[: shares[task]])
    ]
    first = [item for _, _, item in sorted(placed, key=lambda entry: entry[:2])]
    passed: Counter[str] = Counter()
    rest = []
    for item in items:
        task = task_of(item)
        passed[task] += 1
        if passed[task] > shares[task]:
            rest.append(item)
    return first + rest


def share_evenly(counts: Mapping[str, int], wanted: int) -> dict[str, int]:
    """How many each may give so that together they give `wanted`, or all: the same each, or what it has if less."""
    shares = {}
    left = wanted
    for place, (name, count) in enumerate(sorted(counts.items(), key=lambda entry: entry[1])):
        shares[name] = min(count, left // (len(counts) - place))
        left -= shares[name]
    return shares
