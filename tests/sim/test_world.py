"""Whole swarms on simulated machines: nothing happens that must not, and the same seed gives the same run."""

import os
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from swarmd.core.state import State
from swarmd.sim.profile import CALM, ROUGH, draw_profile
from swarmd.sim.simulation import InvariantBroken
from swarmd.sim.world import World, run_simulation

SPAN: dict[str, Any] = {"hours": 0.5, "calm_s": 700.0}
BRIEF: dict[str, Any] = {"hours": 0.4, "calm_s": 700.0}
TRACES = f"""
from swarmd.sim.world import run_simulation
print(*[run_simulation(7, chain=chain, **{BRIEF}).trace for chain in (False, True)])
"""


def test_the_seeds_keep_every_invariant(seeds: range) -> None:
    runs = [run_simulation(seed, **SPAN) for seed in seeds]
    assert sum(summary.events for summary in runs) > 500 * len(runs)
    happened = ("crashes", "partitions", "skips", "full_disks", "restores")
    assert all(sum(getattr(summary, kind) for summary in runs) > 0 for kind in happened)


@pytest.mark.parametrize("gather_peers", [pytest.param(2, marks=pytest.mark.soak), 32])
def test_swarms_whose_stages_have_shards_keep_every_invariant(gather_peers: int, seeds: range) -> None:
    """Also those of one member each, and however many peers a node gathers from."""
    given = SPAN | {"chain": False, "hostile": "none", "gather_peers": gather_peers}
    worlds = [World(seed, draw_profile(seed, **given, shard_members=1 + seed % 2)) for seed in seeds[:2]]
    for world in worlds:
        world.run_and_check()
    clocks = [world.nodes[0].state.coordination for world in worlds]
    assert all(clock is not None and clock.shards > 1 for clock in clocks)


def test_some_seeds_have_shards() -> None:
    drawn = [draw_profile(seed) for seed in range(100)]
    assert 5 < sum(profile.has_shards for profile in drawn) < 40


def test_a_rough_chain_loses_and_doubles_nothing(seeds: range) -> None:
    runs = [run_simulation(seed, **ROUGH, **SPAN) for seed in seeds]
    assert sum(summary.confirmed for summary in runs) > 50 * len(runs)
    assert all(sum(getattr(summary, kind) for summary in runs) > 0 for kind in ("crashes", "reorgs", "refused"))


def test_a_trainer_that_stops_across_a_pause_is_told_once() -> None:
    summary = run_simulation(700182, hours=0.6, when_alone="go-on", jumps=0.0, hostile="none")
    assert summary.full_disks > 0


def test_what_a_predecessor_wrote_by_a_clock_that_was_ahead_is_no_twins() -> None:
    """Peers keep its membership, for it expires last; nobody writes it again."""
    assert run_simulation(6, jumps=20.0, hours=0.6).crashes > 10


ONCE: dict[str, Any] = {"hours": 0.6, "jumps": 0.0, "hostile": "none"}
STRANGE: dict[str, Any] = {"hours": 0.5, "hostile": "all"}
AHEAD: dict[str, Any] = {
    "hours": 0.35, "calm_s": 300.0, "jumps": 12.0, "hostile": "none", "nodes": 2, "faults": 5.0, "latency_s": 0.02,
    "failure": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "what", "given"),
    [
        (701612, "a stop that a frozen daemon takes up together with others ends its life", ONCE),
        (707909, "a late answer to a cancelling does not free a trainer that is at the stage once more", ONCE),
        (703330, "steps of the contract that others took count towards the submissions that are kept", ONCE),
        (125, "a held stage goes on, with all members' reports, for those whom it was held for", {}),
        (49, "a clock that faults have set back makes nobody's rollouts old", {}),
        (171, "what a restored node's log holds of before the backup counts once", {}),
        (72, "a record of a round that only a clock ahead has announced is shown by nobody", STRANGE),
        (112, "a coordinator's clock is ahead for minutes and right again, and nobody accuses it", AHEAD),
    ],
)
def test_a_seed_that_once_broke_an_invariant_keeps_it(seed: int, what: str, given: dict[str, Any]) -> None:
    assert run_simulation(seed, **given).stages_trained > 0, what


