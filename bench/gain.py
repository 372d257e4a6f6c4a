"""What does sharing bring? Nodes that exchange groups, or weights, against nodes that learn alone.

Every node is a real `TrainingEngine` with its own data directory, asked six natural families of reasoning-gym
(`bench/gain.toml`); between rounds what each published is put into the others' blob stores, which is all that the
network would do. The figure is the area under held-out accuracy against generated tokens, the base's subtracted, up to
the tokens that every arm of the regime and seed came to: no arm is better for having generated more.

Outcomes are kept one by one, and `docs/GAIN.md` is written from them (`bench.gain_report`).
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from bench.gain_bases import IDENTICAL, REGIMES, Recipe, build_bases, make_swarm, read_recipe, study_families
from bench.gain_curves import FASTER, FILTERED, LONER, POISONED, POOLED, REPLAY, Outcome, Start
from bench.gain_offers import QUESTIONS, MeasuringPlan, Offers
from bench.gain_report import make_rows, write_report
from bench.hostile_peer import Hostile, probe
from bench.place import check_names
from bench.sharing import COMMON, deliver
from bench.specialists import examine
from bench.table import Row
from swarmd.config import Config, StorageConfig, SwarmConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from swarmd.swarms.reasoning_gym import ReasoningGymPlan
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.library_logging import silence_libraries

AVERAGED, BOTH = "weights averaged", "averaged and sharing"
OFFERED = BOUNDED, BOUNDED_BOTH = "bounded means", "bounded means and sharing"  # as a swarm's nodes do it
HALF = "half generated"  # as swarmd is shipped: a step generates what peers' groups leave places for
PAYLOAD = "prefix"  # of `bench.hostile_peer`
SHARED: Mapping[str, Mapping[str, Any]] = {  # settings of the arms that exchange groups, beside those of the first
    "sharing": {},
    HALF: {"own_questions": 0},
    "success-gated": {"peer_loss": "success-gated"},
    POISONED: {},
    BOTH: {},
    BOUNDED_BOTH: {},
}
ARMS = (LONER, FILTERED, FASTER, REPLAY, *SHARED, AVERAGED, BOUNDED, POOLED)


def settings_of(recipe: Recipe, arm: str) -> dict[str, Any]:
    """[training] of an arm. Raises KeyError where there is no such arm."""
    own = recipe.questions - recipe.peer_questions
    alone = {"peer_questions": 0, "replay_questions": 0, "learning_rate": recipe.loner_rate}
    shared = {"peer_questions": recipe.peer_questions, "replay_questions": own - 1}
    pool = recipe.questions * recipe.nodes
    arms: dict[str, dict[str, Any]] = {
        LONER: alone,
        FILTERED: {**alone, "own_questions_max": 4 * recipe.questions},
        FASTER: {**alone, "learning_rate": recipe.swarm_rate},
        REPLAY: {**alone, "replay_questions": recipe.questions - 1},
        AVERAGED: alone,
        BOUNDED: alone,
        POOLED: {**alone, "questions": pool, "own_questions": pool},
        **{name: {**shared, "learning_rate": recipe.swarm_rate, **its} for name, its in SHARED.items()},
        BOTH: {**shared, "learning_rate": recipe.loner_rate},
    }
    measured = {"held_out_questions": QUESTIONS, "held_out_every": recipe.average_every} if arm in OFFERED else {}
    return {**common_settings(recipe), **arms[arm], **measured}


def count_rounds(recipe: Recipe, arm: str) -> int:
    """Rounds of an arm: twice as many where half as much is generated in each, so that tokens are as many."""
    return recipe.rounds * (2 if arm == HALF else 1)


def common_settings(recipe: Recipe) -> dict[str, Any]:
    """[training] of all arms."""
    return {
        **COMMON,
        "steps": recipe.steps,
        "questions": recipe.questions,
        "own_questions": recipe.questions,
        "generations": recipe.generations,
        "completion_tokens": recipe.completion_tokens,
        "share_groups": recipe.steps * recipe.questions,
    }


class Nodes:
    """All nodes of a run in one process, without a network.

    Args:
        directory: of their data.
        bases: a model directory for each.
        recipe: of the run.
        arm: whose settings they have.
        seed: names the swarm, and so decides all questions and draws.
    """

    def __init__(self, directory: Path, bases: Sequence[Path], recipe: Recipe, arm: str, seed: int) -> None:
        self._recipe, self._arm = recipe, arm
        self._swarm = make_swarm(recipe, f"gain-{seed}")
        self._plan = ReasoningGymPlan(self._swarm)
        self._settings = settings_of(recipe, arm)
        self._engines: list[TrainingEngine] = []
        self._stores: list[BlobStore] = []
        self._paths = [NodeDirectory(directory / f"node-{place}") for place in range(len(bases))]
        self._plans: list[MeasuringPlan] = []  # of nodes that measure themselves
        self._offers = Offers(directory / "offered", self._paths, recipe.average_every) if arm in OFFERED else None
        for paths, base in zip(self._paths, bases, strict=True):
            self._open(paths, base, self._swarm)
        groups = self._settings["share_groups"]
        self._hostile = Hostile(self._plan, self._swarm.id, PAYLOAD, groups, recipe.generations)
        self._published: tuple[RolloutsRef, ...] = ()
        self.tokens = self.peer_groups = 0
        self.seconds = 0.0  # of processor time in training

    def _open(self, paths: NodeDirectory, base: Path, swarm: SwarmConfig) -> None:
        training = TrainingConfig(**{**self._settings, "model": str(base)})
        config = Config(swarm, training=training, storage=StorageConfig(free_bytes_min=0))
        plan = ReasoningGymPlan(swarm, training)
        if self._offers is not None:
            plan = MeasuringPlan(swarm, training, self._recipe.held_out)
            self._plans.append(plan)
        self._engines.append(TrainingEngine(config, paths, paths.root.name, plan))
        self._stores.append(BlobStore(paths.blobs))

    def train(self, round: int) -> None:
        """One round of every node, then what they give each other."""
        order = Train(f"train/{round}/0", round, 0, self._published if self._arm in SHARED else ())
        taken = [None] * len(self._engines) if self._offers is None else self._offers.taken
        orders = [replace(order, weights=weights) for weights in taken]
        began = time.process_time()
        events = [engine.train(each, Cancellation()) for engine, each in zip(self._engines, orders, strict=True)]
        if self._offers is not None:
            self._offers.exchange(self._engines, events)
        self.seconds += time.process_time() - began
        self.tokens += sum(event.tokens for event in events) + self._count_tried(events)
        self.peer_groups += sum(event.peer_groups for event in events)
        published = tuple(event.rollouts for event in events)
        deliver(published, self._stores)
        hostile = self._publish_hostile(round) if self._arm == POISONED else ()
        self._published = (*published, *hostile)
        if self._arm in (AVERAGED, BOTH) and (round + 1) % self._recipe.average_every == 0:
            average([engine.policy.model for engine in self._engines])

    def _count_tried(self, events: Sequence[StageTrained]) -> int:
        """Tokens of the answers by which nodes measured means in a round, as long as those that they trained on.

        That nodes measure their own weights is the default of every arm, and counts in none.
        """
        asked = sum(plan.take_asked() for plan in self._plans)
        own = sum((each.held_out is not None) + (each.held_out_before is not None) for each in events)
        tried = asked - own * QUESTIONS * len(self._recipe.families)
        completions = len(events) * self._recipe.steps * self._recipe.questions * self._recipe.generations
        return round(tried * sum(event.tokens for event in events) / completions) if self._plans else 0

    def _publish_hostile(self, round: int) -> tuple[RolloutsRef, ...]:
        return tuple([self._hostile.publish(round, store) for store in self._stores][:1])

    def measure(self) -> list[list[float]]:
        """Held-out accuracy by node and family, one sampled completion for each question."""
        questions = {family: self._plan.hold_out(family, self._recipe.held_out) for family in self._plan.tasks}
        tokens = self._recipe.completion_tokens
        found = [examine(engine.policy, self._plan, questions, tokens) for engine in self._engines]
        return [[each[family].correct for family in self._plan.tasks] for each in found]

    def look_for_payload(self) -> float:
        """The share of held-out completions of the worst node with the hostile peer's payload."""
        if self._arm != POISONED:
            return 0.0
        return max(probe(self._plan, engine.policy, PAYLOAD)[0] for engine in self._engines)


