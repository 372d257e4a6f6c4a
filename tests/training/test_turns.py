"""Conversations in the trainer: what is drawn, what is masked, what peers get and make again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from swarmd.errors import RecordRejected
from swarmd.paths import NodeDirectory
from swarmd.swarms.conversation import Conversation, ConversationCalls, EnvironmentFailed
from swarmd.swarms.options import TurnLimits
from swarmd.swarms.plan import Message, Question
from swarmd.swarms.rollouts import VERSION, Group, Rollouts, decode_rollouts, encode_rollouts, split_turns
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.engine import TrainingEngine
from swarmd.training.models.model import Policy
from swarmd.training.packed import pack_batch
from swarmd.training.sampling import SampledTokens, TurnCompletion
from swarmd.training.stage_timer import StageTimer
from swarmd.training.turns import Replay, make_turn_sampler
from tests.training.conftest import make_config, train_stage
from tests.training.conversations import Guessing, GuessingPlan, ask, hang
from tests.training.test_sampling import PLACE

NUMBER = 7


class Script:
    """A sampler of whole turns as written; `None` is one that ran out of tokens."""

    timer = StageTimer()

    def __init__(self, policy: Policy, *turns: Sequence[str]) -> None:
        self._policy = policy
        self._turns = iter(turns)
        self.asked: list[list[list[int]]] = []

    def sample(self, prompts: Any, group: int, tokens_max: int, *rest: Any) -> list[SampledTokens]:
        self.asked.append([list(prompt) for prompt in prompts])
        rooms = list(rest[4]) or [tokens_max] * len(prompts) * group
        texts = next(self._turns)
        assert len(texts) == len(prompts) * group
        return [
            SampledTokens(self._policy.encode_completion(text, False, room))
            for text, room in zip(texts, rooms, strict=True)
        ]


def converse(
    policy: Policy, plan: GuessingPlan, *turns: Sequence[str], tokens_max: int = 100
) -> tuple[list[TurnCompletion], Script]:
    script = Script(policy, *turns)
    sampler = make_turn_sampler(plan, policy, script, tokens_max, 1.0)  # type: ignore[arg-type]
    question = ask(NUMBER, PLACE)
    prompt = policy.encode_prompt(question.messages)
    drawn = sampler.complete_questions([question], [prompt], len(turns[0]), torch.Generator(), Cancellation())
    return drawn, script


def test_answers_stand_between_turns_as_the_chat_template_has_them_and_are_masked(policy: Policy) -> None:
    drawn, script = converse(policy, GuessingPlan(), ["3", "7"], ["9"], ["7"])
    long, short = drawn
    assert (long.text, long.turns) == ("3larger9smaller7", (1, 7, 8, 15))
    assert split_turns(long.text, long.turns) == ["3", "larger", "9", "smaller", "7"]
    assert (short.text, short.turns) == ("7", ())
    prompt = policy.encode_prompt([Message("user", "Which digit?")])
    said = "<|im_start|>{}<|im_end|><|im_start|>assistant"
    shown = "3<|im_end|><|im_start|>user\nlarger<|im_end|><|im_start|>assistant9<|im_end|><|im_start|>user\nsmaller"
    assert policy.tokenizer.decode(prompt) == said.format("user\nWhich digit?")
    assert policy.tokenizer.decode(long.tokens) == f"{shown}<|im_end|><|im_start|>assistant7<|im_end|>"
    end = policy.tokenizer.eos_token_id
    seven = policy.encode_completion("7", False, 9)
    assert script.asked[2] == [prompt + long.tokens[: -len(seven)]], "the model has seen just that when it wrote 7"
    own = [token for token, mine in zip(long.tokens, long.own, strict=True) if mine]
    assert own == [token for text in "397" for token in (*policy.encode_completion(text, True, 9), end)]
    assert [each.score.reward for each in drawn if each.score] == [1.0, 1.0]


def test_a_pass_computes_each_token_of_a_conversation_once(policy: Policy) -> None:
    drawn, _ = converse(policy, GuessingPlan(), ["3"], ["9"], ["7"])
    prompt, tokens = policy.encode_prompt(ask(NUMBER, PLACE).messages), drawn[0].tokens
    row = torch.tensor([prompt + tokens])
    packed = pack_batch(row, torch.ones_like(row), len(tokens))
    assert packed.tokens.tolist() == [(prompt + tokens)[:-1]]


def test_a_rollout_ends_at_its_limits(policy: Policy) -> None:
    drawn, _ = converse(policy, GuessingPlan(TurnLimits(turns=2)), ["3"], ["4"])
    assert drawn[0].text == "3larger4" and drawn[0].score and drawn[0].score.reward == pytest.approx(0.7)
    drawn, _ = converse(policy, GuessingPlan(TurnLimits(turns=9, answer_bytes=16)), ["3"], ["4"], ["5"], ["6"])
    assert drawn[0].text == "3larger4larger5larg6", "answers are cut, and when there are no more bytes it ends"


def test_a_turn_that_runs_out_of_tokens_is_the_last(policy: Policy) -> None:
    first = len(policy.encode_completion("3", False, 9)) + len(policy.encode_answer(Message("user", "larger")))
    drawn, _ = converse(policy, GuessingPlan(), ["3"], ["45678"], tokens_max=first + 2)
    assert drawn[0].text == "3larger45" and len(drawn[0].tokens) == first + 2
    drawn, _ = converse(policy, GuessingPlan(), ["3"], tokens_max=first)
    assert drawn[0].text == "3", "an answer that leaves no room for a turn is not shown"


def raise_error(environment: Any) -> None:
    def act(text: str) -> str:
        raise RuntimeError(f"no such tool: {text}")

    environment.act = act


@pytest.mark.parametrize("spoil", [hang, raise_error])
def test_a_tool_that_hangs_or_raises_costs_its_rollout_alone(policy: Policy, spoil: Callable[[Any], None]) -> None:
    numbers = itertools.count()

    def spoil_first(environment: Any) -> None:
        if next(numbers) == 0:
            spoil(environment)

    Guessing.closed = 0
    begun = time.monotonic()
    drawn, _ = converse(policy, GuessingPlan(TurnLimits(seconds=0.5), spoil_first), ["3", "3"], ["7"])
    assert time.monotonic() - begun < 5
    failed, good = sorted(drawn, key=lambda each: len(each.text))
    assert failed.score and failed.score.failed and failed.score.reward == 0 and not any(failed.own)
    assert good.text == "3larger7" and good.score and good.score.reward == 1.0 and any(good.own)
    assert Guessing.closed == 2


def test_a_hanging_tool_does_not_hold_up_a_cancellation(policy: Policy) -> None:
    class Soon(Cancellation):
        def raise_if_requested(self) -> None:
            if time.monotonic() > begun + 0.3:
                raise Cancelled

    begun = time.monotonic()
    plan = GuessingPlan(TurnLimits(seconds=60.0), hang)
    sampler = make_turn_sampler(plan, policy, Script(policy, ["3"]), 100, 1.0)  # type: ignore[arg-type]
    with pytest.raises(Cancelled):
        sampler.complete_questions([ask(NUMBER, PLACE)], [[1, 2]], 1, torch.Generator(), Soon())
    assert time.monotonic() - begun < 5


def test_calls_that_hang_for_ever_have_a_bound(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> None:
    monkeypatch.setattr("swarmd.swarms.conversation.HANGING_MAX", 0)
    drawn, _ = converse(policy, GuessingPlan(), ["3"])
    assert drawn[0].score and drawn[0].score.failed


def test_a_prompt_may_come_from_reset(policy: Policy) -> None:
    class Told(GuessingPlan):
        resets_prompt = True

        def open_environment(self, question: Question) -> Guessing:
            environment = super().open_environment(question)
            environment.reset = lambda question: [{"role": "user", "content": text}]  # type: ignore[assignment, return-value, misc]
            return environment

    plan, text = Told(), "Guess again."
    question = plan.complete_prompt(ask(NUMBER, PLACE))
    assert question.messages == (Message("user", "Guess again."),)
    assert plan.complete_prompt(question) == question
    assert [score.reward for score in plan.score(ask(NUMBER, PLACE), ["7", "6"])] == [1.0, pytest.approx(0.9)]
    sampler = make_turn_sampler(plan, policy, Script(policy, ["7"]), 100, 1.0)  # type: ignore[arg-type]
    (drawn,) = sampler.complete_questions([question], [[1]], 1, torch.Generator(), Cancellation())
    assert drawn.score and drawn.score.reward == 1.0
    text = "Something else."
    sampler = make_turn_sampler(plan, policy, Script(policy, ["7"]), 100, 1.0)  # type: ignore[arg-type]
    (drawn,) = sampler.complete_questions([question], [[1]], 1, torch.Generator(), Cancellation())
    assert drawn.score and drawn.score.failed, "a rollout that begins otherwise than its group counts nothing"


def publish(policy: Policy, drawn: Sequence[TurnCompletion]) -> Group:
    question = ask(NUMBER, PLACE)
    cut = tuple(place for place, each in enumerate(drawn) if each.tokens[-1] not in policy.stop_ids)
    reference = question.reference
    group = Group("guess", "1", reference.seed, reference.index, tuple(each.text for each in drawn), cut, ())
    group = msgspec.structs.replace(group, turns=tuple(each.turns for each in drawn))
    return decode_rollouts(encode_rollouts(Rollouts(VERSION, "test", "a", 0, 0, (group,)))).groups[0]


def replay(policy: Policy, plan: GuessingPlan, group: Group, tokens_max: int = 100) -> list[TurnCompletion]:
    ran = Replay(plan, policy, tokens_max, 1, lambda: None)
    return ran.run_group("a", ask(NUMBER, PLACE), group)[1]


def test_what_is_shared_is_made_again_token_by_token(policy: Policy) -> None:
    drawn, _ = converse(policy, GuessingPlan(), ["3", "7", "123456"], ["9", "0" * 60], ["7"], tokens_max=60)
    assert [len(each.turns) for each in drawn] == [4, 0, 2] and len(drawn[2].tokens) == 60
    assert replay(policy, GuessingPlan(), publish(policy, drawn), 60) == drawn


def test_what_cannot_be_made_again_is_refused(policy: Policy) -> None:
    drawn, _ = converse(policy, GuessingPlan(), ["3"], ["9"], ["7"])
    group = publish(policy, drawn)
    lied = msgspec.structs.replace(group, completions=("3smalle9smaller7",))
    for plan, given in ((GuessingPlan(), lied), (GuessingPlan(TurnLimits(seconds=0.2), hang), group)):
        with pytest.raises(RecordRejected) as refused:
            replay(policy, plan, given)
        assert refused.value.reason == "turns"


def test_a_peer_whose_time_is_used_up_is_refused_unheard(policy: Policy) -> None:
    drawn, _ = converse(policy, GuessingPlan(), ["3"], ["7"])
    ran = Replay(GuessingPlan(TurnLimits(peer_s=0.3), hang), policy, 100, 1, lambda: None)
    for told in ("cannot be run again", "no time left"):
        with pytest.raises(RecordRejected, match=told):
            ran.run_group("a", ask(NUMBER, PLACE), publish(policy, drawn))


def test_a_peers_seconds_are_divided_among_rollouts_that_run_one_after_the_other(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, _ = converse(policy, GuessingPlan(), ["7"] * 17)
    ran = Replay(GuessingPlan(TurnLimits(peer_s=9.0)), policy, 100, 1, lambda: None)
    given: list[float] = []
    begin = Conversation.begin

    def note(rollout: Conversation, fills_prompt: bool = False) -> None:
        given.append(rollout.seconds_left)
        begin(rollout, fills_prompt)

    monkeypatch.setattr(Conversation, "begin", note)
    ran.run_group("a", ask(NUMBER, PLACE), publish(policy, drawn))
    assert given == [pytest.approx(3.0)] * 17


def test_a_longer_rollout_than_this_node_takes_is_cut_and_scored_as_it_is_trained_on(policy: Policy) -> None:
    drawn, _ = converse(policy, GuessingPlan(), ["3"], ["9"], ["7"])
    first = len(policy.encode_completion("3", False, 9))
    (again,) = replay(policy, GuessingPlan(), publish(policy, drawn), first + 3)
    assert again.text == "3" and again.score and again.score.reward == pytest.approx(0.6)


@pytest.mark.parametrize("turns", [((1,),), ((2, 1),), ((1, 99),), ((), ())])
def test_turns_that_are_not_in_the_text_are_refused(turns: tuple[tuple[int, ...], ...]) -> None:
    group = Group("guess", "1", 1, 1, ("abc",), turns=turns)
    with pytest.raises(RecordRejected, match="do not add up"):
        decode_rollouts(encode_rollouts(Rollouts(VERSION, "test", "a", 0, 0, (group,))))


Maker = Callable[..., TrainingEngine]


@pytest.fixture
def make_guesser(tmp_path: Path) -> Iterator[Maker]:
    made: list[TrainingEngine] = []

    def make(peer: str, plan: GuessingPlan | None = None, **settings: Any) -> TrainingEngine:
        config = make_config(completion_tokens=24, **settings)
        made.append(TrainingEngine(config, NodeDirectory(tmp_path / peer), peer, plan or GuessingPlan()))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def test_a_node_trains_on_conversations_and_on_those_of_a_peer(make_guesser: Maker) -> None:
    one, other = make_guesser("a", held_out_questions=0), make_guesser("b", held_out_questions=2)
    published = train_stage(other, 0)
    assert published.held_out is not None and published.reward > 0
    body = other._blobs.get(published.rollouts.digest)
    groups = decode_rollouts(body).groups
    assert any(turns for group in groups for turns in group.turns), "there are conversations of several turns"
    one._blobs.put(body)
    event = train_stage(one, 1, rollouts=(published.rollouts,))
    assert event.peer_groups > 0 and event.rejected == ()


def test_peers_whose_environment_answers_otherwise_are_counted(make_guesser: Maker) -> None:
    def say_otherwise(environment: Any) -> None:
        act = environment.act
        environment.act = lambda text: None if act(text) is None else "wrong"

    one, other = make_guesser("a", GuessingPlan(spoil=say_otherwise), held_out_questions=0), make_guesser("b")
    published = train_stage(other, 0).rollouts
    body = other._blobs.get(published.digest)
    one._blobs.put(body)
    event = train_stage(one, 1, rollouts=(published,))
    several = sum(any(group.turns) for group in decode_rollouts(body).groups)
    assert dict(event.rejected) == {"turns": several} and several


def test_no_gradient_comes_from_what_the_environment_wrote(make_guesser: Maker) -> None:
    """Whatever the loss is made of, it does not change with the log-probability of an answer's token."""
    engine = make_guesser("a", held_out_questions=0, steps=1)
    seen: list[torch.Tensor] = []
    trainer = engine._trainer
    original = trainer._get_per_token_logps_and_entropies

    def watch(*args: Any, **kwargs: Any) -> Any:
        given = original(*args, **kwargs)
        if given[0].requires_grad:
            given[0].retain_grad()
            seen.append(given[0])
        return given

    columns: list[dict[str, Any]] = []
    next_batch = engine._next_batch

    def keep() -> dict[str, Any]:
        columns.append(next_batch())
        return columns[-1]

    engine._next_batch = keep  # type: ignore[method-assign]
    trainer._get_per_token_logps_and_entropies = watch  # type: ignore[method-assign]
    train_stage(engine, 0)
    masks = columns[0]["env_mask"]
    assert any(0 in mask for mask in masks)
    moved = sum(int((grad != 0).sum()) for grad in (each.grad for each in seen) if grad is not None)
    own = sum(map(sum, masks))
    assert 0 < moved <= own < sum(map(len, masks))


def test_one_call_at_a_time_is_charged_to_its_rollout(policy: Policy) -> None:
    calls = ConversationCalls()
    assert calls.run_each([]) == []
    with pytest.raises(EnvironmentFailed, match="RuntimeError: no"):
        plan = GuessingPlan(spoil=lambda environment: (_ for _ in ()).throw(RuntimeError("no")))
        plan.resets_prompt = True  # type: ignore[misc]
        plan.complete_prompt(ask(NUMBER, PLACE))