def test_a_restored_node_whose_clock_is_ahead_takes_part_again() -> None:
    """Its clock is further ahead than stages last: each round is over by it when the node hears of it."""
    given: dict[str, Any] = {"nodes": 3, "stages": 1, "stage_s": 25.0, "train_mean_s": 6.0, "train_max_s": 90.0}
    world: dict[str, Any] = {"hours": 0.35, "calm_s": 610.0, "rounds_max": 0, "faults": 60.0, "hostile": "none"}
    assert run_simulation(853, skew_s=20.0, chain=False, **given, **world).restores > 0


@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.soak), 3])
@pytest.mark.parametrize("behind", ["finish-stage", "abandon"])
@pytest.mark.parametrize("chain", [pytest.param(False, marks=pytest.mark.soak), True])
def test_both_policies_and_several_stages_under_heavy_faults(stages: int, behind: str, chain: bool) -> None:
    summary = run_simulation(
        1000 + stages, chain=chain, nodes=4, stages=stages, behind=behind, faults=120.0, quorum=1.0, **SPAN
    )
    assert summary.crashes > 5
    assert summary.stages_trained >= summary.rounds


@pytest.mark.parametrize("chain", [False, True])
def test_clocks_that_are_wrong_by_an_hour_for_a_while_take_nothing(chain: bool) -> None:
    runs = [run_simulation(seed, chain=chain, jumps=20.0, hours=0.4, calm_s=700.0) for seed in range(2)]
    assert sum(summary.jumps for summary in runs) > 10


def test_a_calm_swarm_loses_nothing() -> None:
    summary = run_simulation(1, CALM)
    assert summary.rounds > 100
    assert summary.crashes == summary.worker_exits == summary.skips == 0
    assert summary.stages_trained >= summary.profile.nodes * summary.rounds
    assert summary.reports >= summary.profile.nodes * summary.rounds


def test_a_calm_swarm_has_every_reward_on_the_chain_once() -> None:
    summary = run_simulation(1, replace(CALM, chain=True, policy="reports"))
    assert summary.rounds > 50
    assert summary.crashes == summary.reorgs == summary.skips == 0
    assert summary.confirmed >= 2 * (summary.stages_trained - 2 * summary.profile.nodes)


def test_a_swarm_that_has_run_its_rounds_goes_on_when_it_gets_more() -> None:
    summary = run_simulation(2, chain=False, nodes=3, rounds_max=10, hours=0.6, calm_s=700.0, stage_s=60.0, faults=20.0)
    assert summary.rounds > 10


@pytest.fixture(scope="module")
def traces() -> list[str]:
    """Of one seed, over the DHT alone and with a chain."""
    return [run_simulation(7, chain=chain, **BRIEF).trace for chain in (False, True)]


def test_the_trace_depends_on_nothing_of_the_process(traces: list[str]) -> None:
    """Hashes of this process are another kind: at random, if nothing else was asked for."""
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    run = [sys.executable, "-c", TRACES]
    there = subprocess.run(run, env=environment, capture_output=True, text=True, check=True, timeout=240)
    assert there.stdout.split() == traces


@pytest.mark.parametrize("chain", [False, True])
def test_another_seed_has_another_trace(traces: list[str], chain: bool) -> None:
    assert run_simulation(8, chain=chain, **BRIEF).trace not in traces


@pytest.mark.parametrize("chain", [False, True])
def test_every_log_folds_to_the_state_that_lived(chain: bool) -> None:
    world = World(5, draw_profile(5, faults=60.0, chain=chain, **SPAN))
    world.run_and_check()
    assert world.counts["crashes"] > 0
    for node in world.nodes:
        lived = node.state
        assert node.fold_log((0, State())) == lived


def test_a_violation_names_the_seed_and_the_line_that_repeats_it() -> None:
    drawn = draw_profile(11)
    assert (drawn.nodes, drawn.loss) != (7, 0.25)
    world = World(11, draw_profile(11, nodes=7, loss=0.25))
    with pytest.raises(InvariantBroken, match="seed 11, node 1") as caught:
        world.nodes[1].fail_run("it has gone mad")
    assert caught.value.fix == "Repeat it with: swarmd sim --seed 11 --set nodes=7 --set loss=0.25"
