"""Rounds of several stages on real engines: each stage asks about the results of the one before."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from swarmd.config import Config, SwarmConfig, TaskConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import Rollouts, decode_rollouts, encode_rollouts
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine

PEERS = ("anna", "otto", "zoe")
SWARM = SwarmConfig(
    id="stages",
    kind="gsm8k",
    stages=3,
    tasks=(TaskConfig("chain_sum", config={"max_terms": 2}),),
    options={"brief": True, "questions": 4, "shown_bytes": 16, "students": 3},
)
TRAINING = TrainingConfig(
    device="cpu",
    prompt_tokens=1000,
    steps=2,
    questions=2,
    generations=2,
    peer_questions=0,
    held_out_questions=0,
    share_groups=16,
)


class Node:
    """An engine, and what its log would know: the rollouts of earlier stages, its own and peers'."""

    def __init__(
        self, peer: str, directory: Path, swarm: SwarmConfig = SWARM, training: TrainingConfig = TRAINING
    ) -> None:
        self.peer = peer
        paths = NodeDirectory(directory / peer)
        config = Config(swarm, role="coordinator", training=training)
        self.engine = TrainingEngine(config, paths, peer, make_plan(swarm, training, paths.root))
        self.context: tuple[RolloutsRef, ...] = ()

    def train(self, stage: int, published: dict[RolloutsRef, bytes], round: int = 0) -> StageTrained:
        gathered = tuple(ref for ref in published if ref.peer != self.peer)
        for ref in gathered:
            assert self.engine._blobs.put(published[ref]) == ref.digest
        order = Train(f"train/{round}/{stage}", round, stage, gathered, self.context)
        event = self.engine.train(order, Cancellation())
        self.context = (*self.context, *gathered, event.rollouts)
        return event

    def body(self, event: StageTrained) -> bytes:
        return self.engine._blobs.get(event.rollouts.digest)


@pytest.fixture
def nodes(tmp_path: Path) -> list[Node]:
    return [Node(peer, tmp_path) for peer in PEERS]


def run_stage(nodes: list[Node], stage: int, published: dict[RolloutsRef, bytes]) -> dict[RolloutsRef, bytes]:
    made = {}
    for node in nodes:
        event = node.train(stage, published)
        assert event.rejected == (), event.rejected
        assert {each.peer for each in event.judged} == {ref.peer for ref in published if ref.peer != node.peer}
        made[event.rollouts] = node.body(event)
    return made


def sources_of(body: bytes) -> set[tuple[int, str]]:
    return {(source.stage, source.peer) for group in decode_rollouts(body).groups for source in group.sources}


def test_stages_build_on_what_all_nodes_wrote(nodes: list[Node]) -> None:
    answers = run_stage(nodes, 0, {})
    asked = [[group.reference.base for group in decode_rollouts(body).groups] for body in answers.values()]
    assert {frozenset(map(str, questions)) for questions in asked} == {frozenset(map(str, asked[0]))}, (
        "the same for all"
    )
    picks = run_stage(nodes, 1, answers)
    for body in picks.values():
        assert sources_of(body) == {(0, peer) for peer in PEERS}
    votes = run_stage(nodes, 2, picks)
    for body in votes.values():
        assert sources_of(body) == {(stage, peer) for stage in (0, 1) for peer in PEERS}
    bodies_stay_small(nodes)
    hostile_bodies_cost_only_themselves(nodes, answers, picks)


def bodies_stay_small(nodes: list[Node]) -> None:
    """They name what they show instead of repeating it."""
    sizes = [len(node.engine._blobs.get(ref.digest)) for node in nodes for ref in node.context if ref.peer == node.peer]
    assert sizes and max(sizes) < 8192
    assert isinstance(decode_rollouts(nodes[0].engine._blobs.get(nodes[0].context[0].digest)), Rollouts)


def hostile_bodies_cost_only_themselves(
    nodes: list[Node], answers: dict[RolloutsRef, bytes], picks: dict[RolloutsRef, bytes]
) -> None:
    """Sources that nobody wrote, questions of another task, and a stage that is not over are refused and counted."""
    node = nodes[0]
    ref, body = next((ref, body) for ref, body in picks.items() if ref.peer != node.peer)
    rollouts = decode_rollouts(body)

    def forge(**changes: object) -> dict[str, int]:
        first = msgspec.structs.replace(rollouts.groups[0], **changes)  # type: ignore[arg-type]
        forged = encode_rollouts(msgspec.structs.replace(rollouts, groups=(first,)))
        place = RolloutsRef(ref.peer, 0, 1, node.engine._blobs.put(forged), len(forged), 1)
        order = Train("train/0/2", 0, 2, (place,), tuple(each for each in node.context if each.stage == 0))
        _, collected = node.engine._open_stage(order, Cancellation())
        return dict(collected.rejected)

    group = rollouts.groups[0]
    assert forge() == {}
    invented = (*group.sources[:-1], msgspec.structs.replace(group.sources[-1], peer="nobody"))
    assert forge(sources=invented) == {"source": 1}
    assert forge(sources=(msgspec.structs.replace(group.sources[0], choice=1000 % 64),)) == {"source": 1}
    assert list(forge(config_digest="0" * 16)) in (["config-digest"], ["unknown-task"])
    assert sum(forge(index=group.index + 1).values()) == 1
    assert forge(completions=group.completions[:1]) == {"group-size": 1}
