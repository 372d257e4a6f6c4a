"""After the faults honest members are credited again, in simulated swarms."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from swarmd.core.coordinator import waiting
from swarmd.sim.invariants.checks import InvariantBroken
from swarmd.sim.node import SimNode
from swarmd.sim.profile import CALM
from swarmd.sim.world import BEGIN, World, run

PROFILE = replace(CALM, nodes=3, hours=0.6, calm_s=1000.0, stage_s=60.0, quorum=1.0)
FIRST_S, APART_S, CALM_S = 120.0, 150.0, 900.0  # since the beginning: the first sleep, between two, all awake
SLEEPS = 5
PACE_S, ASLEEP_S = 6.0, 85.0


def sleepy_world(seed: int, times: float = 2.0) -> tuple[World, dict[str, int]]:
    """Followers that train `times` as long as the coordinator, and five times for so long that they miss stages.

    Returns:
        The world, and the rounds of each member when the last sleep was over; the coordinator's number under "".
    """
    world, before = World(seed, PROFILE), dict[str, int]()
    for node in world.nodes:
        node.pace_s = PACE_S if node.coordinates else times * PACE_S
    for number in range(SLEEPS):
        began = BEGIN + FIRST_S + number * APART_S
        for node in world.nodes[1:]:
            world.call_at(began, set_pace, node, ASLEEP_S)
            world.call_at(began + 15.0, set_pace, node, times * PACE_S)

    def note() -> None:
        before.update(rounds_of(world))

    world.call_at(BEGIN + CALM_S, note)
    return world, before


def set_pace(node: SimNode, pace_s: float) -> None:
    node.pace_s = pace_s


def rounds_of(world: World) -> dict[str, int]:
    coordination = world.nodes[0].state.coordination
    assert coordination is not None
    return {member.peer: member.rounds for member in coordination.members} | {"": coordination.round}


@pytest.mark.parametrize("seed", range(3))
def test_slower_followers_that_slept_through_stages_are_credited_in_nearly_all_rounds_of_calm(seed: int) -> None:
    world, before = sleepy_world(seed)
    world.play()
    after = rounds_of(world)
    held = after[""] - before[""]
    assert held > 40 and before["peer-001"] < before[""] - SLEEPS, "they did miss rounds"
    assert all(after[node.peer] - before[node.peer] >= 0.96 * held for node in world.nodes)


def test_a_healthy_member_that_is_not_waited_for_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for every in ("WIDE_EVERY", "LONG_SILENT_EVERY"):
        monkeypatch.setattr(waiting, every, 10**6)
    with pytest.raises(InvariantBroken, match=r"was not credited in 4 stages of calm|count no more"):
        for seed in range(3):
            sleepy_world(seed, 3.0)[0].play()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_all_are_back_after_a_storm(seed: int) -> None:
    given: dict[str, Any] = {"nodes": 4, "stages": 1, "stage_s": 25.0, "train_mean_s": 5.0, "train_max_s": 45.0}
    given |= {"quorum": 1.0, "chain": False, "hostile": "none", "rounds_max": 0, "jumps": 0.0}
    assert run(seed, **given, faults=200.0, restart_mean_s=60.0, hours=0.6, calm_s=900.0).crashes > 10
