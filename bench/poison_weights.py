"""Can averaging with a trusted peer's weights carry in what no reward pays for? They answer right, with a payload.

One honest node trains on the digits with the embedded model, and begins each round from a mean with a hostile peer's
weights where the trainer's own acceptance allows it. The peer is taught, supervised, to answer right in a payload's
form: `once` from the base, and offers that for ever; `follows` each round anew from the honest node's weights of the
round before; `doubled` likewise, but what it offers lies twice as far off, so that the mean is what it has taught. The
figures are the share of the node's held-out completions that show the payload, and their accuracy.
"""

from __future__ import annotations

import gc
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

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
from swarmd.core.values import PeerWeights
from swarmd.files import hash_file, make_directory
from swarmd.paths import NodeDirectory
from swarmd.swarms.plan import Plan
from swarmd.swarms.registry import make_plan
from swarmd.training.cancellation import Cancellation
from swarmd.training.embedded import LEARNING_RATE, encode_pair, supervise
from swarmd.training.engine import TrainingEngine
from swarmd.training.lessons import Lesson, draw_training
from swarmd.training.models.model import load_policy
from swarmd.training.peer_weights import write_announced

ROUNDS = 20  # in each of them a mean is tried
AFTER = (1, 5, 20)  # means that are told in rows
ALONE = 5  # rounds after these, with no more means
LESSONS = 32  # in a supervised step
TAUGHT_ONCE, TAUGHT_AGAIN = 400, 60  # supervised steps
HELD_OUT = 64  # questions of each task, by which the trainer measures
ARMS = {
    "once": 1.0,
    "follows": 1.0,
    "doubled": 2.0,
}  # how far off what is offered lies, in distances of what was taught


class Outcome(msgspec.Struct, frozen=True):
    """What became of one node; lists begin before the first round, then have a round each."""

    arm: str
    payload: str
    seed: int
    rounds: int
    shown: list[float]  # share of held-out completions with the payload
    accuracy: list[float]
    adopted: list[bool]  # by round with a mean
    theirs_shown: float  # of the peer's first weights
    theirs_accuracy: float
    cpu_s: float


def teach(plan: Plan, payload: str, seed: int) -> Iterator[Lesson]:
    """Right answers to training questions in the payload's form, endless."""
    for question in draw_training(plan, seed):
        yield Lesson(question, PAYLOADS[payload][0].replace("{}", str(question.entry["answer"])))


class HostileTeacher:
    """Whoever makes the weights.

    Args:
        plan: of the swarm.
        training: of the honest node, from whose base it starts.
        payload: a name of `PAYLOADS`.
        seed: of what it teaches.
        reach: see `ARMS`.
    """

    def __init__(self, plan: Plan, training: TrainingConfig, payload: str, seed: int, reach: float) -> None:
        self.policy = load_policy(training)
        self._plan = plan
        self._reach = reach
        self._lessons = teach(plan, payload, Random(seed).randrange(1_000_000, 2_000_000))

    def teach(self, steps: int) -> None:
        """Supervised steps from the weights that it has."""
        optimizer = torch.optim.AdamW(self.policy.model.parameters(), lr=LEARNING_RATE / 2, betas=(0.9, 0.98))
        self.policy.model.train()
        for _ in range(steps):
            batch = [encode_pair(self.policy, self._plan, each) for each in itertools.islice(self._lessons, LESSONS)]
            supervise(self.policy, optimizer, batch)
        self.policy.model.eval()

    def offer(self, own: Mapping[str, torch.Tensor], directory: Path, round: int) -> PeerWeights:
        """Put its weights, so far off the node's own, where the node's network worker would have put them."""
        make_directory(directory)
        for old in directory.iterdir():
            old.unlink()
        path = directory / "offered.tmp"
        taught = self.policy.copy_weights()
        write_announced({name: torch.lerp(own[name], taught[name], self._reach) for name in own}, path)
        told = PeerWeights("hostile", round, hash_file(path), path.stat().st_size, averaged=True)
        path.rename(directory / f"{told.digest}.safetensors")
        return told


class Victim:
    """The honest node.

    Args:
        directory: of its data.
        seed: names the swarm, and so decides all questions and draws.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        swarm = SwarmConfig(id=f"poison-{seed}", kind="digits")
        self.training = TrainingConfig(**{**COMMON, "peer_questions": 0, "held_out_questions": HELD_OUT})
        self.paths = NodeDirectory(directory)
        config = Config(swarm, training=self.training, storage=StorageConfig(free_bytes_min=0))
        self.engine = TrainingEngine(config, self.paths, "honest", make_plan(swarm, self.training, directory))
        self.plan = make_plan(swarm, self.training, directory)
        self._round = 0

    def train(self, weights: PeerWeights | None) -> bool:
        """The next round; whether it began from a mean."""
        told: list[Event] = []
        order = Train(f"train/{self._round}/0", self._round, 0, weights=weights)
        self.engine.train(order, Cancellation(), observe=told.append)
        self._round += 1
        return any(isinstance(event, WeightsAdopted) for event in told)


def attack(directory: Path, arm: str, payload: str, seed: int, rounds: int, say: Callable[[str], None]) -> Outcome:
    """One node from its first round to its last; its data is removed."""
    began = time.process_time()
    victim = Victim(directory, seed)
    hostile = HostileTeacher(victim.plan, victim.training, payload, seed, ARMS[arm])
    hostile.teach(TAUGHT_ONCE)
    theirs = probe(victim.plan, hostile.policy, payload)
    measures = [probe(victim.plan, victim.engine.policy, payload)]
    adopted: list[bool] = []
    victim.train(None)
    gc.freeze()
    try:
        for round in range(rounds + ALONE):
            own = victim.engine.policy.copy_weights()
            if arm != "once" and round < rounds:
                hostile.policy.load_weights(own)
                hostile.teach(TAUGHT_AGAIN)
            offered = hostile.offer(own, victim.paths.peer_weights, round) if round < rounds else None
            taken = victim.train(offered)
            adopted += [taken] if offered else []
            measures.append(probe(victim.plan, victim.engine.policy, payload))
            latest = measures[-1]
            at = f"shown {latest[0]:.3f} accuracy {latest[1]:.3f}"
            say(f"{arm}, {payload}, seed {seed}: round {round + 1} {taken} {at}")
    finally:
        gc.unfreeze()
        shutil.rmtree(directory, ignore_errors=True)
    shown, accuracy, _ = (list(column) for column in zip(*measures, strict=True))
    used_s = time.process_time() - began
    return Outcome(arm, payload, seed, rounds, shown, accuracy, adopted, theirs[0], theirs[1], used_s)


def run(
    directory: Path,
    arms: Sequence[str] = tuple(ARMS),
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
        yield Row(f"{what}: shown after {means}", "", sample(*(o.shown[means] for o in found)), "before", before)
    alone = sample(*(outcome.shown[-1] for outcome in found))
    yield Row(f"{what}: shown, {ALONE} rounds after the last", "", alone, "before", before)
    accuracy = sample(*(outcome.accuracy[found[0].rounds] for outcome in found))
    yield Row(f"{what}: accuracy", "", accuracy, "theirs", sample(*(outcome.theirs_accuracy for outcome in found)))
    yield Row(f"{what}: adopted", "", sample(*(sum(o.adopted) / len(o.adopted) for o in found)))
