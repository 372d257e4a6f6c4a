"""A swarm on a chain whose manifest has shards: each node reads its own rewards of the contract, and a count."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from swarmd.core.events import ChainBlock, RewardLog, RolloutsGathered, SubmissionsCounted, VoteLog
from tests.e2e.audit import events_of
from tests.e2e.chained import ChainedSwarm, chained_swarm
from tests.e2e.conftest import PATIENCE_S, audited
from tests.e2e.standing import assert_once, assert_rewards_are_the_logs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROUNDS = 2


def test_nodes_share_by_shards_and_move_on_by_the_contracts_count(tmp_path: Path) -> None:
    """Stages last much longer than the test: they end by the count of reports alone, and after a kill too."""
    with chained_swarm(tmp_path / "swarm", nodes=3) as swarm, audited(swarm):
        swarm.run(chain__shards=4)
        swarm.wait_contract(1)
        swarm.daemons[2].send(signal.SIGKILL)
        assert swarm.daemons[2].wait(PATIENCE_S)
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
