"""Standings added up from events: against a naive model with reorganisations, and against a real contract."""

import random
from collections import Counter
from functools import partial
from typing import Any, get_args

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.chain import coordinator, standings
from swarmd.chain.coordinator import OnchainStandings, read_onchain_standings
from swarmd.chain.standings import ChainStandings, Order, PeerStanding, rank_standings
from swarmd.core.events import (
    AnyChainLog,
    ChainBlock,
    ChainReorged,
    OtherLog,
    RegistrationLog,
    RewardLog,
    StageLog,
    VoteLog,
)
from swarmd.core.values import BlockRef
from swarmd.errors import ChainError
from tests.contracts.chain import Swarm, connect, deploy, deploy_swarm

PEERS = ("a", "b", "c", "", "\x1b[2J", "peer\n")
ACCOUNTS = {peer: f"0x{number}" for number, peer in enumerate(PEERS)}


def logs_of(drawn: list[tuple[str, str, int, int, int]]) -> tuple[AnyChainLog, ...]:
    kinds: dict[str, Any] = {
        "registration": lambda i, peer, *_: RegistrationLog(i, "0x", ACCOUNTS[peer], peer),
        "reward": lambda i, peer, r, s, n: RewardLog(i, "0x", ACCOUNTS[peer], peer, r, s, str(n)),
        "vote": lambda i, peer, r, s, n: VoteLog(i, "0x", ACCOUNTS[peer], peer, r, PEERS[: n % 4]),
        "stage": lambda i, peer, r, s, n: StageLog(i, "0x", r, s),
        "other": lambda i, *_: OtherLog(i, "0x", "Upgraded"),
    }
    return tuple(kinds[kind](index, *rest) for index, (kind, *rest) in enumerate(drawn))


LOGS = st.lists(
    st.tuples(
        st.sampled_from(("registration", "reward", "reward", "vote", "stage", "other")),
        st.sampled_from(PEERS),
        st.integers(0, 5),
        st.integers(0, 2),
        st.integers(-(2**255), 2**255 - 1),
    ),
    max_size=5,
).map(logs_of)
STEPS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3), LOGS), max_size=30)  # dropped, gap, said


def naive(chain: dict[int, ChainBlock]) -> dict[str, PeerStanding]:
    """One question after another, over all that was said."""
    said = [log for number in sorted(chain) for log in chain[number].logs]
    rewards = [log for log in said if isinstance(log, RewardLog)]
    votes = [log for log in said if isinstance(log, VoteLog)]
    owners = {log.peer: log.account for log in said if isinstance(log, RegistrationLog | RewardLog | VoteLog)}
    wins = Counter(winner for vote in votes for winner in vote.winners)
    return {
        peer: PeerStanding(
            peer,
            owners.get(peer, ""),
            sum(int(log.reward) for log in rewards if log.peer == peer),
            len({log.round for log in rewards if log.peer == peer}),
            sum(log.peer == peer for log in rewards),
            wins[peer],
            sum(vote.peer == peer for vote in votes),
        )
        for peer in owners.keys() | wins.keys()
    }


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(0, 60))
def test_the_fold_is_the_naive_sum_of_the_blocks_that_stand(
    steps: list[tuple[int, int, tuple[AnyChainLog, ...]]], limit: int
) -> None:
    fold, chain, hashes = ChainStandings(), {}, iter(range(1_000_000))
    for dropped, gap, logs in steps:
        if dropped > 3 and chain:
            fork = max(max(chain) - dropped + 3, 0)
            depth = max(chain) - fork
            chain = {number: block for number, block in chain.items() if number <= fork}
            fold.apply_event(ChainReorged(BlockRef(fork, "0xf"), depth))
        number = max(chain, default=0) + gap
        chain[number] = ChainBlock(BlockRef(number, hex(next(hashes))), logs)
        fold.apply_event(chain[number])
        fold.apply_event(chain[max(chain)])  # told again after a restart
    assert fold.standings_by_peer() == naive(chain)
    assert fold.standings_by_peer(limit) == naive({number: block for number, block in chain.items() if number <= limit})
    assert fold.last_block_number == max(chain, default=-1)
    assert fold.first == (chain[min(chain)].block if chain else None)


def test_a_block_in_the_place_of_another_drops_it_and_what_follows() -> None:
    fold = ChainStandings()
    for number, hash, reward in ((1, "0x1", "5"), (2, "0x2", "7"), (3, "0x3", "9"), (2, "0x22", "100")):
        fold.apply_event(ChainBlock(BlockRef(number, hash), (RewardLog(0, "0x", "0xA", "a", number, 0, reward),)))
    assert fold.standings_by_peer()["a"].reward == 105


def test_old_blocks_are_sealed_and_a_reorganisation_below_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standings, "OPEN_BLOCKS_MAX", 3)
    fold = ChainStandings()
    for number in range(10):
        fold.apply_event(ChainBlock(BlockRef(number, hex(number)), (RewardLog(0, "0x", "0xA", "a", number, 0, "1"),)))
    assert fold.standings_by_peer()["a"] == PeerStanding("a", "0xA", 10, 10, 10)
    fold.apply_event(ChainReorged(BlockRef(6, "0x6"), 3))
    assert fold.standings_by_peer()["a"] == PeerStanding("a", "0xA", 7, 7, 7)
    with pytest.raises(ChainError, match="too many to undo"):
        fold.apply_event(ChainReorged(BlockRef(5, "0x5"), 1))


