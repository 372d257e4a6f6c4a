"""Votes for winners, and the leaderboards that are made of them."""

import random
from collections import Counter

import pytest

from tests.contracts.chain import Said, Swarm

CAPACITY = 100
LONG = "12D3KooW" + 44 * "x"


def vote(swarm: Swarm, round_: int, voter: str, *winners: str) -> list[Said]:
    sender = swarm.bob if voter == "r" else swarm.alice
    return swarm.send(sender, "submitWinners", round_, list(winners), voter)


def test_a_vote_is_recorded_and_said(joined: Swarm) -> None:
    said = vote(joined, 0, "p", "r", LONG)
    assert said == [Said("WinnerSubmitted", (joined.alice, "p", 0, ["r", LONG]))]
    assert joined.ask("getVoterVotes", 0, "p") == ["r", LONG]
    assert [joined.ask("getPeerVoteCount", 0, peer) for peer in ("r", LONG, "p")] == [1, 1, 0]
    assert joined.ask("getVoterVoteCount", "p") == 1
    assert [joined.ask("getTotalWins", peer) for peer in ("r", LONG, "p")] == [1, 1, 0]


def test_a_peer_votes_once_a_round(joined: Swarm) -> None:
    vote(joined, 0, "p", "r")
    assert joined.refusal(joined.alice, "submitWinners", 0, ["q"], "p") == "WinnerAlreadyVoted"
    vote(joined, 0, "q", "r")  # another peer of the same account
    joined.next_round()
    vote(joined, 1, "p", "r")
    assert joined.ask("getVoterVoteCount", "p") == 2
    assert (joined.ask("getTotalWins", "r"), joined.ask("getPeerVoteCount", 0, "r")) == (3, 2)


@pytest.mark.parametrize("voter", ["r", "unknown"])
def test_nobody_votes_with_a_peer_of_somebody_else(joined: Swarm, voter: str) -> None:
    assert joined.refusal(joined.alice, "submitWinners", 0, ["p"], voter) == "InvalidVoterPeerId"
    assert joined.ask("getVoterVotes", 0, voter) == []


def test_a_winner_is_named_once_in_a_vote(joined: Swarm) -> None:
    for winners in (["p", "p"], ["p", "q", "r", "p"], ["", "q", ""]):
        assert joined.refusal(joined.alice, "submitWinners", 0, winners, "p") == "InvalidVote"


def test_a_round_that_has_not_begun_takes_no_vote_and_past_ones_do(joined: Swarm) -> None:
    assert joined.refusal(joined.alice, "submitWinners", 1, ["p"], "p") == "InvalidRoundNumber"
    joined.move_on(4 * joined.stages)
    vote(joined, 2, "p", "r")
    assert joined.ask("getPeerVoteCount", 2, "r") == 1


def test_votes_of_each_round_are_counted_in_whatever_order_they_come(joined: Swarm) -> None:
    """The latest round's stand elsewhere than those of earlier ones."""
    order = [("p", 1), ("q", 0), ("r", 1), ("p", 2), ("q", 1), ("r", 2), ("p", 0), ("q", 3), ("r", 0)]
    for _ in range(3):
        joined.next_round()
    for number, (voter, round_) in enumerate(order, 1):
        vote(joined, round_, voter, "x")
        wanted = Counter(each for _, each in order[:number])
        assert [joined.ask("getPeerVoteCount", each, "x") for each in range(4)] == [wanted[each] for each in range(4)]
        assert joined.ask("getTotalWins", "x") == number
        assert joined.ask("getPeerVoteCount", 0, "y") == 0


def test_checks_come_in_the_order_that_clients_rely_on(joined: Swarm) -> None:
    vote(joined, 0, "p", "r")
    assert joined.refusal(joined.bob, "submitWinners", 1, ["r", "r"], "p") == "InvalidRoundNumber"
    assert joined.refusal(joined.bob, "submitWinners", 0, ["r", "r"], "p") == "WinnerAlreadyVoted"
    assert joined.refusal(joined.bob, "submitWinners", 0, ["r", "r"], "q") == "InvalidVoterPeerId"


