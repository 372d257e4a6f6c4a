"""How foreign completions are weighed by the probabilities under which they were drawn.

A completion drawn by another policy (a peer's, or this node's own of some steps ago) stands for the node's policy only
together with the importance ratio: the probability of its tokens now, by that under which they were drawn. The ratio
multiplies the gradient and nothing else: what the loss computes of values stays, so TRL's own ratio is 1 and its clip
idle. `training.peer_loss`:

* `token-ratio`: of each token by itself, cut at `training.peer_ratio_max` (truncated importance sampling; CISPO, arXiv
  2506.13585, has the same gradient, and so has TRL's correction of vLLM's samples, mode `token_truncate`);
* `sequence-ratio`: of a completion the geometric mean over its tokens (GSPO, arXiv 2507.18071), cut alike;
* `distill`: no ratio; the log-probability under which a token was drawn is its target: its gradient is multiplied with
  how far it lies below, in nats, at most `GAP_MAX`. That of half the squared distance, and none where it is reached.

A token whose ratio nobody knows counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import torch

LOGPROB_KEY = "swarm_logprobs"  # column of the rows: of foreign completions, the log-probabilities of the tokens
GAP_MAX = 2.0  # nats; further away is as far
ROUNDING = 1e-3  # of a ratio, from log-probabilities in two bytes and in short numbers
Weighing = Literal["token-ratio", "sequence-ratio", "distill"]


class RatioSums(msgspec.Struct):
    """Importance ratios of foreign completions, before they are cut, added up over tokens."""

    tokens: int = 0
    ratios: float = 0.0
    squares: float = 0.0
    cut: int = 0  # tokens whose ratio was above the bound by more than what rounding on the wire explains

    def add(self, other: RatioSums) -> None:
        """Count those of another pass or rank, too."""
        self.tokens += other.tokens
        self.ratios += other.ratios
        self.squares += other.squares
        self.cut += other.cut

    @property
    def mean(self) -> float:
        """1 where the tokens were drawn by a policy like the one that trains on them; 1 of none, too."""
        return self.ratios / self.tokens if self.tokens else 1.0

    @property
    def effective_share(self) -> float:
        """Kish's effective sample size by the number of tokens: 1 where all ratios are alike, near 0 where few of the
        tokens carry all weight."""
        return self.ratios**2 / (self.tokens * self.squares) if self.squares else 1.0


def mark_logprobs(batch: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Put into a batch of TRL's the log-probabilities under which foreign tokens were drawn, (batch, tokens), NaN where
    they are not known, from the rows that it was made of."""
    drawn = torch.full(batch["completion_ids"].shape, torch.nan, device=batch["advantages"].device)
    for place, row in enumerate(rows):
        known = torch.tensor(row.get(LOGPROB_KEY) or [], device=drawn.device)[: drawn.size(1)]
        drawn[place, : len(known)] = known
    batch[LOGPROB_KEY] = drawn


def find_known(batch: dict[str, Any]) -> torch.Tensor:
    """Of which completions of a batch the log-probabilities are known, bool (batch,)."""
    known: torch.Tensor = ~batch[LOGPROB_KEY][:, 0].isnan()
    return known


def find_tokens(batch: dict[str, Any]) -> torch.Tensor:
    """The models' own tokens whose log-probabilities are known, bool (batch, tokens)."""
    written = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()
    tokens: torch.Tensor = written & ~batch[LOGPROB_KEY].isnan()
    return tokens


def measure_ratios(now: torch.Tensor, drawn: torch.Tensor, tokens: torch.Tensor, weighing: Weighing) -> torch.Tensor:
    """Importance ratios (batch, tokens), not cut; 1 outside of `tokens`.

    Args:
        now: log-probabilities under the policy as it is, (batch, tokens).
        drawn: those under which the tokens were drawn; NaN where not known.
        tokens: which to look at, bool (batch, tokens).
    """
    difference = torch.where(tokens, now.detach().float() - drawn, 0.0)
    if weighing == "sequence-ratio":
        mean = difference.sum(1, keepdim=True) / tokens.sum(1, keepdim=True).clamp(min=1)
        difference = torch.where(tokens, mean, 0.0)
    return difference.exp()


def measure_gaps(now: torch.Tensor, drawn: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """How far log-probabilities lie below those that they are to reach, (batch, tokens), in nats from 0 to `GAP_MAX`;
    1 outside of `tokens`."""
    return torch.where(tokens, (drawn - now.detach().float()).clamp(0, GAP_MAX), 1.0)


def scale_gradient(values: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """The values as they are, their gradient multiplied."""
    still = values.detach()
    return still + factors.to(values.dtype) * (values - still)


def weigh_tokens(
    now: torch.Tensor, batch: dict[str, Any], weighing: Weighing, ratio_max: float
) -> tuple[torch.Tensor, RatioSums]:
    """The log-probabilities with their gradient as `weighing` has it, and the ratios.

    Args:
        now: of the completions of a pass under the policy as it is, (rows, tokens).
        batch: of the pass, with the marks of `mark_logprobs`.
    """
    tokens = find_tokens(batch)
    level: Weighing = "sequence-ratio" if weighing == "sequence-ratio" else "token-ratio"
    ratios = measure_ratios(now, batch[LOGPROB_KEY], tokens, level)
    factors = measure_gaps(now, batch[LOGPROB_KEY], tokens) if weighing == "distill" else ratios.clamp(max=ratio_max)
    told = ratios[tokens].double()
    cut = int((told > ratio_max * (1 + ROUNDING)).sum()) if weighing != "distill" else 0
    sums = RatioSums(len(told), float(told.sum()), float(told.square().sum()), cut)
    return scale_gradient(now, torch.where(tokens, factors, 1.0)), sums
