"""The configurations that are shipped: prompts of all stages fit, whatever peers write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from swarmd.config import Config, load_config
from swarmd.swarms.math.plan import MathPlan
from swarmd.swarms.plan import NO_MATERIAL, Material, Question, StageId
from swarmd.swarms.registry import make_plan
from tests.swarms.math.voices import PEERS, answer, gather, opinion, publish, take

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "swarmd" / "models"
TURN_TOKENS = 8  # of the chat template, for a message and the opening of the answer


def plan_of(kind: str, node: str) -> tuple[MathPlan, Config]:
    config = load_config(ROOT / "configs" / kind / f"{node}.toml")
    plan = make_plan(msgspec.structs.replace(config.swarm, id="test"), config.training, ROOT)
    assert isinstance(plan, MathPlan)
    return plan, config


def longest(peer: str, question: Question) -> tuple[str, ...]:
    """Completions of the greatest length shown, in characters that take a token for every byte."""
    text = "\u00e9\u4e2d" * 1500
    name = next(iter(question.entry.get("students", {"": 0})))
    return (opinion(name, text) if question.stage else answer(text, text), "x")


@pytest.mark.parametrize("kind", ["gsm8k", "math-hard"])
def test_prompts_of_all_stages_fit_the_shipped_model(kind: str) -> None:
    plan, config = plan_of(kind, "coordinator")
    model = MODELS / config.training.model
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    context = msgspec.json.decode((model / "config.json").read_bytes())["max_position_embeddings"]
    assert config.training.prompt_tokens + config.training.completion_tokens <= context
    material = Material()
    for stage in range(3):
        for peer in PEERS:
            for question in take(plan, StageId(peer, 0, stage), 12, material if stage else NO_MATERIAL):
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


PRESETS = sorted((ROOT / "configs" / "gsm8k").glob("*.toml")) + sorted((ROOT / "configs" / "math-hard").glob("*.toml"))
QUESTION_BYTES = 1000  # a long one
LONGEST_PEERS = tuple(f"12D3KooWEwNfUhk4z1vdM8ZoqBMMyJXfxh25oVMrGKnkf8tXyu{place:02}" for place in range(5))


def measure_by(model: str) -> Callable[[Question], int]:
    """Tokens of a prompt: a shipped model's own, else in the worst of tokenizers, one for each byte."""
    file = MODELS / model / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file)) if file.is_file() else None

    def measure(question: Question) -> int:
        texts = [message.content for message in question.messages]
        counts = [len(tokenizer.encode(text).ids) if tokenizer else len(text.encode()) for text in texts]
        return sum(counts) + TURN_TOKENS * len(texts)

    return measure


def open_preset(path: Path, directory: Path) -> tuple[MathPlan, Config]:
    """The plan of a preset; in place of a data set from the Hub, rows with long questions."""
    config = load_config(path)
    options = dict(config.swarm.options)
    if options["data"] == "hub":
        texts = [f"{place:04}".ljust(QUESTION_BYTES, "x") for place in range(80)]
        rows = [{"question": text, "prompt": text, "answer": "#### 42", "solution": "42"} for text in texts]
        (directory / "rows.jsonl").write_text("\n".join(msgspec.json.encode(row).decode() for row in rows))
        options["data"] = str(directory / "rows.jsonl")
    swarm = msgspec.structs.replace(config.swarm, id="test", options=options)
    plan = make_plan(swarm, config.training, directory)
    assert isinstance(plan, MathPlan)
    return plan, config


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_preset_has_room_for_the_longest_texts_cut_short(path: Path, tmp_path: Path) -> None:
    """Answers and opinions of the greatest length; nothing but `compat`, which cuts nothing, goes on without them."""
    plan, config = open_preset(path, tmp_path)
    room, measure = config.training.prompt_tokens, measure_by(config.training.model)
    bare = take(plan, StageId("node", 0, 2), 12)
    assert all(question.stage == 0 and measure(question) <= room for question in bare)
    if config.swarm.options.get("rewards") == "compat":
        return
    material = Material()
    for stage in range(3):
        for question in take(plan, StageId("node", 0, stage), 12, material if stage else NO_MATERIAL):
            assert question.stage == stage
            shorter: Question | None = question
            while shorter is not None and measure(shorter) > room:
                shorter = plan.shorten(shorter)
            assert shorter is not None, "it does not fit at its shortest"
            assert shorter.reference == question.reference
        gather(plan, [publish(plan, peer, stage, material, longest, 12) for peer in LONGEST_PEERS], material)
