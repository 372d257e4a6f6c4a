"""What counts of the completions in a batch: nothing of flat groups, and not all of foreign ones.

TRL takes a group's mean from its rewards in float32. Of equal rewards that are no sum of a few powers of two, such as
1.2 eight times, the mean is off by a bit, and divided by almost nothing it comes to advantages up to 2e-3, which Adam
makes whole steps of. They are put to exactly 0 here.

Foreign are completions that this node did not draw just now: peers' groups, and its own earlier ones. There is one
optimiser step on each batch, so the probability ratio is 1 and its clip never protects: a negative advantage pushes the
policy away from text that it would never have written, with nothing to gain and other skills to lose. Therefore
`training.peer_loss`:

* `as-is`: foreign completions count like the node's own;
* `positive`: their negative advantages count as 0, which makes of a group the right answers and nothing else;
* `gate`: a negative one counts at those tokens that the policy itself gives a probability above `training.peer_gate`;
* `token-ratio`, `sequence-ratio`: both count, each multiplied with its importance ratio
  (`swarmd.training.batches.ratios`), which is next to nothing for text that the policy would not write;
* `success-gated`: as `positive`, and only of those questions that this node answered itself, and always wrong;
* `distill`: of the same questions, right completions count, up to the probability that their writer gave them.

Where the log-probabilities of a completion are not known, the last four have its negative advantages count as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from swarmd.config import PeerLoss, TrainingConfig
from swarmd.training.batches.groups import FLAT_RANGE
from swarmd.training.batches.ratios import Weighing, find_known

FOREIGN_KEY = "swarm_foreign"  # column of the rows: whether the completion is foreign
WEIGHINGS: dict[PeerLoss, Weighing] = {
    "token-ratio": "token-ratio",
    "sequence-ratio": "sequence-ratio",
    "distill": "distill",
}
SUCCESS_GATED: tuple[PeerLoss, ...] = ("success-gated", "distill")  # peers' groups only where this node failed
Measure = Callable[[dict[str, Any], torch.Tensor], torch.Tensor]


def needs_logprobs(training: TrainingConfig) -> bool:
    """Whether log-probabilities are kept of what is drawn, and read of what peers wrote."""
    return training.share_logprobs or training.peer_loss in WEIGHINGS


def tells_off_policy(training: TrainingConfig) -> bool:
    """Whether a stage tells how far peers' completions were from its policy."""
    return training.peer_loss in WEIGHINGS or training.peer_loss in SUCCESS_GATED


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


def weigh_foreign(batch: dict[str, Any], loss: PeerLoss, gate: float, measure: Measure) -> dict[str, Any]:
    """The batch with the advantages of foreign completions as `loss` has them, and without the marks.

    Args:
        measure: log-probabilities (rows, tokens) of completions in the batch under the policy as it is now.
    """
    weighed = {key: value for key, value in batch.items() if key != FOREIGN_KEY}
    advantages, foreign = batch["advantages"], batch[FOREIGN_KEY]
    if loss in ("positive", "success-gated"):
        weighed["advantages"] = keep_positive(advantages, foreign)
    elif loss == "gate":
        rows = torch.nonzero(foreign & (advantages < 0)).flatten()
        if len(rows):
            weighed["advantages"] = gate_negative(advantages, rows, measure(batch, rows), gate)
    elif loss in WEIGHINGS:
        known = foreign & find_known(batch)
        kept = keep_positive(advantages, foreign & ~known)
        target = (advantages > 0).to(advantages.dtype)  # how much it counts is for the distance to the target to say
        weighed["advantages"] = torch.where(known, target, kept) if loss == "distill" else kept
    return weighed


def keep_positive(advantages: torch.Tensor, foreign: torch.Tensor) -> torch.Tensor:
    """Advantages (batch,) with 0 in place of the foreign negative ones."""
    return torch.where(foreign, advantages.clamp(min=0), advantages)


def gate_negative(
    advantages: torch.Tensor, rows: torch.Tensor, log_probabilities: torch.Tensor, gate: float
) -> torch.Tensor:
    """Advantages of each token (batch, tokens): those of `rows` only where the policy's probability is above `gate`.

    Args:
        advantages: (batch,).
        rows: places of foreign completions with a negative advantage, (rows,).
        log_probabilities: of their tokens, (rows, tokens).
        gate: in [0, 1].
    """
    spread = advantages[:, None].repeat(1, log_probabilities.size(1))
    spread[rows] *= (log_probabilities.exp() > gate).to(spread.dtype)
    return spread
