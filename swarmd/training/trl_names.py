"""The figures of an optimiser step under the names by which TRL 1.16's `GRPOTrainer` logs them, for people who compare.

Trackers have them below `train/`, where transformers puts TRL's. Rewards and lengths are of this node's own
completions; what TRL computes with the loss is over the whole batch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

from swarmd.training.gauges import read_metrics
from swarmd.training.groups import TrainingGroup

PREFIX = "train/"
FUNCTIONS_MAX = 32  # rewards told by name
OF_LOSS = (
    "kl",
    "entropy",
    "clip_ratio/low_mean",
    "clip_ratio/low_min",
    "clip_ratio/high_mean",
    "clip_ratio/high_max",
    "clip_ratio/region_mean",
)
OF_TRAINER = {"loss": "loss", "grad_norm": "gradient_norm", "learning_rate": "learning_rate"}  # transformers' and ours


def read_as_trl(
    groups: Iterable[TrainingGroup],
    stop_ids: Collection[int],
    gauges: Mapping[str, float],
    metrics: Mapping[str, Sequence[float]],
    parts: int,
) -> dict[str, float]:
    """What TRL would have logged of a step, by tracker's name.

    Args:
        groups: this node's own of the step.
        stop_ids: token ids that end a completion.
        gauges: as `Gauges.read_gauges` gives them.
        metrics: TRL's own of the trainer, by name.
        parts: gradient accumulation steps in the step.
    """
    own = list(groups)
    figures = {**_rewards(own), **_lengths(own, stop_ids)} if own else {}
    figures |= {theirs: gauges[ours] for theirs, ours in OF_TRAINER.items() if ours in gauges}
    figures |= read_metrics(metrics, parts, {name: name for name in OF_LOSS})
    return {f"{PREFIX}{name}": value for name, value in figures.items() if math.isfinite(value)}


def _rewards(groups: Sequence[TrainingGroup]) -> dict[str, float]:
    by_name: dict[str, list[float]] = {}
    for score in (score for group in groups for score in group.scores):
        for name, value in (score.values or score.parts).items():
            if name in by_name or len(by_name) < FUNCTIONS_MAX:
                by_name.setdefault(name, []).append(value)
    figures: dict[str, float] = {}
    for name, values in by_name.items():
        figures |= {f"rewards/{name}/mean": statistics.fmean(values), f"rewards/{name}/std": _spread(values)}
    rewards = [reward for group in groups for reward in group.rewards]
    flat = sum(group.is_flat for group in groups) / len(groups)
    return figures | {
        "reward": statistics.fmean(rewards),
        "reward_std": _spread(rewards),
        "frac_reward_zero_std": flat,
    }


def _lengths(groups: Sequence[TrainingGroup], stop_ids: Collection[int]) -> dict[str, float]:
    completions = [tokens for group in groups for tokens in group.completions]
    ended = [len(tokens) for tokens in completions if tokens and tokens[-1] in stop_ids] or [0]
    cut = sum(not tokens or tokens[-1] not in stop_ids for tokens in completions)
    figures = {"completions/clipped_ratio": cut / len(completions)}
    for name, lengths in (("", [len(tokens) for tokens in completions]), ("terminated_", ended)):
        figures |= {
            f"completions/mean_{name}length": statistics.fmean(lengths),
            f"completions/min_{name}length": float(min(lengths)),
            f"completions/max_{name}length": float(max(lengths)),
        }
    return figures


def _spread(values: Sequence[float]) -> float:
    """Standard deviation with Bessel's correction; of one value, as TRL has it, none."""
    return statistics.stdev(values) if len(values) > 1 else math.nan
