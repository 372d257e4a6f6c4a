"""Can averaging with trusted peers' weights carry in what no reward pays for? They answer right, with a payload.

Four honest nodes train on the digits with the embedded model, and begin each round from a mean with the offers of the
three others and of a fifth, hostile peer, where the trainer's own acceptance allows it. The hostile peer is taught,
supervised, to answer right in a payload's form, each round anew from the mean of the honest offers of the round before.
`honest` is the same with a fifth honest node in its place. What the hostile peer offers lies five times as far off as
what it has taught, so that a plain mean is that (`aims`); or is what it has taught as far as honest offers go at each
place, so that nothing there is extreme (`within`); or the honest value that lies furthest that way (`edges`). `plain`
arms have the mean that neither leaves out extremes nor bounds lengths. The figures are the share of honest nodes'
held-out completions that show the payload, and their accuracy.
"""

from __future__ import annotations

import gc
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from unittest import mock

import msgspec
import torch

from bench.hostile_peer import PAYLOADS, probe
from bench.measure import sample
from bench.place import check_names
from bench.poison import COMMON, run_missing
from bench.table import Row
from swarmd.config import Config, StorageConfig, SwarmConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.events import Event, WeightsAdopted
from swarmd.core.values import AveragedOffer, PeerWeights
from swarmd.files import hash_file, make_directory
from swarmd.paths import NodeDirectory
from swarmd.swarms.plan import Plan
from swarmd.swarms.registry import make_plan
from swarmd.training import peer_weights
from swarmd.training.cancellation import Cancellation
from swarmd.training.embedded import LEARNING_RATE, encode_pair, take_supervised_step
from swarmd.training.engine import TrainingEngine
from swarmd.training.lessons import Lesson, draw_training_questions
from swarmd.training.models.model import load_policy
from swarmd.training.peer_weights import write_announced

Weights = Mapping[str, torch.Tensor]
ROUNDS = 20  # in each of them a mean is tried
AFTER = (1, 5, 20)  # means that are told in rows
HONEST = 4
LESSONS = 32  # in a supervised step
TAUGHT = 60  # supervised steps between two offers
HELD_OUT = 64  # questions of each task, by which the trainer measures
ARMS = ("honest", "honest plain", "aims", "aims plain", "within", "within plain", "edges", "edges plain")
GOAL = 0.02  # of the held-out completions


class Outcome(msgspec.Struct, frozen=True):
    """What became of the honest nodes, their means; lists begin before the first mean, then have a round each."""

    arm: str
    payload: str
    seed: int
    rounds: int
    shown: list[float]  # share of held-out completions with the payload
    accuracy: list[float]
    adopted: list[float]  # share of nodes that began from a mean, by round
    cpu_s: float


def teach(plan: Plan, payload: str, seed: int) -> Iterator[Lesson]:
    """Right answers to training questions in the payload's form, endless."""
    for question in draw_training_questions(plan, seed):
        yield Lesson(question, PAYLOADS[payload][0].replace("{}", str(question.entry["answer"])))


class HostileTeacher:
    """Whoever makes the hostile weights.

    Args:
        plan: of the swarm.
        training: of the honest nodes, from whose base it starts.
        payload: a name of `PAYLOADS`.
        seed: of what it teaches.
        attack: the first word of an arm.
    """

    def __init__(self, plan: Plan, training: TrainingConfig, payload: str, seed: int, attack: str) -> None:
        self.policy = load_policy(training)
        self._plan = plan
        self._attack = attack
        self._lessons = teach(plan, payload, Random(seed).randrange(1_000_000, 2_000_000))

    def teach(self, steps: int) -> None:
        """Supervised steps from the weights that it has."""
        trained = [parameter for parameter in self.policy.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE / 2, betas=(0.9, 0.98))
        self.policy.model.train()
        for _ in range(steps):
            batch = [encode_pair(self.policy, self._plan, each) for each in itertools.islice(self._lessons, LESSONS)]
            take_supervised_step(self.policy, optimizer, batch)
        self.policy.model.eval()

    def make(self, honest: Sequence[Weights]) -> Weights:
        """What it offers, where honest nodes offer these."""
        stacked = {name: torch.stack([each[name] for each in honest]) for name in honest[0]}
        middle = {name: values.mean(dim=0) for name, values in stacked.items()}
        self.policy.load_weights(middle)
        self.teach(TAUGHT)
        taught = self.policy.copy_weights()
        if self._attack == "aims":
            return {name: torch.lerp(middle[name], taught[name], HONEST + 1.0) for name in middle}
        ends = {name: (values.amin(0), values.amax(0)) for name, values in stacked.items()}
        if self._attack == "within":
            return {name: taught[name].clamp(*ends[name]) for name in taught}
        return {name: torch.where(taught[name] > middle[name], high, low) for name, (low, high) in ends.items()}


