"""A short supervised warm-up on the form of answers, before a node's first step: `training.warm_up = "form"`.

A model that never writes an answer where the plan looks for one gets no rewards, whatever it knows, and cannot learn.
The warm-up teaches it to write an answer there, but not which: an example is a question of the plan, the model's own
text about it, and a made-up, wrong answer in the form that the plan finds. Only the marks around the answer, and the
end, count for the cross-entropy, so that neither text nor answer is taught. The warm-up ends when the model writes the
marks by itself.
"""

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec
import torch

from swarmd.config import TrainingConfig
from swarmd.logger import get_logger
from swarmd.swarms.plan import Plan, Question, score_completions
from swarmd.swarms.text import CLOSING, OPENING
from swarmd.training.cancellation import Cancellation
from swarmd.training.groups import fit_prompt
from swarmd.training.models.model import Policy
from swarmd.training.progress import CountSink
from swarmd.training.sampling import BaseSampler
from swarmd.training.turns import make_turn_sampler

STEPS_MAX = 32
EXAMPLES = 4  # per step
RATE = 2e-5  # learning rates for a whole model, and for adapters, which start further from their goal
ADAPTERS_RATE = 2e-4
ENOUGH, IN_A_ROW = 0.2, 4  # ends when the mean cross-entropy at the marks, in nats, over this many steps is no larger
LOOKED_MAX = 64  # questions too long in a row, after which it gives up
FORMS = ((OPENING, CLOSING), ("\\boxed{", "}"))  # marks around an answer; the first that the plan finds are used

log = get_logger(__name__)


class FormExample(msgspec.Struct, frozen=True):
    """Token ids of a question and a completion; `learnt` is 1 for each token of the completion that is learnt."""

    prompt: list[int]
    completion: list[int]
    learnt: list[int]


def find_answer_form(plan: Plan, question: Question) -> tuple[str, str] | None:
    """The marks between which the plan finds an answer; None if it needs none, or others than `FORMS`."""
    texts = ["7", *(f"{before}7{after}" for before, after in FORMS)]
    bare, *answered = score_completions(plan, question, texts)
    if bare.answered is not False:
        return None
    return next((form for form, score in zip(FORMS, answered, strict=True) if score.answered), None)


def make_examples(
    plan: Plan,
    policy: Policy,
    sampler: BaseSampler,
    training: TrainingConfig,
    questions: Iterator[Question],
    seed: int,
    cancellation: Cancellation,
) -> list[FormExample]:
    """Make examples for all steps; none if the plan looks for an unknown form."""
    random, generator = Random(seed), torch.Generator(policy.device).manual_seed(seed)
    asked = list(_choose_short_questions(plan, policy, training, questions))
    form = find_answer_form(plan, asked[0][0]) if asked else None
    if form is None:
        return []
    turns = make_turn_sampler(plan, policy, sampler, training.completion_tokens, training.temperature)
    together, examples = training.questions * training.generations, []
    for start in range(0, len(asked), together):
        batch = asked[start : start + together]
        drawn = turns.complete_questions(
            [each for each, _ in batch], [prompt for _, prompt in batch], 1, generator, cancellation
        )
        for (question, prompt), completion in zip(batch, drawn, strict=True):
            words = completion.text.partition(form[0])[0]
            answer = make_up_answer(plan.truth(question), random)
            examples.append(make_example(policy, prompt, words, answer, form, training.completion_tokens))
    return examples


def _choose_short_questions(
    plan: Plan, policy: Policy, training: TrainingConfig, questions: Iterator[Question]
) -> Iterator[tuple[Question, list[int]]]:
    """Yield as many questions with short enough prompts as examples are needed."""
    found = looked = 0
    for question in questions:
        shown, prompt = fit_prompt(plan, policy, question, training.prompt_tokens)
        looked += 1
        if len(prompt) <= training.prompt_tokens:
            yield shown, prompt
            found, looked = found + 1, 0
        if found == STEPS_MAX * EXAMPLES or looked == LOOKED_MAX:
            return


def make_up_answer(truth: str, random: Random) -> str:
    """Make up an answer that is not the truth."""
    answer = truth
    while answer == truth:
        answer = str(random.randrange(1000))
    return answer


def make_example(
    policy: Policy, prompt: list[int], words: str, answer: str, form: tuple[str, str], tokens_max: int
) -> FormExample:
    """Encode text and answer between its marks; a long text is cut."""
    before, after = form
    marks = [policy.encode_completion(text, True, tokens_max) for text in (before, answer)]
    marks.append(policy.encode_completion(after, False, tokens_max))
    room = max(tokens_max - sum(map(len, marks)), 0)
    whole = policy.encode_completion(words, True, tokens_max)
    if len(whole) > room:  # cut after a sentence, if there is one
        words = policy.decode_completion(whole[:room])
        ends = [match.end() for match in re.finditer(r"[.!?:]\s|\n", words)]
        words = words[: ends[-1]] if ends else words
    said = policy.encode_completion(f"{words.rstrip()}\n" if words.strip() else "", True, room)
    learnt = [[0] * len(said), [1] * len(marks[0]), [0] * len(marks[1]), [1] * len(marks[2])]
    return FormExample(prompt, [*said, *marks[0], *marks[1], *marks[2]], [each for part in learnt for each in part])


def teach_form(
    policy: Policy, optimizer: Any, examples: Sequence[FormExample], cancellation: Cancellation, tell: CountSink
) -> int:
    """Take optimiser steps on the examples until the model knows the form. Returns their number. Raises Cancelled."""
    rate = ADAPTERS_RATE if policy.frozen_digest else RATE
    for group in optimizer.param_groups:
        group["lr"] = rate
    policy.model.train()
    losses: deque[float] = deque(maxlen=IN_A_ROW)
    steps = 0
    for start in range(0, len(examples), EXAMPLES):
        tell(steps, math.ceil(len(examples) / EXAMPLES))
        losses.append(0.0)
        batch = examples[start : start + EXAMPLES]
        for example in batch:
            cancellation.raise_if_requested()
            part = compute_form_loss(policy, example) / len(batch)
            torch.autograd.backward(part)
            losses[-1] += float(part.detach())
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if len(losses) == IN_A_ROW and sum(losses) / IN_A_ROW < ENOUGH:
            break
    log.info("the form of answers was warmed up", steps=steps, loss=round(losses[-1], 3) if losses else None)
    return steps


def compute_form_loss(policy: Policy, example: FormExample) -> torch.Tensor:
    """Mean cross-entropy at the learnt tokens, in nats."""
    device, keep = policy.model.device, len(example.completion)
    ids = torch.tensor([[*example.prompt, *example.completion]], device=device)
    learnt = torch.tensor(example.learnt, dtype=torch.bool, device=device)
    with policy.autocast():
        logits = policy.model(input_ids=ids, logits_to_keep=keep + 1).logits[0, :-1]
    wanted = ids[0, -keep:]
    return torch.nn.functional.cross_entropy(logits[learnt].float(), wanted[learnt])