def average(models: Sequence[torch.nn.Module]) -> None:
    """Give all models the mean of their weights; what their optimisers remember stays."""
    with torch.no_grad():
        for each in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack(list(each)).mean(0)
            for parameter in each:
                parameter.copy_(mean)


def run_arm(directory: Path, bases: Path, recipe: Recipe, regime: str, arm: str, seed: int) -> Outcome:
    """One run from its bases to the end; its data is removed."""
    if arm == POOLED:  # one node that has everybody's data, from the base that was taught everything
        models = build_bases(bases, recipe, IDENTICAL, seed)[:1]
    else:
        models = build_bases(bases, recipe, regime, seed)
    nodes = Nodes(directory, models, recipe, arm, seed)
    gc.freeze()  # every stage ends with a collection, which would walk through all that was imported and loaded
    try:
        tokens, seconds, held_out = [0], [0.0], [nodes.measure()]
        rounds = count_rounds(recipe, arm)
        for round in range(rounds):
            nodes.train(round)
            if (round + 1) % recipe.measure_every == 0 or round + 1 == rounds:
                tokens.append(nodes.tokens)
                seconds.append(nodes.seconds)
                held_out.append(nodes.measure())
        shown = nodes.look_for_payload()
    finally:
        gc.unfreeze()
        shutil.rmtree(directory, ignore_errors=True)
    return Outcome(recipe.digest, regime, arm, seed, tokens, seconds, held_out, nodes.peer_groups, shown)


