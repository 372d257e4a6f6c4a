"""TRL's tools and environments as rollouts of several turns: described, called and rewarded as TRL does it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import SwarmdError, SwarmError
from swarmd.sandbox.session import SessionEnded
from swarmd.swarms import trl
from swarmd.swarms.file import FilePlan, FileTurnsPlan
from swarmd.swarms.plan import Message
from swarmd.swarms.registry import make_plan, needs_sandbox
from swarmd.swarms.rewards import RewardFunctions
from swarmd.swarms.rollouts import split_turns
from swarmd.swarms.trl import ToolBox, ToolEpisode, parse_tool_calls
from swarmd.training.cancellation import Cancellation
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.turns import make_turn_sampler
from tests.programs import path_of
from tests.swarms.making import take, write_rows
from tests.training.test_turns import Script

MODULE = '''\
import os
import random
import time


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


async def async_add(a: int, b: int) -> int:
    """
    Asynchronously adds two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The sum of the two integers.
    """
    import asyncio

    await asyncio.sleep(0)
    return a + b


class IncrementEnv:
    def __init__(self):
        print("begun")

    def reset(self, **kwargs):
        self.counter = kwargs.get("start", 0)
        self.draw = random.random()
        return f" From {self.counter}, with {self.draw}."

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        if step < 0:
            raise ValueError("Only upwards.")
        self.counter += step
        return self.counter

    def wait(self, seconds: float) -> None:
        """
        Wait.

        Args:
            seconds: How long.
        """
        time.sleep(seconds)

    def read(self, path: str) -> str:
        """
        Read a file.

        Args:
            path: Its path.
        """
        return open(path).read()

    def _hidden(self):
        os._exit(3)


class Rewarding(IncrementEnv):
    async def get_reward(self) -> float:
        return self.counter / 10


class Nothing:
    def reset(self):
        return None


def counted(environments, start, **kwargs):
    return [float(each.counter - first) for each, first in zip(environments, start)]


def prompted(environments, prompts, **kwargs):
    return [float(prompt[-1]["content"].startswith("Count. From 3,")) for prompt in prompts]


def turns(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def not_here(completions, **kwargs):
    return [None] * len(completions)
'''


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path_of("bubblewrap")
    home = tmp_path_factory.mktemp("trl")
    (home / "mine.py").write_text(MODULE)
    write_rows(home / "q.jsonl", [{"prompt": f"Count from {n}.", "start": n} for n in range(20)])
    return home


def make_box(home: Path, *tools: str, environment: str = "", **rewards: float) -> ToolBox:
    return ToolBox(
        [f"mine:{name}" for name in tools],
        f"mine:{environment}" if environment else "",
        {f"mine:{name}": weight for name, weight in rewards.items()},
        lambda paths, weights: RewardFunctions(paths, weights, "messages", home),
        home,
    )


@pytest.fixture(scope="module")
def box(home: Path) -> ToolBox:
    return make_box(
        home, "multiply", "async_add", environment="Rewarding", counted=2.0, turns=0.5, prompted=0.0, not_here=1.0
    )


@pytest.fixture
def episode(box: ToolBox) -> Iterator[ToolEpisode]:
    episode = ToolEpisode(box, [Message("system", "Be brief."), Message("user", "Count.")], {"start": 3}, "seed")
    yield episode
    episode.close()


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answered(*results: str) -> str:
    return "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)


def test_tools_are_described_as_qwens_template_has_them(box: ToolBox) -> None:
    """The text that TRL's own training template of Qwen3 makes of the same functions."""
    from transformers.utils.chat_template_utils import render_jinja_template
    from trl.chat_template_utils import qwen3_chat_template

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count."}]
    rendered, _ = render_jinja_template([messages], tools=list(box.schemas), chat_template=qwen3_chat_template)
    (system, _) = box.introduce([Message("system", "Be brief."), Message("user", "Count.")])
    assert rendered[0].startswith(f"<|im_start|>system\n{system.content}<|im_end|>\n")
    names = [schema["function"]["name"] for schema in box.schemas]
    assert names == ["multiply", "async_add", "increment", "read", "wait"], "not reset, get_reward, nor _hidden"


