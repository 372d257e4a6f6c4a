"""Which tokens of a batch count: flat groups, foreign completions, and peers' untrusted tokens.

* Flat groups do not count: their advantages are set to exactly 0. TRL computes a group's mean in float32, which is off
by a bit for rewards such as eight times 1.2. Divided by almost nothing, that gives advantages up to 2e-3, from which
Adam makes whole steps. * Foreign completions, those that this node did not draw in this step (peers', and its own
earlier ones), count if they are right. There is one optimiser step on each batch, so the probability ratio is 1 and its
clip never protects: a negative advantage pushes the policy away from text that it would never have written, at the cost
of other skills. So their negative advantages count as 0. * In peers' right completions, trusted tokens count. A reward
raises every token of a completion whose answer is right, so a peer that puts a payload into its right answers, but not
into its wrong ones, gets the payload raised (HTTT, arXiv 2511.09780). What other peers wrote proves nothing, since
identities cost nothing. Two things make a token trusted: the truth, which every node computes by itself
(`swarmd.training.groups.make_trusted_mask`), and this node's own policy, if it gives the token a probability of at
least `training.peer_floor` times exp(-entropy). If the policy is certain of another token, hardly any other counts; if
ten are equally likely, all ten do. All other tokens are masked: context without a gradient.

`MaskStats` counts what was masked, for people, with an example. An honest peer who writes differently from this node
has many tokens masked, too. A mark reveals a hostile one: a text in the peer's right answers, but rarely in its wrong
ones and in this node's own, that no truth vouches for. The counts decide one thing: whose groups get no slots in the
stage's next batches (`MaskStats.decide_peer_slots`).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch

from swarmd.core.token_ledger import add_teachers
from swarmd.core.values import PeerTokens, SetAside
from swarmd.training.cancellation import TokenDecoder
from swarmd.training.groups import FLAT_RANGE, TrainingGroup
from swarmd.training.schedule import Reason

# Columns of the rollout function's rows, and of TRL's batch.
FOREIGN_KEY = "swarm_foreign"  # whether the completion is foreign
UNTRUSTED_KEY = "swarm_untrusted"  # for each token of a peer's completion, whether no truth vouches for it
PEER_KEY = "swarm_peer"  # the number of the peer who wrote the completion; 0: this node
DRAWN_KEY = "swarm_drawn"  # log-probabilities by which tokens were drawn, if they differ from the policy's own

RATIO_MAX = 2.0  # largest weight of a token that the policy finds likelier than the sampler did
FLOOR_MIN = 1e-30
PEERS_MAX = 8  # per stage, those with most masked tokens first
TEXT_CHARACTERS_MAX = 160
EXAMINED_MAX = 32  # peers whose groups are searched for a mark, those with most masked tokens first
GROUPS_MAX = 16  # searched for a mark, of one peer
OWN_MAX = 128  # of this node's completions, for comparing marks
TOKENS_MAX = 256  # searched for a mark, of one completion
WORTH_MIN = 0.5  # least share, relative to the median peer's, of tokens that are neither masked nor behind a masked one
RUN_MAX = 3  # tokens in a mark
RIGHTS_MIN = 4  # right completions of a peer needed to call anything a mark
RIGHT_SHARE = 0.5  # a mark is in at least this share of the right completions
OTHER_SHARE = 0.1  # and in at most this share of the wrong ones and of this node's own

Run = tuple[int, ...]


def clear_zero_variance_advantages(advantages: torch.Tensor, rewards: Sequence[float], group: int) -> torch.Tensor:
    """Set the advantages (batch,) of flat groups, with `group` completions each, to exactly 0."""
    given = torch.tensor(rewards, dtype=torch.float64).view(-1, group)
    flat = given.amax(1) - given.amin(1) <= FLAT_RANGE
    return advantages.masked_fill(flat.repeat_interleave(group).to(advantages.device), 0.0)


def add_peer_columns(batch: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Add columns to TRL's batch, from the rows that it was made of:

    - whether completions are foreign, bool (batch,), and the numbers of their peers (batch,);
    - whether no truth vouches for a token, bool (batch, tokens);
    - log-probabilities by which tokens were drawn (batch, tokens), NaN if they are the policy's own or unknown.
    """
    device = batch["advantages"].device
    untrusted = torch.zeros(batch["completion_ids"].shape, dtype=torch.bool)
    drawn = torch.full(untrusted.shape, math.nan)
    for place, row in enumerate(rows):
        untrusted[place, : len(row[UNTRUSTED_KEY])] = torch.tensor(row[UNTRUSTED_KEY], dtype=torch.bool)
        drawn[place, : len(row[DRAWN_KEY])] = torch.tensor(row[DRAWN_KEY])
    batch[UNTRUSTED_KEY] = untrusted.to(device)
    batch[DRAWN_KEY] = drawn.to(device)
    batch[FOREIGN_KEY] = torch.tensor([row[FOREIGN_KEY] for row in rows], dtype=torch.bool, device=device)
    batch[PEER_KEY] = torch.tensor([row[PEER_KEY] for row in rows], device=device)


