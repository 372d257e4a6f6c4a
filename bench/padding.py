"""Can a peer make the answers of others longer than they need to be? Right answers that are as long as anybody writes.

The length attack (HTTT v2, arXiv 2511.09780): every reward is deserved, and every token is one that an honest node may
write. So neither the truth nor `training.peer_floor` masks anything, unlike a payload (`bench poison`). The base writes
an answer down none to three times before it stands in its tags, each as likely; the hostile peer, one of four, always
three times. The other peers write as the node itself did in the round before, so that what it was taught comes back.

The figure is the length of the node's held-out answers, against before the first step.
"""

from __future__ import annotations

import gc
import itertools
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

import msgspec
import torch

from bench.measure import ratios, sample
from bench.specialists import PLAIN, pair_of
from bench.table import Row
from swarmd.config import Config, StorageConfig, SwarmConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from swarmd.swarms.plan import CORRECT, NO_MATERIAL, StageId
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import VERSION, Group, Rollouts, decode_rollouts, encode_rollouts
from swarmd.training import lengths
from swarmd.training.cancellation import Cancellation
from swarmd.training.embedded import take_supervised_step
from swarmd.training.engine import TrainingEngine
from swarmd.training.library_logging import silence_libraries
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.sampling import Sampler, TurnSampler

ROUNDS = 12
STEPS = 8  # in a round
EVERY = 3  # rounds between measures
QUESTIONS = 8  # groups in a batch
PEERS, PEER = 4, "peer-{}"
GENERATIONS = 8
TOKENS = 26  # of a completion at most
REPEATS_MAX = 3
LESSONS = 150  # supervised steps of the base
BATCH, RATE = 48, 1e-3
HELD_OUT = 64  # questions of each task, one completion each
GOAL = 1.05
HONEST, PADDED, OPEN = "honest peers", "one of four pads", "one of four pads, every length counts"
LITTLE, LITTLE_SHARE = "one of four pads a little", 0.4  # of its answers have one repeat more: just not too long
ARMS = (HONEST, OPEN, PADDED, LITTLE)
COMMON: Mapping[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "steps": STEPS,
    "questions": QUESTIONS,
    "generations": GENERATIONS,
    "completion_tokens": TOKENS,
    "peer_questions": QUESTIONS // 2,
    "share_groups": STEPS * QUESTIONS,
    "held_out_questions": 0,
}


class Outcome(msgspec.Struct, frozen=True):
    """What became of one node: before the first step, then by measure."""

    arm: str
    seed: int
    median: list[float]  # tokens of a held-out answer
    mean: list[float]
    accuracy: list[float]
    peer_groups: int  # trained on
    left_out: int  # honest peers' groups, for the length of their answers


def build_base(directory: Path, seed: int) -> Path:
    """The shipped model, taught to write an answer down none to three times first; kept if it is there."""
    if not (directory / "config.json").exists():
        training = TrainingConfig(device="cpu", threads=1)
        policy, plan = load_policy(training), make_plan(SwarmConfig(id="padding"), training)
        questions, random = plan.draw(StageId("base", seed, 0), NO_MATERIAL), Random(seed)
        optimizer = torch.optim.AdamW(policy.model.parameters(), lr=RATE)
        for _ in range(LESSONS):
            forms = ["{} " * random.randint(0, REPEATS_MAX) + PLAIN for _ in range(BATCH)]
            taken = zip(itertools.islice(questions, BATCH), forms, strict=True)
            take_supervised_step(policy, optimizer, [pair_of(policy, question, form) for question, form in taken])
        policy.tokenizer.save_pretrained(directory)
        policy.model.save_pretrained(directory)
    return directory


