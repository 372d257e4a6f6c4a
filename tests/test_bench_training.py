"""Parts of the benchmarks that train: contestants get the same work, and figures mean what they say."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from bench import gain, sharing
from bench.gain_bases import IDENTICAL, REGIMES, Recipe, read_recipe
from bench.generation import PEER
from bench.half_flat import HalfFlatPlan, is_flat
from bench.sharing import HOSTILE, MAIN, STALE, VARIANTS, Swarm, make_arms
from bench.specialists import FIRST
from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.training.library_logging import silence_libraries

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
