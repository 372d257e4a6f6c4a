"""Why a stage had nothing to learn from: groups whose completions all got the same reward, and the cause.

GRPO learns from differences within a group. A stage in which at least `FLAT_SHARE` of the own groups are flat teaches
the model next to nothing, whatever its reward, and the next one probably no more. The cause is the one that most
completions in flat groups share.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from swarmd.core.values import FlatCause, FlatStage
from swarmd.swarms.plan import CORRECT, Score
from swarmd.swarms.text import CLOSING
from swarmd.training.groups import FLAT_RANGE, TrainingGroup
from swarmd.training.masking import make_printable

FLAT_SHARE = 0.9  # share of a stage's own groups from which on it had nothing to learn from


class ZeroVarianceStats:
    """Counts the own groups of a stage, and the causes of flat ones by completion. `stop_ids`: tokens that end a
    completion; one without such a token at its end was cut off."""

    def __init__(self, stop_ids: Collection[int]) -> None:
        self._stop_ids = stop_ids
        self._groups = 0
        self._flat = 0
        self._causes: Counter[FlatCause] = Counter()
        self._examples: dict[FlatCause, str] = {}  # the first completion of each cause
        self._rewards: set[float] = set()  # distinct rewards of flat groups, two at most
        self._unexplained: Counter[FlatCause] = Counter()  # right and wrong among "constant" completions

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        """Count own groups, whether they are trained on or not."""
        self._groups += len(groups)
        for group in groups:
            if group.has_zero_variance:
                self._flat += 1
                self._record_reward(group.rewards[0])
                for score, tokens, text in zip(group.scores, group.completions, group.texts, strict=True):
                    cause = find_reward_cause(score, text, was_cut=tokens[-1] not in self._stop_ids)
                    self._causes[cause] += 1
                    self._examples.setdefault(cause, text)
                    if cause == "constant":
                        self._unexplained["right" if score.accuracy >= CORRECT else "wrong"] += 1

    def merge(self, other: "ZeroVarianceStats") -> None:
        """Add another rank's counts."""
        self._groups += other._groups
        self._flat += other._flat
        self._causes.update(other._causes)
        self._unexplained.update(other._unexplained)
        self._examples = other._examples | self._examples
        for reward in other._rewards:
            self._record_reward(reward)

    def _record_reward(self, reward: float) -> None:
        if len(self._rewards) < 2 and all(abs(reward - known) > FLAT_RANGE for known in self._rewards):
            self._rewards.add(reward)

    def summarize(self) -> FlatStage | None:
        """The cause if the stage had nothing to learn from; else None."""
        if not self._flat or self._flat < FLAT_SHARE * self._groups:
            return None
        causes = Counter(self._causes)
        if len(self._rewards) > 1:  # rewards differ from question to question
            del causes["constant"]
            causes += self._unexplained
        cause, alike = causes.most_common(1)[0]
        example = self._examples.get(cause) or self._examples.get("constant", "")
        return FlatStage(cause, self._groups, self._flat, causes.total(), alike, make_printable(example))


def find_reward_cause(score: Score, text: str, was_cut: bool) -> FlatCause:
    """Why a completion got its reward. A user's reward function does not say what it looks for: if it alone decides, no
    completion counts as right, and no answer as missing."""
    if score.failed:
        return "failed"
    if score.accuracy >= CORRECT and score.answered is not None:
        return "right"
    if was_cut and CLOSING not in text:
        return "cut"
    if score.answered is False:
        return "form"
    unexplained = abs(score.reward) > FLAT_RANGE and not score.format  # rewarded for neither answer nor form
    return "constant" if score.answered is None or unexplained else "wrong"
