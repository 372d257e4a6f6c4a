"""How the embedded model is made: a small tokenizer, random weights, and a short honest warm start.

The warm start is supervised on right answers only, on training questions only, with answer tags on a random half of the
targets. It stops as soon as accuracy on the development questions reaches a fifth, so that reinforcement learning has
something to find; the held-out questions are not looked at. One thread and one seed make it reproducible.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from swarmd.config import SwarmConfig
from swarmd.swarms.digit_plan import DigitsPlan
from swarmd.swarms.plan import NO_MATERIAL, Place, Question
from swarmd.swarms.text import CLOSING, OPENING, TAGS
from swarmd.training.evaluation import Accuracy, evaluate, mean_accuracy
from swarmd.training.generation import Sampler
from swarmd.training.model import Policy, digest_weights, find_markers

SPECIALS = ("<|pad|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)
VOCABULARY = 380  # at most; the texts give fewer merges
CORPUS_QUESTIONS = 400  # of each task
CONTEXT_TOKENS = 1024
HIDDEN = 128
ANSWER_TOKENS = 10
STEPS_MAX = 600
BATCH = 48
LEARNING_RATE = 2e-3
WARMUP_STEPS = 30
EVALUATE_EVERY = 10
DEV_QUESTIONS = 100  # of each task
CARD_QUESTIONS = 400  # of each task, held out
TARGET_ACCURACY = 0.20
TAGGED_SHARE = 0.5


class Built(msgspec.Struct, frozen=True):
    """What a build gave."""

    digest: str  # of the weights as saved
    parameters: int
    steps: int
    dev_accuracy: float
    seconds: float
    size_bytes: int  # of the directory


Report = Callable[[int, float, float], None]  # step, loss, accuracy on the development questions


def build_model(directory: Path, seed: int = 0, report: Report = lambda *_: None) -> Built:
    """Make the embedded model and save it, weights in bfloat16. A seed gives the same weights on one platform."""
    started = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(seed)
        plan = DigitsPlan(SwarmConfig(id=f"warm start {seed}".replace(" ", "-")))
        policy = make_policy(build_tokenizer(plan))
        steps, accuracy = warm_up(policy, plan, seed, report)
        policy.model.to(torch.bfloat16).save_pretrained(directory)
        policy.tokenizer.save_pretrained(directory)
        write_card(directory, policy.parameters, steps, seed, check_model(directory, plan, CARD_QUESTIONS))
    finally:
        torch.set_num_threads(threads)
    size = sum(file.stat().st_size for file in directory.iterdir())
    digest = digest_weights(policy.model)
    return Built(digest, policy.parameters, steps, accuracy, time.perf_counter() - started, size)


def build_tokenizer(*plans: DigitsPlan) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the plans' training questions, digits one by one, so that it can spell any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["user", "assistant", "system"] * 50
    for plan in plans:
        for task in plan.tasks:
            corpus += [question.messages[-1].content for question in plan.select(task, "train", CORPUS_QUESTIONS)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TAGS),
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    make: Any = PreTrainedTokenizerFast
    fast: PreTrainedTokenizerFast = make(
        tokenizer_object=tokenizer,
        pad_token=SPECIALS[0],
        eos_token=SPECIALS[2],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_TOKENS,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_policy(tokenizer: PreTrainedTokenizerFast, hidden: int = HIDDEN) -> Policy:
    """A model with random weights. The wide initialisation (0.08) is what lets so small a model learn quickly."""
    config = Qwen3Config(
        vocab_size=(len(tokenizer) + 15) // 16 * 16,
        hidden_size=hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        intermediate_size=4 * hidden,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        initializer_range=0.08,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return wrap_model(Qwen3ForCausalLM(config), tokenizer)


def wrap_model(model: Any, tokenizer: Any) -> Policy:
    """A policy on the CPU in float32 around a model in memory."""
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return Policy("embedded", model, tokenizer, "cpu", False, "", find_markers(tokenizer))


def warm_up(policy: Policy, plan: DigitsPlan, seed: int, report: Report) -> tuple[int, float]:
    """Supervised steps until the development accuracy is reached; returns steps and accuracy."""
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    sampler = Sampler(policy.model, policy.stop_ids, policy.tokenizer.pad_token_id, policy.autocast)
    dev = {task: plan.select(task, "dev", DEV_QUESTIONS) for task in plan.tasks}
    batches = draw_batches(policy, plan, seed)
    accuracy = 0.0
    for step in range(1, STEPS_MAX + 1):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, step / WARMUP_STEPS)
        loss = supervise(policy, optimizer, next(batches))
        if step % EVALUATE_EVERY == 0:
            accuracy = mean_accuracy(evaluate(policy, sampler, plan, dev, ANSWER_TOKENS)) or 0.0
            report(step, loss, accuracy)
            if accuracy >= TARGET_ACCURACY:
                return step, accuracy
    return STEPS_MAX, accuracy


Pair = tuple[list[int], list[int]]  # prompt and target, as token ids


def draw_batches(policy: Policy, plan: DigitsPlan, seed: int) -> Iterator[list[Pair]]:
    """Endless batches of training questions and right answers, half of them tagged."""
    random = Random(seed)
    questions = plan.draw(Place("recipe", 0, 0), NO_MATERIAL)
    while True:
        yield [encode_pair(policy, question, random) for question in itertools.islice(questions, BATCH)]


def encode_pair(policy: Policy, question: Question, random: Random) -> Pair:
    answer = str(question.entry["answer"])
    text = f"{OPENING}{answer}{CLOSING}" if random.random() < TAGGED_SHARE else answer
    target = [*policy.tokenizer.encode(text, add_special_tokens=False), policy.tokenizer.eos_token_id]
    return policy.encode_prompt(question.messages), target


def supervise(policy: Policy, optimizer: torch.optim.Optimizer, batch: list[Pair]) -> float:
    """One step on the tokens of the targets; returns the loss before it."""
    longest = max(len(prompt) + len(target) for prompt, target in batch)
    ids = torch.full((len(batch), longest), policy.tokenizer.pad_token_id)
    labels = torch.full((len(batch), longest), -100)
    for row, (prompt, target) in enumerate(batch):
        end = len(prompt) + len(target)
        ids[row, :end] = torch.tensor(prompt + target)
        labels[row, len(prompt) : end] = torch.tensor(target)
    logits = policy.model(input_ids=ids).logits[:, :-1]  # padding stands on the right: a causal model never sees it
    loss: Any = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def check_model(directory: Path, plan: DigitsPlan, questions: int, seed: int = 0) -> dict[str, Accuracy]:
    """Accuracy of a saved model on held-out questions of each task, one sampled completion each."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    policy = wrap_model(Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32), tokenizer)
    sampler = Sampler(policy.model, policy.stop_ids, tokenizer.pad_token_id, policy.autocast)
    held_out = {task: plan.hold_out(task, questions) for task in plan.tasks}
    return evaluate(policy, sampler, plan, held_out, ANSWER_TOKENS, seed=seed)


