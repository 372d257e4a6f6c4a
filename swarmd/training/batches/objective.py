"""What counts of the completions in a batch: nothing of flat groups, and not all of foreign ones.

TRL takes a group's mean from its rewards in float32. Of equal rewards that are no sum of a few powers of two, such as
1.2 eight times, the mean is off by a bit, and divided by almost nothing it comes to advantages up to 2e-3, which Adam
makes whole steps of. They are put to exactly 0 here.

Foreign are completions that this node did not draw just now: peers' groups, and its own earlier ones. There is one
optimiser step on each batch, so the probability ratio is 1 and its clip never protects: a negative advantage pushes the
policy away from text that it would never have written, with nothing to gain and other skills to lose. So their negative
advantages count as 0, which makes of a group the right answers and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from swarmd.training.batches.groups import FLAT_RANGE

FOREIGN_KEY = "swarm_foreign"  # column of the rows: whether the completion is foreign


def silence_flat(advantages: torch.Tensor, rewards: Sequence[float], group: int) -> torch.Tensor:
    """Advantages (batch,) with exactly 0 for the completions of flat groups.

    Args:
        rewards: of the completions, group by group.
        group: completions in a group.
    """
    given = torch.tensor(rewards, dtype=torch.float64).view(-1, group)
    flat = given.amax(1) - given.amin(1) <= FLAT_RANGE
    return advantages.masked_fill(flat.repeat_interleave(group).to(advantages.device), 0.0)


def mark_foreign(batch: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Put into a batch of TRL's which completions are foreign, bool (batch,), from the rows that it was made of."""
    marks = [bool(row.get(FOREIGN_KEY, False)) for row in rows]
    batch[FOREIGN_KEY] = torch.tensor(marks, device=batch["advantages"].device)


def keep_positive(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with 0 in place of the negative advantages of foreign completions, and without the marks."""
    kept = {key: value for key, value in batch.items() if key != FOREIGN_KEY}
    advantages: torch.Tensor = batch["advantages"]
    kept["advantages"] = torch.where(batch[FOREIGN_KEY], advantages.clamp(min=0), advantages)
    return kept
