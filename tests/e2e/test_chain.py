"""Nodes on a real chain: what they earn is on the chain, once, whatever happens to them.

Their trainers are scripted, for all that the chain hears of one is a stage's reward and whom it judged best: what real
ones say on a chain is looked at in `test_swarms`, what becomes of a stage that is killed with them in `test_faults`.
"""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarmd.core.events import (
    ChainBlock,
    ChainReorged,
    Event,
    RewardLog,
    RolloutsGathered,
    StageTrained,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionPrepared,
    SubmissionsCounted,
    SubmissionSent,
    VoteLog,
)
from tests.e2e.audit import events_of
from tests.e2e.chained import ChainedSwarm, assert_once, assert_rewards_are_the_logs, chained_swarm
from tests.e2e.conftest import PATIENCE_S, audited

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture
def chained(tmp_path: Path) -> Iterator[ChainedSwarm]:
    with chained_swarm(tmp_path / "swarm", nodes=2) as swarm, audited(swarm):
        yield swarm


STEADY_WEI = 7  # a base fee so low that no empty block lowers it
PREPARED_MAX = 3  # attempts at one submission: at first, after the reorganisation, and where that one is overtaken

BOUNDARIES: list[Callable[[Event, int], bool]] = [
    lambda event, round: isinstance(event, StageTrained) and event.round == round,  # intended
    lambda event, round: isinstance(event, SubmissionPrepared) and event.submission == f"reward/{round}/0",
    lambda event, round: isinstance(event, SubmissionSent) and event.submission == f"reward/{round}/0",
    lambda event, round: isinstance(event, SubmissionIncluded) and event.submission == f"reward/{round}/0",
    lambda event, round: isinstance(event, SubmissionConfirmed) and event.submission == f"reward/{round}/0",
]


@pytest.mark.parametrize("boundaries", [BOUNDARIES[1:3], pytest.param(BOUNDARIES, marks=pytest.mark.soak)])
def test_a_node_killed_at_each_boundary_of_a_submission(
    chained: ChainedSwarm, boundaries: list[Callable[[Event, int], bool]]
) -> None:
    """kill -9 of the daemon as soon as its log shows each step of a reward; it is started again at once."""
    chained.run()
    victim = chained.daemons[1]
    for round, boundary in enumerate(boundaries):
        wait_for(chained, lambda event, round=round, boundary=boundary: boundary(event, round))  # type: ignore[misc]
        os.kill(victim.pid, signal.SIGKILL)
        chained.wait_until(lambda: victim.exit_code is not None, PATIENCE_S, "the daemon to be dead")
        victim.start()
    chained.wait_settled(len(boundaries) - 1)
    chained.stop()
    assert_once(chained)
    assert_rewards_are_the_logs(chained)


def wait_for(swarm: ChainedSwarm, condition: Callable[[Event], bool], within_s: float = PATIENCE_S) -> None:
    """Until node 2's log has an event of this kind."""
    events = swarm.places[1].events

    def happened() -> bool:
        return events.is_dir() and any(map(condition, events_of(events)))

    swarm.wait_until(happened, within_s, "an event of node 2", every_s=0.05)


@pytest.mark.soak
def test_reorganisations_and_a_chain_that_stands_still(chained: ChainedSwarm) -> None:
    """Blocks are replaced under a running swarm, without the transactions that they held, and mining stops a while.

    What was confirmed in them is signed again, at a price that never changes: it is the same transaction.
    """
    chained.ground.say("anvil_setNextBlockBaseFeePerGas", hex(STEADY_WEI))
    chained.run()
    chained.wait_contract(1)
    chained.ground.say("anvil_reorg", 5, [])
    chained.wait_contract(2)
    chained.ground.say("anvil_setIntervalMining", 0)
    held = chained.ground.height()
    wait_for(chained, lambda event: isinstance(event, ChainReorged))
    assert chained.ground.height() == held
    chained.ground.say("anvil_setIntervalMining", 1)
    chained.wait_settled(2)
    chained.stop()
    assert_once(chained)
    assert_rewards_are_the_logs(chained)
    for daemon in chained.daemons:
        assert max(preparations(daemon.place.events).values()) <= PREPARED_MAX


def preparations(events: Path) -> Counter[str]:
    """How often each submission was made ready, by a node's log."""
    return Counter(event.submission for event in events_of(events) if isinstance(event, SubmissionPrepared))


@pytest.mark.soak
def test_an_old_copy_of_a_node_does_no_harm(chained: ChainedSwarm, tmp_path: Path) -> None:
    """A data directory from a backup: the node finds on the chain what it has forgotten, and goes on."""
    chained.run()
    victim = chained.daemons[1]
    backup = tmp_path / "backup"
    chained.wait_contract(1)
    os.kill(victim.pid, signal.SIGKILL)
    chained.wait_until(lambda: victim.exit_code is not None, PATIENCE_S, "the daemon to be dead")
    shutil.copytree(victim.place.root, backup, ignore=shutil.ignore_patterns("run"))
    victim.start()
    chained.wait_settled(1)
    os.kill(victim.pid, signal.SIGKILL)
    chained.wait_until(lambda: victim.exit_code is not None, PATIENCE_S, "the daemon to be dead")
    known = chained.round()
    shutil.rmtree(victim.place.root)
    shutil.copytree(backup, victim.place.root)
    victim.start()
    chained.wait_until(
        lambda: any(log.peer == chained.peers[1] and log.round > known for log in chained.rewards()),
        PATIENCE_S,
        "the restored node to earn again",
    )
    chained.stop()
    assert_once(chained)


ROUNDS = 2


def test_nodes_share_by_shards_and_move_on_by_the_contracts_count(tmp_path: Path) -> None:
    """Stages last much longer than the test: they end by the count of reports alone, and after a kill too."""
    with chained_swarm(tmp_path / "swarm", nodes=3) as swarm, audited(swarm):
        swarm.run(chain__shards=4)
        swarm.wait_contract(1)
        swarm.daemons[2].send_signal(signal.SIGKILL)
        assert swarm.daemons[2].wait_for_exit(PATIENCE_S)
        swarm.daemons[2].start()
        swarm.wait_settled(ROUNDS - 1)
        swarm.stop()
        assert_once(swarm)
        assert_rewards_are_the_logs(swarm)
        each_read_its_own(swarm)
        all_share_with_all(swarm)


def each_read_its_own(swarm: ChainedSwarm) -> None:
    for peer, place in zip(swarm.peers, swarm.places, strict=True):
        events = list(events_of(place.events))
        logs = [log for event in events if isinstance(event, ChainBlock) for log in event.logs]
        assert {log.peer for log in logs if isinstance(log, RewardLog | VoteLog)} == {peer}
        assert max(event.count for event in events if isinstance(event, SubmissionsCounted)) == len(swarm.places)


def all_share_with_all(swarm: ChainedSwarm) -> None:
    """So few are fewer than a node gathers from: it has both others' rollouts of the round before."""
    for place in swarm.places:
        gathered = [len(event.rollouts) for event in events_of(place.events) if isinstance(event, RolloutsGathered)]
        assert gathered.count(2) >= ROUNDS - 1, (place.name, gathered)
