"""What a stage's groups were worth, added up for each step and for the whole stage: figures for people to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import psutil
import torch

from swarmd.core.events import StageTrained
from swarmd.training.batches.groups import TrainingGroup

PARTS_MAX = 32  # named parts of a reward that are told


class StageSums:
    """Over some of this node's own groups, and how many of others came beside them."""

    def __init__(self) -> None:
        self.groups = 0
        self.flat = 0
        self.others = 0  # peers' and earlier groups in the batches
        self._completions = 0
        self._tokens = 0
        self._worth: Counter[str] = Counter()

    def add(self, groups: Iterable[TrainingGroup]) -> None:
        for group in groups:
            self.groups += 1
            self.flat += group.is_flat
            self._completions += len(group.scores)
            self._tokens += sum(len(tokens) for tokens in group.completions)
            for score in group.scores:
                self._add_worth("reward", score.reward)
                self._add_worth("accuracy", score.accuracy)
                self._add_worth("format", score.format)
                for part, value in score.parts.items():
                    self._add_worth(f"reward_{part}", value)

    def join(self, other: StageSums) -> None:
        """Count what another rank has drawn, too."""
        self.groups += other.groups
        self.flat += other.flat
        self.others += other.others
        self._completions += other._completions
        self._tokens += other._tokens
        for name, value in other._worth.items():
            self._add_worth(name, value)

    def _add_worth(self, name: str, value: float) -> None:
        if name in self._worth or len(self._worth) < PARTS_MAX:
            self._worth[name] += value  # type: ignore[assignment]  # a Counter takes any number

    def read(self) -> dict[str, float]:
        """Means by name, over completions; counts of groups as they are."""
        count = max(self._completions, 1)
        means = {name: value / count for name, value in self._worth.items()}
        return {
            **means,
            "completion_tokens": self._tokens / count,
            "own_groups": float(self.groups),
            "other_groups": float(self.others),
            "flat_share": self.flat / max(self.groups, 1),
        }


class StageMetrics:
    """The sums of the step in the making and of the whole stage."""

    def __init__(self) -> None:
        self.step = StageSums()
        self.stage = StageSums()

    def begin_step(self) -> None:
        self.step = StageSums()

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        """Count own groups, those too that are not trained on."""
        self.step.add(groups)
        self.stage.add(groups)

    def add_others(self, count: int) -> None:
        self.step.others += count
        self.stage.others += count


def name_stage(event: StageTrained, stage: StageSums) -> dict[str, float]:
    """Figures of a finished stage, by the names that trackers get."""
    figures = stage.read()
    figures |= {
        "round": float(event.round),
        "stage": float(event.stage),
        "seconds": event.seconds,
        "tokens": float(event.tokens),
        "tokens_per_s": event.tokens / max(event.seconds, 1e-6),
        "peer_groups": float(event.peer_groups),
        "refused_groups": float(sum(count for _, count in event.rejected)),
        **measure_memory(),
    }
    for name in ("held_out", "held_out_before"):
        value = getattr(event, name)
        if value is not None:
            figures[name] = value
    return {f"stage/{name}": value for name, value in figures.items()}


def measure_memory() -> dict[str, float]:
    """This process's resident memory and the most that tensors took on the accelerator, in GiB."""
    figures = {"memory_gib": psutil.Process().memory_info().rss / 2**30}
    if torch.cuda.is_available():
        figures["vram_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return figures
