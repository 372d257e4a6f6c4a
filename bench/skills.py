"""Does drawing more of what falls keep a skill? A node knows three, is asked for one of them too rarely, and trains.

A small base learns three skills on digits, supervised, to a mean accuracy of three quarters. Then a real
`TrainingEngine` trains it on a mixture in which one of them is drawn `RARE` times as often as each of the others, at a
rate at which steps for the others wear it away; with the guard of skills and without. Both arms of a seed begin
with the same base and generate as much.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import torch

from bench.measure import sample
from bench.paired import interval
from bench.place import check_names
from bench.sharing import COMMON, EXTINCT
from bench.specialists import SECOND, Goal, draw_lessons, examine, make_plan, teach
from bench.table import Row
from swarmd.config import Config, StorageConfig, SwarmConfig, TaskConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.paths import NodeDirectory
from swarmd.swarms.reasoning_gym import DigitsPlan
from swarmd.training.cancellation import Cancellation
from swarmd.training.embedded import build_tokenizer, list_training_questions, make_policy
from swarmd.training.engine import TrainingEngine
from swarmd.training.library_logging import silence_libraries

GUARDED, BARE = "guard", "no guard"
ARMS = (GUARDED, BARE)
SEEDS = tuple(range(1, 21))  # seed 0 chose rate and rarity
ROUNDS = 12
ASKED = ("digits_reverse", "digits_sort", "digits_increment")
RARELY = ASKED[-1]
RARE = 0.04  # weight of what is asked rarely; the others have 1
HIDDEN = 64
LEARNING_RATE = 1e-3
TAUGHT = Goal(2e-3, 400, 0.75, 10)
FOLLOWED = 96  # held-out questions that the node itself asks after each round
HELD_OUT = 200  # questions of each skill, before and at the end
UNLEARNT = 0.5  # of the accuracy before, below which a skill counts as unlearnt


class Outcome(msgspec.Struct, frozen=True):
    """What a node of one arm and seed came to."""

    arm: str
    seed: int
    before: list[float]  # held-out accuracy by skill, in the order of `ASKED`
    after: list[float]
    rounds: list[float]  # of what is asked rarely, as the node measured it after each round
    drawn_more: int  # rounds after which it was to be drawn more
    tokens: int
    cpu_s: float

    @property
    def lost(self) -> int:
        """Skills that it had and has no more."""
        return sum(was >= 2 * EXTINCT > 2 * now for was, now in zip(self.before, self.after, strict=True))

    @property
    def unlearnt(self) -> int:
        """Skills of which it has less than half left."""
        return sum(now < UNLEARNT * was for was, now in zip(self.before, self.after, strict=True))


def run(
    directory: Path,
    arms: Sequence[str] = ARMS,
    seeds: Sequence[int] = SEEDS,
    rounds: int = ROUNDS,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    known: Sequence[Outcome] = (),
    taught: Goal = TAUGHT,
) -> Iterable[Row]:
    """Rows that compare the arms, seed by seed.

    Args:
        directory: of the nodes' data; the bases are kept beside it.
        arms: of `ARMS`, the first compared with the last.
        seeds: each with a base and questions of its own.
        rounds: of a run.
        tell: is given every outcome as it comes.
        known: outcomes of an earlier run, which are not run again.
        taught: how well a base knows what it is asked.
    """
    check_names("arm", arms, ARMS)
    silence_libraries()
    there = {(outcome.arm, outcome.seed, len(outcome.rounds)): outcome for outcome in known}
    found: dict[str, list[Outcome]] = {arm: [] for arm in arms}
    for seed in seeds:
        for arm in arms:
            outcome = there.get((arm, seed, rounds))
            if outcome is None:
                base = build_base(directory.parent / "skills-bases" / str(seed), seed, taught)
                outcome = train(directory / f"{seed}-{arm}", base, arm, seed, rounds)
                tell(outcome)
            found[arm].append(outcome)
    yield from make_rows(found)


def build_base(directory: Path, seed: int, taught: Goal, skills: Sequence[str] = ASKED) -> Path:
    """A model that knows all that is asked; one that is there is kept."""
    if not (directory / "config.json").exists():
        torch.manual_seed(seed)
        plan = make_plan(SECOND, *skills)
        policy = make_policy(build_tokenizer(list_training_questions(plan)), HIDDEN)
        teach(policy, draw_lessons(policy, [(plan, 1.0)], seed), plan, taught)
        policy.tokenizer.save_pretrained(directory)
        policy.model.save_pretrained(directory)
    return directory


def train(directory: Path, base: Path, arm: str, seed: int, rounds: int) -> Outcome:
    """One node from its base to the end; its data is removed."""
    began = time.process_time()
    engine, plan = open_node(directory, base, arm, seed)
    gc.freeze()  # every stage ends with a collection, which would walk through all that was imported and loaded
    try:
        before = measure(engine, plan)
        cancelled = Cancellation()
        events = [engine.train(Train(f"train/{round}/0", round, 0, ()), cancelled) for round in range(rounds)]
        after = measure(engine, plan)
    finally:
        gc.unfreeze()
        shutil.rmtree(directory, ignore_errors=True)
    followed = [next(skill for skill in event.skills if skill.task == RARELY) for event in events]
    return Outcome(
        arm,
        seed,
        before,
        after,
        [skill.held_out for skill in followed],
        sum(skill.weight > 1 for skill in followed),
        sum(event.tokens for event in events),
        time.process_time() - began,
    )


def open_node(directory: Path, base: Path, arm: str, seed: int) -> tuple[TrainingEngine, DigitsPlan]:
    """The engine of a seed's node, and what it is asked."""
    weights = {skill: RARE if skill == RARELY else 1.0 for skill in ASKED}
    tasks = tuple(TaskConfig(skill, weight=weights[skill], config={"wording": SECOND[skill]}) for skill in ASKED)
    changed = {
        "model": str(base),
        "peer_questions": 0,
        "replay_questions": 0,
        "learning_rate": LEARNING_RATE,
        "held_out_questions": FOLLOWED,
    }
    training = TrainingConfig(**{**COMMON, **changed})
    swarm = SwarmConfig(id=f"skills-{seed}", tasks=tasks)
    config, plan = (
        Config(swarm, training=training, storage=StorageConfig(free_bytes_min=0)),
        DigitsPlan(swarm, training),
    )
    engine = TrainingEngine(config, NodeDirectory(directory), "node", plan)
    engine._skills.guarded = arm == GUARDED
    return engine, plan


