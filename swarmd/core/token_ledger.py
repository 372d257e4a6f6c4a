"""The token ledger: the fate of each token that this node's model drew for training. Pure.

- The trainer counts every token as it is drawn, in a file that outlives it (`swarmd.training.token_counter`), and
  reports the count with each stage and each start. Tokens drawn between two counts that belong to no trained stage are
  *cancelled*: the stage was given up, or failed, or its trainer was killed. If a stage is answered from its checkpoint,
  its tokens that were counted as cancelled before are taken back.
- A trained stage's tokens are reported by class (`StageTokens`), counted where batches are made and not where tokens
  are drawn. So `difference` is 0 only if both counts agree.
- Trained tokens become *stale* if the trainer dies before their checkpoint is on disk: the weights that learned from
  them are lost.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from swarmd.bounds import clamp_integer
from swarmd.core.values import PeerTokens, StageTokens, TokenLedger

TEACHERS_KEPT = 64  # peers, those with most tokens; other peers' tokens are summed under an empty name

Place = tuple[int, int]  # (round, stage)


def count_stage(ledger: TokenLedger, place: Place, tokens: StageTokens) -> TokenLedger:
    """Return the ledger after a stage was trained."""
    drawn = max(0, tokens.drawn - ledger.drawn)
    return replace(
        ledger,
        drawn=max(ledger.drawn, tokens.drawn),
        generated=clamp_integer(ledger.generated + drawn),
        trained=clamp_integer(ledger.trained + tokens.trained),
        flat=clamp_integer(ledger.flat + tokens.flat),
        set_aside=clamp_integer(ledger.set_aside + tokens.set_aside),
        shared=clamp_integer(ledger.shared + tokens.shared),
        cancelled=clamp_integer(ledger.cancelled + drawn - tokens.generated + tokens.cancelled),
        unsaved=tokens.trained,
        unsaved_at=place,
        teachers=add_teachers(ledger.teachers, tokens.teachers),
    )


def count_given_up(ledger: TokenLedger, drawn: int) -> TokenLedger:
    """Return the ledger after the trainer has reported its count without a stage."""
    more = drawn - ledger.drawn
    if more <= 0:
        return ledger
    generated, cancelled = clamp_integer(ledger.generated + more), clamp_integer(ledger.cancelled + more)
    return replace(ledger, drawn=drawn, generated=generated, cancelled=cancelled)


def count_start(ledger: TokenLedger, drawn: int, restored: Place | None) -> TokenLedger:
    """Return the ledger after a trainer has started, from the checkpoint of stage `restored`.

    A lower count than before comes from another file, for instance after a restore: the ledger continues from it.
    """
    ledger = count_given_up(ledger, drawn)
    if drawn < ledger.drawn:
        ledger = replace(ledger, drawn=drawn)
    if ledger.unsaved and (restored is None or restored < ledger.unsaved_at):
        trained, stale = clamp_integer(ledger.trained - ledger.unsaved), clamp_integer(ledger.stale + ledger.unsaved)
        ledger = replace(ledger, trained=trained, stale=stale)
    return replace(ledger, unsaved=0) if ledger.unsaved else ledger


def count_checkpoint(ledger: TokenLedger, place: Place) -> TokenLedger:
    """Return the ledger after a stage's checkpoint was written."""
    return replace(ledger, unsaved=0) if place == ledger.unsaved_at and ledger.unsaved else ledger


def difference(ledger: TokenLedger) -> int:
    """Return the generated tokens minus those of all classes: not 0 if tokens are lost or counted twice."""
    classes = (ledger.trained, ledger.flat, ledger.stale, ledger.cancelled, ledger.set_aside, ledger.shared)
    return ledger.generated - sum(classes)


def add_teachers(known: tuple[PeerTokens, ...], more: tuple[PeerTokens, ...]) -> tuple[PeerTokens, ...]:
    """Return the sums of peers' tokens, those with most first; all others are summed at the end under an empty name."""
    if not more:
        return known
    sums: Counter[str] = Counter()
    for each in (*known, *more):
        sums[each.peer] += each.tokens
    others = sums.pop("", 0)
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    others += sum(tokens for _, tokens in ranked[TEACHERS_KEPT:])
    kept = [PeerTokens(peer, clamp_integer(tokens)) for peer, tokens in ranked[:TEACHERS_KEPT]]
    return (*kept, PeerTokens("", clamp_integer(others))) if others else tuple(kept)
