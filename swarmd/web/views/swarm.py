"""The swarm as one node's log knows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from swarmd.core.contract.clock import submissions_of
from swarmd.core.evidence import barred_until
from swarmd.core.state import Coordination, State
from swarmd.observe.narrative.waiting import waiting_notes
from swarmd.observe.narrative.words import equivocation_notes
from swarmd.web.shapes import ChainView, PeerPage, PeerRow, SwarmView
from swarmd.web.views.ledger import PeerAccount, PeerLedger
from swarmd.web.views.moments import number, shown_text

SUBMISSIONS_SHOWN = 32
WINNERS_SHOWN = 16  # of one vote
TEXT_CHARACTERS_MAX = 128  # of an id


class ViewContext(NamedTuple):
    """What a view needs beside the state and the ledger."""

    kind: str
    at: float
    begin: int  # first event that the log still has
    notes: tuple[str, ...]


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
        opened_at=number(clock.opened_at) if clock else None,
        deadline_at=number(clock.deadline_at) if clock else None,
        final=clock.final if clock else False,
        coordinator=_coordinator(state),
        reports=_reports(state, ledger),
        expected=coordination.expected if coordination else None,
        peers=peer_rows(state, ledger, count=peers_max),
        total=len(ledger.accounts),
        chain=_chain(state, ledger) if state.chain else None,
        notes=(*around.notes, *_notes(state, ledger, around.begin)),
    )


def _coordinator(state: State) -> str:
    settings = state.settings
    if settings is None or settings.chain is not None:
        return ""
    return settings.coordinator or (settings.peer if settings.role == "coordinator" else "")


def _reports(state: State, ledger: PeerLedger) -> int:
    """Reports of the open stage that this node knows of."""
    if state.coordination is not None:
        return len(state.coordination.reports)
    if state.chain is not None:
        return submissions_of(state.chain)
    place = (state.clock.round, state.clock.stage) if state.clock else None
    return sum(account.known and account.place == place for account in ledger.accounts.values())


class _Ranked(NamedTuple):
    """One entry of the books, with its rank."""

    rank: int
    peer: str
    account: PeerAccount
    reward: float
    rounds: int


def peer_rows(state: State, ledger: PeerLedger, first: int = 0, count: int | None = None) -> tuple[PeerRow, ...]:
    """By rank: highest reward first, ties by peer id; then those without an admission; no known reward comes last.

    Args:
        first: how many of the highest are left out.
        count: how many at most; None for all.
    """
    return _rows(state, _ranking(state, ledger)[first : None if count is None else first + count])


def peer_page(state: State, ledger: PeerLedger, first: int, count: int, find: str) -> PeerPage:
    """Part of the leaderboard; with `find`, part of those who have it in name or id, in any case: exact ones first."""
    ranked, wanted = _ranking(state, ledger), find.casefold()
    if wanted:
        texts = ((each, (each.account.name.casefold(), each.account.id.casefold())) for each in ranked)
        found = [(wanted not in both, each) for each, both in texts if any(wanted in text for text in both)]
        ranked = [each for _, each in sorted(found, key=lambda pair: pair[0])]  # stable: by rank
    return PeerPage(len(ledger.accounts), len(ranked), _rows(state, ranked[first : first + count]))


def _ranking(state: State, ledger: PeerLedger) -> list[_Ranked]:
    sums = _sums(state.coordination) if state.coordination else {}
    ranked = sorted(
        ((peer, account, *sums.get(peer, (account.reward, account.rounds))) for peer, account in _entries(ledger)),
        key=lambda row: (not row[1].known, not row[1].admitted, -row[2], row[0]),
    )
    return [_Ranked(rank, *entry) for rank, entry in enumerate(ranked, 1)]


def _rows(state: State, ranked: Sequence[_Ranked]) -> tuple[PeerRow, ...]:
    """As the HTTP interface answers them."""
    chained, barred = state.chain is not None, barred_until(state)
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


def _entries(ledger: PeerLedger) -> list[tuple[str, PeerAccount]]:
    return list(ledger.accounts.items())


def _sums(coordination: Coordination) -> dict[str, tuple[float, int]]:
    """The coordinator's own accounts, with what the open stage will add: it counts reports in time, and no others."""
    open_ = {report.peer: report.reward for report in coordination.reports}
    round_ = coordination.round
    return {
        member.peer: (
            member.reward + open_.get(member.peer, 0.0),
            member.rounds + (member.peer in open_ and member.last_round != round_),
        )
        for member in coordination.members
    }


def _chain(state: State, ledger: PeerLedger) -> ChainView:
    chain = state.chain
    assert chain is not None
    return ChainView(
        chain_id=chain.chain_id,
        contract=shown_text(chain.contract, TEXT_CHARACTERS_MAX),
        round=chain.round,
        stage=chain.stage,
        head=chain.recent[-1].number if chain.recent else -1,
        account=chain.account,
        votes=tuple((_id(voter), round_, _named(winners)) for _, voter, round_, winners in reversed(ledger.votes)),
        submissions=tuple((own.id, own.chart, own.hash) for own in reversed(state.submissions[-SUBMISSIONS_SHOWN:])),
    )


def _id(peer: str) -> str:
    return shown_text(peer, TEXT_CHARACTERS_MAX)


def _named(winners: Sequence[str]) -> tuple[str, ...]:
    """Those of a vote that are shown: who votes writes what and as many as it likes."""
    more = len(winners) - WINNERS_SHOWN
    return (*map(_id, winners[:WINNERS_SHOWN]), *([f"… {more} more"] if more > 0 else []))


def isolated_words(who: str, why: str) -> str:
    """That somebody who tells of a swarm does not hear it."""
    return f"{who} is isolated: {why}. What is shown may be old."


def _notes(state: State, ledger: PeerLedger, begin: int) -> tuple[str, ...]:
    notes = []
    settings = state.settings
    if settings is None:
        return ("The log is empty: the node has not started yet.",)
    if settings.role == "follower" and settings.chain is None:
        notes.append(_others_rewards(ledger.settled_round))
    notes += [f"Of this coordinator's stages: {note}." for note in waiting_notes(state)]
    if begin > 0:
        notes.append(f"The log begins at event {begin}; of what came before it has sums only.")
    notes += equivocation_notes(state)
    if ledger.turned_away:
        notes.append("There are more peers than this server keeps count of.")
    if state.link.isolated:
        notes.append(isolated_words("This node", state.link.isolated))
    if state.chain is not None and state.chain.chart != "up":
        notes.append("The chain cannot be read at present; what is shown of it may be old.")
    if state.chain is not None and state.chain.counted:
        notes.append(
            "Of the contract this node reads its own rewards and votes, as in every swarm whose manifest has shards. "
            "Those of all are shown by `swarmd dashboard` with the manifest."
        )
    return tuple(notes)


def _others_rewards(settled_round: int) -> str:
    """What a follower knows of them."""
    if settled_round < 0:
        return "This is a follower's log: of other peers it has what they shared, not their rewards."
    return f"Rewards of other peers are those of the coordinator's leaderboard after round {settled_round}."