def test_an_empty_vote_counts_and_can_be_repeated(joined: Swarm) -> None:
    for _ in range(2):
        assert vote(joined, 0, "p") == [Said("WinnerSubmitted", (joined.alice, "p", 0, []))]
    assert (joined.ask("getVoterVoteCount", "p"), joined.ask("uniqueVoters")) == (2, 1)
    vote(joined, 0, "p", "r")
    assert joined.refusal(joined.alice, "submitWinners", 0, [], "p") == "WinnerAlreadyVoted"


# Leaderboards


def test_a_page_begins_with_its_start_and_ends_before_its_end(joined: Swarm) -> None:
    vote(joined, 0, "p", "a", "b", "c")
    vote(joined, 0, "q", "a")
    pages = {(0, 2): ["a", "b"], (2, 3): ["c"], (1, 99): ["b", "c"], (3, 3): [], (5, 10): [], (0, 2**256 - 1): [*"abc"]}
    assert {page: joined.ask("winnerLeaderboard", *page)[0] for page in pages} == pages


@pytest.mark.parametrize("board", ["winnerLeaderboard", "voterLeaderboard"])
def test_a_page_that_ends_before_it_begins_is_refused_in_words(joined: Swarm, board: str) -> None:
    expected = "Start index must be less than or equal to end index"
    assert joined.refusal(joined.alice, board, 2, 1) == expected
    assert joined.refusal(joined.alice, board, 200, 100) == expected


class Board:
    """Upstream's leaderboard in plain words: a list searched from its beginning, one swap for each vote."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.peers: list[str] = []

    def count(self, peer: str) -> None:
        self.counts[peer] += 1
        if peer not in self.peers and not self._enter(peer):
            return
        old = self.peers.index(peer)
        new = next((n for n in range(old) if self.counts[self.peers[n]] < self.counts[peer]), old)
        self.peers[old], self.peers[new] = self.peers[new], self.peers[old]

    def _enter(self, peer: str) -> bool:
        if len(self.peers) < CAPACITY:
            self.peers.append(peer)
        elif self.counts[peer] > self.counts[self.peers[-1]]:
            self.peers[-1] = peer
        else:
            return False
        return True

    def shown(self) -> list[list]:
        return [self.peers, [self.counts[peer] for peer in self.peers]]


def test_the_winners_board_is_that_of_a_plain_model(one_stage: Swarm) -> None:
    """130 peers for 100 places: entries, evictions and ties, compared after every vote."""
    model, chance = Board(), random.Random(7)
    names = [f"{n}-{LONG}" for n in range(130)]
    one_stage.register(one_stage.alice, "p")
    for round_ in range(20):
        winners = chance.sample(names if round_ % 2 else names[:40] + names[110:], 25)
        vote(one_stage, round_, "p", *winners)
        for winner in winners:
            model.count(winner)
        one_stage.next_round()
        assert one_stage.ask("winnerLeaderboard", 0, 200) == model.shown()
    assert len(model.peers) == CAPACITY < len(model.counts)
    assert one_stage.ask("uniqueVotedPeers") == len(model.counts)


def test_the_voters_board_is_that_of_a_plain_model(one_stage: Swarm) -> None:
    """More voters than places; empty votes count, and those who fell off the board come back."""
    model, chance = Board(), random.Random(8)
    names = [f"v{n}" for n in range(CAPACITY + 5)]
    one_stage.register(one_stage.alice, *names)
    for voter in [*names, *chance.choices(names[CAPACITY - 5 :], k=40), *chance.choices(names, k=40)]:
        one_stage.send(one_stage.alice, "submitWinners", 0, [], voter)
        model.count(voter)
    assert one_stage.ask("voterLeaderboard", 0, 200) == model.shown()
    assert one_stage.ask("uniqueVoters") == len(names)
