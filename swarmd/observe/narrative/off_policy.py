"""How far peers' text was from the policy that trained on it, in words. Pure."""

from __future__ import annotations

from swarmd.core.values import OffPolicy


def off_policy_words(told: OffPolicy) -> str:
    """Of a stage: how old foreign completions were, what their importance ratios say, and what was answered twice."""
    said = [f"{told.completions} foreign completions, {told.rounds_mean:.1f} rounds old, {told.rounds_most} at most"]
    if told.known:
        said.append(
            f"{told.known} with log-probabilities: mean ratio {told.ratio:.2f}, {told.effective:.0%} of their tokens "
            f"effective, {told.cut:.0%} above the bound"
        )
    if told.asked:
        said.append(f"of {told.asked} questions of peers {told.failed} were right there and always wrong here")
    return "; ".join(said)