def test_a_rollout_goes_on_while_the_model_calls_and_is_rewarded_as_in_trl(episode: ToolEpisode) -> None:
    messages = episode.reset()
    assert messages[-1].content.startswith("Count. From 3, with 0.")
    assert episode.act(f"Both. {call('multiply', a=6, b=7)}{call('increment', step=4)}") == answered("42", "7")
    assert episode.act(call("async_add", a=1, b=2)) == answered("3")
    assert episode.act("It is 7.") is None
    score = episode.reward()
    turns = 1 + 2 + 1 + 1 + 1  # messages, of tools too
    assert score.values == {"Rewarding": 0.7, "counted": 4.0, "prompted": 1.0, "turns": turns}
    assert score.reward == pytest.approx(0.7 + 2.0 * 4 + 0.5 * turns)


def test_every_node_gets_the_same_and_another_question_another_draw(box: ToolBox, episode: ToolEpisode) -> None:
    first = episode.reset()
    again = ToolEpisode(box, [Message("system", "Be brief."), Message("user", "Count.")], {"start": 3}, "seed")
    other = ToolEpisode(box, [Message("system", "Be brief."), Message("user", "Count.")], {"start": 3}, "other")
    assert (again.reset() == first, other.reset() == first) == (True, False)
    again.close()
    other.close()


def test_what_a_tool_raises_is_told_to_the_model_as_in_trl(episode: ToolEpisode) -> None:
    episode.reset()
    assert episode.act(call("increment", step=-1)) == answered("{'error': 'Only upwards.'}")
    assert episode.act(call("reset")) == answered("{'error': 'Tool reset not found.'}")
    assert "unexpected keyword argument" in str(episode.act(call("multiply", c=1)))
    assert "No such file" in str(episode.act(call("read", path="/etc/passwd"))), "it is in the sandbox"


