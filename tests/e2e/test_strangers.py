"""A node that keeps to other terms than its swarm: what it sends is refused and counted, and the others train on."""

from __future__ import annotations

import pytest
import tomlkit

from swarmd.cli.layout import peer_of
from swarmd.core.events import RolloutsGathered, StageTrained
from tests.e2e.audit import events_of
from tests.e2e.conftest import Swarm
from tests.e2e.test_swarms import KINDS, TINY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_a_peer_whose_groups_have_another_size(swarm: Swarm) -> None:
    swarm.prepare(2, "gsm8k", **TINY | KINDS["gsm8k"][1])
    odd = swarm.places[2].config
    document = tomlkit.parse(odd.read_text())
    document["training"]["generations"] = 3  # type: ignore[index]
    odd.write_text(tomlkit.dumps(document))
    stranger = peer_of(swarm.places[2])
    swarm.start()
    swarm.wait_over(200)
    for number in (1, 2):
        status = swarm.status(number)
        assert status is not None and status.rejections.keys() == {"group-size"}, status
    swarm.stop()
    for place in swarm.places[:2]:
        events = list(events_of(place.paths.events))
        trained = [event for event in events if isinstance(event, StageTrained)]
        assert [(event.round, event.stage) for event in trained] == [(r, s) for r in range(2) for s in range(3)]
        gathered = [{ref.peer: ref.groups for ref in e.rollouts} for e in events if isinstance(e, RolloutsGathered)]
        assert sum(stranger in groups for groups in gathered) >= 3
        for event, groups in zip(trained[1:], gathered, strict=True):
            assert dict(event.rejected).get("group-size", 0) == groups.pop(stranger, 0), "each group once"
            assert [each.peer for each in event.judged] == list(groups), "the peer that keeps to the terms"
        assert "refused of peers: group-size" in place.output.read_text()
