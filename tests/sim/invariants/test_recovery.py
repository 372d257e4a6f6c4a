"""Whom a swarm leaves behind for a while is back once it waits for all again."""

from __future__ import annotations

from typing import Any

import pytest

from swarmd.sim.invariants.patience_model import PatienceModel
from swarmd.sim.profile import draw_profile
from swarmd.sim.world import World, run

FAILING: dict[str, Any] = {
    "nodes": 4,
    "stages": 1,
    "stage_s": 25.0,
    "train_mean_s": 5.0,
    "train_max_s": 45.0,
    "quorum": 1.0,
    "chain": False,
    "hostile": "none",
    "rounds_max": 0,
    "faults": 200.0,
    "jumps": 0.0,
    "restart_mean_s": 60.0,
}
LONG: dict[str, Any] = {"hours": 1.0, "calm_s": 2600.0}  # 64 longest stages, and the time to settle before


@pytest.mark.parametrize(
    ("given", "excused"),
    [
        (LONG, False),
        (LONG | {"calm_s": 900.0}, True),
        (LONG | {"hostile": "sleeper"}, True),
        (LONG | {"train_mean_s": 12.0}, True),
    ],
    ids=["long calm", "short calm", "strangers", "somebody slow"],
)
def test_a_member_that_is_left_behind_is_excused_until_all_are_waited_for_again(
    given: dict[str, Any], excused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatienceModel, "may_wait", lambda model, peer: False)
    world = World(2, draw_profile(2, **FAILING | given))
    chair, node = world.checks.ledgers[0].chair, min(world.nodes, key=lambda node: node.pace_s)
    assert chair is not None
    chair.rounds[node.peer] = 1
    assert world.checks.recovery._is_waited_for(node) is not excused


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_all_are_back_after_a_long_calm(seed: int) -> None:
    """In seed 2 all three followers are left behind when the faults cease, and for a quarter of an hour after."""
    assert run(seed, **FAILING, **LONG).crashes > 10