CARD = """---
license: mit
library_name: transformers
pipeline_tag: text-generation
---

# swarmd embedded model

A toy: {parameters:,} parameters in Qwen3's format, made so that a node can train within a minute of being installed,
on a CPU and without a download. It knows nothing but four tasks on digits, and those badly, on purpose.

Made by `swarmd model build --seed {seed}`: random weights, then {steps} supervised steps of {batch} training questions
with right answers, answer tags on half of the targets, stopped when accuracy on the development questions reached
{target:.0%}. Questions are split by the SHA-256 of their canonical form: 70% training, 10% development, 20% held out.
Held-out questions are used neither here nor in reinforcement learning.

Accuracy on held-out questions (temperature 1, one completion each):

| Task | Correct | Well-formed | Questions |
|---|---|---|---|
{rows}
| mean | {mean:.3f} | | |

Much of the first rise under reinforcement learning is the answer format; the rest is the tasks themselves.
"""


def write_card(directory: Path, parameters: int, steps: int, seed: int, held_out: dict[str, Accuracy]) -> None:
    """README.md beside the weights, with figures of this very model, and recipe.json with its settings."""
    rows = "\n".join(
        f"| {task} | {a.correct:.3f} | {a.formatted:.3f} | {a.questions} |" for task, a in held_out.items()
    )
    card = CARD.format(
        parameters=parameters,
        seed=seed,
        steps=steps,
        batch=BATCH,
        target=TARGET_ACCURACY,
        rows=rows,
        mean=mean_accuracy(held_out) or 0.0,
    )
    (directory / "README.md").write_text(card, encoding="utf-8")
    recipe = {"seed": seed, "steps": steps, "batch": BATCH, "learning_rate": LEARNING_RATE, "target": TARGET_ACCURACY}
    (directory / "recipe.json").write_text(json.dumps(recipe, indent=2) + "\n", encoding="utf-8")
