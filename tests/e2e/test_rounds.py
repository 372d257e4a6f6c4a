"""Nodes with real trainers run rounds to the end, and go on when asked for more; a third one is in `test_swarms`."""

import pytest

from swarmd.core.events import LeaderboardPublished, RolloutsGathered, StageTrained
from tests.e2e.audit import events_of
from tests.e2e.conftest import Swarm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.nodes(2, trained=(1, 2))
def test_rounds_run_to_the_end_and_go_on(swarm: Swarm) -> None:
    swarm.run(rounds=2)
    swarm.wait_over()
    assert set(swarm.stop().values()) == {0}
    assert swarm.find_leftover_pids() == []
    for history in swarm.histories().values():
        assert [trained.round for trained in history] == [0, 1]

    swarm.run(rounds=2)
    swarm.wait_over()
    swarm.stop()
    for name, history in swarm.histories().items():
        assert [trained.round for trained in history] == [0, 1, 2, 3], name
    shares_are_trained_on(swarm)
    standings_add_up(swarm)


def shares_are_trained_on(swarm: Swarm) -> None:
    """From the second round on, every node gathers its peer's rollouts and trains on groups of its."""
    for place in swarm.places:
        events = list(events_of(place.events))
        gathered = [len(event.rollouts) for event in events if isinstance(event, RolloutsGathered)]
        used = [event.peer_groups for event in events if isinstance(event, StageTrained)]
        assert len(gathered) == 3
        assert gathered.count(1) >= 2, gathered
        assert used[0] == 0
        assert sum(used[1:]) > 0, used


def standings_add_up(swarm: Swarm) -> None:
    """The coordinator's leaderboard is the sum of what the nodes' own logs say they earned."""
    from swarmd.eventlog.fold import load_state

    state, _ = load_state(swarm.places[0].events)
    assert state.coordination is not None
    standings = {row.peer: row for row in state.coordination.standings}
    assert len(standings) == 2
    for place in swarm.places:
        own, _ = load_state(place.events)
        assert own.settings is not None
        assert standings[own.settings.peer].rounds == 4
        assert standings[own.settings.peer].reward == pytest.approx(own.reward_total)
    published = [e.round for e in events_of(swarm.places[0].events) if isinstance(e, LeaderboardPublished)]
    assert published[-1] == 3
