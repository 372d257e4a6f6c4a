"""Chooses the groups of a step's batch that this node did not just draw: peers', and its own earlier ones.

A random choice of peers' groups would crowd out a task that few nodes can do: it has few informative groups, so few are
drawn, so nobody learns it, and once its only specialist unlearns it, nobody supplies any. So

* every task gets the same number of groups, if it has enough; within a task every peer gets the same number; both are
spread over the whole stage; * no peer has more than `peer_max` groups in a batch, including earlier ones drawn again: a
peer that makes groups up can make any number, none of them flat. A peer gets one until some of its groups were seen in
the stage, and none if far less of it counts than of others (`swarmd.training.masking.MaskStats.decide_peer_slots`); *
slots that remain free are for own groups.

`ReplayBuffer` keeps this node's latest groups, so that it does not lose its skills while it learns those of peers.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Literal, TypeVar

from cachetools import FIFOCache

from swarmd.swarms.plan import hash_number
from swarmd.training.groups import TrainingGroup

PEER_SHARE = 0.5  # largest share of a batch's slots for peers that one peer may have
KEPT_PER_TASK = 64  # earlier groups kept
TASKS_MAX = 256  # tasks with earlier groups; beyond that the one without a new group for longest is dropped
T = TypeVar("T")
NO_WEIGHTS: Mapping[str, float] = {}
WEIGHT_PARTS = 100  # integer that a weight of 1 becomes: shares are counted in integers
# why a group was skipped: its peer had its share, little of it counts, or its right answers are too long
Reason = Literal["share", "little", "long"]


class PeerSchedule:
    """Schedules peers' groups over the steps of a stage, each at most once.

    Every step gets an equal share, at most `share_max` groups. Groups beyond that may replace flat own groups.

    Args:
        groups: in random order.
        steps: of the stage.
        share_max: groups in a step.
        peer_max: groups of one peer in a batch; 0: no limit.
        weights: multiples of the equal share for tasks that get more.
    """

    def __init__(
        self,
        groups: Sequence[TrainingGroup],
        steps: int,
        share_max: int,
        peer_max: int = 0,
        weights: Mapping[str, float] = NO_WEIGHTS,
    ) -> None:
        keys = [lambda group: group.question.task, lambda group: group.peer]
        self._left = spread_evenly(groups, steps * share_max, keys, weights)
        self._steps_left = steps
        self._share_max = share_max
        self._peer_max = peer_max
        self._batch: Counter[str] = Counter()
        self._worthy: Mapping[str, bool] = {}
        self._passed: dict[int, tuple[str, Reason]] = {}  # peer and reason, by the group's identity
        self.scheduled = 0

    def schedule_step(self, worthy: Mapping[str, bool]) -> list[TrainingGroup]:
        """The peers' groups of the next step. `worthy`: for each peer seen in this stage, whether it may have groups in
        it."""
        self._batch.clear()
        self._worthy = worthy
        even = -(-len(self._left) // max(self._steps_left, 1))
        self._steps_left -= 1
        return self._take_admitted(min(even, self._share_max))

    def take_spare_groups(self, wanted: int) -> list[TrainingGroup]:
        """Up to `wanted` groups that later steps will not need."""
        return self._take_admitted(max(0, min(wanted, len(self._left) - self._steps_left * self._share_max)))

    def admit_group(self, group: TrainingGroup) -> bool:
        """Whether the batch may have one more group, which is then counted; always true for this node's own."""
        admitted = not group.peer or self._batch[group.peer] < self._peer_groups_max(group.peer)
        self._batch[group.peer] += admitted
        return admitted

    def count_skipped(self) -> Counter[tuple[str, Reason]]:
        """Number of groups that were skipped and never scheduled, by peer and reason."""
        left = {id(group) for group in self._left}
        return Counter(why for group, why in self._passed.items() if group in left)

    def _peer_groups_max(self, peer: str) -> float:
        """Largest number of groups that a peer may have in this batch."""
        if not self._peer_max:
            return math.inf
        return self._peer_max * self._worthy[peer] if peer in self._worthy else 1

    def _take_admitted(self, count: int) -> list[TrainingGroup]:
        """Remove and return the first `count` admitted groups."""
        taken: list[TrainingGroup] = []
        left: list[TrainingGroup] = []
        for group in self._left:
            if len(taken) == count:
                left.append(group)
            elif self.admit_group(group):
                taken.append(group)
            else:
                left.append(group)
                self._passed[id(group)] = group.peer, "share" if self._peer_groups_max(group.peer) else "little"
        self._left = left
        self.scheduled += len(taken)
        return taken


def select_rank_groups(groups: Sequence[TrainingGroup], rank: int, ranks: int, peer_ranks: int) -> list[TrainingGroup]:
    """The groups of one of several ranks: each group is for one rank, and a peer's groups are on `peer_ranks` of them.
    A peer always has the same ranks, because its earlier groups are drawn again there."""
    if peer_ranks >= ranks:
        return list(groups[rank::ranks])
    seen: Counter[str] = Counter()
    taken = []
    for group in groups:
        place = hash_number("ranks", group.peer) + seen[group.peer] % peer_ranks
        seen[group.peer] += 1
        if place % ranks == rank:
            taken.append(group)
    return taken


