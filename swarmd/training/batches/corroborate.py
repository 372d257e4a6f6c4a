"""Which tokens of peers' completions count: those that this node can vouch for by itself.

A reward says of a whole completion that its answer is right, and raises every token of it. So a peer who puts a payload
into its right answers, and none into its wrong ones, has the payload raised with full reward, and nothing about it can
be refused (HTTT, arXiv 2511.09780). What other peers wrote proves nothing either, for identities cost nothing. Two
things do:

* the truth, which every node makes by itself: where the plan says that a text stands there because the question leaves
  nothing else to write (`Plan.true_spans`), it is the same whoever wrote it;
* this node's own policy: a token that it would write there anyway is none that it has to be taught.

Everything else is doubtful: it stays in the batch as context, and no gradient comes of it. The policy vouches for a
token to which it gives a probability of `training.peer_floor` times exp(-entropy) or more: where it is sure of another
token hardly any other counts, where ten are alike to it all ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from swarmd.training.models.model import Policy

DOUBT_KEY = "swarm_doubt"  # column of the rows: which tokens of a peer's completion no truth vouches for
PEER_KEY = "swarm_peer"  # column of the rows: the number of the peer who wrote the completion; 0: this node
FLOOR_MIN = 1e-30


def vouch(policy: Policy, text: str, tokens: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each token of a completion whether it stands in a span of true text (1) or not (0).

    A span counts only where whole tokens spell exactly its text: one that reaches over its edge would bring along what
    stands beside it. The end token counts where a span ends the text.

    Args:
        text: of the completion.
        tokens: of the completion, with the end token where it has one.
        spans: in characters of the text.
    """
    sure = [0] * len(tokens)
    offsets = measure_offsets(policy, text, tokens) if spans else []
    for begin, end in spans:
        inside = [place for place, (start, stop) in enumerate(offsets) if begin <= start < stop <= end]
        if not inside or policy.decode_completion(tokens[inside[0] : inside[-1] + 1]) != text[begin:end]:
            continue
        sure[inside[0] : inside[-1] + 1] = [1] * (inside[-1] + 1 - inside[0])
        if end == len(text) and inside[-1] + 2 == len(tokens) and tokens[-1] in policy.stop_ids:
            sure[-1] = 1
    return sure


def measure_offsets(policy: Policy, text: str, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Where each token stands in the text, in characters; none where the tokenizer cannot say, or says others."""
    if not policy.tokenizer.is_fast:
        return []
    encoded = policy.tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
    )
    count = min(len(encoded["input_ids"]), len(tokens))
    if list(encoded["input_ids"][:count]) != list(tokens[:count]):
        return []
    return [(int(start), int(stop)) for start, stop in encoded["offset_mapping"][:count]]


class HeldBack(msgspec.Struct, frozen=True):
    """Of one peer's completions in one pass that would have raised something."""

    peer: int  # its number
    tokens: int
    held: int  # of these, held back
    example: tuple[list[int], list[int]]  # a completion of which something was, and what
    behind: int = 0  # tokens held back, and those that stand behind one in their completion


def mark_doubtful(batch: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Put into a batch of TRL's which tokens nothing but a peer's word stands for, bool (batch, tokens), and the peers'
    numbers (batch,), from the rows that it was made of."""
    doubtful = torch.zeros_like(batch["completion_ids"], dtype=torch.bool)
    for place, row in enumerate(rows):
        doubts = torch.tensor(row.get(DOUBT_KEY) or [], dtype=torch.bool)
        doubtful[place, : len(doubts)] = doubts.to(doubtful.device)
    batch[DOUBT_KEY] = doubtful
    batch[PEER_KEY] = torch.tensor([int(row.get(PEER_KEY, 0)) for row in rows], device=doubtful.device)


def find_raised(batch: dict[str, Any]) -> torch.Tensor:
    """Which tokens of peers' completions the advantages would raise, bool (rows, tokens)."""
    raised = (batch["advantages"] > 0)[:, None]
    written = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()
    found: torch.Tensor = written & raised & (batch[PEER_KEY] > 0)[:, None]
    return found


def count_held(batch: dict[str, Any], held: torch.Tensor) -> list[HeldBack]:
    """What was held back in one pass, by peer.

    Args:
        batch: of the pass.
        held: which tokens, bool (rows, tokens).
    """
    counted = find_raised(batch)
    lost = held & counted
    behind = (lost.cumsum(1) > 0) & counted
    by_row = torch.stack([batch[PEER_KEY], counted.sum(1), lost.sum(1), behind.sum(1)], 1).tolist()  # one wait a pass
    found = []
    for peer in sorted({row[0] for row in by_row if row[1]}):
        rows = [(place, row) for place, row in enumerate(by_row) if row[0] == peer]
        place = max(rows, key=lambda row: row[1][2])[0]
        length = int(batch["completion_mask"][place].sum())
        example = batch["completion_ids"][place, :length].tolist(), held[place, :length].int().tolist()
        tokens, lost_tokens, behind_tokens = (sum(row[column] for _, row in rows) for column in (1, 2, 3))
        found.append(HeldBack(peer, tokens, lost_tokens, example, behind_tokens))
    return found


def hold_back(
    log_probabilities: torch.Tensor, entropies: torch.Tensor, doubtful: torch.Tensor, floor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probabilities (rows, tokens) without gradient where tokens do not count, and which those are.

    Args:
        entropies: of the policy at each token, in nats.
        doubtful: which tokens to raise no truth vouches for, bool (rows, tokens).
        floor: the policy vouches for a token whose probability is at least this times exp(-entropy).
    """
    held = doubtful & (log_probabilities.detach() + entropies.detach() < math.log(max(floor, FLOOR_MIN)))
    return torch.where(held, log_probabilities.detach(), log_probabilities), held
