"""Where `bench gain` begins: its recipe, and the models that nodes have before they share.

All grow from one base, which was taught all families until it answers some of each. In the regime `identical` it is
what every node has. In `mixtures` and `specialists` each was then taught its own families, with a share of lessons from
all of them that is large in the one and small in the other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from bench.measure import sample
from bench.place import Unavailable
from bench.specialists import Goal, draw_lessons, examine, teach
from bench.table import Row
from swarmd.config import SwarmConfig, TaskConfig, TrainingConfig
from swarmd.swarms.plan import Question
from swarmd.swarms.reasoning_gym import ReasoningGymPlan
from swarmd.training.embedded import CORPUS_QUESTIONS, build_tokenizer, make_policy, wrap_as_policy
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
    vocabulary: int
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
    study_steps: int
    base_accuracy: float
    own_accuracy: float
    base_seed: int
    common_share: dict[str, float]
    families: dict[str, dict[str, Any]]
    variants: dict[str, dict[str, Any]] = {}  # what else is measured: values in place of those above

    @property
    def digest(self) -> str:
        """Of all values but seeds and variants, which change no run; the order of families counts."""
        return _digest(msgspec.structs.replace(self, seeds=(), study_seeds=(), variants={}))

    @property
    def base_digest(self) -> str:
        """Of all values that the bases are made by."""
        lengths = self.hidden, self.vocabulary, self.base_steps, self.own_steps, self.completion_tokens
        return _digest(
            (
                lengths,
                self.base_accuracy,
                self.own_accuracy,
                self.base_seed,
                self.nodes,
                self.common_share,
                self.families,
            )
        )

    def own_families(self, node: int) -> tuple[str, ...]:
        """The families that a node is taught more, or alone: every `nodes`th."""
        return tuple(self.families)[node % len(self.families) :: self.nodes]


def _digest(values: object) -> str:
    return hashlib.sha256(msgspec.json.encode(values)).hexdigest()[:12]


def read_recipe(path: Path = RECIPE, variant: str = "") -> Recipe:
    """The recipe of a file, or one of its variants, which has no variants of its own.

    Raises:
        msgspec.ValidationError: the file is not a recipe.
        Unavailable: there is no such variant.
    """
    text = msgspec.toml.decode(path.read_bytes())
    variants = text.pop("variants", {})
    if variant and variant not in variants:
        raise Unavailable(f"there is no variant {variant!r} in {path.name}; there are {', '.join(variants)}")
    return msgspec.convert(text | (variants[variant] if variant else {"variants": variants}), type=Recipe)


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
        seed: of the lessons in what is a node's own.
    """
    common = build_common(directory / "common", recipe)
    if regime == IDENTICAL:
        return [common] * recipe.nodes
    paths = [directory / f"{seed}-{regime}-{node}" for node in range(recipe.nodes)]
    for node, path in enumerate(paths):
        if not path.exists():
            policy = load(common)
            teach_own(policy, recipe, regime, node, seed * 10 + node)
            save(policy, path)
    return paths


def build_common(path: Path, recipe: Recipe) -> Path:
    """The base that was taught all families evenly; one for all seeds, as nodes everywhere take one published model."""
    if not path.exists():
        policy = make_model(recipe, recipe.base_seed)
        plan = make_plan(recipe)
        goal = Goal(RATE, recipe.base_steps, recipe.base_accuracy, EVERY, recipe.completion_tokens)
        teach(policy, draw_lessons(policy, [(plan, 1.0)], recipe.base_seed), plan, goal)
        save(policy, path)
    return path


def teach_own(policy: Policy, recipe: Recipe, regime: str, node: int, seed: int) -> None:
    """What a node of a regime is taught beyond the common base: its own families, and a share of all."""
    own = make_plan(recipe, dict.fromkeys(recipe.own_families(node), 1.0))
    share = recipe.common_share[regime]
    lessons = draw_lessons(policy, [(own, 1 - share), (make_plan(recipe), share)], seed)
    teach(policy, lessons, own, Goal(RATE, recipe.own_steps, recipe.own_accuracy, EVERY, recipe.completion_tokens))


def make_model(recipe: Recipe, seed: int) -> Policy:
    """Random weights and a tokenizer of all families, the same for one seed."""
    torch.manual_seed(seed)
    plan = make_plan(recipe)
    asked = (question for task in plan.tasks for question in plan.select_questions(task, "train", CORPUS_QUESTIONS))
    texts = [message.content for question in asked for message in question.messages]
    return make_policy(build_tokenizer(texts, recipe.vocabulary), recipe.hidden)


def load(path: Path) -> Policy:
    """A base as it was saved."""
    model = Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32)
    return wrap_as_policy(model, PreTrainedTokenizerFast.from_pretrained(path))


def save(policy: Policy, path: Path) -> None:
    """Under another name until it is whole: a base that is there is not made again."""
    part = path.with_name(f"{path.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    policy.tokenizer.save_pretrained(part)
    policy.model.save_pretrained(part)
    part.rename(path)


def study_families(recipe: Recipe) -> Iterable[Row]:
    """The pre-study: held-out accuracy of models that were taught one family each, and how common an answer is."""
    for family in recipe.families:
        plan = make_plan(recipe, {family: 1.0})
        questions = plan.hold_out(family, STUDIED)
        found = sample(*(study_family(recipe, plan, questions, seed) for seed in recipe.study_seeds))
        answers = Counter(str(question.entry["answer"]) for question in questions)
        common = sample(max(answers.values()) / len(questions))
        yield Row(f"{family}: held out", "", found, "its commonest answer", common)


def study_family(recipe: Recipe, plan: ReasoningGymPlan, questions: Sequence[Question], seed: int) -> float:
    policy = make_model(recipe, seed)
    goal = Goal(RATE, recipe.study_steps, 1.0, recipe.study_steps, recipe.completion_tokens)
    teach(policy, draw_lessons(policy, [(plan, 1.0)], seed), plan, goal)
    [found] = examine(policy, plan, {plan.tasks[0]: questions}, recipe.completion_tokens).values()
    return found.correct
