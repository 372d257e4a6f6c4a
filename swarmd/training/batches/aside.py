"""What a stage set aside of peers' rollouts, and the mark of a payload among it: for people, with an example.

What counts is decided token by token (`swarmd.training.batches.corroborate`). An honest peer who writes otherwise than
this node has much set aside, too. What tells it from a hostile one is a mark: a text that stands in the peer's right
answers, hardly in its wrong ones and hardly in this node's own, where no truth vouches for it.

One thing is decided by what was counted: who has no groups in the batches to come (`SetAsideTally.judge`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from swarmd.core.values import SetAside
from swarmd.training.batches.corroborate import HeldBack
from swarmd.training.batches.groups import TrainingGroup
from swarmd.training.batches.peer_schedule import Reason
from swarmd.training.cancellation import TokenDecoder

PEERS_MAX = 8  # told of a stage, those first of whom most was set aside
TEXT_CHARACTERS_MAX = 160
EXAMINED_MAX = 32  # peers whose groups are looked through for a mark, those first of whom most was set aside
GROUPS_MAX = 16  # of one peer looked at for a mark
OWN_MAX = 128  # of this node's completions that a mark is compared with
TOKENS_MAX = 256  # of one completion looked at
WORTH_MIN = 0.5  # of the usual share of a peer's tokens that are neither held back nor behind one that is
RUN_MAX = 3  # tokens in a mark
RIGHTS_MIN = 4  # right completions of a peer below which nothing is called a mark
RIGHT_SHARE = 0.5  # of the right completions that a mark stands in at least
OTHER_SHARE = 0.1  # of the wrong ones, and of this node's own, that it stands in at most

Run = tuple[int, ...]


class Counts(msgspec.Struct):
    """Of one peer's completions that would have raised something."""

    tokens: int = 0
    held: int = 0
    example: tuple[list[int], list[int]] = ([], [])  # a completion, and what of it was held back
    behind: int = 0  # held back, or behind what was in its completion
    over_share: int = 0  # groups that were passed over, as the peer had its share of the batch
    of_little: int = 0  # groups that were passed over, as little of the peer's counts

    @property
    def passed(self) -> int:
        return self.over_share + self.of_little


class Mark(msgspec.Struct, frozen=True):
    """A run of tokens, and the shares of completions that it stands in."""

    run: Run
    right: float
    wrong: float
    own: float


