"""The shipped configurations of the kinds whose models are swarmd's own: nodes agree, and prompts fit."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from transformers import AutoTokenizer

from swarmd.config import load_config
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.swarms.registry import make_plan
from swarmd.training.models.source import locate_model

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


@pytest.mark.parametrize("kind", ["reasoning-gym", "code", "file"])
def test_coordinator_and_follower_have_one_recipe(kind: str) -> None:
    coordinator, follower = (load_config(CONFIGS / kind / f"{role}.toml") for role in ("coordinator", "follower"))
    assert coordinator.training == follower.training
    assert coordinator.swarm == msgspec.structs.replace(follower.swarm, coordinator="")


@pytest.mark.parametrize("kind", ["reasoning-gym", "code", "file"])
def test_every_question_fits_and_leaves_room_for_its_answer(kind: str) -> None:
    path = CONFIGS / kind / "coordinator.toml"
    config = load_config(path)
    plan = make_plan(config.swarm, config.training, path.parent / config.data)
    tokenizer = AutoTokenizer.from_pretrained(locate_model(config.training.model))
    for question in itertools.islice(plan.draw(StageId("a", 0, 0), NO_MATERIAL), 100):
        chat = [{"role": message.role, "content": message.content} for message in question.messages]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert len(prompt) <= config.training.prompt_tokens
        answer = tokenizer.encode(f"<answer>{question.entry['answer']}</answer>", add_special_tokens=False)
        assert len(answer) < config.training.completion_tokens
