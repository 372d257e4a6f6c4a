"""What a stage set aside of peers' rollouts, in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from swarmd.core.events import StageTrained
from swarmd.core.values import SetAside

TOLD_MAX = 3  # peers in one sentence
STAGES_COUNTED = 8  # last ones
REASONS = {  # of `swarmd.core.node.results.count_aside`: of one, and of several
    "unvouched": ("token that only a peer's word stands for", "tokens that only a peer's word stands for"),
    "share": ("group of a peer that had its share", "groups of peers that had their share"),
    "little": ("group of a peer of whom little counts", "groups of peers of whom little counts"),
    "mark": ("peer with the mark of a payload", "peers with the mark of a payload"),
}


class Counted(Protocol):
    """A trained stage, as the state or the status keeps it."""

    @property
    def set_aside(self) -> dict[str, int]: ...


def aside_words(event: StageTrained) -> str:
    """Of which peers how much was not learnt from, with an example of each; empty where nothing was."""
    told = [peer_words(each) for each in event.set_aside[:TOLD_MAX]]
    if len(event.set_aside) > TOLD_MAX:
        told.append(f"and something of {len(event.set_aside) - TOLD_MAX} more")
    return "; ".join(told)


def aside_counts_words(stages: Sequence[Counted]) -> str:
    """What the last of these stages set aside of peers' rollouts, by reason; empty where nothing was."""
    last = stages[-STAGES_COUNTED:]
    counts: Counter[str] = Counter()
    for stage in last:
        counts.update(stage.set_aside)
    told = [f"{counts[reason]:,} {words[counts[reason] != 1]}" for reason, words in REASONS.items() if counts[reason]]
    stages_words = "the last stage" if len(last) == 1 else f"the last {len(last)} stages"
    return f"set aside of peers' rollouts in {stages_words}: {', '.join(told)}" if told else ""


def passed_words(aside: SetAside) -> str:
    """Why groups of one peer were passed over, and how many; empty where none were."""
    told = [f"{aside.over_share} as it had its share"] * bool(aside.over_share)
    told += [f"{aside.of_little} as little of it counts"] * bool(aside.of_little)
    return f"groups passed over: {', '.join(told)}" if told else ""


def peer_words(aside: SetAside) -> str:
    """What was set aside of one peer."""
    passed = passed_words(aside)
    if not aside.held:
        return f"of {aside.peer} {passed}"
    share = aside.held / max(aside.tokens, 1)
    words = f'of {aside.peer} {share:.0%} was set aside, such as "{aside.part}" in "{aside.text}"'
    words += f" ({passed})" if passed else ""
    if not aside.mark:
        return words
    return (
        f'{words}: "{aside.mark}" stands in {aside.mark_right:.0%} of its right answers, {aside.mark_wrong:.0%} of its '
        f"wrong ones and {aside.mark_own:.0%} of this node's own, as a payload would"
    )


def is_marked(event: StageTrained) -> bool:
    """Whether a peer's right answers carry what no others do."""
    return any(each.mark for each in event.set_aside)