class Node:
    """An honest node.

    Args:
        directory: of its data.
        seed: names the swarm, and so decides all questions and draws.
        peer: its id.
    """

    def __init__(self, directory: Path, seed: int, peer: str) -> None:
        swarm = SwarmConfig(id=f"poison-{seed}", kind="digits")
        self.training = TrainingConfig(**{**COMMON, "peer_questions": 0, "held_out_questions": HELD_OUT})
        self.peer = peer
        self.paths = NodeDirectory(directory)
        config = Config(swarm, training=self.training, storage=StorageConfig(free_bytes_min=0))
        self.engine = TrainingEngine(config, self.paths, peer, make_plan(swarm, self.training, directory))
        self.plan = make_plan(swarm, self.training, directory)
        self._round = 0

    def train(self, offers: Mapping[str, Weights]) -> bool:
        """The next round, from a mean with what these peers offer; whether it began from one."""
        found: list[Event] = []
        weights = self._place(offers) if offers else None
        order = Train(f"train/{self._round}/0", self._round, 0, weights=weights)
        self.engine.train(order, Cancellation(), observe=found.append)
        self._round += 1
        return any(isinstance(event, WeightsAdopted) for event in found)

    def _place(self, offers: Mapping[str, Weights]) -> PeerWeights:
        """Put offers where the node's network worker would have put them."""
        shutil.rmtree(self.paths.peer_weights, ignore_errors=True)
        make_directory(self.paths.peer_weights)
        placed = []
        for peer, weights in offers.items():
            path = self.paths.peer_weights / "offered.tmp"
            write_announced(weights, path)
            placed.append(AveragedOffer(peer, self._round - 1, hash_file(path)))
            path.rename(path.with_name(f"{placed[-1].digest}.safetensors"))
        first, *others = placed
        return PeerWeights(first.peer, first.round, first.digest, 0, averaged=True, others=tuple(others))


def average_plainly(own: Weights, offers: Sequence[Weights], share: float = 1.0) -> dict[str, torch.Tensor]:
    """As `peer_weights.combine`, without its bounds."""
    means = {name: torch.stack([own[name], *(o[name].float() for o in offers)]).mean(dim=0) for name in own}
    return {name: torch.lerp(own[name], mean, share) for name, mean in means.items()}


def attack(directory: Path, arm: str, payload: str, seed: int, rounds: int, say: Callable[[str], None]) -> Outcome:
    """Nodes from their first round to their last; their data is removed."""
    began = time.process_time()
    kind, _, plain = arm.partition(" ")
    nodes = [Node(directory / str(n), seed, f"node-{n}") for n in range(HONEST + (kind == "honest"))]
    hostile = None if kind == "honest" else HostileTeacher(nodes[0].plan, nodes[0].training, payload, seed, kind)
    told, adopted = [measure(nodes, payload)], list[float]()
    for node in nodes:
        node.train({})
    gc.freeze()
    rule: AbstractContextManager[object] = (
        mock.patch.object(peer_weights, "combine", average_plainly) if plain else nullcontext()
    )
    try:
        with rule:
            for round in range(rounds):
                offers: dict[str, Weights] = {node.peer: node.engine.policy.copy_weights() for node in nodes}
                if hostile is not None:
                    offers["hostile"] = hostile.make(list(offers.values()))
                taken = [node.train({k: v for k, v in offers.items() if k != node.peer}) for node in nodes]
                adopted.append(sum(taken) / len(taken))
                told.append(measure(nodes, payload))
                say(f"{arm}, {payload}, seed {seed}: {round + 1} {adopted[-1]:.2f} {told[-1]}")
    finally:
        gc.unfreeze()
        shutil.rmtree(directory, ignore_errors=True)
    shown, accuracy = (list(column) for column in zip(*told, strict=True))
    return Outcome(arm, payload, seed, rounds, shown, accuracy, adopted, time.process_time() - began)


def measure(nodes: Sequence[Node], payload: str) -> tuple[float, float]:
    """Share of held-out completions with the payload, and accuracy: means over nodes."""
    found = [probe(node.plan, node.engine.policy, payload)[:2] for node in nodes]
    shown, accuracy = (sum(column) / len(found) for column in zip(*found, strict=True))
    return shown, accuracy


def run(
    directory: Path,
    arms: Sequence[str] = ARMS,
    payloads: Sequence[str] = ("prefix", "suffix", "repeat"),
    seeds: Sequence[int] = (0, 1, 2),
    rounds: int = ROUNDS,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    known: Sequence[Outcome] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Iterable[Row]:
    """Rows of every arm and payload, over seeds; arguments as those of `bench.poison.run`, a round is one mean."""

    check_names("arm", arms, ARMS)
    check_names("payload", payloads, PAYLOADS)

    def attack_one(arm: str, payload: str, seed: int) -> Outcome:
        return attack(directory / f"{arm}-{payload}-{seed}", arm, payload, seed, rounds, say)

    for what, found in run_missing(attack_one, itertools.product(arms, payloads), seeds, rounds, known, tell):
        yield from make_rows(what, found)


def make_rows(what: str, found: Sequence[Outcome]) -> Iterable[Row]:
    """The figures of an arm under one payload."""
    before = sample(*(outcome.shown[0] for outcome in found))
    for means in [means for means in AFTER if means <= found[0].rounds]:
        shown = sample(*(outcome.shown[means] for outcome in found))
        goal, met = (f"<= {GOAL:g}", shown.high <= GOAL) if means == ROUNDS else ("", None)
        yield Row(f"{what}: shown after {means}", "", shown, "before", before, goal=goal, met=met)
    ends = [sample(*(outcome.accuracy[place] for outcome in found)) for place in (-1, 0)]
    yield Row(f"{what}: accuracy", "", ends[0], "before", ends[1])
    yield Row(f"{what}: adopted", "", sample(*(sum(o.adopted) / len(o.adopted) for o in found)))