def drop_negative_foreign_advantages(batch: dict[str, Any]) -> dict[str, Any]:
    """Set negative advantages of foreign completions to 0, and drop the column FOREIGN_KEY."""
    kept = {key: value for key, value in batch.items() if key != FOREIGN_KEY}
    advantages: torch.Tensor = batch["advantages"]
    kept["advantages"] = torch.where(batch[FOREIGN_KEY], advantages.clamp(min=0), advantages)
    return kept


def weight_by_importance_ratio(part: dict[str, Any], log_probabilities: torch.Tensor) -> dict[str, float]:
    """Multiply the advantages of a pass, token by token, by the ratio of the policy's probability to the sampler's.

    The ratio is cut at `RATIO_MAX` (truncated importance sampling: Yao et al., "Your efficient RL framework secretly
    brings you off-policy RL training", 2025). Advantages become (rows, tokens).

    Returns means of ratio and difference, by TRL's names; empty if the policy itself drew all tokens.
    """
    drawn = part[DRAWN_KEY]
    known = ~drawn.isnan() & (part["completion_mask"] * part.get("tool_mask", 1)).bool()
    if not bool(known.any()):
        return {}
    difference = (log_probabilities.detach() - drawn).masked_fill(~known, 0.0)
    ratios = difference.exp().clamp(max=RATIO_MAX)
    part["advantages"] = part["advantages"][:, None] * ratios
    return {
        "sampling/importance_sampling_ratio/mean": float(ratios[known].mean()),
        "sampling/sampling_logp_difference/mean": float(difference[known].abs().mean()),
    }


def find_raised_tokens(batch: dict[str, Any]) -> torch.Tensor:
    """Tokens of peers' completions whose probability the advantages would raise, bool (rows, tokens)."""
    raised = (batch["advantages"] > 0)[:, None]
    written = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()
    found: torch.Tensor = written & raised & (batch[PEER_KEY] > 0)[:, None]
    return found


