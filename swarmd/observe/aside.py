"""What a stage set aside of peers' rollouts, in words. Pure."""

from __future__ import annotations

from swarmd.core.events import StageTrained
from swarmd.core.values import SetAside

TOLD_MAX = 3  # peers in one sentence


def aside_words(event: StageTrained) -> str:
    """Of which peers how much was not learnt from, with an example of each; empty where nothing was."""
    told = [peer_words(each) for each in event.set_aside[:TOLD_MAX]]
    if len(event.set_aside) > TOLD_MAX:
        told.append(f"and something of {len(event.set_aside) - TOLD_MAX} more")
    return "; ".join(told)


def peer_words(aside: SetAside) -> str:
    """What was set aside of one peer."""
    share = aside.held / max(aside.tokens, 1)
    words = f'of {aside.peer} {share:.0%} was set aside, such as "{aside.part}" in "{aside.text}"'
    if not aside.mark:
        return words
    return (
        f'{words}: "{aside.mark}" stands in {aside.mark_right:.0%} of its right answers, {aside.mark_wrong:.0%} of its '
        f"wrong ones and {aside.mark_own:.0%} of this node's own, as a payload would"
    )


def is_marked(event: StageTrained) -> bool:
    """Whether a peer's right answers carry what no others do."""
    return any(each.mark for each in event.set_aside)