class SetAsideTally:
    """Kept over one stage, by the process that takes its steps."""

    def __init__(self) -> None:
        self._counts: dict[str, Counts] = {}
        self._numbers: dict[str, int] = {"": 0}
        self._groups: dict[str, list[TrainingGroup]] = {}
        self._own: list[list[int]] = []

    @property
    def counts(self) -> dict[str, Counts]:
        """Set-aside counts by peer."""
        return self._counts

    def judge(self) -> dict[str, bool]:
        """Of each peer that this stage has looked at, whether it has places in the batches to come: not where far less
        of it counts than of most.

        What stands behind a token that was held back is learnt in a place where this node will hardly ever be. That is
        no reason to hold it back, too: where all work out their answers in a way that is new here, the rest still
        teaches. It is a reason to give the places to others, where those have more to teach.
        """
        worth = {peer: 1 - each.behind / each.tokens for peer, each in self._counts.items() if each.tokens}
        usual = sorted(worth.values())[len(worth) // 2] if worth else 0.0
        return {peer: each >= WORTH_MIN * usual for peer, each in worth.items()}

    def number(self, peer: str) -> int:
        """A number for a peer, 0 for this node."""
        return self._numbers.setdefault(peer, len(self._numbers))

    def add(self, held: HeldBack) -> None:
        """Hear what was held back in one pass."""
        peer = list(self._numbers)[held.peer]
        self.count(peer, held.tokens, held.held, held.behind)
        if held.held and self.lacks_example(peer):
            self.show(peer, *held.example)

    def note_own(self, groups: Sequence[TrainingGroup]) -> None:
        """This node's own completions, with which marks are compared."""
        room = OWN_MAX - len(self._own)
        self._own += [tokens for group in groups for tokens in group.completions][: max(room, 0)]

    def note_peer(self, group: TrainingGroup) -> None:
        """A peer's group that is in a batch."""
        kept = self._groups.setdefault(group.peer, [])
        if len(kept) < GROUPS_MAX:
            kept.append(group)

    def count(self, peer: str, tokens: int, held: int, behind: int = 0) -> None:
        """Tokens of a peer's completions in one pass, those that were held back, and these with what is behind them."""
        counts = self._counts.setdefault(peer, Counts())
        counts.tokens += tokens
        counts.held += held
        counts.behind += behind

    def note_passed(self, passed: Mapping[tuple[str, Reason], int]) -> None:
        """Groups that were passed over in the stage, by peer and reason."""
        for (peer, reason), groups in passed.items():
            counts = self._counts.setdefault(peer, Counts())
            counts.over_share += groups * (reason == "share")
            counts.of_little += groups * (reason == "little")

    def lacks_example(self, peer: str) -> bool:
        return not self._counts.setdefault(peer, Counts()).example[0]

    def show(self, peer: str, tokens: list[int], held: list[int]) -> None:
        """Keep a completion of which something was held back."""
        self._counts.setdefault(peer, Counts()).example = (tokens, held)

    def join(self, other: dict[str, Counts]) -> None:
        """Count what another rank has set aside."""
        for peer, counts in other.items():
            self.count(peer, counts.tokens, counts.held, counts.behind)
            self.note_passed({(peer, "share"): counts.over_share, (peer, "little"): counts.of_little})
            if self.lacks_example(peer):
                self.show(peer, *counts.example)

    def summarize(self, decode: TokenDecoder) -> tuple[SetAside, ...]:
        """Of each peer of whom something was set aside, what; those with a mark first."""
        found = [(-each.held, -each.passed, peer) for peer, each in self._counts.items() if each.held or each.passed]
        peers = [peer for _, _, peer in sorted(found)[:EXAMINED_MAX]]
        own = [list_runs(tokens) for tokens in self._own] if peers else []
        told = [self._tell(peer, own, decode) for peer in peers]
        return tuple(sorted(told, key=lambda each: (not each.mark, -each.held))[:PEERS_MAX])

    def _tell(self, peer: str, own: Sequence[set[Run]], decode: TokenDecoder) -> SetAside:
        counts = self._counts[peer]
        tokens, held = counts.example
        mark = find_mark(self._groups.get(peer, []), own) if counts.held else None
        text, part = decode(tokens), decode(longest_run(tokens, held))
        told = SetAside(
            *(peer, counts.tokens, counts.held, shorten(text), shorten(part)),
            over_share=counts.over_share,
            of_little=counts.of_little,
        )
        if mark is None:
            return told
        return msgspec.structs.replace(
            told,
            mark=shorten(decode(mark.run)),
            mark_right=mark.right,
            mark_wrong=mark.wrong,
            mark_own=mark.own,
        )


def find_mark(groups: Sequence[TrainingGroup], own: Sequence[set[Run]]) -> Mark | None:
    """The run of doubtful tokens that tells a peer's right answers best from its wrong ones and from this node's own;
    None where none does clearly.

    Args:
        groups: the peer's.
        own: runs of tokens in each of this node's own completions.
    """
    right: Counter[Run] = Counter()
    wrong: Counter[Run] = Counter()
    rights = wrongs = 0
    for group in groups:
        middle = sum(group.rewards) / len(group.rewards)
        for tokens, sure, reward in zip(group.completions, group.sure, group.rewards, strict=True):
            is_right = reward > middle
            (right if is_right else wrong).update(list_runs(tokens, sure))
            rights, wrongs = rights + is_right, wrongs + (not is_right)
    if rights < RIGHTS_MIN:
        return None
    likely = {run for run, count in right.items() if count >= RIGHT_SHARE * rights}
    mine = Counter(run for runs in own for run in runs & likely)
    marks = [
        Mark(run, right[run] / rights, wrong[run] / max(wrongs, 1), mine[run] / max(len(own), 1)) for run in likely
    ]
    clear = [mark for mark in marks if max(mark.wrong, mark.own) <= OTHER_SHARE]
    return max(clear, key=lambda mark: (mark.right - mark.wrong - mark.own, len(mark.run), mark.run), default=None)


def list_runs(tokens: Sequence[int], sure: Sequence[int] = ()) -> set[Run]:
    """Runs of up to `RUN_MAX` tokens, among the first `TOKENS_MAX`, for none of which the truth vouches."""
    tokens = tokens[:TOKENS_MAX]
    return {
        tuple(tokens[begin : begin + length])
        for length in range(1, RUN_MAX + 1)
        for begin in range(len(tokens) - length + 1)
        if not any(sure[begin : begin + length])
    }


def longest_run(tokens: Sequence[int], held: Sequence[int]) -> list[int]:
    """The longest unbroken part of a completion that was held back, the first of several."""
    best: list[int] = []
    run: list[int] = []
    for token, is_held in zip(tokens, held, strict=True):
        run = [*run, token] if is_held else []
        best = run if len(run) > len(best) else best
    return best


def shorten(text: str) -> str:
    """Text as it may be printed: control characters are escaped, and what is long is cut."""
    plain = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return plain if len(plain) <= TEXT_CHARACTERS_MAX else plain[: TEXT_CHARACTERS_MAX - 3] + "..."