def mask_untrusted(
    log_probabilities: torch.Tensor, entropies: torch.Tensor, untrusted: torch.Tensor, floor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Remove the gradients of untrusted tokens. Returns the log-probabilities (rows, tokens), and the mask.

    Args:
        entropies: of the policy at each token, in nats.
        untrusted: tokens that would be raised but that no truth vouches for, bool (rows, tokens).
        floor: the policy trusts a token whose probability is at least this times exp(-entropy).
    """
    masked = untrusted & (log_probabilities.detach() + entropies.detach() < math.log(max(floor, FLOOR_MIN)))
    return torch.where(masked, log_probabilities.detach(), log_probabilities), masked


class MaskCounts(msgspec.Struct):
    """Counts over those of one peer's completions that raise tokens."""

    tokens: int = 0
    held: int = 0
    behind: int = 0  # masked, or behind a masked token of the same completion
    example: tuple[list[int], list[int]] = ([], [])  # a completion, and its mask
    over_share: int = 0  # groups that were skipped because the peer had its share of the batch
    of_little: int = 0  # groups that were skipped because few of the peer's tokens count
    too_long: int = 0  # groups that were skipped because the peer's right answers are longer than others'

    def add(self, other: "MaskCounts") -> None:
        self.tokens += other.tokens
        self.held += other.held
        self.behind += other.behind
        self.example = self.example if self.example[0] else other.example
        self.over_share += other.over_share
        self.of_little += other.of_little
        self.too_long += other.too_long


def count_masked(batch: dict[str, Any], held: torch.Tensor) -> dict[int, MaskCounts]:
    """Count the masked tokens of one pass, by the number of the peer; `held` is the mask, bool (rows, tokens)."""
    counted = find_raised_tokens(batch)
    lost = held & counted
    behind = (lost.cumsum(1) > 0) & counted
    by_row = torch.stack(
        [batch[PEER_KEY], counted.sum(1), lost.sum(1), behind.sum(1)], 1
    ).tolist()  # one transfer per pass
    found: dict[int, MaskCounts] = defaultdict(MaskCounts)
    for peer, *sums in (row for row in by_row if row[1]):
        found[peer].add(MaskCounts(*sums))
    for peer in (peer for peer, counts in found.items() if counts.held):
        place = max((place for place, row in enumerate(by_row) if row[0] == peer), key=lambda place: by_row[place][2])
        length = int(batch["completion_mask"][place].sum())
        found[peer].example = batch["completion_ids"][place, :length].tolist(), held[place, :length].int().tolist()
    return found


class MaskStats:
    """Statistics of masking in one stage, kept by the process that takes its steps."""

    def __init__(self) -> None:
        self.counts: dict[str, MaskCounts] = defaultdict(MaskCounts)  # by peer
        self._numbers: dict[str, int] = {"": 0}
        self._groups: dict[str, list[TrainingGroup]] = defaultdict(list)
        self._own: list[list[int]] = []

    def decide_peer_slots(self) -> dict[str, bool]:
        """Whether each peer seen in this stage gets slots in the next batches: not if far less of it counts than of
        most peers.

        Text behind a masked token is learnt in a context where this node will hardly ever be. That is no reason to mask
        it, too: if all peers work out their answers in a way that is new here, it still teaches. But it is a reason to
        give the slots to peers who have more to teach.
        """
        worth = {peer: 1 - each.behind / each.tokens for peer, each in self.counts.items() if each.tokens}
        usual = sorted(worth.values())[len(worth) // 2] if worth else 0.0
        return {peer: each >= WORTH_MIN * usual for peer, each in worth.items()}

    def peer_number(self, peer: str) -> int:
        """Number of a peer in TRL's batch, 0 for this node; assigned at the first call."""
        return self._numbers.setdefault(peer, len(self._numbers))

    def add(self, found: Mapping[int, MaskCounts]) -> None:
        """Add the counts of one pass, keyed by peers' numbers."""
        peers = list(self._numbers)
        self.merge({peers[number]: counts for number, counts in found.items()})

    def merge(self, other: Mapping[str, MaskCounts]) -> None:
        """Add counts, keyed by peer."""
        for peer, counts in other.items():
            self.counts[peer].add(counts)

    def list_teachers(self) -> tuple[PeerTokens, ...]:
        """Number of each peer's tokens that were trained on."""
        found = [PeerTokens(peer, each.tokens - each.held) for peer, each in self.counts.items()]
        return add_teachers((), tuple(each for each in found if each.tokens))

    def record_own(self, groups: Sequence[TrainingGroup]) -> None:
        """Record this node's own completions, for comparing marks."""
        room = OWN_MAX - len(self._own)
        self._own += [tokens for group in groups for tokens in group.completions][: max(room, 0)]

    def record_peer(self, group: TrainingGroup) -> None:
        """Record a peer's group that is in a batch, to search it for marks."""
        if len(self._groups[group.peer]) < GROUPS_MAX:
            self._groups[group.peer].append(group)

    def record_skipped(self, passed: Mapping[tuple[str, Reason], int]) -> None:
        """Record the number of groups skipped in the stage, by peer and reason."""
        for (peer, reason), groups in passed.items():
            self.counts[peer].over_share += groups * (reason == "share")
            self.counts[peer].of_little += groups * (reason == "little")
            self.counts[peer].too_long += groups * (reason == "long")

    def summarize(self, decode: TokenDecoder) -> tuple[SetAside, ...]:
        """The masked tokens and skipped groups of each peer; peers with a mark first."""
        most = {
            peer: (each.held, each.over_share + each.of_little + each.too_long) for peer, each in self.counts.items()
        }
        found = sorted((-held, -passed, peer) for peer, (held, passed) in most.items() if held or passed)
        own = [list_untrusted_runs(tokens) for tokens in self._own] if found else []
        told = [self._summarize_peer(peer, own, decode) for _, _, peer in found[:EXAMINED_MAX]]
        return tuple(sorted(told, key=lambda each: (not each.mark, -each.held))[:PEERS_MAX])

    def _summarize_peer(self, peer: str, own: Sequence[set[Run]], decode: TokenDecoder) -> SetAside:
        counts = self.counts[peer]
        tokens, held = counts.example
        mark = find_peer_mark(self._groups[peer], own) if counts.held else None
        text, part = decode(tokens), decode(find_longest_masked_run(tokens, held))
        told = SetAside(
            *(peer, counts.tokens, counts.held, make_printable(text), make_printable(part)),
            over_share=counts.over_share,
            of_little=counts.of_little,
            too_long=counts.too_long,
        )
        if mark is None:
            return told
        return msgspec.structs.replace(
            told,
            mark=make_printable(decode(mark.run)),
            mark_right=mark.right,
            mark_wrong=mark.wrong,
            mark_own=mark.own,
        )


class PeerMark(msgspec.Struct, frozen=True):
    """A run of tokens, and the shares of completions that have it."""

    run: Run
    right: float
    wrong: float
    own: float


def find_peer_mark(groups: Sequence[TrainingGroup], own: Sequence[set[Run]]) -> PeerMark | None:
    """Find the run of untrusted tokens that best tells a peer's right answers from its wrong ones and from this node's
    own; None if no run does so clearly. `own`: the runs of tokens in each of this node's completions."""
    right: Counter[Run] = Counter()
    wrong: Counter[Run] = Counter()
    rights = wrongs = 0
    for group in groups:
        middle = sum(group.rewards) / len(group.rewards)
        for tokens, trusted, reward in zip(group.completions, group.trusted_mask, group.rewards, strict=True):
            is_right = reward > middle
            (right if is_right else wrong).update(list_untrusted_runs(tokens, trusted))
            rights, wrongs = rights + is_right, wrongs + (not is_right)
    if rights < RIGHTS_MIN:
        return None
    likely = {run for run, count in right.items() if count >= RIGHT_SHARE * rights}
    mine = Counter(run for runs in own for run in runs & likely)
    marks = [
        PeerMark(run, right[run] / rights, wrong[run] / max(wrongs, 1), mine[run] / max(len(own), 1)) for run in likely
    ]
    clear = [mark for mark in marks if max(mark.wrong, mark.own) <= OTHER_SHARE]
    return max(clear, key=lambda mark: (mark.right - mark.wrong - mark.own, len(mark.run), mark.run), default=None)


def list_untrusted_runs(tokens: Sequence[int], trusted: Sequence[int] = ()) -> set[Run]:
    """Runs of up to `RUN_MAX` untrusted tokens, among the first `TOKENS_MAX` tokens."""
    tokens = tokens[:TOKENS_MAX]
    return {
        tuple(tokens[begin : begin + length])
        for length in range(1, RUN_MAX + 1)
        for begin in range(len(tokens) - length + 1)
        if not any(trusted[begin : begin + length])
    }


def find_longest_masked_run(tokens: Sequence[int], held: Sequence[int]) -> list[int]:
    """The longest masked run of a completion, the first of several."""
    best: list[int] = []
    run: list[int] = []
    for token, is_held in zip(tokens, held, strict=True):
        run = [*run, token] if is_held else []
        best = run if len(run) > len(best) else best
    return best


def make_printable(text: str) -> str:
    """Make a text printable: escape control characters, and cut it to `TEXT_CHARACTERS_MAX`."""
    plain = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return plain if len(plain) <= TEXT_CHARACTERS_MAX else plain[: TEXT_CHARACTERS_MAX - 3] + "..."
