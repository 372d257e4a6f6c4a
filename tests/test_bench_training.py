"""Parts of the benchmarks that train: contestants get the same work, and figures mean what they say."""

import functools
import random
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from bench import crossover, gain, learning, padding, sharing, skills, staleness, worker
from bench.gain_bases import IDENTICAL, REGIMES, Recipe, read_recipe
from bench.gain_curves import LONER, Outcome, Runs, area, compare, seconds_of
from bench.gain_report import write_report
from bench.generation import PEER
from bench.half_flat import HalfFlatPlan, is_flat
from bench.poison_weights import HONEST, HostileTeacher
from bench.sharing import COMMON, HOSTILE, MAIN, STALE, VARIANTS, Swarm, make_arms
from bench.skills import ASKED, BARE, GUARDED
from bench.specialists import FIRST
from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.core.events import StageTrained
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.swarms.registry import make_plan
from swarmd.training import lengths
from swarmd.training.engine import TrainingEngine
from swarmd.training.library_logging import silence_libraries
from swarmd.training.sampling import Sampler
from swarmd.training.stage_timer import StageTimer
from swarmd.training.trainer import SwarmTrainer

silence_libraries()


def test_half_of_the_groups_are_flat_whoever_scores_them() -> None:
    plan = HalfFlatPlan(SwarmConfig(id="bench", coordinator=PEER))
    questions = list(islice(plan.draw(StageId(PEER, 0, 0), NO_MATERIAL), 400))
    flat = [question for question in questions if is_flat(question)]
    assert 150 < len(flat) < 250
    texts = [f"<answer>{number}</answer>" for number in range(8)]
    for question in questions[:20]:
        together = [score.reward for score in plan.score(question, texts)]
        assert together == [plan.score(question, [text])[0].reward for text in texts], "TRL's side asks one by one"
        assert len(set(together)) == (1 if is_flat(question) else 8)


def test_parts_of_the_worker_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "can_share_prefill", Sampler.can_share_prefill)  # put back afterwards, with the others
    monkeypatch.setattr(SwarmTrainer, "_packs", SwarmTrainer._packs)
    monkeypatch.setattr(SwarmTrainer, "_drop_zero_variance_groups", SwarmTrainer._drop_zero_variance_groups)
    for switch_off in worker.PARTS.values():
        switch_off()
    assert Sampler.can_share_prefill.fget(None) is False  # type: ignore[attr-defined]
    assert SwarmTrainer._packs is False
    batch = {"advantages": torch.zeros(8)}
    assert SwarmTrainer._drop_zero_variance_groups(None, batch) is batch  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", ["aims", "within", "edges"])
