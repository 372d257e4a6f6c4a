"""How far what others wrote is from this node's policy, counted over a stage: for people to look at."""

from __future__ import annotations

import msgspec

from swarmd.core.values import OffPolicy
from swarmd.training.batches.groups import TrainingGroup
from swarmd.training.batches.ratios import RatioSums


class OffPolicyTally(msgspec.Struct):
    """Of the foreign completions in a stage's batches; and of peers' questions that this node answered, too."""

    completions: int = 0
    known: int = 0  # of these, with log-probabilities
    rounds: int = 0  # their ages, added up
    rounds_most: int = 0
    ratios: RatioSums = msgspec.field(default_factory=RatioSums)
    asked: int = 0  # peers' questions answered here
    failed: int = 0  # of these, always wrong here and right there

    def note(self, group: TrainingGroup, age: int) -> None:
        """Count a foreign group in a batch that was drawn so many rounds ago."""
        count = len(group.completions)
        self.completions += count
        self.known += sum(bool(logprobs) for logprobs in group.logprobs)
        self.rounds += age * count
        self.rounds_most = max(self.rounds_most, age)

    def join(self, other: OffPolicyTally) -> None:
        """Count another rank's, too."""
        self.completions += other.completions
        self.known += other.known
        self.rounds += other.rounds
        self.rounds_most = max(self.rounds_most, other.rounds_most)
        self.ratios.add(other.ratios)
        self.asked += other.asked
        self.failed += other.failed

    def summarize(self) -> OffPolicy:
        """As it is told."""
        ratios = self.ratios
        return OffPolicy(
            self.completions,
            self.known,
            self.rounds / max(self.completions, 1),
            self.rounds_most,
            ratios.mean,
            ratios.effective_share,
            ratios.cut / max(ratios.tokens, 1),
            self.asked,
            self.failed,
        )
