"""Completions: drawn from a shared prefill as by plain forward passes, in turns, and cancelled at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.swarms.plan import NO_MATERIAL, Question, StageId
from swarmd.swarms.reasoning_gym import DigitsPlan
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.sampling import (
    BaseSampler,
    DecodingBatch,
    SampledTokens,
    Sampler,
    SamplingRequest,
    TurnSampler,
    _draw_tokens,
)
from swarmd.training.stage_timer import StageTimer
from tests.log_capture import capture_logs

PROMPTS = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]


@pytest.fixture(scope="module", params=["embedded", "llama"])
def policy(request: pytest.FixtureRequest, llama: Path) -> Policy:
    model = "embedded" if request.param == "embedded" else str(llama)
    return load_policy(TrainingConfig(model=model, device="cpu"))


def draw(sampler: BaseSampler, *asked: Any) -> list[list[int]]:
    return [each.tokens for each in sampler.sample(*asked)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def walk(policy: Policy, prompt: list[int], tokens: int) -> list[int]:
    """The likeliest continuation, one whole forward pass a token, nothing padded or cached."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(tokens):
            ids.append(int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in policy.stop_ids:
                break
    return ids[len(prompt) :]


def test_likeliest_tokens_match_the_plain_forward_pass(policy: Policy) -> None:
    sampler = Sampler(policy)
    assert sampler.can_share_prefill
    drawn = draw(sampler, PROMPTS, 2, 12, 0.0, generator(), Cancellation())
    assert drawn == [walk(policy, prompt, 12) for prompt in PROMPTS for _ in range(2)]


def test_the_fallback_draws_the_same(policy: Policy) -> None:
    sampler = Sampler(policy)
    shared = draw(sampler, PROMPTS, 2, 12, 0.0, generator(), Cancellation())
    sampler._shared = False
    if policy.name == "embedded":
        assert draw(sampler, PROMPTS, 1, 12, 0.0, generator(), Cancellation()) == shared[::2]
    drawn = draw(sampler, PROMPTS, 2, 12, 1.0, generator(), Cancellation())
    assert len(drawn) == 6 and all(1 <= len(tokens) <= 12 for tokens in drawn)


def test_the_output_layer_is_not_copied_for_each_prompt(policy: Policy) -> None:
    """torch's linear layer copies its weights for each sequence whose states are a slice of longer ones."""
    met: list[bool] = []
    head = policy.model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, states: met.append(states[0].is_contiguous()))
    try:
        DecodingBatch(policy.model, PROMPTS, 0)
    finally:
        hook.remove()
    assert met == [True]