def measure(engine: TrainingEngine, plan: DigitsPlan) -> list[float]:
    """Held-out accuracy of each skill, one sampled completion for each question."""
    found = examine(engine.policy, plan, {skill: plan.hold_out(skill, HELD_OUT) for skill in ASKED})
    return [found[skill].correct for skill in ASKED]


def make_rows(found: Mapping[str, Sequence[Outcome]]) -> Iterable[Row]:
    """The figures of each arm over seeds; then what the first has more than the last, with its interval."""
    for arm, outcomes in found.items():
        for place, skill in enumerate(ASKED):
            before, after = ([part[place] for part in parts] for parts in _parts(outcomes))
            yield Row(f"{arm}: {skill} at the end", "", sample(*after), "before", sample(*before))
        mean = [fmean(outcome.rounds) for outcome in outcomes]
        yield Row(f"{arm}: {RARELY}, mean over rounds", "", sample(*mean))
        for what in ("unlearnt", "lost"):
            count = sum(getattr(outcome, what) for outcome in outcomes)
            goal = {"goal": "none", "met": count == 0} if arm == GUARDED else {}
            yield Row(f"{arm}: skills {what}, of {len(ASKED) * len(outcomes)}", "", sample(count), **goal)
        yield Row(f"{arm}: rounds after which it was drawn more", "", sample(*(o.drawn_more for o in outcomes)))
        yield Row(f"{arm}: tokens generated", "", sample(*(outcome.tokens for outcome in outcomes)))
        yield Row(f"{arm}: processor time", "s", sample(*(outcome.cpu_s for outcome in outcomes)))
    if len(found) > 1:
        ours, *_, theirs = found.values()
        yield from compare(ours, theirs)


def compare(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Iterable[Row]:
    """Differences of two arms, the mean between the ends of its interval."""
    measures: dict[str, Callable[[Outcome], float]] = {
        f"{RARELY} at the end": lambda outcome: outcome.after[-1],
        f"{RARELY}, mean over rounds": lambda outcome: fmean(outcome.rounds),
        "the others at the end": lambda outcome: fmean(outcome.after[:-1]),
        "all three at the end": lambda outcome: fmean(outcome.after),
        "skills unlearnt, by node": lambda outcome: outcome.unlearnt,
    }
    for what, read in measures.items():
        yield Row(f"{ours[0].arm} less {theirs[0].arm}: {what}", "", interval([*map(read, ours)], [*map(read, theirs)]))


def _parts(outcomes: Sequence[Outcome]) -> tuple[list[list[float]], list[list[float]]]:
    return [outcome.before for outcome in outcomes], [outcome.after for outcome in outcomes]
