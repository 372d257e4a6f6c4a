"""What a contract has of a swarm, against the nodes' own logs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter

from swarmd.core.events import StageTrained
from tests.e2e.audit import events_of
from tests.e2e.chained import ChainedSwarm


def assert_earned(swarm: ChainedSwarm) -> None:
    """All that is on the chain is there once, and is what the nodes' logs say."""
    assert_once(swarm)
    assert_rewards_are_the_logs(swarm)
    assert_votes_are_judged(swarm)


def assert_once(swarm: ChainedSwarm) -> None:
    """Every node is registered to its account, and no reward and no vote is there twice."""
    assert {(log.peer, log.account) for log in swarm.registrations()} == set(
        zip(swarm.peers, swarm.accounts, strict=True)
    )
    for counts in (
        Counter(log.peer for log in swarm.registrations()),
        Counter((log.peer, log.round, log.stage) for log in swarm.rewards()),
        Counter((log.peer, log.round) for log in swarm.votes()),
    ):
        assert set(counts.values()) == {1}, counts


def assert_rewards_are_the_logs(swarm: ChainedSwarm) -> None:
    """The chain has of each stage what the node's own log says it earned."""
    on_chain = {(log.peer, log.round, log.stage): int(log.reward) for log in swarm.rewards()}
    for peer, place in zip(swarm.peers, swarm.places, strict=True):
        for event in events_of(place.events):
            if isinstance(event, StageTrained) and (peer, event.round, event.stage) in on_chain:
                assert on_chain[peer, event.round, event.stage] == math.floor(event.reward * 1000 + 0.5), event


def assert_votes_are_judged(swarm: ChainedSwarm) -> None:
    """Every vote is for the highest sum of what the voter's own trainer made of each stage, whatever peers report."""
    assert swarm.votes()
    for log in swarm.votes():
        assert log.winners == (best_judged(swarm, log.peer, log.round),), log


def best_judged(swarm: ChainedSwarm, voter: str, round: int) -> str:
    """The highest sum over the stages of a round: of a peer as this node judged it, of itself as it was rewarded."""
    sums: dict[str, float] = {}
    stages = swarm.ground.stages
    for event in events_of(swarm.places[swarm.peers.index(voter)].events):
        if isinstance(event, StageTrained):
            if event.round == round:
                sums[voter] = sums.get(voter, 0.0) + event.reward
            if divmod(event.round * stages + event.stage - 1, stages)[0] == round:  # it judges the stage before
                for each in event.judged:
                    sums[each.peer] = sums.get(each.peer, 0.0) + each.worth
    return min(sums, key=lambda peer: (-sums[peer], peer))


def assert_leaderboard(swarm: ChainedSwarm) -> None:
    """`swarmd leaderboard` adds up what is on the chain."""
    totals: Counter[str] = Counter()
    for log in swarm.rewards():
        totals[log.peer] += int(log.reward)
    wins = Counter(winner for log in swarm.votes() for winner in log.winners)
    board = run_leaderboard(swarm)
    assert {peer: int(row["reward"]) for peer, row in board.items()} == dict(totals)  # type: ignore[index]
    assert {peer: row["wins"] for peer, row in board.items()} == {peer: wins[peer] for peer in totals}  # type: ignore[index]


def run_leaderboard(swarm: ChainedSwarm) -> dict[str, object]:
    given = ["--rpc", swarm.ground.url, "--contract", swarm.ground.contract, "--json"]
    command = [sys.executable, "-m", "swarmd", "leaderboard", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {row["peer"]: row for row in json.loads(done.stdout)["standings"]}
