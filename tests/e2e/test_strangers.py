"""A node that keeps to other terms than its swarm: what it sends is refused and counted, and the others train on.

It does so in the swarm of the kind math-hard, all of which is looked at here.
"""

from __future__ import annotations

from itertools import product

import pytest
import tomlkit

from swarmd.cli.local_swarm import peer_of
from swarmd.core.events import RolloutsGathered, StageTrained
from tests.e2e.audit import events_of
from tests.e2e.conftest import Swarm
from tests.e2e.test_swarms import KINDS, ROUNDS, TINY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.soak
@pytest.mark.nodes(3, trained=(1,))
def test_a_peer_whose_groups_have_another_size(swarm: Swarm) -> None:
    stages, settings = KINDS["math-hard"]
    swarm.prepare(ROUNDS, "math-hard", **TINY | settings)
    odd = swarm.places[2].config
    document = tomlkit.parse(odd.read_text())
    document["training"]["generations"] = 3  # type: ignore[index]
    odd.write_text(tomlkit.dumps(document))
    stranger = peer_of(swarm.places[2])
    swarm.start()
    swarm.wait_over()
    for number in (1, 2):
        status = swarm.told(number)
        assert status.rejections.keys() == {"group-size"}, status
    swarm.stop()
    for place in swarm.places[:2]:
        events = list(events_of(place.events))
        trained = [event for event in events if isinstance(event, StageTrained)]
        assert [(event.round, event.stage) for event in trained] == list(product(range(ROUNDS), range(stages)))
        assert all(event.tokens > 0 and event.rollouts.groups > 0 for event in trained)
        gathered = [{ref.peer: ref.groups for ref in e.rollouts} for e in events if isinstance(e, RolloutsGathered)]
        assert sum(stranger in groups for groups in gathered) >= 3
        for event, groups in zip(trained[1:], gathered, strict=True):
            assert dict(event.rejected).get("group-size", 0) == groups.pop(stranger, 0), "each group once"
            assert [each.peer for each in event.judged] == list(groups), "the peer that keeps to the terms"
        assert "refused of peers: group-size" in place.output.read_text()
