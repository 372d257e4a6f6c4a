"""A ledger of the peers in one node's log (rewards, rounds, votes, last sign of life), and the swarm view made from it.

Identities cost nothing, so the number of accounts is limited. At the limit a newcomer replaces the peer without a known
reward that has been unseen for longest. If all have a known reward, and rewards are not on a chain, where they cost
fees, it replaces a peer that has been silent for more rounds than it took part in.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from swarmd.animals import animal_name
from swarmd.core.applied import AppliedEvent
from swarmd.core.contract_clock import submission_count_of
from swarmd.core.coordination import is_reward_too_high
from swarmd.core.events import (
    ChainBlock,
    ChainReorged,
    MemberLeft,
    MemberSeen,
    MembersSeen,
    ReportSeen,
    ReportsSeen,
    RewardLog,
    RolloutsGathered,
    StageTrained,
    VoteLog,
    members_in,
    reports_in,
)
from swarmd.core.evidence import banned_until
from swarmd.core.state import MEMBERS_MAX, Coordination, State
from swarmd.core.values import Standing
from swarmd.eventlog.fold import FoldBase
from swarmd.observe.status import ProcessState
from swarmd.observe.words import equivocation_notes, waiting_notes
from swarmd.web.moments import finite_or_none, redact_and_cut
from swarmd.web.shapes import (
    CURVE_POINTS_MAX,
    CURVES_MAX,
    ChainView,
    Curve,
    Curves,
    PeerPage,
    PeerRow,
    Point,
    SwarmView,
)

PEERS_MAX = MEMBERS_MAX  # further ones replace others, or are not counted
VOTED_MAX = PEERS_MAX // 2  # votes add accounts only up to this number: any registered peer may vote for any names
POINTS_MAX = 98_304  # of all peers' curves together; beyond that each may have fewer than CURVE_POINTS_MAX
POINTS_LEAST = 16  # guaranteed to each peer
BLOCKS_OPEN = 4096  # newest rewards and votes on the chain that a reorganisation may undo
VOTES_KEPT = 64
TEXT_CHARACTERS_MAX = 128  # of an id or a name
_PER_POINT = 4  # floats per point: round, stage, reward, time

if TYPE_CHECKING:
    Numbers = array[float]
else:
    Numbers = array  # not subscriptable before Python 3.12


class PeerAccount(msgspec.Struct, array_like=True, gc=False):
    """What is known of one peer."""

    id: str
    name: str
    reward: float = 0.0
    known: bool = False  # whether any reward of it is known
    admitted: bool = True  # by proof of work or an invitation, as far as known
    rounds: int = 0
    place: tuple[int, int] = (-1, -1)  # last round and stage
    last_reward: float | None = None  # reward at `place`; None if unknown
    seen_at: float | None = None
    left: bool = False
    votes: int = 0
    points: Numbers = msgspec.field(default_factory=lambda: array("d"))

    def credit_reward(self, round_: int, stage: int, reward: float, at: float, points_max: int) -> None:
        """Add the reward of a stage later than all so far; NaN and infinities are ignored."""
        if not math.isfinite(reward):
            return
        self.reward += reward
        self.known = True
        self.record_presence(round_, stage, at)
        self.last_reward = reward
        self.points.extend((round_, stage, reward, at))
        self.thin_points(points_max)

    def record_presence(self, round_: int, stage: int, at: float) -> None:
        """Record that the peer took part in a stage."""
        if (round_, stage) > self.place:
            self.rounds += round_ != self.place[0]
            self._move_to_stage((round_, stage))
        self.seen_at = at

    def is_silent(self, round_: int) -> bool:
        """Whether the peer, as of this round, has been silent for more rounds than it took part in."""
        return round_ - self.place[0] > self.rounds

    def _move_to_stage(self, place: tuple[int, int]) -> None:
        """Move on to a later stage, whose reward is still unknown."""
        self.place, self.last_reward = place, None

    def replace_reward_sum(self, round_: int, reward: float, rounds: int, last_round: int, at: float) -> None:
        """Replace the sum of rewards up to a round by the coordinator's."""
        later = [point for point in self.curve().points if point.round > round_]
        self.reward = reward + sum(point.reward for point in later)
        self.rounds = rounds + len({point.round for point in later})
        if last_round > self.place[0]:
            self._move_to_stage((last_round, 0))
        self.known = True
        self.seen_at = self.seen_at or at

    def thin_points(self, points_max: int) -> None:
        """Drop every second point of the older half of the curve if there are more than `points_max`."""
        if len(self.points) > points_max * _PER_POINT:
            count = len(self.points) // _PER_POINT
            kept = [*range(0, count // 2, 2), *range(count // 2, count)]
            points = self.points
            self.points = array("d", (points[i * _PER_POINT + k] for i in kept for k in range(_PER_POINT)))

    def curve(self) -> Curve:
        """The rewards as an answer of the HTTP interface."""
        rows = zip(*[iter(self.points)] * _PER_POINT, strict=True)
        return Curve(self.id, self.name, tuple(Point(int(r), int(s), reward, at) for r, s, reward, at in rows))


Vote = tuple[int, str, int, tuple[str, ...]]  # block, voter's peer id, round, winners' peer ids
RewardEntry = tuple[int, str, int, int, float]  # block, peer id, round, stage, reward
KeptLedger = tuple[dict[str, PeerAccount], list[Vote], int, int, list[RewardEntry], str, list[str]]


class PeerLedger:
    """A follower of the fold that keeps each peer's rewards, votes and last sign of life, in bounded memory.

    If a contract keeps the rounds, rewards are those on the chain; else those in reports, and this node's own.

    Attributes:
        accounts: by peer id.
        votes: latest votes on the chain.
        turned_away: number of peers beyond `PEERS_MAX` that got no account or lost theirs.
        settled_round: the last round in the coordinator's adopted sums, -1 for none.
        version: changes with every change.
    """

    def __init__(self) -> None:
        self.restart(FoldBase())

    def restart(self, base: FoldBase) -> None:
        self.accounts: dict[str, PeerAccount] = {}
        self.votes: deque[Vote] = deque(maxlen=VOTES_KEPT)
        self.turned_away = 0
        self.settled_round = -1
        self.version = 0
        self._on_chain: deque[RewardEntry] = deque(maxlen=BLOCKS_OPEN)
        self._own = ""
        self._unrewarded: dict[str, None] = {}  # peers without a known reward, longest unseen first
        self._silent: list[str] = []  # peers that may be dropped in round `_silent_in`, longest silent last
        self._silent_in = self._round = -1
        self._add_initial_accounts(base.state)

    def _add_initial_accounts(self, state: State) -> None:
        """Add accounts from what the first state knows of the time before the log."""
        if state.settings is not None:
            self._own = state.settings.peer
        if state.coordination is not None:
            for member in state.coordination.members:
                if account := self._get_or_add_account(member.peer):
                    account.name, account.admitted = _redact_text(member.name) or account.name, member.worked
                    account.reward, account.rounds, account.left = member.reward, member.rounds, member.left
                    account.place, account.known = (member.last_round, 0), member.rounds > 0
        elif state.rewards and state.chain is None and (account := self._get_or_add_account(self._own)):
            account.reward, account.rounds, account.known = state.reward_total, state.rounds_joined, True
            account.place = state.done

    def apply(self, applied: AppliedEvent) -> None:
        event, at, state = applied.event, applied.at, applied.after
        if state.clock is not None and state.chain is None:
            self._round = state.clock.round
        if state.settings is not None and state.settings.peer != self._own:
            self._own = state.settings.peer
            self._record_member(self._own, state.settings.name, at)
        if isinstance(event, MemberSeen | MembersSeen):
            for member in members_in(event):
                self._record_member(member.peer, member.name, at, member.worked)
        elif isinstance(event, MemberLeft):
            if account := self._get_or_add_account(event.peer):
                account.left = True
        elif isinstance(event, ReportSeen | ReportsSeen):
            for report in reports_in(event):
                if not is_reward_too_high(state, report.reward):
                    known = report.peer in self.accounts
                    self._record_report(report.peer, report.round, report.stage, report.reward, at, state)
                    if not known and (account := self.accounts.get(report.peer)):
                        account.admitted = report.worked
        elif isinstance(event, StageTrained):
            self._record_report(self._own, event.round, event.stage, event.reward, at, state)
        elif isinstance(event, RolloutsGathered):
            self._record_rollouts(event, at)
        elif isinstance(event, ChainBlock):
            self._apply_block(event, state)
        elif isinstance(event, ChainReorged):
            self._undo_blocks_after(event.fork.number)
        else:
            return
        self.version += 1

    def encode(self) -> bytes:
        votes, on_chain, unrewarded = list(self.votes), list(self._on_chain), list(self._unrewarded)
        kept = (self.accounts, votes, self.turned_away, self.settled_round, on_chain, self._own, unrewarded)
        return msgspec.msgpack.encode(kept, enc_hook=array.tolist)

    def restore(self, kept: bytes | memoryview) -> None:
        read = msgspec.msgpack.decode(kept, type=KeptLedger, dec_hook=lambda _, numbers: array("d", numbers))
        self.restart(FoldBase())
        self.accounts, votes, self.turned_away, self.settled_round, on_chain, self._own, unrewarded = read
        self.votes.extend(votes)
        self._on_chain.extend(on_chain)
        self._unrewarded = dict.fromkeys(each for each in unrewarded if each in self.accounts)

    def adopt_coordinator_sums(self, round_: int, standings: Sequence[Standing], at: float) -> None:
        """Adopt the coordinator's sums up to a round; later rewards are added to them."""
        for standing in standings:
            account = self._get_or_add_account(standing.peer)
            if account is not None and math.isfinite(standing.reward):
                account.name = _redact_text(standing.name) or account.name
                account.replace_reward_sum(round_, standing.reward, standing.rounds, standing.last_round, at)
                account.admitted = standing.admitted
        self.settled_round = round_
        self.version += 1

    def add_opening_balance(self, peer: str, reward: float) -> None:
        """Add what a peer had earned on the chain before the first block that was read."""
        if account := self._get_or_add_account(peer):
            account.reward += reward
            account.known = account.known or reward != 0
            self.version += 1

    def find_reporters(self, round_: int, stage: int) -> tuple[str, ...]:
        """Peers whose reward for a stage is among the newest `BLOCKS_OPEN` on the chain."""
        place = (round_, stage)
        return tuple({entry[1]: None for entry in self._on_chain if entry[2:4] == place})

    # --- accounts ---

    def _get_or_add_account(self, peer: str) -> PeerAccount | None:
        """Get or add the account of a peer that gave a sign of life; None if there is no room for it."""
        account = self.accounts.get(peer)
        if account is None and peer:
            if len(self.accounts) >= PEERS_MAX:
                self.turned_away += 1
                if not self._forget_one_peer():
                    return None
            account = self.accounts[peer] = PeerAccount(_redact_text(peer), animal_name(peer))
        if account is not None and not account.known:
            self._unrewarded.pop(peer, None)
            self._unrewarded[peer] = None
        return account

    def _forget_one_peer(self) -> bool:
        """Drop one account to make room. Returns whether there was one that may be dropped."""
        while self._unrewarded:
            peer = next(iter(self._unrewarded))
            del self._unrewarded[peer]
            if not self.accounts[peer].known and peer != self._own:
                del self.accounts[peer]
                return True
        if self._silent_in != self._round:
            self._silent_in = self._round
            silent = [peer for peer, each in self.accounts.items() if each.is_silent(self._round) and peer != self._own]
            self._silent = sorted(silent, key=lambda peer: (self.accounts[peer].place, peer), reverse=True)
        while self._silent:
            peer = self._silent.pop()
            if self.accounts[peer].is_silent(self._round):
                del self.accounts[peer]
                return True
        return False

    def _record_member(self, peer: str, name: str, at: float, admitted: bool = True) -> None:
        known = peer in self.accounts
        if account := self._get_or_add_account(peer):
            account.admitted = admitted or (known and account.admitted)
            account.name = _redact_text(name) or account.name
            account.seen_at, account.left = at, False

    def _record_report(self, peer: str, round_: int, stage: int, reward: float, at: float, state: State) -> None:
        account = self._get_or_add_account(peer)
        if account is None or (account.known and (round_, stage) <= account.place):
            return
        if state.chain is not None:
            account.record_presence(round_, stage, at)
        else:
            account.credit_reward(round_, stage, reward, at, points_per_curve(len(self.accounts)))

    def _record_rollouts(self, event: RolloutsGathered, at: float) -> None:
        for ref in event.rollouts:
            account = self._get_or_add_account(ref.peer)
            if account is not None and not account.known:
                account.record_presence(ref.round, ref.stage, at)
            elif account is not None:
                account.seen_at = at

    # --- the chain ---

    def _apply_block(self, event: ChainBlock, state: State) -> None:
        chain = state.settings.chain if state.settings else None
        scale = chain.reward_scale if chain else 1000
        block = event.block
        for entry in event.logs:
            if isinstance(entry, RewardLog) and (account := self._get_or_add_account(entry.peer)):
                reward = _scale_reward(entry.reward, scale)
                account.credit_reward(entry.round, entry.stage, reward, block.at, points_per_curve(len(self.accounts)))
                if math.isfinite(reward):  # else nothing was added that a reorganisation would undo
                    self._on_chain.append((block.number, entry.peer, entry.round, entry.stage, reward))
            elif isinstance(entry, VoteLog):
                self.votes.append((block.number, entry.peer, entry.round, entry.winners))
                self._count_votes(entry.winners, 1)

    def _count_votes(self, winners: tuple[str, ...], count: int) -> None:
        for winner in winners:  # being voted for is not a sign of life
            account = self.accounts.get(winner)
            if account is None and count > 0 and len(self.accounts) < VOTED_MAX:
                account = self._get_or_add_account(winner)
            if account is not None:
                account.votes = max(0, account.votes + count)
            else:
                self.turned_away += count > 0

    def _undo_blocks_after(self, fork: int) -> None:
        """Undo the rewards and votes of blocks above the fork."""
        while self._on_chain and self._on_chain[-1][0] > fork:
            _, peer, round_, _, reward = self._on_chain.pop()
            account = self.accounts[peer]
            account.reward -= reward
            del account.points[-_PER_POINT:]
            account.place, account.last_reward = _find_last_point(account.points)
            account.rounds -= account.place[0] != round_
        while self.votes and self.votes[-1][0] > fork:
            self._count_votes(self.votes.pop()[3], -1)


def points_per_curve(accounts: int) -> int:
    """The number of points that each curve may have if there are this many accounts."""
    return min(CURVE_POINTS_MAX, max(POINTS_LEAST, POINTS_MAX // accounts))


def _redact_text(text: str) -> str:
    """Redact and cut an id or a name."""
    return redact_and_cut(text, TEXT_CHARACTERS_MAX)


def _scale_reward(reward: str, scale: int) -> float:
    """Convert an int256 in decimal to a reward; NaN if it is malformed."""
    try:
        return int(reward) / scale
    except (ValueError, OverflowError):
        return float("nan")


def _find_last_point(points: array[float]) -> tuple[tuple[int, int], float | None]:
    if not points:
        return (-1, -1), None
    return (int(points[-4]), int(points[-3])), points[-2]


SUBMISSIONS_SHOWN = 32
CURVES_SHOWN = 10  # if no peers are named
WINNERS_SHOWN = 16  # per vote


class ViewContext(NamedTuple):
    """What a view needs besides the state and the ledger."""

    kind: str
    at: float
    begin: int  # first event that the log still has
    notes: tuple[str, ...]
    process: ProcessState | Literal[""] = ""  # of the node, as in `SwarmView`


def swarm_view(state: State, ledger: PeerLedger, around: ViewContext, peers_max: int) -> SwarmView:
    """Where the swarm is and who takes part, the first `peers_max` by rank."""
    settings, clock = state.settings, state.clock
    coordination = state.coordination
    return SwarmView(
        swarm=settings.swarm if settings else "",
        kind=around.kind,
        source="log",
        at=around.at,
        round=clock.round if clock else -1,
        stage=clock.stage if clock else -1,
        stages=(state.chain.stages if state.chain else 0) or (settings.stages if settings else 1),
        opened_at=finite_or_none(clock.opened_at) if clock else None,
        deadline_at=finite_or_none(clock.deadline_at) if clock else None,
        final=clock.final if clock else False,
        coordinator=_find_coordinator(state),
        reports=_count_reports(state, ledger),
        expected=coordination.expected if coordination else None,
        peers=peer_rows(state, ledger, count=peers_max),
        total=len(ledger.accounts),
        chain=_make_chain_view(state, ledger) if state.chain else None,
        process=around.process,
        notes=(
            *around.notes,
            *_notes(state, ledger, around.begin),
            *(_daemon_stopped_notes(around) if settings else ()),
        ),
    )


def _daemon_stopped_notes(around: ViewContext) -> tuple[str, ...]:
    """A note that the view is not of the present, if the node's daemon does not run."""
    endings: dict[ProcessState | Literal[""], str] = {
        "dead": "ended without a word: it was killed or crashed",
        "stopped": "was stopped",
        "never started": "was restored from a backup and never started here",
    }
    how = endings.get(around.process)
    return (f"This node {how}. What is shown is where the swarm was then.",) if how else ()


def _find_coordinator(state: State) -> str:
    settings = state.settings
    if settings is None or settings.chain is not None:
        return ""
    return settings.coordinator or (settings.peer if settings.role == "coordinator" else "")


def _count_reports(state: State, ledger: PeerLedger) -> int:
    """Number of reports for the open stage that this node knows of."""
    if state.coordination is not None:
        return len(state.coordination.reports)
    if state.chain is not None:
        return submission_count_of(state.chain)
    place = (state.clock.round, state.clock.stage) if state.clock else None
    return sum(account.known and account.place == place for account in ledger.accounts.values())


class _Ranked(NamedTuple):
    """One account with its rank."""

    rank: int
    peer: str
    account: PeerAccount
    reward: float
    rounds: int


def peer_rows(state: State, ledger: PeerLedger, count: int) -> tuple[PeerRow, ...]:
    """The first `count` peers by rank: highest reward first, ties by peer id; then peers without admission, last those
    without a known reward."""
    return _rows(state, _ranking(state, ledger)[:count])


def peer_curves(state: State, ledger: PeerLedger, peers: Sequence[str]) -> Curves:
    """Curves of these peers, as far as known; if none are named, of the first by rank that have a reward."""
    accounts = ledger.accounts
    if not peers:
        first = peer_rows(state, ledger, count=CURVES_SHOWN)
        peers = [row.id for row in first if row.id in accounts and accounts[row.id].points]
    return Curves(tuple(accounts[peer].curve() for peer in peers[:CURVES_MAX] if peer in accounts))


def peer_page(state: State, ledger: PeerLedger, first: int, count: int, find: str) -> PeerPage:
    """Part of the leaderboard; with `find`, of the peers whose name or id contains it, ignoring case, exact matches
    first."""
    ranked, wanted = _ranking(state, ledger), find.casefold()
    if wanted:
        texts = ((each, (each.account.name.casefold(), each.account.id.casefold())) for each in ranked)
        found = [(wanted not in both, each) for each, both in texts if any(wanted in text for text in both)]
        ranked = [each for _, each in sorted(found, key=lambda pair: pair[0])]  # a stable sort: still by rank
    return PeerPage(len(ledger.accounts), len(ranked), _rows(state, ranked[first : first + count]))


def _ranking(state: State, ledger: PeerLedger) -> list[_Ranked]:
    sums = _coordinator_sums(state.coordination) if state.coordination else {}
    ranked = sorted(
        (
            (peer, account, *sums.get(peer, (account.reward, account.rounds)))
            for peer, account in ledger.accounts.items()
        ),
        key=lambda row: (not row[1].known, not row[1].admitted, -row[2], row[0]),
    )
    return [_Ranked(rank, *entry) for rank, entry in enumerate(ranked, 1)]


def _rows(state: State, ranked: Sequence[_Ranked]) -> tuple[PeerRow, ...]:
    """Rows as the HTTP interface returns them."""
    chained, barred = state.chain is not None, banned_until(state)
    return tuple(
        PeerRow(
            id=account.id,
            name=account.name,
            rank=rank,
            reward=reward,
            rounds=rounds,
            last_round=account.place[0],
            last_stage=account.place[1],
            last_reward=account.last_reward,
            seen_at=account.seen_at,
            present=not account.left,
            votes=account.votes if chained else None,
            known=account.known,
            admitted=account.admitted,
            barred_until=barred.get(peer),
        )
        for rank, peer, account, reward, rounds in ranked
    )


def _coordinator_sums(coordination: Coordination) -> dict[str, tuple[float, int]]:
    """The coordinator's sums and rounds by peer, including what the open stage will add, which counts only reports in
    time."""
    open_ = {report.peer: report.reward for report in coordination.reports}
    round_ = coordination.round
    return {
        member.peer: (
            member.reward + open_.get(member.peer, 0.0),
            member.rounds + (member.peer in open_ and member.last_round != round_),
        )
        for member in coordination.members
    }


def _make_chain_view(state: State, ledger: PeerLedger) -> ChainView:
    chain = state.chain
    assert chain is not None
    return ChainView(
        chain_id=chain.chain_id,
        contract=_redact_text(chain.contract),
        round=chain.round,
        stage=chain.stage,
        head=chain.recent[-1].number if chain.recent else -1,
        account=chain.account,
        votes=tuple(
            (_redact_text(voter), round_, _list_shown_winners(winners))
            for _, voter, round_, winners in reversed(ledger.votes)
        ),
        submissions=tuple((own.id, own.chart, own.hash) for own in reversed(state.submissions[-SUBMISSIONS_SHOWN:])),
    )


def _list_shown_winners(winners: Sequence[str]) -> tuple[str, ...]:
    """The winners of a vote to show: a vote may name anything and any number."""
    more = len(winners) - WINNERS_SHOWN
    return (*map(_redact_text, winners[:WINNERS_SHOWN]), *([f"… {more} more"] if more > 0 else []))


def describe_isolation(who: str, why: str) -> str:
    """A note that the source of this view is cut off from the swarm."""
    return f"{who} is isolated: {why}. What is shown may be old."


def _notes(state: State, ledger: PeerLedger, begin: int) -> tuple[str, ...]:
    notes = []
    settings = state.settings
    if settings is None:
        return ("The log is empty: the node has not started yet.",)
    if settings.role == "follower" and settings.chain is None:
        notes.append(
            f"Rewards of other peers are those of the coordinator's leaderboard after round {ledger.settled_round}."
            if ledger.settled_round >= 0
            else "This is a follower's log: of other peers it has what they shared, not their rewards."
        )
    notes += [f"Of this coordinator's stages: {note}." for note in waiting_notes(state)]
    if begin > 0:
        notes.append(f"The log begins at event {begin}; of what came before it has sums only.")
    notes += equivocation_notes(state)
    if ledger.turned_away:
        notes.append("There are more peers than this server keeps count of.")
    if state.link.isolated:
        notes.append(describe_isolation("This node", state.link.isolated))
    if state.trainer.other_weights:
        notes.append(f"This node has begun from other weights than the swarm: {state.trainer.other_weights}.")
    if state.chain is not None and state.chain.chart != "up":
        notes.append("The chain cannot be read at present; what is shown of it may be old.")
    if state.chain is not None and state.chain.counted:
        notes.append(
            "Of the contract this node reads its own rewards and votes, as in every swarm whose manifest has shards. "
            "Those of all are shown by `swarmd dashboard` with the manifest."
        )
    return tuple(notes)