def spread_evenly(
    items: Sequence[T], wanted: int, keys: Sequence[Callable[[T], str]], weights: Mapping[str, float] = NO_WEIGHTS
) -> list[T]:
    """Reorder items so that the first `wanted` have the values of the first key as evenly as possible, each spread over
    all of them; within a value, those of the second key, and so on. The other items follow in their order. `weights`:
    of values of the first key, see `share_evenly`."""
    if not keys:
        return list(items)
    by_value: dict[str, list[T]] = defaultdict(list)
    for item in items:
        by_value[keys[0](item)].append(item)
    shares = share_evenly({value: len(each) for value, each in by_value.items()}, wanted, weights)
    placed = [
        ((place + 0.5) / shares[value], rank, item)
        for rank, (value, each) in enumerate(by_value.items())
        for place, item in enumerate(spread_evenly(each, shares[value], keys[1:])[: shares[value]])
    ]
    first = [item for _, _, item in sorted(placed, key=lambda entry: entry[:2])]
    chosen = {id(item) for item in first}
    return first + [item for item in items if id(item) not in chosen]


def share_evenly(counts: Mapping[str, int], wanted: int, weights: Mapping[str, float] = NO_WEIGHTS) -> dict[str, int]:
    """Divide `wanted` equally among names, none of which gets more than its count. A name with a weight gets that many
    times as much as the others, whose weight is 1."""
    parts = {name: round(weights.get(name, 1.0) * WEIGHT_PARTS) for name in counts}
    shares = {}
    left, parts_left = wanted, sum(parts.values())
    for name, count in sorted(counts.items(), key=lambda entry: entry[1] / parts[entry[0]]):
        shares[name] = min(count, left * parts[name] // parts_left)
        left -= shares[name]
        parts_left -= parts[name]
    return shares


def groups_per_peer_max(slots: int, peers: int) -> int:
    """Largest number of groups that one peer may have in a batch: `PEER_SHARE` of `slots`, rounded up; 0, no limit, for
    a single peer, whose slots nobody else could take. `slots`: for peers' groups in a batch. `peers`: number that
    published something."""
    return max(1, math.ceil(slots * PEER_SHARE)) if peers > 1 else 0


def count_peer_ranks(slots: int, peers: int, ranks: int) -> int:
    """Number of ranks on which one peer may have groups. Each rank limits a peer to `groups_per_peer_max` of its own
    slots, which is rounded up, so the number of ranks limits the total to that of all slots. `slots`: of one rank."""
    bound = groups_per_peer_max(slots, peers)
    if not bound:
        return ranks
    return min(max(math.ceil(slots * ranks * PEER_SHARE) // bound, 1), ranks)


class ReplayBuffer:
    """The latest informative groups of each task. It lives as long as the trainer process: after a restart it is empty,
    and fills in the next stage."""

    def __init__(self, by_task: Mapping[str, Iterable[TrainingGroup]] | None = None) -> None:
        self._by_task: FIFOCache[str, deque[TrainingGroup]] = FIFOCache(TASKS_MAX)
        for task, groups in (by_task or {}).items():
            self._by_task[task] = deque(groups, KEPT_PER_TASK)

    def __len__(self) -> int:
        return sum(map(len, self._by_task.values()))

    def copy(self) -> "ReplayBuffer":
        """An independent copy."""
        return ReplayBuffer(self._by_task)

    def add(self, group: TrainingGroup) -> None:
        """Keep a group unless it is flat."""
        if not group.has_zero_variance:
            kept = self._by_task.pop(group.question.task, None) or deque(maxlen=KEPT_PER_TASK)
            kept.append(group)
            self._by_task[group.question.task] = kept

    def drop_groups(self, unwanted: Callable[[TrainingGroup], bool]) -> None:
        """Drop the groups for which `unwanted` is true."""
        for task, groups in list(self._by_task.items()):
            self._by_task[task] = deque((each for each in groups if not unwanted(each)), KEPT_PER_TASK)
            if not self._by_task[task]:
                del self._by_task[task]

    def draw(
        self,
        count: int,
        random: Random,
        admit: Callable[[TrainingGroup], bool] = lambda group: True,
        weights: Mapping[str, float] = NO_WEIGHTS,
    ) -> list[TrainingGroup]:
        """Draw up to `count` different groups: a task at random, by its weight, then one of its groups, if admitted."""
        left = {task: list(kept) for task, kept in self._by_task.items()}
        drawn: list[TrainingGroup] = []
        while len(drawn) < count and left:
            tasks = list(left)
            chances = [weights.get(each, 1.0) for each in tasks]
            task = random.choices(tasks, chances)[0] if weights else random.choice(tasks)
            group = left[task].pop(random.randrange(len(left[task])))
            if admit(group):
                drawn.append(group)
            if not left[task]:
                del left[task]
        return drawn