def test_a_tool_that_hangs_ends_its_rollout_alone(
    box: ToolBox, episode: ToolEpisode, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode.reset()
    monkeypatch.setattr(trl, "CALL_S", 0.5)
    with pytest.raises(SessionEnded, match=r"longer than 0\.5 s"):
        episode.act(call("wait", seconds=60))
    monkeypatch.setattr(trl, "CALL_S", 30.0)
    episode.reset()
    assert episode.act(call("increment", step=1)) == answered("4")


TEXTS = [
    "no call",
    call("f", a=1),
    f"first {call('f')} then {call('g', b='x')}",
    "<tool_call>\n{broken\n</tool_call>",
    '<tool_call>\n{"arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "f"}\n</tool_call>',
    "<tool_call>\n{}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_calls_are_read_as_trl_reads_those_of_qwen(text: str) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl.chat_template_utils import add_response_schema, parse_response, qwen3_chat_template

    letters = {chr(code): code for code in range(128)} | {"<|im_end|>": 128, "<|im_start|>": 129}
    inner = Tokenizer(models.BPE(vocab=letters, merges=[], unk_token=None))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    tokenizer.chat_template = qwen3_chat_template
    tokenizer = add_response_schema(tokenizer)
    ids = [ord(letter) for letter in text] + [128]
    theirs = parse_response(tokenizer, ids, prefix=[])
    _, calls = parse_tool_calls(text)
    assert calls == [each["function"] for each in theirs.get("tool_calls") or []]


@pytest.mark.parametrize(
    ("tools", "environment", "rewards", "told"),
    [
        (["turns"], "", {"turns": 1.0}, "no docstring"),
        ([], "Nothing", {"turns": 1.0}, "no public method that could be a tool"),
        ([], "multiply", {"turns": 1.0}, "no method `reset`"),
        (["absent"], "", {"turns": 1.0}, "AttributeError"),
        (["multiply"], "", {}, "nothing gives a reward"),
        ([], "IncrementEnv", {}, "nothing gives a reward"),
    ],
)
def test_what_trl_would_refuse_is_told_with_the_reason(
    home: Path, tools: list[str], environment: str, rewards: dict[str, float], told: str
) -> None:
    with pytest.raises(SwarmError, match=told):
        make_box(home, *tools, environment=environment, **rewards)


def test_a_module_that_needs_more_than_the_standard_library_is_told(home: Path) -> None:
    (home / "heavy.py").write_text(MODULE + "\nimport msgspec\n")
    box = ToolBox([], "heavy:Rewarding", {}, lambda *_: pytest.fail(), home)
    with pytest.raises(SwarmdError, match="failed at begin: ModuleNotFoundError: No module named 'msgspec'"):
        ToolEpisode(box, [Message("user", "Count.")], {}, "seed").reset()


def test_a_package_with_several_modules_is_run_whole(home: Path) -> None:
    (home / "many").mkdir()
    (home / "many" / "__init__.py").write_text("from .inner import Rewarding\n")
    (home / "many" / "inner.py").write_text(MODULE)
    box = ToolBox([], "many:Rewarding", {}, lambda *_: pytest.fail(), home)
    episode = ToolEpisode(box, [Message("user", "Count.")], {}, "seed")
    episode.reset()
    assert episode.act(call("increment", step=5)) == answered("5")
    assert episode.reward().reward == 0.5
    episode.close()


def options_of(**options: Any) -> SwarmConfig:
    return SwarmConfig("s", kind="file", options={"data": "q.jsonl", **options})


def test_a_plan_opens_them_for_its_questions(home: Path) -> None:
    swarm = options_of(environment_factory="mine:IncrementEnv", reward_funcs=["mine:counted"], tools=["mine:multiply"])
    plan = FilePlan(swarm, TrainingConfig(), home)
    (question,) = take(plan, 1)
    episode = plan.open_environment(question)
    messages = episode.reset(question)
    start = int(question.messages[-1].content.removesuffix(".").split()[-1])
    assert messages[-1].content.startswith(f"Count from {start}. From {start}, with 0.")
    episode.act(call("increment", step=2))
    score = episode.reward()
    assert score.reward == 2.0  # type: ignore[union-attr]
    episode.close()


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(TrainingConfig(device="cpu"))


def test_a_trainer_draws_turns_with_them(home: Path, policy: Policy) -> None:
    swarm = options_of(environment_factory="mine:IncrementEnv", reward_funcs=["mine:counted"], tools=["mine:multiply"])
    assert needs_sandbox(swarm)
    plan = make_plan(swarm, home=home)
    assert isinstance(plan, FileTurnsPlan)
    question = plan.complete_prompt(take(plan, 1)[0])
    script = Script(policy, [call("increment", step=2)], ["done"])
    sampler = make_turn_sampler(plan, policy, script, 400, 1.0)  # type: ignore[arg-type]
    prompt = policy.encode_prompt(question.messages)
    (drawn,) = sampler.complete_questions([question], [prompt], 1, torch.Generator(), Cancellation())
    assert drawn.score is not None and drawn.score.reward == 2.0
    model, answer, last = split_turns(drawn.text, drawn.turns)
    assert model.startswith("<tool_call>") and answer.strip() and last == "done"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tools": ["mine:multiply"], "rewards": [{"name": "exact"}]}, "`rewards` look at one completion"),
        ({"openenv": {}, "tools": ["mine:multiply"]}, "`openenv` has actions and rewards of its own"),
        ({"openenv": {}, "openenv_url": "localhost"}, "is not the address of a server"),
    ],
)
def test_what_does_not_go_together_is_told(home: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(SwarmError, match=told):
        FilePlan(options_of(**options), TrainingConfig(), home)
