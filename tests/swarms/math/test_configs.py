"""The configurations for the embedded model: prompts of all stages fit, whatever peers write."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from swarmd.config import Config, load_config
from swarmd.swarms.math.plan import MathPlan
from swarmd.swarms.plan import NO_MATERIAL, Material, Place, Question
from swarmd.swarms.registry import make_plan
from tests.swarms.math.voices import PEERS, answer, gather, opinion, publish, take

ROOT = Path(__file__).resolve().parents[3]
EMBEDDED = ROOT / "swarmd" / "models" / "embedded"
TURN_TOKENS = 8  # of the chat template, for a message and the opening of the answer


def plan_of(kind: str, node: str) -> tuple[MathPlan, Config]:
    config = load_config(ROOT / "configs" / kind / f"{node}.toml")
    plan = make_plan(msgspec.structs.replace(config.swarm, id="test"), config.training, ROOT)
    assert isinstance(plan, MathPlan)
    return plan, config


def longest(peer: str, question: Question) -> tuple[str, ...]:
    """Completions of the greatest length shown, in characters that take a token for every byte."""
    text = "\u00e9\u4e2d" * 200
    name = next(iter(question.entry.get("students", {"": 0})))
    return (opinion(name, text) if question.stage else answer(text, text), "x")


@pytest.mark.parametrize("kind", ["gsm8k", "math-hard"])
def test_prompts_of_all_stages_fit_the_embedded_model(kind: str) -> None:
    plan, config = plan_of(kind, "coordinator")
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    context = msgspec.json.decode((EMBEDDED / "config.json").read_bytes())["max_position_embeddings"]
    assert config.training.prompt_tokens + config.training.completion_tokens <= context
    material = Material()
    for stage in range(3):
        for peer in PEERS:
            for question in take(plan, Place(peer, 0, stage), 12, material if stage else NO_MATERIAL):
                assert question.stage == stage
                tokens = sum(len(tokenizer.encode(m.content).ids) + TURN_TOKENS for m in question.messages)
                assert tokens <= config.training.prompt_tokens
        gather(plan, [publish(plan, peer, stage, material, longest, 12) for peer in PEERS], material)


@pytest.mark.parametrize("kind", ["gsm8k", "math-hard"])
def test_nodes_of_a_swarm_have_the_same_recipe(kind: str) -> None:
    (_, coordinator), (_, follower) = plan_of(kind, "coordinator"), plan_of(kind, "follower")
    assert coordinator.training == follower.training
    assert msgspec.structs.replace(follower.swarm, coordinator="") == coordinator.swarm
    assert coordinator.swarm.options["questions"] <= coordinator.training.share_groups
