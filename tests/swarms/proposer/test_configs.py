"""The configurations that are shipped: prompts of both stages fit, whatever peers write."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from swarmd.config import Config, load_config
from swarmd.swarms.plan import Material, Question, StageId
from swarmd.swarms.proposer.plan import SOLVE, ProposerSolverPlan
from swarmd.swarms.registry import make_plan
from tests.swarms.proposer.texts import propose, publish, take

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "swarmd" / "models"
TURN_TOKENS = 8  # of the chat template, for a message and the opening of the answer


def plan_of(node: str) -> tuple[ProposerSolverPlan, Config]:
    config = load_config(ROOT / "configs" / "proposer-solver" / f"{node}.toml")
    plan = make_plan(config.swarm, config.training, ROOT)
    assert isinstance(plan, ProposerSolverPlan)
    return plan, config


def test_prompts_of_both_stages_fit_the_shipped_model() -> None:
    plan, config = plan_of("coordinator")
    model = MODELS / config.training.model
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    context = msgspec.json.decode((model / "config.json").read_bytes())["max_position_embeddings"]
    assert config.training.prompt_tokens + config.training.completion_tokens <= context
    place, material = StageId("a", 0, 0), Material()
    topics = take(plan, place, 300)
    # characters that take a token for every byte, to the byte
    tests = [f"assert solve('{'é' * 24}{n}') == '{n}'" for n in range(5)]
    tests = [test + " " * (80 - len(test.encode())) for test in tests]
    longest = propose("def solve(x): return x[-1]", tests, "中" * 100)
    outcome = publish(plan, place, topics[0], [longest], material)
    assert outcome.scores[0].accuracy == 1.0, "the longest that is valid"
    problems = take(plan, StageId("b", 0, 1), 100, material)
    assert problems[0].reference.sources

    def count(question: Question) -> int:
        return sum(len(tokenizer.encode(m.content).ids) + TURN_TOKENS for m in question.messages)

    tokens = [count(question) for question in (*topics, *problems, *plan.hold_out(SOLVE, 50))]
    assert max(tokens) <= config.training.prompt_tokens


def test_nodes_of_a_swarm_have_the_same_recipe() -> None:
    (_, coordinator), (_, follower) = plan_of("coordinator"), plan_of("follower")
    assert coordinator.training == follower.training
    assert msgspec.structs.replace(follower.swarm, coordinator="") == coordinator.swarm
