"""Peers' groups whose right answers are longer than they need to be: they are not trained on.

Every token of a right answer is raised. A peer that always writes as much as an honest node sometimes does makes
others write as much, too, and nothing else shows it: its rewards are deserved, and this node might have written each
token (the length attack, HTTT, arXiv 2511.09780). So the peers are compared with each other, task by task:

- A peer's length is the mean of its right answers, for that is how much of them is raised. The usual one is the median
  over the peers: half of them would have to pad to move it.
- The groups with the longest right answers of a peer above `LONG` times the usual length are left out, until it is no
  longer. So nothing is left of one that always pads, and an honest one loses the few by which it happens to be longer.
- With fewer than `PEERS_MIN` peers nobody knows what is usual, and with fewer than `RIGHTS_MIN` right answers not how
  long a peer's are. A task that few can do loses nothing.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

from swarmd.swarms.plan import CORRECT
from swarmd.training.groups import TrainingGroup

LONG = 1.05  # times the usual length; at 1.0, honest peers made each other's answers 40 % shorter (`bench padding`)
PEERS_MIN = 3
RIGHTS_MIN = 4


def split_by_length(groups: Sequence[TrainingGroup]) -> tuple[list[TrainingGroup], list[TrainingGroup]]:
    """Peers' groups that are trained on, in their order, and those that are left out for their length."""
    by_task: dict[str, dict[str, list[TrainingGroup]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        by_task[group.question.task][group.peer].append(group)
    long = {id(group) for by_peer in by_task.values() for group in _find_long_groups(by_peer)}
    return [each for each in groups if id(each) not in long], [each for each in groups if id(each) in long]


def _find_long_groups(by_peer: Mapping[str, Sequence[TrainingGroup]]) -> Iterator[TrainingGroup]:
    """Of the groups of one task, by peer, those that make their peer's right answers longer than usual."""
    means = {
        peer: fmean(lengths)
        for peer, groups in by_peer.items()
        if len(lengths := list_right_lengths(groups)) >= RIGHTS_MIN
    }
    if len(means) < PEERS_MIN:
        return
    longest = LONG * median(means.values())
    for peer in means:
        left = [group for group in by_peer[peer] if list_right_lengths([group])]
        left.sort(key=lambda group: fmean(list_right_lengths([group])))
        while left and fmean(list_right_lengths(left)) > longest:
            yield left.pop()


def list_right_lengths(groups: Sequence[TrainingGroup]) -> list[int]:
    """Tokens of each right completion, without those that the swarm put there."""
    return [
        sum(own)
        for group in groups
        for own, score in zip(group.own, group.scores, strict=True)
        if score.accuracy >= CORRECT
    ]
