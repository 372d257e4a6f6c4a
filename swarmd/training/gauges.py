"""Figures of the last optimiser step, read off transformers' trainer without switching its logging on.

Written against transformers 5.23 and TRL 1.16: `_get_grad_norm`, `_tr_loss` and `_metrics` are private there; what a
version does not have is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.tensor import DTensor

TOLD = {"kl": "kl", "entropy": "entropy", "clip_ratio/region_mean": "clipped_share"}  # TRL's names and ours


class Gauges:
    """A mixin in front of `GRPOTrainer`."""

    args: Any
    state: Any
    optimizer: Any
    _metrics: Any
    _gradient_norm = math.nan
    passes = 1  # of the last step
    _loss_before = 0.0  # sum of the losses up to the step before

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        norm = super()._get_grad_norm(*args, **kwargs)  # type: ignore[misc]
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self._gradient_norm = math.nan if norm is None else float(norm)
        return norm

    @property
    def trl_metrics(self) -> Mapping[str, Sequence[float]]:
        """What TRL measured in this stage so far, by its own names."""
        return self._metrics["train"]  # type: ignore[no-any-return]

    def read_gauges(self) -> dict[str, float]:
        """To be called once after every step, before the next one begins."""
        sum_ = float(getattr(self, "_tr_loss", math.nan))
        before = 0.0 if self.state.global_step <= 1 else self._loss_before
        self._loss_before = sum_
        figures = {
            "loss": sum_ - before,
            "gradient_norm": self._gradient_norm,
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            **read_metrics(self.trl_metrics, self.passes * self.args.gradient_accumulation_steps),
        }
        return {name: value for name, value in figures.items() if not math.isnan(value) or name == "loss"}


def read_metrics(
    metrics: Mapping[str, Sequence[float]], parts: int, names: Mapping[str, str] = TOLD
) -> dict[str, float]:
    """Means over the parts of the last step, of what TRL measured; `names` has TRL's and those that are told."""
    found = {ours: metrics[theirs][-parts:] for theirs, ours in names.items() if metrics.get(theirs)}
    return {name: sum(values) / len(values) for name, values in found.items()}
