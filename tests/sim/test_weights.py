"""Swarms whose newcomers take weights from peers keep every invariant, whatever breaks meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from swarmd.core.events import TimerFired, WeightsAdopted, WeightsFetched, WeightsRefused
from swarmd.sim.profile import draw_profile
from swarmd.sim.world import World

SEEDS = (17, 24, 28)  # 17 once sent a stage out twice, with weights and without
WORLD: dict[str, Any] = {
    "catch_up_rounds": 2, "hostile": "none", "hours": 0.25, "calm_s": 300.0, "chain": False, "stages": 1, "nodes": 4,
    "stage_s": 25.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def facts() -> Counter[str]:
    """What became of weights, in all logs of all seeds."""
    found: Counter[str] = Counter()
    for seed in SEEDS:
        world = World(seed, draw_profile(seed, **WORLD))
        world.play()
        for node in world.nodes:
            for event in (event for commit in node.disk.log.commits for event in commit.events):
                if isinstance(event, WeightsFetched | WeightsAdopted | WeightsRefused):
                    found[type(event).__name__] += 1
                elif isinstance(event, TimerFired) and event.name == "weights":
                    found["overdue"] += 1
    return found


def test_everything_that_can_become_of_weights_did(facts: Counter[str]) -> None:
    assert set(facts) == {"WeightsFetched", "WeightsAdopted", "WeightsRefused", "overdue"}, facts
