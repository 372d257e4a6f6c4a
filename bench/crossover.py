"""From which length of completions on is a peer's group cheaper than one drawn here? SmolLM2-135M with adapters.

One node trains stages in which half of the groups are its own and half a peer's, with the texts of its own of the stage
before. What a group costs is what the node itself measures (`swarmd.core.group_costs`), in processor time and without
the network: drawing and scoring against reading and scoring, and the passes for both. The rewards are made up so that
every group is informative, and the questions ask for more than the completions have room for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from bench.measure import ratios, sample
from bench.table import Row
from swarmd.config import Config, LoraConfig, StorageConfig, SwarmConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.group_costs import group_prices, stage_costs
from swarmd.core.state import GroupCosts
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from swarmd.swarms.plan import NO_MATERIAL, Plan, StageId
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import decode_rollouts, encode_rollouts
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.library_logging import silence_libraries
from swarmd.training.stage_timer import StageTimer

MODEL = "smollm2"
PEER = "peer"
LENGTHS = (32, 64, 128)  # tokens of a completion
ROUNDS = 2  # that are measured; the first, without peers, is not
STEPS = 1  # in a round
QUESTIONS = 2  # groups in a step, one of them a peer's
REWARDS = "def letters(completions, **_):\n    return [len(set(each)) / 50 + len(each) / 1e6 for each in completions]\n"
THINGS = ("a lighthouse", "a baker", "a river", "a clock", "a violin", "the winter", "an old bicycle", "a market")


def run(directory: Path, model: str = MODEL) -> Iterable[Row]:
    """Rows by length: seconds a group.

    Args:
        model: what `training.model` may name.
    """
    silence_libraries()
    StageTimer.clock = time.process_time
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "rewards.py").write_text(REWARDS)
    rows = [{"prompt": f"Write a long story about {thing}, part {part}."} for thing in THINGS for part in range(32)]
    (directory / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for tokens in LENGTHS:
        found = measure(directory, model, tokens)
        prices = [price for each in found if (price := group_prices(each, least=1)) is not None]
        own, peers = (sample(*values) for values in zip(*prices, strict=True))
        drawing = sample(*(each.own_s / each.own_groups for each in found))
        passing = sample(*(each.pass_s / each.trained_groups for each in found))
        what = f"{tokens} tokens: drawing and scoring a group"
        yield Row(what, "s", drawing, "a pass", passing, ratios(drawing, passing))
        yield Row(f"{tokens} tokens: a peer's group", "s", peers, "an own one", own, ratios(peers, own))


def measure(directory: Path, model: str, tokens: int) -> list[GroupCosts]:
    """What groups cost in each round, with completions of up to this length."""
    swarm = SwarmConfig(
        id="crossover", kind="file", options={"data": "questions.jsonl", "reward_funcs": ["rewards:letters"]}
    )
    training = TrainingConfig(
        model=model,
        device="cpu",
        threads=1,
        lora=LoraConfig(rank=8),
        steps=STEPS,
        questions=QUESTIONS,
        peer_questions=QUESTIONS // 2,
        completion_tokens=tokens,
        held_out_questions=0,
    )
    paths = NodeDirectory(directory / f"node-{tokens}")
    config = Config(swarm, training=training, storage=StorageConfig(free_bytes_min=0))
    plan, store = make_plan(swarm, training, directory), BlobStore(paths.blobs)
    engine = TrainingEngine(config, paths, "node", plan)
    published: tuple[RolloutsRef, ...] = ()
    costs = []
    for round in range(ROUNDS + 1):
        event = engine.train(Train(f"train/{round}/0", round, 0, published), Cancellation())
        published = (publish_as_peer(plan, event.rollouts, store),)
        if round and event.times is not None:
            costs.append(stage_costs(event.times, 0.0))
    engine.close()
    return costs


def publish_as_peer(plan: Plan, rollouts: RolloutsRef, store: BlobStore) -> RolloutsRef:
    """A peer's rollouts with these texts, under questions of its own."""
    own = decode_rollouts(store.get(rollouts.digest))
    questions = plan.draw(StageId(PEER, own.round, own.stage), NO_MATERIAL)
    groups = tuple(
        replace(group, seed=question.reference.seed, index=question.reference.index)
        for group, question in zip(own.groups, questions, strict=False)
    )
    body = encode_rollouts(replace(own, peer=PEER, groups=groups))
    return replace(rollouts, peer=PEER, digest=store.put(body), size_bytes=len(body))
