"""The shipped configurations: nodes agree, and prompts fit."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from swarmd.config import Config, load_config
from swarmd.swarms.math.plan import MathPlan
from swarmd.swarms.plan import NO_MATERIAL, Material, Question, StageId
from swarmd.swarms.proposer.plan import SOLVE, ProposerSolverPlan
from swarmd.swarms.registry import make_plan
from swarmd.training.models.source import locate_model
from tests.swarms.making import take
from tests.swarms.math import voices
from tests.swarms.proposer import texts

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
MODELS = ROOT / "swarmd" / "models"
TURN_TOKENS = 8  # of the chat template, for a message and the opening of the answer


@pytest.mark.parametrize("kind", ["reasoning-gym", "code", "file", "gsm8k", "math-hard", "proposer-solver"])
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
    for question in take(plan, 100):
        chat = [{"role": message.role, "content": message.content} for message in question.messages]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert len(prompt) <= config.training.prompt_tokens
        answer = tokenizer.encode(f"<answer>{question.entry['answer']}</answer>", add_special_tokens=False)
        assert len(answer) < config.training.completion_tokens


def test_prompts_of_both_stages_fit_the_shipped_model() -> None:
    config = load_config(CONFIGS / "proposer-solver" / "coordinator.toml")
    plan = make_plan(config.swarm, config.training, ROOT)
    assert isinstance(plan, ProposerSolverPlan)
    model = MODELS / config.training.model
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    context = msgspec.json.decode((model / "config.json").read_bytes())["max_position_embeddings"]
    assert config.training.prompt_tokens + config.training.completion_tokens <= context
    place, material = StageId("a", 0, 0), Material()
    topics = take(plan, 300, place)
    # characters that take a token for every byte, to the byte
    tests = [f"assert solve('{'é' * 24}{n}') == '{n}'" for n in range(5)]
    tests = [test + " " * (80 - len(test.encode())) for test in tests]
    longest = texts.propose("def solve(x): return x[-1]", tests, "中" * 100)
    outcome = texts.publish(plan, place, topics[0], [longest], material)
    assert outcome.scores[0].accuracy == 1.0, "the longest that is valid"
    problems = take(plan, 100, StageId("b", 0, 1), material)
    assert problems[0].reference.sources

    def count(question: Question) -> int:
        return sum(len(tokenizer.encode(m.content).ids) + TURN_TOKENS for m in question.messages)

    tokens = [count(question) for question in (*topics, *problems, *plan.hold_out(SOLVE, 50))]
    assert max(tokens) <= config.training.prompt_tokens


def longest(peer: str, question: Question) -> tuple[str, ...]:
    """Completions of the greatest length shown, in characters that take a token for every byte."""
    text = "\u00e9\u4e2d" * 1500
    name = next(iter(question.entry.get("students", {"": 0})))
    return (voices.opinion(name, text) if question.stage else voices.answer(text, text), "x")


PRESETS = sorted((CONFIGS / "gsm8k").glob("*.toml")) + sorted((CONFIGS / "math-hard").glob("*.toml"))
QUESTION_BYTES = 1000  # a long one
LONGEST_PEERS = tuple(f"12D3KooWEwNfUhk4z1vdM8ZoqBMMyJXfxh25oVMrGKnkf8tXyu{place:02}" for place in range(5))


def measure_by(model: str) -> Callable[[Question], int]:
    """Tokens of a prompt: a shipped model's own, else in the worst of tokenizers, one for each byte."""
    file = MODELS / model / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file)) if file.is_file() else None

    def measure(question: Question) -> int:
        written = [message.content for message in question.messages]
        counts = [len(tokenizer.encode(text).ids) if tokenizer else len(text.encode()) for text in written]
        return sum(counts) + TURN_TOKENS * len(written)

    return measure


def open_preset(path: Path, directory: Path) -> tuple[MathPlan, Config]:
    """The plan of a preset; in place of a data set from the Hub, rows with long questions."""
    config = load_config(path)
    options = dict(config.swarm.options)
    if options["data"] == "hub":
        written = [f"{place:04}".ljust(QUESTION_BYTES, "x") for place in range(80)]
        rows = [{"question": text, "prompt": text, "answer": "#### 42", "solution": "42"} for text in written]
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
    bare = take(plan, 12, StageId("node", 0, 2))
    assert all(question.stage == 0 and measure(question) <= room for question in bare)
    if config.swarm.options.get("rewards") == "compat":
        return
    material = Material()
    for stage in range(3):
        for question in take(plan, 12, StageId("node", 0, stage), material if stage else NO_MATERIAL):
            assert question.stage == stage
            shorter: Question | None = question
            while shorter is not None and measure(shorter) > room:
                shorter = plan.shorten(shorter)
            assert shorter is not None, "it does not fit at its shortest"
            assert shorter.reference == question.reference
        voices.gather(
            plan, [voices.publish(plan, peer, stage, material, longest, 12) for peer in LONGEST_PEERS], material
        )
