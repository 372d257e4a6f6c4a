"""Swarms whose newcomers take weights from peers keep every invariant, whatever breaks meanwhile."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from swarmd.cli.sim import parse_profile_fields
from swarmd.core import weights
from swarmd.core.events import TimerFired, WeightsAdopted, WeightsFetched, WeightsRefused
from swarmd.core.turn import StepContext
from swarmd.core.values import PeerWeights
from swarmd.sim.profile import draw_profile
from swarmd.sim.simulation import InvariantBroken, repeat_command_line
from swarmd.sim.world import World

SEEDS = (17, 18, 24, 28)  # 17 once sent a stage out twice, with weights and without
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
        world.run_and_check()
        for node in world.nodes:
            for event in (event for commit in node.disk.log.commits for event in commit.events):
                if isinstance(event, WeightsFetched | WeightsAdopted | WeightsRefused):
                    found[type(event).__name__] += 1
                elif isinstance(event, TimerFired) and event.name == "weights":
                    found["overdue"] += 1
    return found


def test_everything_that_can_become_of_weights_did(facts: Counter[str]) -> None:
    assert set(facts) == {"WeightsFetched", "WeightsAdopted", "WeightsRefused", "overdue"}, facts


AVERAGING: dict[str, Any] = {**WORLD, "catch_up_rounds": 0, "average_rounds": 1}


@pytest.mark.parametrize(
    ("seed", "world", "other"),
    [(24, WORLD, {"digest": "0" * 64}), (SEEDS[1], AVERAGING, {"averaged": False})],
    ids=["another digest", "whole in place of a mean"],
)
def test_a_run_fails_where_a_stage_begins_from_what_was_not_fetched(
    seed: int, world: dict[str, Any], other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    give = weights.give_to_trainer

    def give_other(turn: StepContext) -> PeerWeights | None:
        given = give(turn)
        return given and msgspec.structs.replace(given, **other)

    monkeypatch.setattr(weights, "give_to_trainer", give_other)
    with pytest.raises(InvariantBroken, match="fetched were"):
        World(seed, draw_profile(seed, **world)).run_and_check()


@pytest.mark.parametrize("rounds", ["catch_up_rounds", "average_rounds"])
def test_a_quarter_of_the_seeds_draw_nodes_that_take_weights_and_no_recorded_one_does(rounds: str) -> None:
    drawn = [getattr(draw_profile(seed), rounds) for seed in range(200)]
    assert 30 < sum(each > 0 for each in drawn) < 70
    assert not any(getattr(draw_profile(seed, hostile="none"), rounds) for seed in range(200))


@pytest.mark.parametrize("hostile", [{}, {"hostile": "none"}, {"hostile": "sybil"}])
def test_the_line_that_repeats_a_run_gives_its_profile(hostile: dict[str, Any]) -> None:
    for seed in range(40):
        for profile in (draw_profile(seed, **hostile), draw_profile(seed, **hostile, catch_up_rounds=2)):
            given = repeat_command_line(seed, profile).split(" --set ")[1:]
            assert draw_profile(seed, **parse_profile_fields(given, None, None)) == profile


def test_nodes_that_average_keep_every_invariant_and_all_that_can_become_of_a_mean_does() -> None:
    found: Counter[str] = Counter()
    for seed in SEEDS:
        world = World(seed, draw_profile(seed, **AVERAGING))
        world.run_and_check()
        events = [event for node in world.nodes for commit in node.disk.log.commits for event in commit.events]
        adopted = [event for event in events if isinstance(event, WeightsAdopted)]
        assert all(event.weights.averaged for event in adopted)
        found["adopted"] += len(adopted)
        found.update(event.cause for event in events if isinstance(event, WeightsRefused))
    assert {"adopted", "worse", "none-offered"} <= set(found), found


def test_a_run_fails_where_a_stage_is_averaged_with_what_one_before_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_is_used_or_old", lambda turn, offered: False)
    with pytest.raises(InvariantBroken, match="as a stage before was"):
        for seed in SEEDS:
            World(seed, draw_profile(seed, **AVERAGING)).run_and_check()
