"""What became of the tokens that a node's model drew, and from whose tokens it learnt, in numbers and words. Pure."""

import msgspec

from swarmd.core.state import State
from swarmd.core.token_ledger import difference
from swarmd.core.values import PeerTokens, StageTokens
from swarmd.observe.words import count_noun

CLASSES: dict[str, str] = {  # each class, in words
    "trained": "trained on",
    "without_variance": "without variance (all answers paid alike)",
    "shared_only": "only shared with peers (the batch was full)",
    "set_aside": "set aside (the batch was full)",
    "cancelled": "cancelled with their stage",
    "stale": "stale (a crash took the weights they had taught)",
}


class TokensStatus(msgspec.Struct, frozen=True):
    """The token ledger of a node; `swarmd.core.values.TokenLedger` says what each class is."""

    generated: int
    trained: int
    without_variance: int
    stale: int
    cancelled: int
    set_aside: int
    shared_only: int
    difference: int  # generated less all classes: other than 0 only if the counting is wrong
    taught_by: tuple[PeerTokens, ...]  # peers whose tokens were trained on, most first
    words: str


def tokens_status(state: State) -> TokensStatus | None:
    """The token ledger; None before anything was drawn."""
    ledger = state.tokens
    if not ledger.generated:
        return None
    counts = {
        "trained": ledger.trained,
        "without_variance": ledger.flat,
        "stale": ledger.stale,
        "cancelled": ledger.cancelled,
        "set_aside": ledger.set_aside,
        "shared_only": ledger.shared,
    }
    left, taught_by = difference(ledger), ledger.teachers
    words = describe_tokens(ledger.generated, counts, taught_by)
    return TokensStatus(ledger.generated, **counts, difference=left, taught_by=taught_by, words=words)


def describe_stage_tokens(tokens: StageTokens) -> str:
    """What became of one stage's tokens, as a sentence without its full stop."""
    counts = {
        "trained": tokens.trained,
        "without_variance": tokens.flat,
        "stale": 0,
        "cancelled": tokens.cancelled,
        "set_aside": tokens.set_aside,
        "shared_only": tokens.shared,
    }
    words = describe_tokens(tokens.generated, counts, tokens.teachers)
    return f"{words[0].upper()}{words[1:]}"


def describe_tokens(generated: int, counts: dict[str, int], taught_by: tuple[PeerTokens, ...]) -> str:
    """The ledger as a sentence without its full stop."""
    found = [f"{counts[name]:,} {words}" for name, words in CLASSES.items() if counts[name]]
    left = generated - sum(counts.values())
    missing = [f"{left:,} not accounted for"] if left else []
    peers = sum(bool(each.peer) for each in taught_by)
    taught = sum(each.tokens for each in taught_by)
    by = f"; {taught:,} of {count_noun(peers, 'peer')} taught it, too" if taught else ""
    return f"of {generated:,} tokens that it generated: {', '.join([*found, *missing])}{by}"
