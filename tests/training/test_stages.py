"""Rounds of several stages on real engines: each asks about what the one before gave, however much peers wrote."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.config import Config, SwarmConfig, TaskConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.paths import NodeDirectory
from swarmd.swarms.math.plan import MathPlan
from swarmd.swarms.plan import Material, Question
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import Group, Rollouts, decode_rollouts, encode_rollouts
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from tests.swarms.math.voices import answer, gather, publish

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


TALKERS = ("anna", "otto")
QUESTIONS = 4
ROOM = {1: 480, 2: 840}  # prompt tokens by stage: less than what peers wrote takes, more than what it takes cut short
COMPLETION_TOKENS = 160


def write(peer: str, question: Question) -> tuple[str, str]:
    """As long as a completion can be, in characters that take a token each, and well formed at its end."""
    room = "7" * (COMPLETION_TOKENS - 60)
    name = next(iter(question.entry.get("students", {"None": 0})))
    said = f"<identify>\n{name}\n</identify>" if question.stage else answer(question.entry["answer"], "")
    return f"{room}\n{said}", room


class Talked:
    """An engine, and what verbose peers published."""

    def __init__(self, directory: Path, rewards: str, prompt_tokens: int) -> None:
        options = {"brief": True, "questions": QUESTIONS, "students": 2, "rewards": rewards}
        swarm = SwarmConfig(
            id="test",
            kind="gsm8k",
            stages=3,
            tasks=(TaskConfig("chain_sum", config={"max_terms": 2}),),
            options=options,
        )
        training = TrainingConfig(
            device="cpu",
            prompt_tokens=prompt_tokens,
            completion_tokens=COMPLETION_TOKENS,
            steps=1,
            questions=2,
            generations=2,
            peer_questions=1,
            held_out_questions=0,
        )
        plan = make_plan(swarm, training, directory)
        assert isinstance(plan, MathPlan)
        config = Config(swarm, role="coordinator", training=training)
        self.engine = TrainingEngine(config, NodeDirectory(directory / "node"), "node", plan)
        self._plan, self._material = plan, Material()
        self._told: dict[int, tuple[RolloutsRef, ...]] = {}

    def hear(self, stage: int) -> None:
        """All peers' rollouts of a stage."""
        bodies = {peer: publish(self._plan, peer, stage, self._material, write, QUESTIONS) for peer in TALKERS}
        gather(self._plan, bodies.values(), self._material)
        self._told[stage] = tuple(
            RolloutsRef(peer, 0, stage, self.engine._blobs.put(body), len(body), QUESTIONS)
            for peer, body in bodies.items()
        )

    def train(self, stage: int) -> tuple[Group, ...]:
        """What the node publishes of a stage."""
        context = tuple(ref for earlier in range(stage - 1) for ref in self._told[earlier])
        order = Train(f"train/0/{stage}", 0, stage, self._told[stage - 1], context)
        event = self.engine.train(order, Cancellation())
        assert event.steps == 1 and dict(event.rejected).keys() <= {"prompt-length"}, event.rejected
        return decode_rollouts(self.engine._blobs.get(event.rollouts.digest)).groups


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the prompts that completions are drawn to."""
    from swarmd.training.sampling.generation import Sampling

    lengths: list[int] = []
    draw = Sampling.sample

    def note(self: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        lengths.extend(map(len, prompts))
        return draw(self, prompts, *args, **kwargs)

    monkeypatch.setattr(Sampling, "sample", note)
    return lengths


@pytest.mark.parametrize("stage", [1, 2])
def test_what_is_too_long_is_cut_until_the_question_fits(tmp_path: Path, prompts: list[int], stage: int) -> None:
    node = Talked(tmp_path, "fixed", ROOM[stage])
    for earlier in range(stage):
        node.hear(earlier)
    groups = node.train(stage)
    assert {source.peer for group in groups for source in group.sources} == set(TALKERS), "all are shown"
    assert all(len(group.sources) == len(TALKERS) * stage for group in groups)
    assert ROOM[stage] * 0.8 < max(prompts) <= ROOM[stage], "no shorter than it has to be"


@pytest.mark.parametrize(
    ("stage", "rewards", "prompt_tokens"),
    [(1, "compat", ROOM[1]), (2, "compat", ROOM[2]), (1, "fixed", 200), (2, "fixed", 200)],
)
def test_where_no_cut_helps_questions_without_peers_text_are_answered(
    tmp_path: Path, prompts: list[int], stage: int, rewards: str, prompt_tokens: int
) -> None:
    node = Talked(tmp_path, rewards, prompt_tokens)
    for earlier in range(stage):
        node.hear(earlier)
    groups = node.train(stage)
    assert groups and all(group.sources == () for group in groups)
    assert max(prompts) <= prompt_tokens
