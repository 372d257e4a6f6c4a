"""Groups of peers whose right answers are longer than they need to be: they are not trained on.

Every token of a right answer is raised. A peer that always writes as much as an honest node sometimes does makes
others write as much, too, and nothing else shows it: its rewards are deserved, and this node might have written each
token (the length attack, HTTT, arXiv 2511.09780). So the peers are compared with each other, task by task:

- A peer's length is the mean of its right answers, for that is how much of them is raised. The usual one is the median
  over the peers: half of them would have to pad to move it.
- A peer above `LONG` times the usual length gives no groups of the task in this stage.
- With fewer than `PEERS_MIN` peers nobody knows what is usual, and with fewer than `RIGHTS_MIN` right answers not how
  long a peer's are. A task that few can do loses nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from swarmd.swarms.plan import CORRECT
from swarmd.training.groups import TrainingGroup

LONG = 1.15  # times the usual length
PEERS_MIN = 3
RIGHTS_MIN = 4


def split_by_length(groups: Sequence[TrainingGroup]) -> tuple[list[TrainingGroup], list[TrainingGroup]]:
    """Peers' groups that are trained on, and those of tasks in which their peer's right answers are too long."""
    lengths: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        lengths[group.question.task][group.peer] += [
            sum(own) for own, score in zip(group.own, group.scores, strict=True) if score.accuracy >= CORRECT
        ]
    long = {(task, peer) for task, by_peer in lengths.items() for peer in _find_long_peers(by_peer)}
    kept = [group for group in groups if (group.question.task, group.peer) not in long]
    return kept, [group for group in groups if (group.question.task, group.peer) in long]


def _find_long_peers(by_peer: dict[str, list[int]]) -> list[str]:
    """The peers of a task whose right answers, whose lengths are given, are longer than usual."""
    means = {peer: fmean(lengths) for peer, lengths in by_peer.items() if len(lengths) >= RIGHTS_MIN}
    if len(means) < PEERS_MIN:
        return []
    usual = median(means.values())
    return [peer for peer, length in means.items() if length > LONG * usual]
