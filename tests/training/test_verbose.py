"""Peers who write as much as they may: the stages that show it train all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarmd.config import Config, SwarmConfig, TaskConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.values import RolloutsRef
from swarmd.paths import NodeDirectory
from swarmd.swarms.math.plan import MathPlan
from swarmd.swarms.plan import Material, Question
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import Group, decode_rollouts
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from tests.swarms.math.voices import answer, gather, publish

PEERS = ("anna", "otto")
QUESTIONS = 4
ROOM = {1: 480, 2: 840}  # prompt tokens by stage: less than what peers wrote takes, more than what it takes cut short
COMPLETION_TOKENS = 160


def write(peer: str, question: Question) -> tuple[str, str]:
    """As long as a completion can be, in characters that take a token each, and well formed at its end."""
    room = "7" * (COMPLETION_TOKENS - 60)
    name = next(iter(question.entry.get("students", {"None": 0})))
    said = f"<identify>\n{name}\n</identify>" if question.stage else answer(question.entry["answer"], "")
    return f"{room}\n{said}", room


class Node:
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
        bodies = {peer: publish(self._plan, peer, stage, self._material, write, QUESTIONS) for peer in PEERS}
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
    node = Node(tmp_path, "fixed", ROOM[stage])
    for earlier in range(stage):
        node.hear(earlier)
    groups = node.train(stage)
    assert {source.peer for group in groups for source in group.sources} == set(PEERS), "all are shown"
    assert all(len(group.sources) == len(PEERS) * stage for group in groups)
    assert ROOM[stage] * 0.8 < max(prompts) <= ROOM[stage], "no shorter than it has to be"


@pytest.mark.parametrize(
    ("stage", "rewards", "prompt_tokens"),
    [(1, "compat", ROOM[1]), (2, "compat", ROOM[2]), (1, "fixed", 200), (2, "fixed", 200)],
)
def test_where_no_cut_helps_questions_without_peers_text_are_answered(
    tmp_path: Path, prompts: list[int], stage: int, rewards: str, prompt_tokens: int
) -> None:
    node = Node(tmp_path, rewards, prompt_tokens)
    for earlier in range(stage):
        node.hear(earlier)
    groups = node.train(stage)
    assert groups and all(group.sources == () for group in groups)
    assert max(prompts) <= prompt_tokens
