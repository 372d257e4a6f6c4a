"""The benchmark `gain`: that it runs real nodes, goes on where it ended, and reports what its results say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import gain
from bench.gain_bases import IDENTICAL, REGIMES, Recipe, read_recipe
from bench.gain_curves import LONER, Outcome, Runs, area, compare, seconds_of
from bench.gain_report import write_report
from swarmd.config import TrainingConfig

FAMILIES = ("count_primes", "gcd")


def outcome(arm: str, seed: int, *accuracy: float, tokens: Sequence[int] = (0, 100, 200)) -> Outcome:
    held_out = [[[each, each], [each, each]] for each in accuracy]
    seconds = [float(10 * place) for place in range(len(accuracy))]
    return Outcome(read_recipe().digest, IDENTICAL, arm, seed, list(tokens), seconds, held_out, 3, 0.0)


def runs(*outcomes: Outcome) -> Runs:
    return {each.start: each for each in outcomes}


def test_the_area_is_above_the_base_and_ends_at_the_tokens_that_both_have() -> None:
    rising = outcome(LONER, 1, 0.2, 0.4, 0.4)
    assert area(rising, rising.tokens) == pytest.approx((0.1 * 100 + 0.2 * 100) / 200)
    assert area(rising, (0, 50)) == pytest.approx(0.05)
    busier = outcome("busier", 1, 0.2, 0.4, 0.9, tokens=(0, 100, 400))
    assert compare(runs(busier), runs(rising)) == [(pytest.approx((0.1 + 0.2 + 0.5 / 6) / 2), pytest.approx(0.15))]
    in_time = [(pytest.approx((0.1 * 10 + 0.45 * 10) / 20), pytest.approx(0.15))]
    assert compare(runs(busier), runs(rising), seconds_of) == in_time, "both trained for 20 s"
    assert area(outcome("idle", 1, 0.2, 0.4, tokens=(0, 0)), (0, 0)) == 0.0, "nothing was generated"


def test_a_report_is_the_same_from_the_same_results_in_any_order(tmp_path: Path) -> None:
    recipe = read_recipe()
    seeds = recipe.seeds[:3]
    results = [outcome(arm, seed, 0.1, 0.2, 0.3) for arm in (LONER, "sharing") for seed in seeds]
    results.append(outcome(LONER, recipe.study_seeds[0], 0.1, 0.2, 0.3))
    results.append(msgspec.structs.replace(results[0], recipe="another"))
    pages = []
    for place in (tmp_path / "a", tmp_path / "b"):
        place.mkdir()
        write_report(place / "GAIN.md", results, recipe, {"other": msgspec.structs.replace(recipe, rounds=1)})
        pages.append([(place / "GAIN.md").read_bytes(), (place / "images" / "gain.svg").read_bytes()])
        random.Random(0).shuffle(results)
    assert pages[0] == pages[1] and b"6 runs of 3 of 10 seeds" in pages[0][0]
    assert b"## other: 4 nodes, width 128\n\nNothing has been measured yet" in pages[0][0]


def test_what_is_there_is_not_run_again_and_another_recipe_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe_digest = read_recipe().digest
    ran: list[str] = []

    def pretend(directory: Path, bases: Path, recipe: object, regime: str, arm: str, seed: int) -> Outcome:
        ran.append(arm)
        return msgspec.structs.replace(outcome(arm, seed, 0.1, 0.2, 0.3), recipe=recipe_digest)

    monkeypatch.setattr(gain, "run_arm", pretend)
    there = msgspec.structs.replace(outcome(LONER, 5, 0.1, 0.2, 0.3), recipe=recipe_digest)
    chosen: dict[str, Any] = {"arms": [LONER, "sharing"], "regimes": [IDENTICAL], "seeds": [5]}
    list(gain.run(tmp_path, known=[there], **chosen))
    assert ran == ["sharing"]
    list(gain.run(tmp_path, known=[msgspec.structs.replace(there, recipe="other")], **chosen))
    assert ran == ["sharing", LONER, "sharing"]
    assert read_recipe(variant="eight-nodes").digest != recipe_digest


def test_the_recipe_gives_every_arm_settings_and_every_family_a_node() -> None:
    for variant in ("", *read_recipe().variants):
        check_recipe(read_recipe(variant=variant))


def check_recipe(recipe: Recipe) -> None:
    for arm in gain.ARMS:
        TrainingConfig(**gain.settings_of(recipe, arm))
    taught = [set(recipe.own_families(node)) for node in range(recipe.nodes)]
    assert set.union(*taught) == set(recipe.families) and all(taught)
    assert set(recipe.common_share) == {*REGIMES} - {IDENTICAL}
    assert not set(recipe.seeds) & set(recipe.study_seeds) and len(recipe.families) >= 6
    assert recipe.digest != msgspec.structs.replace(recipe, rounds=recipe.rounds + 1).digest


def small_recipe() -> Recipe:
    families = {name: read_recipe().families[name] for name in FAMILIES}
    small: dict[str, Any] = {
        "nodes": 2,
        "hidden": 16,
        "rounds": 2,
        "steps": 1,
        "questions": 4,
        "peer_questions": 1,
        "generations": 4,
    }
    brief: dict[str, Any] = {"base_steps": 1, "own_steps": 1, "held_out": 2, "measure_every": 1, "families": families}
    return msgspec.structs.replace(read_recipe(), **small, **brief)


@pytest.mark.soak
def test_real_nodes_share_and_are_measured_against_their_tokens(tmp_path: Path) -> None:
    recipe = small_recipe()
    told: list[Outcome] = []
    list(gain.run(tmp_path / "gain", ["sharing", gain.AVERAGED], REGIMES[:1], [5], told.append, recipe=recipe))
    assert [each.arm for each in told] == ["sharing", gain.AVERAGED]
    assert all(each.tokens[0] == 0 < each.tokens[1] < each.tokens[2] for each in told)
    assert all(0.0 == each.seconds[0] < each.seconds[1] < each.seconds[2] for each in told)
    assert all(len(each.held_out) == 3 and [len(node) for node in each.held_out[0]] == [2, 2] for each in told)
    assert list((tmp_path / "gain").iterdir()) == []
