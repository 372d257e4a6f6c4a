"""A swarm whose stages lie in shards, few enough that three nodes have several: it trains, shares, credits, goes on."""

from __future__ import annotations

import signal

import pytest

from swarmd.core.events import RolloutsGathered, StageTrained
from swarmd.eventlog.fold import load
from tests.e2e.audit import events_of
from tests.e2e.conftest import PATIENCE_S, Swarm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROUNDS = 4


@pytest.mark.soak
def test_a_sharded_swarm_trains_and_credits_all_and_catches_up_after_a_restart(swarm: Swarm) -> None:
    """A node is killed in the middle of a sharded stage and started again; no round is lost to anybody."""
    swarm.run(rounds=ROUNDS, coordinator__shard_members=1, training__steps=12)
    swarm.wait_round(3, 1)
    swarm.wait_state(3, "round.training")
    swarm.daemons[2].send(signal.SIGKILL)
    assert swarm.daemons[2].wait(PATIENCE_S)
    swarm.daemons[2].start()
    swarm.wait_over()
    swarm.stop()
    for name, history in swarm.histories().items():
        assert [trained.round for trained in history] == list(range(ROUNDS)), name
    stages_lay_in_shards(swarm)
    all_share_with_all(swarm)
    all_are_credited(swarm)


def stages_lay_in_shards(swarm: Swarm) -> None:
    state, _ = load(swarm.places[0].events)
    assert state.coordination is not None
    assert (state.coordination.shards, state.coordination.sharded_since) == (4, 0)


def all_share_with_all(swarm: Swarm) -> None:
    """So few are fewer than a node gathers from: from the second round on each has both others' rollouts."""
    for place in swarm.places:
        events = list(events_of(place.events))
        gathered = {event.round: len(event.rollouts) for event in events if isinstance(event, RolloutsGathered)}
        assert [gathered[round] for round in range(1, ROUNDS)] == [2] * (ROUNDS - 1), (place.name, gathered)
        assert sum(event.peer_groups for event in events if isinstance(event, StageTrained)) > 0


def all_are_credited(swarm: Swarm) -> None:
    state, _ = load(swarm.places[0].events)
    assert state.coordination is not None
    assert [row.rounds for row in state.coordination.standings] == [ROUNDS] * len(swarm.places)
