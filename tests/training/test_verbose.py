"""Peers who write as much as they may: later stages, which show it, train nevertheless."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.config import SwarmConfig, TaskConfig
from swarmd.core.values import RolloutsRef
from swarmd.swarms.math.plan import MathPlan
from swarmd.swarms.plan import Material, Question
from swarmd.swarms.rollouts import Group, decode_rollouts
from swarmd.training.sampling import BaseSampler
from tests.swarms.math.voices import answer, gather, publish
from tests.training.test_stages import TRAINING, Node

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


def train(directory: Path, stage: int, rewards: str, prompt_tokens: int) -> tuple[Group, ...]:
    """What a node publishes of a stage, after verbose peers published of all those before."""
    tasks = (TaskConfig("chain_sum", config={"max_terms": 2}),)
    options = {"brief": True, "questions": QUESTIONS, "students": 2, "rewards": rewards}
    swarm = SwarmConfig(id="test", kind="gsm8k", stages=3, tasks=tasks, options=options)
    lengths = {"prompt_tokens": prompt_tokens, "completion_tokens": COMPLETION_TOKENS}
    node = Node("node", directory, swarm, msgspec.structs.replace(TRAINING, steps=1, peer_questions=1, **lengths))
    plan, material, published = node.engine._plan, Material(), dict[RolloutsRef, bytes]()
    assert isinstance(plan, MathPlan)
    for earlier in range(stage):
        node.context = (*node.context, *published)
        bodies = {peer: publish(plan, peer, earlier, material, write, QUESTIONS) for peer in PEERS}
        gather(plan, bodies.values(), material)
        put = node.engine._blobs.put
        published = {RolloutsRef(of, 0, earlier, put(body), len(body), QUESTIONS): body for of, body in bodies.items()}
    event = node.train(stage, published)
    assert event.steps == 1 and dict(event.rejected).keys() <= {"prompt-length"}, event.rejected
    return decode_rollouts(node.body(event)).groups


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the prompts that completions are drawn to."""
    lengths: list[int] = []
    draw = BaseSampler.sample

    def note(self: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        lengths.extend(map(len, prompts))
        return draw(self, prompts, *args, **kwargs)

    monkeypatch.setattr(BaseSampler, "sample", note)
    return lengths


@pytest.mark.parametrize("stage", [1, 2])
def test_what_is_too_long_is_cut_until_the_question_fits(tmp_path: Path, prompts: list[int], stage: int) -> None:
    groups = train(tmp_path, stage, "fixed", ROOM[stage])
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
    groups = train(tmp_path, stage, rewards, prompt_tokens)
    assert groups and all(group.sources == () for group in groups)
    assert max(prompts) <= prompt_tokens
