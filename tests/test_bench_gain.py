"""The benchmark `gain`: that it runs real nodes, goes on where it ended, and reports what its results say."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from bench import gain
from bench.__main__ import main
from bench.gain_bases import IDENTICAL, REGIMES, SPECIALISTS, Recipe, build_bases, make_swarm, read_recipe
from bench.gain_curves import FILTERED, LONER, Outcome, Runs, area, compare, difference, seconds_of, times
from bench.gain_pairs import MeasuringPlan
from bench.gain_report import tell, write_report
from bench.place import Unavailable, read_lines
from swarmd.config import TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.values import PeerWeights
from swarmd.swarms.gym.reasoning_gym import ReasoningGymPlan
from swarmd.training.weights.adopting import PeerWeightsUse

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


def test_curves_are_read_at_the_same_points_so_that_rare_measures_are_no_handicap() -> None:
    often = outcome("often", 1, 0.2, 0.4, 0.5, 0.55, 0.6, tokens=(0, 50, 100, 150, 200))
    rarely = outcome("rarely", 1, 0.2, 0.5, 0.6, tokens=(0, 100, 200))
    [(ours, theirs)] = compare(runs(often), runs(rarely))
    assert ours == theirs == pytest.approx((0.15 * 100 + 0.35 * 100) / 200), "one curve, measured twice as often"
    assert area(often, often.tokens) > theirs


def test_an_interval_is_of_pairs_and_too_few_seeds_have_none() -> None:
    known = difference([(0.5, 0.4), (0.7, 0.6), (0.9, 0.8)])
    assert known is not None and known.values == pytest.approx((0.1, 0.1, 0.1))
    assert difference([(0.5, 0.4), (0.7, 0.6)]) is None
    pairs = compare(runs(outcome("a", 1, 0, 1, 1), outcome("a", 2, 0, 1, 1)), runs(outcome(LONER, 2, 0, 0, 0)))
    assert len(pairs) == 1, "a seed that only one arm has is no pair"


def test_runs_that_began_with_other_bases_are_no_pair_but_for_pooled_data() -> None:
    ours = runs(outcome("a", 1, 0.2, 0.4, 0.4), outcome("a", 1, 0.3, 0.3, 0.3))
    loners = runs(outcome(LONER, 1, 0.2, 0.3, 0.3), outcome(LONER, 1, 0.1, 0.9, 0.9))
    assert compare(ours, loners) == [(pytest.approx(0.15), pytest.approx(0.075))]
    pooled = msgspec.structs.replace(
        outcome(gain.POOLED, 1, 0.0), held_out=[[[0.1]], [[0.3]], [[0.5]]], tokens=[0, 1, 2]
    )
    assert len(compare(runs(pooled), loners)) == 1, "one node, of another base"


def test_how_many_times_as_much_is_of_means_with_the_least_of_a_seed_and_nothing_of_nothing() -> None:
    found = times([(0.6, 0.2), (0.2, 0.2)])
    assert found is not None and msgspec.structs.astuple(found) == pytest.approx((2.0, 2.0, 2.0, 1.0, 3.0))
    found = times([(0.6, 0.2), (0.4, 0.2), (0.2, 0.2)])
    assert found is not None and (found.low, found.high) == (pytest.approx(1.0), pytest.approx(3.0)), "three have one"
    assert times([(0.6, 0.2), (0.2, -0.01)]) is None and times([]) is None


def test_a_skill_that_a_node_had_is_unlearnt_below_half_and_lost_near_nothing() -> None:
    before, after = [[0.8, 0.4], [0.2, 0.6]], [[0.39, 0.2], [0.0, 0.01]]
    found = msgspec.structs.replace(outcome("a", 1, 0.0), held_out=[before, after])
    assert found.count_unlearnt() == (2, 1), "of .8, .4 and .6; nobody had the one of .2"


def test_the_goal_is_about_what_shares_against_the_filtered_loner() -> None:
    arms = {FILTERED: (0.1, 0.2, 0.3), "sharing": (0.1, 0.4, 0.6), gain.POOLED: (0.1, 0.8, 0.9)}
    recipe = msgspec.structs.replace(read_recipe(), seeds=(1,))
    results = [outcome(arm, 1, *accuracy) for arm, accuracy in arms.items()]
    page = tell("", results, recipe)
    assert "Goal: × filtered at least 1.15. Best of what shares: sharing, 2.75 (2.75): **met**." in page
    assert "undecided, 1 of 2 seeds" in tell("", results, msgspec.structs.replace(recipe, seeds=(1, 2)))
    page = tell("", [outcome(arm, 1, *arms[arm]) for arm in (FILTERED, gain.POOLED)], read_recipe())
    assert "Goal" not in page


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


def test_a_report_prints_what_got_worse_and_that_nothing_was_measured() -> None:
    worse = [outcome(LONER, 1, 0.1, 0.3, 0.5), outcome("sharing", 1, 0.1, 0.1, 0.1)]
    assert "- identical: sharing, by 0.2000" in tell("", worse, read_recipe())
    assert "0 of 10 seeds" in tell("", [], read_recipe())


def test_a_line_that_was_cut_off_is_removed_and_what_follows_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_bytes(b"one\ntwo\nthr")
    assert read_lines(path) == [b"one", b"two"] == path.read_bytes().splitlines()


@pytest.mark.parametrize("body", [None, b"{}\n"])
def test_outcomes_that_cannot_be_read_are_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], body: bytes | None
) -> None:
    path = tmp_path / "outcomes"
    path.mkdir() if body is None else path.write_bytes(body)
    monkeypatch.setattr(sys, "argv", ["bench", "hostile", "--outcomes", str(path)])
    assert main() == 2
    printed = "".join(capsys.readouterr().out.split())
    assert (
        str(path) in printed
        and ("names a file" if body is None else "no outcome of hostile").replace(" ", "") in printed
    )


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


def test_what_began_with_other_bases_is_run_again_beside_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def pretend(directory: Path, bases: Path, recipe: object, regime: str, arm: str, seed: int) -> Outcome:
        ran.append(arm)
        return outcome(arm, seed, 0.1, 0.2, 0.3)

    monkeypatch.setattr(gain, "run_arm", pretend)
    known = [outcome(arm, 5, 0.2, 0.3, 0.4) for arm in (LONER, FILTERED, gain.POOLED)]
    chosen: dict[str, Any] = {"regimes": [IDENTICAL], "seeds": [5], "known": known}
    list(gain.run(tmp_path, arms=[LONER, FILTERED, gain.POOLED], **chosen))
    assert ran == [], "nothing is new"
    list(gain.run(tmp_path, arms=[LONER, "sharing", FILTERED, gain.POOLED], **chosen))
    assert ran == ["sharing", FILTERED, LONER]


def test_a_name_that_is_no_arm_or_regime_is_told_and_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no arm 'loner, faster'; there are loner, filtered loner"):
        list(gain.run(tmp_path, arms=["loner, faster"]))
    with pytest.raises(Unavailable, match="no regime 'special'"):
        list(gain.run(tmp_path, regimes=["special"]))
    with pytest.raises(Unavailable, match=r"no variant 'huge' in gain\.toml; there are eight-nodes"):
        list(gain.run(tmp_path, variant="huge"))
    assert not list(tmp_path.iterdir())


def test_the_report_is_written_of_the_seeds_of_the_recipe_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gain, "run_arm", lambda *given: outcome(given[4], given[5], 0.1, 0.2, 0.3))
    report = tmp_path / "GAIN.md"
    chosen: dict[str, Any] = {"arms": [LONER], "regimes": [IDENTICAL], "report": report}
    list(gain.run(tmp_path / "gain", seeds=[5], **chosen))
    assert not report.exists()
    list(gain.run(tmp_path / "gain", seeds=read_recipe().seeds[:1], **chosen))
    assert report.exists()


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


def test_averaged_models_have_the_mean_of_their_weights() -> None:
    models = [torch.nn.Linear(2, 1) for _ in range(3)]
    wanted = torch.stack([model.weight.detach().clone() for model in models]).mean(0)
    gain.average(models)
    assert all(torch.equal(model.weight, wanted) for model in models)


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


def test_bases_grow_from_one_that_is_made_once(tmp_path: Path) -> None:
    recipe = small_recipe()
    (tmp_path / "common.part").mkdir()  # of a run that was killed before its base was whole
    common, same = build_bases(tmp_path, recipe, IDENTICAL, 5)
    made = (common / "model.safetensors").stat().st_mtime_ns
    first, second = build_bases(tmp_path, recipe, SPECIALISTS, 5)
    weights = [(path / "model.safetensors").read_bytes() for path in (common, first, second)]
    assert same == common and len(set(weights)) == 3
    assert (common / "model.safetensors").stat().st_mtime_ns == made
    assert build_bases(tmp_path, recipe, SPECIALISTS, 5) == [first, second]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5-specialists-0", "5-specialists-1", "common"]


def test_real_nodes_share_and_are_measured_against_their_tokens(tmp_path: Path) -> None:
    recipe = small_recipe()
    told: list[Outcome] = []
    list(gain.run(tmp_path / "gain", ["sharing", gain.AVERAGED], REGIMES[:1], [5], told.append, recipe=recipe))
    assert [each.arm for each in told] == ["sharing", gain.AVERAGED]
    assert all(each.tokens[0] == 0 < each.tokens[1] < each.tokens[2] for each in told)
    assert all(0.0 == each.seconds[0] < each.seconds[1] < each.seconds[2] for each in told)
    assert all(len(each.held_out) == 3 and [len(node) for node in each.held_out[0]] == [2, 2] for each in told)
    assert list((tmp_path / "gain").iterdir()) == []


def test_an_arm_that_generates_what_has_places_runs_twice_the_rounds(tmp_path: Path) -> None:
    recipe = small_recipe()
    found = gain.run_arm(tmp_path / "gain", tmp_path / "bases", recipe, IDENTICAL, gain.HALF, 5)
    assert len(found.tokens) == 2 * recipe.rounds + 1
    questions = gain.settings_of(recipe, gain.HALF)["own_questions"]
    assert questions == TrainingConfig().own_questions == 0, "as it is shipped: none that the batch has no place for"


def test_nodes_that_average_in_pairs_try_means_of_what_others_have_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = msgspec.structs.replace(small_recipe(), average_every=1)
    began: list[PeerWeights] = []
    begin = PeerWeightsUse.begin

    def note(self: PeerWeightsUse, order: Train, *rest: Any) -> bool:
        assert order.weights is not None and order.round == order.weights.round + 1
        began.append(order.weights)
        return begin(self, order, *rest)

    monkeypatch.setattr(PeerWeightsUse, "begin", note)
    told: list[Outcome] = []
    list(gain.run(tmp_path / "gain", [gain.PAIRS], REGIMES[:1], [5], told.append, recipe=recipe))
    assert [weights.averaged for weights in began] == [True, True], "each another's, in the second round"
    trained = recipe.nodes * recipe.steps * recipe.questions * recipe.generations
    assert told[0].tokens[1] <= trained * recipe.completion_tokens, "what nodes measure themselves by is not counted"
    assert told[0].tokens[2] - told[0].tokens[1] > 0


def test_a_node_measures_itself_by_other_questions_than_the_benchmark_does() -> None:
    recipe = small_recipe()
    swarm = make_swarm(recipe, "s")
    plan = MeasuringPlan(swarm, TrainingConfig(), 5)
    measured = {each.reference for each in ReasoningGymPlan(swarm).hold_out(FAMILIES[0], 5)}
    found = plan.hold_out(FAMILIES[0], 7)
    assert len(found) == 7 and not measured & {each.reference for each in found}
    assert (plan.take_asked(), plan.take_asked()) == (7, 0)