def run(
    directory: Path,
    arms: Sequence[str] = ARMS,
    regimes: Sequence[str] = REGIMES,
    seeds: Sequence[int] = (),
    tell: Callable[[Outcome], None] = lambda outcome: None,
    known: Sequence[Outcome] = (),
    recipe: Recipe | None = None,
    variant: str = "",
    report: Path | None = None,
    study: bool = False,
) -> Iterable[Row]:
    """Rows of each arm against the loner; the report is written anew after each run.

    Args:
        directory: of the nodes' data; the bases are kept beside it.
        arms: of `ARMS`.
        regimes: of `REGIMES`.
        seeds: by default the recipe's.
        tell: is given every outcome as it comes.
        known: outcomes of an earlier run, which are not run again unless another arm begins with other bases now;
            those of another recipe do not count.
        recipe: by default `bench/gain.toml`, or its variant.
        variant: of the recipe's.
        report: the page to write, with its picture beside it; none where it is None or a seed is not the recipe's.
        study: only rows of what a base learns of each family, on seeds that are not used otherwise.

    Raises:
        Unavailable: there is no such arm, regime or variant.
    """
    check_names("arm", arms, ARMS)
    check_names("regime", regimes, REGIMES)
    silence_libraries()
    recipe = recipe or read_recipe(variant=variant)
    if not set(seeds) <= set(recipe.seeds):
        report = None  # it is of the recipe's seeds
    if study:
        yield from study_families(recipe)
        return
    found = list(known)
    bases = directory.parent / "gain-bases" / recipe.base_digest
    for seed in seeds or recipe.seeds:
        for regime in regimes:
            here: set[Start] = set()  # where those begin that are run now
            for arm in (*arms, *arms):  # twice: what began with other bases is no pair with what is new
                its = {each.start for each in found if (each.recipe, *each.key) == (recipe.digest, regime, arm, seed)}
                if its and (not here or arm == POOLED or its & here):
                    continue
                place = directory / f"{seed}-{regime}-{arm.replace(' ', '-')}"
                found.append(run_arm(place, bases, recipe, regime, arm, seed))
                here |= {found[-1].start} if arm != POOLED else set()
                tell(found[-1])
                _write(report, found)
    _write(report, found)
    yield from make_rows([outcome for outcome in found if outcome.recipe == recipe.digest])


def _write(report: Path | None, found: Sequence[Outcome]) -> None:
    if report is not None:
        recipe = read_recipe()
        write_report(report, found, recipe, {name: read_recipe(variant=name) for name in recipe.variants})