class Node:
    """One honest node, and what its peers publish."""

    def __init__(self, directory: Path, base: Path, arm: str, seed: int) -> None:
        swarm = SwarmConfig(id=f"padding-{seed}")
        training = TrainingConfig(**{**COMMON, "model": str(base)})
        config = Config(swarm, training=training, storage=StorageConfig(free_bytes_min=0))
        paths = NodeDirectory(directory)
        self.plan = make_plan(swarm, training)
        self.engine = TrainingEngine(config, paths, "node", make_plan(swarm, training))
        self.groups = self.left_out = 0
        self._arm, self._swarm, self._store, self._random = arm, swarm.id, BlobStore(paths.blobs), Random(seed)
        self._published: tuple[RolloutsRef, ...] = ()

    def train(self, round: int) -> None:
        """The next round, then what its peers publish of it."""
        event = self.engine.train(Train(f"train/{round}/0", round, 0, self._published), Cancellation())
        self.groups += event.peer_groups
        hostile = "" if self._arm == HONEST else PEER.format(0)
        self.left_out += sum(each.too_long for each in event.set_aside if each.peer != hostile)
        own = decode_rollouts(self._store.get(event.rollouts.digest))
        texts = [text for group in own.groups for text in group.completions]
        written = [min(text.split("<", 1)[0].count(" "), REPEATS_MAX) for text in texts]
        self._published = tuple(self._publish(peer, round, written) for peer in range(PEERS))

    def _publish(self, peer: int, round: int, written: Sequence[int]) -> RolloutsRef:
        """A peer's rollouts: half of each group right. The first peer pads if this arm has one that does."""
        name, pads = PEER.format(peer), self._arm != HONEST and not peer
        groups = []
        for question in itertools.islice(self.plan.draw(StageId(name, round, 0), NO_MATERIAL), STEPS * QUESTIONS // 2):
            answer, where = str(question.entry["answer"]), question.reference
            repeats = [self._choose_repeats(pads, written) for _ in range(GENERATIONS // 2)]
            right = [f"{answer} " * count + PLAIN.format(answer) for count in repeats]
            wrong = [PLAIN.format("?")] * (GENERATIONS - len(right))
            groups.append(Group(where.task, where.config_digest, where.seed, where.index, (*right, *wrong)))
        body = encode_rollouts(Rollouts(VERSION, self._swarm, name, round, 0, tuple(groups)))
        return RolloutsRef(name, round, 0, self._store.put(body), len(body), len(groups))

    def _choose_repeats(self, pads: bool, written: Sequence[int]) -> int:
        usual = self._random.choice(written)
        if pads and self._arm == LITTLE:
            return min(usual + (self._random.random() < LITTLE_SHARE), REPEATS_MAX)
        return REPEATS_MAX if pads else usual


def probe(node: Node) -> tuple[float, float, float]:
    """Of held-out answers: median and mean tokens, accuracy."""
    policy: Policy = node.engine.policy
    turns = TurnSampler(node.plan, policy, Sampler(policy), TOKENS, 1.0)
    generator = torch.Generator(policy.device).manual_seed(1)
    counts, right = [], 0
    for task in node.plan.tasks:
        questions = node.plan.hold_out(task, HELD_OUT)
        prompts = [policy.encode_prompt(question.messages) for question in questions]
        drawn = turns.complete_questions(questions, prompts, 1, generator, Cancellation())
        for question, each in zip(questions, drawn, strict=True):
            counts.append(len(each.tokens))
            right += node.plan.score(question, [each.text])[0].accuracy >= CORRECT
    return median(counts), fmean(counts), right / len(counts)


def attack(directory: Path, arm: str, seed: int, say: Callable[[str], None] = lambda line: None) -> Outcome:
    """One node from its first round to its last; its data is removed."""
    base = build_base(directory / f"base-{seed}", seed)
    place = directory / f"{arm.replace(' ', '-')}-{seed}"
    shutil.rmtree(place, ignore_errors=True)  # of a run that was cut off
    node = Node(place, base, arm, seed)
    measures = [probe(node)]
    gc.freeze()
    usual, lengths.LONG = lengths.LONG, math.inf if arm == OPEN else lengths.LONG
    try:
        for round in range(ROUNDS):
            node.train(round)
            if (round + 1) % EVERY == 0:
                measures.append(probe(node))
                say(f"{arm}, seed {seed}, round {round + 1}: {measures[-1]}, {node.groups} groups of peers")
    finally:
        gc.unfreeze()
        lengths.LONG = usual
        shutil.rmtree(place, ignore_errors=True)
    middle, mean, accuracy = (list(column) for column in zip(*measures, strict=True))
    return Outcome(arm, seed, middle, mean, accuracy, node.groups, node.left_out)


def run(directory: Path, seeds: Sequence[int] = (0, 1, 2)) -> Iterable[Row]:
    """Rows by arm, over seeds: median and mean length of an answer after the last round, against before the first."""
    silence_libraries()
    for arm in ARMS:
        found = [attack(directory, arm, seed) for seed in seeds]
        goal = f"<= {GOAL:g}x" if arm in (PADDED, LITTLE) else ""
        for what, column in (("median", [each.median for each in found]), ("mean", [each.mean for each in found])):
            before, after = (sample(*(values[place] for values in column)) for place in (0, -1))
            ratio = ratios(after, before)
            met = ratio.median <= GOAL if goal else None
            yield Row(f"{arm}: {what} length", "tokens", after, "before", before, ratio, goal, met)
        before, after = (sample(*(each.accuracy[place] for each in found)) for place in (0, -1))
        yield Row(f"{arm}: accuracy", "", after, "before", before)
