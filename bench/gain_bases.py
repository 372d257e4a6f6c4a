"""Where `bench gain` begins: its recipe, and the models that nodes have before they share.

In the regime `identical` all nodes have one base, taught all families. In `mixtures` each was taught all of them, its
own more often. In `specialists` each was taught its own alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from bench.measure import sample
from bench.specialists import Goal, draw_lessons, examine, teach
from bench.table import Row
from swarmd.config import SwarmConfig, TaskConfig, TrainingConfig
from swarmd.swarms.gym.reasoning_gym import ReasoningGymPlan
from swarmd.training.embedded.recipe import build_tokenizer, list_questions, make_policy
from swarmd.training.models.model import Policy

RECIPE = Path(__file__).with_name("gain.toml")
IDENTICAL, MIXTURES, SPECIALISTS = "identical", "mixtures", "specialists"
REGIMES = (IDENTICAL, MIXTURES, SPECIALISTS)
RATE, EVERY = 2e-3, 20  # of teaching; steps between looking
STUDIED = 64  # held-out questions of each family in the pre-study


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`bench/gain.toml`, which says what each value is."""

    nodes: int
    seeds: tuple[int, ...]
    study_seeds: tuple[int, ...]
    hidden: int
    rounds: int
    steps: int
    questions: int
    generations: int
    peer_questions: int
    completion_tokens: int
    held_out: int
    measure_every: int
    average_every: int
    loner_rate: float
    swarm_rate: float
    base_steps: int
    own_steps: int
    base_accuracy: float
    own_accuracy: float
    mixture_share: float
    families: dict[str, dict[str, Any]]

    @property
    def digest(self) -> str:
        """Of all values; the order of seeds and families counts."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]

    def own_families(self, node: int) -> tuple[str, ...]:
        """The families that a node is taught more, or alone: every `nodes`th."""
        return tuple(self.families)[node % len(self.families) :: self.nodes]


def read_recipe(path: Path = RECIPE) -> Recipe:
    """Raises msgspec.ValidationError where the file is not a recipe."""
    return msgspec.toml.decode(path.read_bytes(), type=Recipe)


def make_swarm(recipe: Recipe, name: str, weights: Mapping[str, float] | None = None) -> SwarmConfig:
    """A swarm of the families with weights, by default all evenly."""
    chosen = dict.fromkeys(recipe.families, 1.0) if weights is None else weights
    tasks = tuple(TaskConfig(family, weight, recipe.families[family]) for family, weight in chosen.items())
    return SwarmConfig(id=name, kind="reasoning-gym", tasks=tasks)


def make_plan(
    recipe: Recipe, weights: Mapping[str, float] | None = None, name: str = "gain-bases", format_reward: float = 0.0
) -> ReasoningGymPlan:
    """What is taught, or asked, of the families."""
    return ReasoningGymPlan(make_swarm(recipe, name, weights), TrainingConfig(format_reward=format_reward))


def build_bases(directory: Path, recipe: Recipe, regime: str, seed: int) -> list[Path]:
    """A model directory for each node; those that are there are kept.

    Args:
        directory: of all bases of the recipe.
        recipe: says how they are made.
        regime: of `REGIMES`.
        seed: of the weights and of the lessons.
    """
    common = build_common(directory / f"{seed}-common", recipe, seed)
    if regime == IDENTICAL:
        return [common] * recipe.nodes
    paths = [directory / f"{seed}-{regime}-{node}" for node in range(recipe.nodes)]
    for node, path in enumerate(paths):
        if not (path / "config.json").exists():
            weights = weights_of(recipe, regime, node)
            policy = make_model(recipe, seed)
            learn(policy, recipe, weights, seed * 10 + node, recipe.own_steps, recipe.own_accuracy)
            save(policy, path)
    return paths


def weights_of(recipe: Recipe, regime: str, node: int) -> dict[str, float]:
    """How often each family was taught to a node."""
    own = recipe.own_families(node)
    if regime == SPECIALISTS:
        return dict.fromkeys(own, 1.0)
    return {family: recipe.mixture_share if family in own else 1.0 for family in recipe.families}


def build_common(path: Path, recipe: Recipe, seed: int) -> Path:
    """The base that was taught all families evenly."""
    if not (path / "config.json").exists():
        policy = make_model(recipe, seed)
        learn(policy, recipe, None, seed, recipe.base_steps, recipe.base_accuracy)
        save(policy, path)
    return path


def make_model(recipe: Recipe, seed: int) -> Policy:
    """Random weights and a tokenizer of all families, the same for one seed."""
    torch.manual_seed(seed)
    return make_policy(build_tokenizer(list_questions(make_plan(recipe))), recipe.hidden)


def learn(
    policy: Policy, recipe: Recipe, weights: Mapping[str, float] | None, seed: int, steps: int, accuracy: float
) -> None:
    """Right answers to training questions of the families, until the accuracy or the steps are reached."""
    plan = make_plan(recipe, weights)
    lessons = draw_lessons(policy, [(plan, 1.0)], seed)
    teach(policy, lessons, plan, Goal(RATE, steps, accuracy, EVERY, recipe.completion_tokens))


def save(policy: Policy, path: Path) -> None:
    """The weights last: their configuration says that a base is whole."""
    path.mkdir(parents=True, exist_ok=True)
    policy.tokenizer.save_pretrained(path)
    policy.model.save_pretrained(path)


def study_families(recipe: Recipe) -> Iterable[Row]:
    """The pre-study: held-out accuracy of models that were taught one family each, by family."""
    for family in recipe.families:
        yield Row(f"{family}: held out", "", sample(*(study_family(recipe, family, s) for s in recipe.study_seeds)))


def study_family(recipe: Recipe, family: str, seed: int) -> float:
    policy = make_model(recipe, seed)
    learn(policy, recipe, {family: 1.0}, seed, recipe.own_steps, recipe.own_accuracy)
    plan = make_plan(recipe, {family: 1.0})
    return examine(policy, plan, {family: plan.hold_out(family, STUDIED)}, recipe.completion_tokens)[family].correct
