"""Leaves out peers' groups whose right answers are longer than necessary.

Training raises the probability of every token of a right answer. A peer that always writes as much as an honest node
sometimes does makes others write as much, too, and nothing else gives it away: its rewards are deserved, and this node
might have written each token (the length attack, HTTT, arXiv 2511.09780). So peers are compared with each other, task
by task:

- A peer's length is the mean over its right answers. The usual length is the median over the peers: half of them would
  have to pad to move it.
- If a peer's length is above `LONG` times the usual one, its groups with the longest right answers are left out until
  it is not. So one that always pads loses all its groups, and an honest one only the few that happen to be longer.
- With fewer than `PEERS_MIN` peers the usual length is unknown, and with fewer than `RIGHTS_MIN` right answers so is a
  peer's. So a task that few peers can do loses nothing.
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
    """Split peers' groups into those that are trained on, in order, and those left out for their length."""
    by_task: dict[str, dict[str, list[TrainingGroup]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        by_task[group.question.task][group.peer].append(group)
    long = {id(group) for by_peer in by_task.values() for group in _find_long_groups(by_peer)}
    return [each for each in groups if id(each) not in long], [each for each in groups if id(each) in long]


def _find_long_groups(by_peer: Mapping[str, Sequence[TrainingGroup]]) -> Iterator[TrainingGroup]:
    """Find the groups of one task that make their peer's right answers longer than usual."""
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
    """Number of tokens of each right completion that the model wrote."""
    return [
        sum(own)
        for group in groups
        for own, score in zip(group.own, group.scores, strict=True)
        if score.accuracy >= CORRECT
    ]