def limit_rows(policy: Policy, rows_max: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have passes of more completions run out of memory, as a device does. Returns the sizes of all that were tried."""
    tried: list[int] = []
    forward = policy.model.forward

    def limited(**asked: Any) -> Any:
        tried.append(len(asked["input_ids"]))
        if tried[-1] > rows_max:
            raise torch.OutOfMemoryError("out of memory")
        return forward(**asked)

    monkeypatch.setattr(policy.model, "forward", limited)
    return tried


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rows_max", [1, 2, 3, 5])
def test_where_memory_runs_out_completions_are_drawn_in_parts(
    policy: Policy, rows_max: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = Sampler(policy)
    assert sampler.can_share_prefill
    sampler._shared = shared
    rooms = [12, 5, 9]
    likeliest = [walk(policy, prompt, room) for prompt, room in zip(PROMPTS, rooms, strict=True)]
    tried = limit_rows(policy, rows_max, monkeypatch)
    if shared or policy.name == "embedded":
        assert draw(sampler, PROMPTS, 1, 12, 0.0, generator(), Cancellation(), (), rooms) == likeliest
    drawn = draw(sampler, PROMPTS, 2, 12, 1.0, generator(), Cancellation(), (), rooms)
    assert len(drawn) == 6 and all(len(drawn[row]) <= rooms[row // 2] for row in range(6))
    tried.clear()
    draw(sampler, PROMPTS, 2, 12, 1.0, generator(), Cancellation(), (), rooms)
    assert max(tried) <= rows_max  # what was found stays


def test_ranks_that_wait_for_each_other_draw_no_parts(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(policy, splits=False)
    assert sampler.can_share_prefill
    tried = limit_rows(policy, 3, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        draw(sampler, PROMPTS, 2, 12, 1.0, generator(), Cancellation())
    assert tried == [3, 6]


@pytest.mark.parametrize("shared", [True, False])
def test_no_row_is_drawn_past_its_own_room(policy: Policy, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its positions may go no further than its prompt and its room, either."""
    sampler = Sampler(policy)
    assert sampler.can_share_prefill
    sampler._shared = shared
    furthest: list[int] = []
    forward = policy.model.forward

    def note(**asked: Any) -> Any:
        furthest.append(int(asked["attention_mask"].sum(1).max()))
        return forward(**asked)

    monkeypatch.setattr(policy.model, "forward", note)
    monkeypatch.setattr(sampler, "_stop_ids", [])
    rooms = [2, 9, 5]
    drawn = draw(sampler, PROMPTS, 2, 12, 1.0, generator(), Cancellation(), (), rooms)
    assert [len(tokens) for tokens in drawn] == [2, 2, 9, 9, 5, 5]
    ends = [len(prompt) + room for prompt, room in zip(PROMPTS, rooms, strict=True)]
    assert max(furthest) < max(ends) and furthest[-1] <= ends[1]
    monkeypatch.undo()
    likeliest = draw(sampler, PROMPTS, 1, 12, 0.0, generator(), Cancellation(), (), rooms)
    if shared or policy.name == "embedded":
        assert likeliest == [walk(policy, prompt, room) for prompt, room in zip(PROMPTS, rooms, strict=True)]


def test_a_text_to_pause_at_is_seen_across_two_draws() -> None:
    """A sampler with one bound for all rows draws again for rows that may go on, without knowing what it drew."""
    letters = {0: "x", 1: "<", 2: "/", 3: ">"}
    script = {0: [0, 1, 2, 3, 0, 0], 1: [0, 0]}
    asked: list[tuple[int, int]] = []

    class Scripted(BaseSampler):
        def _draw_completions(self, wanted: SamplingRequest) -> list[SampledTokens]:
            return self._draw_to_smallest_bound(self._draw_alike, wanted)

        def _draw_alike(self, wanted: SamplingRequest) -> list[SampledTokens]:
            asked.append((len(wanted.prompts), wanted.tokens_max))
            return [
                SampledTokens(script[prompt[0] - 10][len(prompt) - 1 :][: wanted.tokens_max])
                for prompt in wanted.prompts
            ]

    sampler = Scripted([9], lambda ids: "".join(letters[each] for each in ids))
    drawn = draw(sampler, [[10], [11]], 1, 6, 1.0, generator(), Cancellation(), ("</>",), [6, 2])
    assert drawn == [[0, 1, 2, 3], [0, 0]]
    assert asked == [(2, 2), (1, 4)]


def test_a_token_is_drawn_as_often_as_it_is_likely() -> None:
    weights = torch.tensor([0.0, 0.5, 0.0, 1e-3, 0.3, 0.199, 0.0])
    drawn, logps = _draw_tokens(weights.log().expand(100_000, -1), 1.0, generator())
    assert torch.allclose(logps.exp(), weights[drawn])
    seen = torch.bincount(drawn, minlength=len(weights)) / 100_000
    assert not seen[weights == 0].any()
    assert torch.allclose(seen, weights, atol=0.01) and 0 < seen[3] < 0.002
    hot, _ = _draw_tokens(weights.log().expand(100_000, -1), 4.0, generator())
    assert float((hot == 3).float().mean()) > 0.05, "a higher temperature flattens"


def test_logits_that_are_no_numbers_are_refused() -> None:
    logits = torch.zeros(3, 5)
    logits[1, 2] = torch.nan
    with pytest.raises(ArithmeticError, match="not finite"):
        _draw_tokens(logits, 1.0, generator())


class AfterTokens(Cancellation):
    """Asks for the cancellation after `looks` checks."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def raise_if_requested(self) -> None:
        self.looks -= 1
        if self.looks < 0:
            self.request()
        super().raise_if_requested()


@pytest.mark.parametrize("shared", [True, False])
def test_cancelling_between_tokens(policy: Policy, shared: bool) -> None:
    sampler = Sampler(policy)
    assert sampler.can_share_prefill
    sampler._shared = shared
    policy.model.train()
    with pytest.raises(Cancelled):
        draw(sampler, PROMPTS, 8, 64, 1.0, generator(), AfterTokens(2))
    assert policy.model.training
    assert draw(sampler, PROMPTS, 2, 4, 1.0, generator(), Cancellation())


def test_a_model_whose_cache_cannot_be_repeated_falls_back(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import DynamicCache

    def refuse(*_: object) -> None:
        raise AttributeError("this cache has no batch_repeat_interleave")

    monkeypatch.setattr(DynamicCache, "batch_repeat_interleave", refuse)
    sampler = Sampler(policy)
    assert not sampler.can_share_prefill
    assert len(draw(sampler, PROMPTS, 2, 4, 1.0, generator(), Cancellation())) == 6


BENT: dict[str, Any] = {
    "repetition_penalty": 5.0,
    "min_new_tokens": 12,
    "num_beams": 3,
}


@pytest.mark.parametrize(("name", "value"), BENT.items())
def test_the_fallback_draws_as_the_model_is_trained_whatever_its_files_say(
    policy: Policy, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = Sampler(policy)
    sampler._shared = False
    likeliest = draw(sampler, PROMPTS, 1, 12, 0.0, generator(), Cancellation())
    drawn = draw(sampler, PROMPTS, 2, 12, 1.0, generator(), Cancellation())
    monkeypatch.setattr(policy.model.generation_config, name, value)
    assert draw(sampler, PROMPTS, 1, 12, 0.0, generator(), Cancellation()) == likeliest
    assert draw(sampler, PROMPTS, 2, 12, 1.0, generator(), Cancellation()) == drawn


def test_what_was_drawn_is_cut_at_a_pause_without_reading_all_of_it_for_each_token() -> None:
    read: list[int] = []

    def decode(tokens: Sequence[int]) -> str:
        read.append(len(tokens))
        return "".join(map(chr, tokens))

    model = {"model": None, "tokenizer": SimpleNamespace(pad_token_id=0), "autocast": None}
    sampler = Sampler(SimpleNamespace(stop_ids=[1], decode_completion=decode, **model))  # type: ignore[arg-type]
    tokens = list(b"a" * 500 + b"<end>" + b"b" * 20)
    assert sampler._cut_at_stop(tokens, ("<end>", "<stop>")) == (tokens[:505], True)
    assert sampler._cut_at_stop(tokens[:400], ("<end>", "<stop>")) == (tokens[:400], False)
    assert sum(read) < 10 * (505 + 400)


PLACE = StageId("a", 0, 0)


@pytest.fixture(scope="module")
def embedded() -> Policy:
    return load_policy(TrainingConfig(device="cpu"))


class Asking(DigitsPlan):
    """Pauses at a question mark, and answers with as many letters as the turn before had."""

    stops = ("?",)

    def __init__(self, react: Any) -> None:
        super().__init__(SwarmConfig(id="test"))
        self.react = react  # type: ignore[method-assign]


class Texts:
    """A sampler of texts as written, turn by turn, that notes how much room it was given."""

    timer = StageTimer()

    def __init__(self, embedded: Policy, turns: Sequence[Sequence[str]]) -> None:
        self._policy = embedded
        self._turns = iter(turns)
        self.rooms: list[list[int]] = []

    def sample(self, prompts: Any, group: int, tokens_max: int, *rest: Any) -> list[SampledTokens]:
        self.rooms.append(list(rest[4]) or [tokens_max] * len(prompts) * group)
        return [SampledTokens(self._policy.encode_completion(text, True, 10_000)) for text in next(self._turns)]


def ask(
    plan: Any, embedded: Policy, sampler: Any, texts: int, tokens_max: int, cancellation: Cancellation
) -> list[Any]:
    question: Question = next(plan.draw(PLACE, NO_MATERIAL))
    turns = TurnSampler(plan, embedded, sampler, tokens_max, 1.0)
    return turns.complete_questions([question], [[1, 2]], texts, torch.Generator(), cancellation)


def test_each_completion_is_drawn_within_its_own_room(embedded: Policy) -> None:
    sampler = Texts(embedded, [["12?", "12345678?"], ["3?", "4"], ["5"]])
    drawn = ask(Asking(lambda *_: "00"), embedded, sampler, 2, 20, Cancellation())
    lengths = [len(embedded.encode_completion(text, True, 100)) for text in ("12?00", "12345678?00", "12?003?00")]
    assert sampler.rooms == [[20, 20], [20 - lengths[0], 20 - lengths[1]], [20 - lengths[2]]]
    assert [each.text for each in drawn] == ["12?003?005", "12345678?004"]


def test_a_completion_over_which_the_plan_raises_ends_there(embedded: Policy) -> None:
    def react(question: Question, text: str) -> str:
        return {"1?": "+"}[text]

    with capture_logs() as told:
        drawn = ask(Asking(react), embedded, Texts(embedded, [["1?", "2?"], ["5"]]), 2, 12, Cancellation())
    assert [each.text for each in drawn] == ["1?+5", "2?"]
    assert [line["event"] for line in told] == ["completions are not continued"]
    assert told[0]["plan"] == "KeyError('2?')"


def test_a_cancellation_waits_for_no_reaction(embedded: Policy) -> None:
    """Nor are those begun that were waiting for their turn."""
    cancellation, going = Cancellation(), threading.Event()
    begun: list[str] = []

    def react(question: Question, text: str) -> str:
        begun.append(text)
        cancellation.request()
        going.wait(30)
        return "00"

    started = time.monotonic()
    try:
        with pytest.raises(Cancelled):
            ask(Asking(react), embedded, Texts(embedded, [["1?"] * 16]), 16, 20, cancellation)
        assert time.monotonic() - started < 10.0
    finally:
        going.set()
    assert 1 <= len(begun) <= 2