def test_what_is_offered_lies_where_its_attack_says(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(SwarmConfig(id="poison", kind="digits"))
    hostile = HostileTeacher(plan, TrainingConfig(device="cpu", dtype="float32"), "prefix", 0, attack)
    base = hostile.policy.copy_weights()
    moves = dict.fromkeys(base, 0.25)
    monkeypatch.setattr(
        hostile, "teach", lambda steps: hostile.policy.load_weights({n: w + moves[n] for n, w in base.items()})
    )
    honest = [{name: weight + by for name, weight in base.items()} for by in (-0.1, 0.0, 0.1)]
    offered = hostile.make(honest)
    expected = {"aims": 0.25 * (HONEST + 1), "within": 0.1, "edges": 0.1}[attack]
    for name, weight in offered.items():
        assert float((weight - base[name]).mean()) == pytest.approx(expected, abs=0.01), name


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


EMBEDDED = [Path("embedded")] * 2


def run_slice(directory: Path, settings: Mapping[str, Any]) -> Swarm:
    """Two rounds of two nodes with the embedded model, under the words that it knows."""
    small = {"steps": 1, "generations": 4}
    swarm = Swarm(directory, EMBEDDED, 0, {**settings, **small}, FIRST)
    assert all(0 <= swarm.train(round) <= 1 for round in range(2))
    return swarm


def test_a_swarm_trains_on_what_its_peers_published_and_a_loner_does_not(tmp_path: Path) -> None:
    arms = make_arms()
    shared = run_slice(tmp_path / "swarm", arms["4/4"])
    assert shared.peer_groups > 0
    loner = run_slice(tmp_path / "loner", arms[sharing.LONER])
    assert loner.peer_groups == 0
    assert 0.5 < shared.tokens / loner.tokens < 2  # as many completions


def test_arms_fill_a_batch_and_have_own_groups_in_it() -> None:
    assert set(MAIN) <= set(make_arms()) >= {f"4/4 {name}" for name in VARIANTS}
    for settings in make_arms().values():
        training = TrainingConfig(**{key: value for key, value in settings.items() if key not in (HOSTILE, STALE)})
        assert training.peer_questions + training.replay_questions < 8


@pytest.mark.soak
def test_learning_measures_before_the_first_step_and_after_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the default settings learn is in test_engine.py; here they are smaller."""
    small = {"steps": 1, "questions": 4, "generations": 4, "peer_questions": 2, "held_out_questions": 8}
    monkeypatch.setattr(learning, "TrainingConfig", functools.partial(TrainingConfig, **small))
    told: list[StageTrained] = []
    train = TrainingEngine.train

    def note(engine: TrainingEngine, *arguments: Any) -> StageTrained:
        told.append(train(engine, *arguments))
        return told[-1]

    monkeypatch.setattr(TrainingEngine, "train", note)
    accuracies = learning.learn(tmp_path / "nodes", "learning-test", 2, 2)
    before = [event.held_out_before for event in told[:2]]
    after = [event.held_out for event in told]
    means = [sum(map(float, pair)) / 2 for pair in (before, after[:2], after[2:])]  # type: ignore[arg-type]
    assert accuracies == pytest.approx(means) and accuracies[0] > 0
    assert len({event.rollouts.peer for event in told}) == 2 and len(set(after)) > 1
    assert [event.round for event in told] == [0, 0, 1, 1]
    assert all(event.peer_groups > 0 for event in told[2:]), "each trains on what the other published"
    assert not (tmp_path / "nodes").exists()


TINY = {"steps": 1, "generations": 4, "questions": 4, "own_questions": 4}


def guarded(arm: str, seed: int, *after: float) -> skills.Outcome:
    return skills.Outcome(arm, seed, [0.9, 0.9, 0.9], list(after), [0.5], 3, 100, 1.0)


def test_the_guard_meets_its_goal_only_where_nothing_is_unlearnt() -> None:
    kept, worn = [guarded(GUARDED, 1, 0.9, 0.9, 0.8)], [guarded(BARE, 1, 0.9, 0.9, 0.3)]
    rows = {row.what: row for row in skills.make_rows({GUARDED: kept, BARE: worn})}
    assert rows["guard: skills unlearnt, of 3"].met is True and rows["no guard: skills unlearnt, of 3"].met is None
    assert rows[f"guard less no guard: {ASKED[-1]} at the end"].ours.median == pytest.approx(0.5)
    rows = {row.what: row for row in skills.make_rows({GUARDED: [guarded(GUARDED, 1, 0.9, 0.9, 0.1)], BARE: worn})}
    assert rows["guard: skills unlearnt, of 3"].met is False


@pytest.mark.soak
def test_a_node_that_is_asked_for_one_skill_rarely_is_measured_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills, "COMMON", {**COMMON, **TINY})
    monkeypatch.setattr(skills, "HELD_OUT", 4)
    monkeypatch.setattr(skills, "FOLLOWED", 4)
    found = skills.train(tmp_path / "node", Path("embedded"), GUARDED, 1, rounds=2)
    assert len(found.before) == len(found.after) == len(ASKED) and len(found.rounds) == 2
    assert found.tokens > 0 and not (tmp_path / "node").exists()
    assert msgspec.json.decode(msgspec.json.encode(found), type=skills.Outcome) == found


@pytest.mark.soak
def test_all_arms_go_on_from_the_same_nodes_and_the_stale_ones_train_on_old_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staleness, "SETTINGS", {**staleness.SETTINGS, **TINY, "peer_questions": 2})
    monkeypatch.setattr(staleness, "HELD_OUT", 4)
    monkeypatch.setattr(staleness, "SECOND", FIRST)  # the phrasing that the embedded model knows
    arms = [staleness.ON_POLICY, "stale"]
    own, stale = staleness.part(tmp_path / "nodes", Path("embedded"), arms, 1, rounds=2, delay=3)
    assert own.before == stale.before and own.peers == 0 < stale.peers
    assert not (tmp_path / "nodes").exists()


def test_what_groups_cost_is_measured_by_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossover, "LENGTHS", (6,))
    monkeypatch.setattr(crossover, "ROUNDS", 1)
    monkeypatch.setattr(StageTimer, "clock", time.perf_counter)  # which the benchmark changes
    drawing, peers = crossover.run(tmp_path, "embedded")
    assert drawing.theirs is not None and peers.theirs is not None and peers.ratio is not None
    assert peers.theirs.median > drawing.ours.median > 0, "a drawn group costs a pass, too"
    assert peers.ratio.median < 1


@pytest.mark.soak
def test_how_long_answers_become_beside_a_peer_that_pads_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, small in (("ROUNDS", 2), ("STEPS", 1), ("EVERY", 1), ("LESSONS", 1), ("HELD_OUT", 1)):
        monkeypatch.setattr(padding, name, small)
    monkeypatch.setitem(padding.COMMON, "steps", 1)  # type: ignore[arg-type]
    rows = list(padding.run(tmp_path, seeds=[1]))
    assert [bool(row.goal) for row in rows] == [*[False] * 6, *[True, True, False] * 2]
    assert all(row.theirs is not None for row in rows)
    assert lengths.LONG == 1.05, "the arm in which every length counts changes it for itself"
