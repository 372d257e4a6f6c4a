"""Three real nodes on a real chain: what they earn is on the chain, once, whatever happens to them."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarmd.core.events import (
    ChainReorged,
    Event,
    StageTrained,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionPrepared,
    SubmissionSent,
)
from tests.e2e.audit import events_of
from tests.e2e.chained import ChainedSwarm, chained_swarm
from tests.e2e.conftest import audited

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture
def chained(tmp_path: Path) -> Iterator[ChainedSwarm]:
    with chained_swarm(tmp_path / "swarm") as swarm, audited(swarm):
        yield swarm


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
        for event in events_of(place.paths.events):
            if isinstance(event, StageTrained) and (peer, event.round, event.stage) in on_chain:
                assert on_chain[peer, event.round, event.stage] == math.floor(event.reward * 1000 + 0.5), event


def run_leaderboard(swarm: ChainedSwarm) -> dict[str, object]:
    given = ["--rpc", swarm.ground.url, "--contract", swarm.ground.contract, "--json"]
    command = [sys.executable, "-m", "swarmd", "leaderboard", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {row["peer"]: row for row in json.loads(done.stdout)["standings"]}


def test_rounds_kept_by_a_contract(chained: ChainedSwarm) -> None:
    chained.run()
    chained.wait_contract(3)
    chained.wait_settled(2)
    chained.stop()
    assert_once(chained)
    assert_rewards_are_the_logs(chained)
    assert_votes_are_judged(chained)
    totals: Counter[str] = Counter()
    for log in chained.rewards():
        totals[log.peer] += int(log.reward)
    wins = Counter(winner for log in chained.votes() for winner in log.winners)
    board = run_leaderboard(chained)
    assert {peer: int(row["reward"]) for peer, row in board.items()} == dict(totals)  # type: ignore[index]
    assert {peer: row["wins"] for peer, row in board.items()} == {peer: wins[peer] for peer in totals}  # type: ignore[index]


def assert_votes_are_judged(swarm: ChainedSwarm) -> None:
    """Every vote is for the highest sum of what the voter's own trainer made of each stage, whatever peers report."""
    assert swarm.votes()
    for log in swarm.votes():
        assert log.winners == (best_judged(swarm, log.peer, log.round),), log


def best_judged(swarm: ChainedSwarm, voter: str, round: int) -> str:
    """The highest sum over the stages of a round: of a peer as this node judged it, of itself as it was rewarded."""
    sums: dict[str, float] = {}
    stages = swarm.ground.stages
    for event in events_of(swarm.places[swarm.peers.index(voter)].paths.events):
        if isinstance(event, StageTrained):
            if event.round == round:
                sums[voter] = sums.get(voter, 0.0) + event.reward
            if divmod(event.round * stages + event.stage - 1, stages)[0] == round:  # it judges the stage before
                for each in event.judged:
                    sums[each.peer] = sums.get(each.peer, 0.0) + each.worth
    return min(sums, key=lambda peer: (-sums[peer], peer))


BOUNDARIES: list[Callable[[Event, int], bool]] = [
    lambda event, round: isinstance(event, StageTrained) and event.round == round,  # intended
    lambda event, round: isinstance(event, SubmissionPrepared) and event.submission == f"reward/{round}/0",
    lambda event, round: isinstance(event, SubmissionSent) and event.submission == f"reward/{round}/0",
    lambda event, round: isinstance(event, SubmissionIncluded) and event.submission == f"reward/{round}/0",
    lambda event, round: isinstance(event, SubmissionConfirmed) and event.submission == f"reward/{round}/0",
]


def test_a_node_killed_at_each_boundary_of_a_submission(chained: ChainedSwarm) -> None:
    """kill -9 of the daemon as soon as its log shows each step of a reward; it is started again at once."""
    chained.run()
    victim = chained.daemons[1]
    for round, boundary in enumerate(BOUNDARIES):
        wait_for(chained, lambda event, round=round, boundary=boundary: boundary(event, round))  # type: ignore[misc]
        os.kill(victim.pid, signal.SIGKILL)
        chained.wait_until(lambda: victim.exit_code is not None, 10.0, "the daemon to be dead")
        victim.start()
    chained.wait_settled(len(BOUNDARIES) - 1, 150.0)
    chained.stop()
    assert_once(chained)
    assert_rewards_are_the_logs(chained)


def wait_for(swarm: ChainedSwarm, condition: Callable[[Event], bool], within_s: float = 120.0) -> None:
    """Until node 2's log has an event of this kind."""
    events = swarm.places[1].paths.events

    def happened() -> bool:
        return events.is_dir() and any(map(condition, events_of(events)))

    swarm.wait_until(happened, within_s, "an event of node 2", every_s=0.02)


def test_reorganisations_and_a_chain_that_stands_still(chained: ChainedSwarm) -> None:
    """Blocks are replaced under a running swarm, without the transactions that they held, and mining stops a while."""
    chained.run()
    chained.wait_contract(1)
    chained.ground.say("anvil_reorg", 5, [])
    chained.wait_contract(2)
    chained.ground.say("anvil_setIntervalMining", 0)
    held = chained.ground.height()
    wait_for(chained, lambda event: isinstance(event, ChainReorged))
    assert chained.ground.height() == held
    chained.ground.say("anvil_setIntervalMining", 1)
    chained.wait_contract(3)
    chained.wait_settled(2, 150.0)
    chained.stop()
    assert_once(chained)
    assert_rewards_are_the_logs(chained)


def test_an_old_copy_of_a_node_does_no_harm(chained: ChainedSwarm, tmp_path: Path) -> None:
    """A data directory from a backup: the node finds on the chain what it has forgotten, and goes on."""
    chained.run()
    victim = chained.daemons[1]
    backup = tmp_path / "backup"
    chained.wait_contract(1)
    os.kill(victim.pid, signal.SIGKILL)
    chained.wait_until(lambda: victim.exit_code is not None, 10.0, "the daemon to be dead")
    shutil.copytree(victim.place.root, backup, ignore=shutil.ignore_patterns("run"))
    victim.start()
    chained.wait_settled(1, 120.0)
    os.kill(victim.pid, signal.SIGKILL)
    chained.wait_until(lambda: victim.exit_code is not None, 10.0, "the daemon to be dead")
    known = chained.round()
    shutil.rmtree(victim.place.root)
    shutil.copytree(backup, victim.place.root)
    victim.start()
    chained.wait_until(
        lambda: any(log.peer == chained.peers[1] and log.round > known for log in chained.rewards()),
        180.0,
        "the restored node to earn again",
    )
    chained.stop()
    assert_once(chained)


def test_three_nodes_on_one_account(tmp_path: Path) -> None:
    with chained_swarm(tmp_path / "swarm", shared=True) as swarm, audited(swarm):
        swarm.run()
        swarm.wait_contract(2)
        swarm.wait_settled(1)
        swarm.stop()
        assert_once(swarm)