def test_ranks_are_by_figure_and_ties_by_peer_id() -> None:
    rows = [PeerStanding("b", reward=3), PeerStanding("a", reward=3), PeerStanding("c", reward=2**256, wins=1)]
    assert [row.peer for row in rank_standings(rows)] == ["c", "a", "b"]
    assert {order: [row.peer for row in rank_standings(rows, order)] for order in get_args(Order)}["votes"] == [
        "a",
        "b",
        "c",
    ]


# --- a real contract ---


@pytest.fixture
def swarm(url: str) -> Swarm:
    w3 = connect(url)
    return deploy_swarm(w3, 1, deploy(w3, "LockedSwarmCoordinator-1"))


ODD = ("12D3KooWAlpha", "", "\x1b[31mred", 'it\'s "quoted"', "ünïcode ✓", "tab\tnew\nline")


class Played:
    """What a test has done with a contract, so that it knows the sums by itself."""

    def __init__(self, swarm: Swarm, seed: int) -> None:
        self.swarm = swarm
        self.random = random.Random(seed)
        self.owners = {peer: swarm.accounts[1 + number % 3] for number, peer in enumerate(ODD)}
        self.said: list[AnyChainLog] = []

    def play(self, rounds: int, first: int = 0) -> None:
        for peer, owner in self.owners.items() if first == 0 else ():
            self.swarm.register(owner, peer)
            self.said.append(RegistrationLog(0, "0x", owner, peer))
        for round in range(first, first + rounds):
            for peer in self.random.sample(ODD, 4):
                self.reward(peer, round)
            self.vote(self.random.choice(ODD), round)
            self.swarm.next_round()

    def reward(self, peer: str, round: int) -> None:
        amount = self.random.choice([0, -5, 412, 2**200, -(2**200), self.random.randrange(10**6)])
        self.swarm.send(self.owners[peer], "submitReward(uint256,uint256,int256,string)", round, 0, amount, peer)
        self.said.append(RewardLog(0, "0x", self.owners[peer], peer, round, 0, str(amount)))

    def vote(self, peer: str, round: int) -> None:
        winners = self.random.sample([*ODD, "nobody"], self.random.randrange(4))
        self.swarm.send(self.owners[peer], "submitWinners", round, winners, peer)
        self.said.append(VoteLog(0, "0x", self.owners[peer], peer, round, tuple(winners)))

    def expected(self) -> dict[str, PeerStanding]:
        return naive({0: ChainBlock(BlockRef(0, "0x"), tuple(self.said))})


def read(url: str, swarm: Swarm, from_block: int = 0) -> OnchainStandings:
    return anyio.run(partial(read_onchain_standings, [url], swarm.contract.address, from_block))


def views(swarm: Swarm, peers: list[str]) -> list[tuple[str, int, int, int]]:
    sums = swarm.ask("getTotalRewards", peers)
    return [
        (peer, reward, swarm.ask("getTotalWins", peer), swarm.ask("getVoterVoteCount", peer))
        for peer, reward in zip(peers, sums, strict=True)
    ]


def check(url: str, played: Played) -> None:
    found = read(url, played.swarm)
    counted = found.standings.standings_by_peer()
    assert counted == played.expected()
    assert [(row.peer, row.reward, row.wins, row.votes) for row in counted.values()] == views(
        played.swarm, list(counted)
    )
    assert (found.whole, found.differences, found.rejected) == (True, (), {})


@pytest.mark.parametrize("seed", range(3))
def test_folded_standings_are_those_of_the_contract(url: str, swarm: Swarm, seed: int) -> None:
    played = Played(swarm, seed)
    played.play(4)
    check(url, played)


def test_after_a_reorganisation_only_what_stands_is_counted(url: str, swarm: Swarm) -> None:
    played = Played(swarm, 7)
    played.play(2)
    dropped_from = swarm.w3.eth.block_number
    swarm.send(played.owners[ODD[0]], "submitReward(uint256,uint256,int256,string)", 0, 1, 10**9, ODD[0])
    swarm.send(played.owners[ODD[1]], "submitWinners", 0, ["x"], ODD[1])
    assert "x" in read(url, swarm).standings.standings_by_peer()
    answer = swarm.w3.provider.make_request("anvil_reorg", [swarm.w3.eth.block_number - dropped_from, []])  # type: ignore[arg-type]
    assert "error" not in answer
    check(url, played)
    played.play(1, first=2)
    check(url, played)


def test_a_chain_that_changes_while_it_is_read_is_read_again(
    url: str, swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(swarm, 3)
    played.play(1)
    reads: list[int] = []
    real = coordinator._compare_with_contract

    async def disturbed(*arguments: Any) -> Any:
        reads.append(1)
        if len(reads) == 1:
            await anyio.to_thread.run_sync(swarm.w3.provider.make_request, "anvil_reorg", [1, []])
        return await real(*arguments)

    monkeypatch.setattr(coordinator, "_compare_with_contract", disturbed)
    assert read(url, swarm).differences == ()
    assert len(reads) == 2
