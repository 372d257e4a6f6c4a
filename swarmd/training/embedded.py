"""Builds the embedded models: a small tokenizer, random weights, and a short supervised start.

Each is for one kind of swarm (`RECIPES`). It is trained on right answers to training questions until its accuracy on
the development questions reaches a target that still leaves reinforcement learning something to find; held-out
questions are not used. One thread and one seed make it reproducible.
"""

import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from swarmd.config import Config, load_config
from swarmd.errors import ModelError
from swarmd.paths import configs_directory
from swarmd.swarms.plan import Plan
from swarmd.swarms.registry import make_plan
from swarmd.swarms.text import TAGS
from swarmd.training.evaluation import Accuracy, evaluate, mean_accuracy
from swarmd.training.lessons import (
    Lesson,
    generate_answer_lessons,
    generate_problem_lessons,
    generate_program_lessons,
    generate_school_lessons,
    select_questions,
)
from swarmd.training.models.files import check_directory
from swarmd.training.models.model import Policy, digest_weights, list_escaped_texts
from swarmd.training.models.source import EMBEDDED
from swarmd.training.sampling import Sampler, encode_turns

SPECIALS = ("<|pad|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)
VOCABULARY = 380  # at most; the texts may give fewer merges
CORPUS_QUESTIONS = 400  # questions of each task that the tokenizer is trained on
CORPUS_LESSONS = 400
COMMON_SHARE = 0.02  # the tokenizer learns only words that are in at least this share of the lessons
CONTEXT_TOKENS = 1024
LEARNING_RATE = 2e-3
WARMUP_STEPS = 30
TARGET_TOKENS_MAX = 512


class EmbeddedRecipe(msgspec.Struct, frozen=True):
    """How one embedded model is made."""

    model: str  # its name in training.model
    kind: str  # kind of swarm that it is for; its shipped configuration has tasks and options
    teach: Callable[[Plan, int], Iterator[Lesson]]  # yields endless lessons, from plan and seed
    about: str  # what it can do, for the model card
    form: str = "answer tags on half of the targets"  # form of the targets, for the model card
    vocabulary: int = 1024  # at most; the texts may give fewer merges
    common_words: bool = True  # the tokenizer learns frequent words only
    hidden: int = 128
    layers: int = 2
    batch: int = 48
    steps_max: int = 800
    evaluate_every: int = 20
    dev_questions: int = 60  # of each task
    card_questions: int = 400  # of each task, held out
    target_accuracy: float = 0.20

    def make_plan(self, seed: int = 0) -> Plan:
        """The plan of the kind's shipped configuration, with a swarm id of its own. Raises SwarmError."""
        config = self._read_config()
        return make_plan(msgspec.structs.replace(config.swarm, id=f"warm-start-{seed}"), config.training)

    @property
    def completion_tokens_max(self) -> int:
        """Longest completion, from the shipped configuration."""
        return self._read_config().training.completion_tokens

    def _read_config(self) -> Config:
        kind = "local" if self.kind == "digits" else self.kind
        return load_config(configs_directory() / kind / "coordinator.toml")


RECIPES = (
    EmbeddedRecipe(
        EMBEDDED,
        "digits",
        generate_answer_lessons,
        "It knows nothing but four tasks on digits, and those badly, on purpose.",
        vocabulary=380,
        common_words=False,
        steps_max=600,
        evaluate_every=10,
        dev_questions=100,
    ),
    EmbeddedRecipe(
        "embedded-gym",
        "reasoning-gym",
        generate_answer_lessons,
        "It knows nothing but two small tasks of reasoning-gym, and those badly, on purpose.",
    ),
    EmbeddedRecipe(
        "embedded-code",
        "code",
        generate_program_lessons,
        "It writes one-line programs for four small tasks of reasoning-gym, and those badly, on purpose.",
        form="programs with their outputs, and answer tags on half of the targets",
        evaluate_every=40,
        dev_questions=16,
        card_questions=50,
    ),
    EmbeddedRecipe(
        "embedded-school",
        "gsm8k",
        generate_school_lessons,
        "It knows the forms of the three stages and four kinds of made stories, and those badly, on purpose.",
        form="half of them in the template that the stage asks for",
        batch=24,
        dev_questions=120,
    ),
    EmbeddedRecipe(
        "embedded-contest",
        "math-hard",
        generate_school_lessons,
        "It knows the forms of the three stages and three kinds of made formulas, and those badly, on purpose.",
        form="half of them in the template that the stage asks for",
        batch=24,
        dev_questions=120,
    ),
    EmbeddedRecipe(
        "embedded-problems",
        "proposer-solver",
        generate_problem_lessons,
        "It sets and solves small programming problems in the words of the built-in ones, and those badly, on purpose.",
        form="proposals and programs, half of them in the form that is asked for",
        batch=24,
        evaluate_every=40,
        dev_questions=60,
        card_questions=100,
        target_accuracy=0.22,
    ),
)


def find_recipe(name: str) -> EmbeddedRecipe:
    """Find a recipe by the name of its model, or by its kind of swarm; the first one for an empty name. Raises
    ModelError if there is none."""
    for recipe in RECIPES:
        if name in (recipe.model, recipe.kind) or not name:
            return recipe
    raise ModelError(f"there is no recipe of a model {name!r}", f"There are: {', '.join(r.model for r in RECIPES)}")


class BuiltModel(msgspec.Struct, frozen=True):
    """The result of a build."""

    digest: str  # of the weights as saved
    parameters: int
    seconds: float
    size_bytes: int  # of the directory


Report = Callable[[int, float, float], None]  # step, loss, accuracy on the development questions


def build_model(directory: Path, recipe: EmbeddedRecipe, seed: int = 0, report: Report = lambda *_: None) -> BuiltModel:
    """Build an embedded model and save it in bfloat16. A seed gives the same weights on one platform."""
    started = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(seed)
        plan = recipe.make_plan(seed)
        policy = make_policy(
            build_tokenizer(list_tokenizer_texts(recipe, plan), recipe.vocabulary), recipe.hidden, recipe.layers
        )
        steps = train_supervised(policy, recipe, plan, seed, report)
        policy.model.to(torch.bfloat16).save_pretrained(directory)
        policy.tokenizer.save_pretrained(directory)
        held_out = measure_model_accuracy(directory, plan, recipe.completion_tokens_max, recipe.card_questions)
        write_card(directory, recipe, policy.parameter_count, steps, seed, held_out)
    finally:
        torch.set_num_threads(threads)
    size = sum(file.stat().st_size for file in directory.iterdir())
    digest = digest_weights(policy.model)
    return BuiltModel(digest, policy.parameter_count, time.perf_counter() - started, size)


def build_tokenizer(texts: Sequence[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on texts, with each digit a token, so that it can spell any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(TAGS),
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["user", "assistant", "system"] * 50 + list(texts), trainer)
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


def list_tokenizer_texts(recipe: EmbeddedRecipe, plan: Plan) -> list[str]:
    """The texts to train a tokenizer on: training questions, or the words that many lessons contain."""
    if not recipe.common_words:
        return list_training_questions(plan)
    lessons = itertools.islice(recipe.teach(plan, 0), CORPUS_LESSONS)
    texts = ["\n".join([*(message.content for message in each.question.messages), each.text]) for each in lessons]
    # Each word with the white space before it, as often as texts contain it, without rare ones.
    counts = Counter(word for text in texts for word in sorted(set(re.findall(r"\s*[^\s\d]+|\d", text))))
    return [word for word, count in counts.items() if count >= COMMON_SHARE * len(texts) for _ in range(count)]


def list_training_questions(*plans: Plan) -> list[str]:
    """Training questions of all tasks."""
    chosen = (select_questions(plan, task, "train", CORPUS_QUESTIONS) for plan in plans for task in plan.tasks)
    return [question.messages[-1].content for questions in chosen for question in questions]


def make_policy(tokenizer: PreTrainedTokenizerFast, hidden: int = 128, layers: int = 2) -> Policy:
    """Make a model with random weights. The wide initialisation (0.08) lets so small a model learn quickly."""
    config = Qwen3Config(
        vocab_size=(len(tokenizer) + 15) // 16 * 16,
        hidden_size=hidden,
        num_hidden_layers=layers,
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
    return wrap_as_policy(Qwen3ForCausalLM(config), tokenizer)


def wrap_as_policy(model: Any, tokenizer: Any) -> Policy:
    """Make a policy on the CPU in float32 from a model in memory."""
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return Policy("embedded", model, tokenizer, "cpu", "", list_escaped_texts(tokenizer))


def train_supervised(policy: Policy, recipe: EmbeddedRecipe, plan: Plan, seed: int, report: Report) -> int:
    """Take supervised steps until the development accuracy reaches its target. Returns their number."""
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    sampler = Sampler(policy)
    dev = {task: select_questions(plan, task, "dev", recipe.dev_questions) for task in plan.tasks}
    lessons = recipe.teach(plan, seed)
    for step in range(1, recipe.steps_max + 1):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, step / WARMUP_STEPS)
        batch = [encode_pair(policy, plan, lesson) for lesson in itertools.islice(lessons, recipe.batch)]
        loss = take_supervised_step(policy, optimizer, batch)
        if step % recipe.evaluate_every == 0:
            accuracy = mean_accuracy(evaluate(policy, sampler, plan, dev, recipe.completion_tokens_max)) or 0.0
            report(step, loss, accuracy)
            if accuracy >= recipe.target_accuracy:
                return step
    return recipe.steps_max


class PromptAndTarget(NamedTuple):
    """Token ids of prompt and target; `own` is 1 for each token of the target that the model is to write."""

    prompt: list[int]
    target: list[int]
    own: list[int]


def encode_pair(policy: Policy, plan: Plan, lesson: Lesson) -> PromptAndTarget:
    target, own = encode_turns(plan, policy, lesson.text, False, TARGET_TOKENS_MAX)
    return PromptAndTarget(policy.encode_prompt(lesson.question.messages), target, own)


def take_supervised_step(policy: Policy, optimizer: torch.optim.Optimizer, batch: list[PromptAndTarget]) -> float:
    """Take one step on the tokens of the targets that the model is to write. Returns the loss before it."""
    longest = max(len(pair.prompt) + len(pair.target) for pair in batch)
    ids = torch.full((len(batch), longest), policy.tokenizer.pad_token_id)
    labels = torch.full((len(batch), longest), -100)
    for row, (prompt, target, own) in enumerate(batch):
        end = len(prompt) + len(target)
        ids[row, :end] = torch.tensor(prompt + target)
        wanted = [token if mine else -100 for token, mine in zip(target, own, strict=True)]
        labels[row, len(prompt) : end] = torch.tensor(wanted)
    logits = policy.model(input_ids=ids).logits[:, :-1]  # padding is on the right, which a causal model does not see
    loss: Any = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def measure_model_accuracy(
    directory: Path, plan: Plan, tokens_max: int, questions: int, seed: int = 0
) -> dict[str, Accuracy]:
    """Measure a saved model's accuracy on held-out questions of each task, with one sampled completion each."""
    check_directory(directory)
    try:
        kind = json.loads((directory / "config.json").read_bytes()).get("model_type")
        if kind != "qwen3":
            raise ValueError(f"its config.json describes a model of the kind {kind!r}, not qwen3")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
        policy = wrap_as_policy(Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32), tokenizer)
    except Exception as error:  # transformers may raise anything
        fix = "Name a directory that `swarmd model build` wrote"
        raise ModelError(f"{directory} does not hold one of swarmd's embedded models: {error}", fix) from error
    held_out = {task: plan.hold_out(task, questions) for task in plan.tasks}
    return evaluate(policy, Sampler(policy), plan, held_out, tokens_max, seed=seed)


CARD = """---
license: mit
library_name: transformers
pipeline_tag: text-generation
---

# swarmd {name} model

A toy: {parameters:,} parameters in Qwen3's format, made so that a node can train within a minute of being installed,
on a CPU and without a download. {about}

Made by `swarmd model build{argument} --seed {seed}`: random weights, then {steps} supervised steps of {batch} training
questions with right answers, {form}.
It was stopped when accuracy on the development questions reached {target:.0%}. Questions are split by the SHA-256 of
their canonical form: 70% training, 10% development, 20% held out. Held-out questions are used neither here nor in
reinforcement learning.

Accuracy on held-out questions (temperature 1, one completion each):

| Task | Correct | Well-formed | Questions |
|---|---|---|---|
{rows}
| mean | {mean:.3f} | | |

Much of the first rise under reinforcement learning is the answer format; the rest is the tasks themselves.
"""


def write_card(
    directory: Path, recipe: EmbeddedRecipe, parameters: int, steps: int, seed: int, held_out: dict[str, Accuracy]
) -> None:
    """Write README.md with this model's settings and figures beside the weights."""
    rows = "\n".join(
        f"| {task} | {a.correct:.3f} | {a.formatted:.3f} | {a.questions} |" for task, a in held_out.items()
    )
    card = CARD.format(
        name=recipe.model,
        argument="" if recipe.model == EMBEDDED else f" {recipe.model}",
        about=recipe.about,
        form=recipe.form,
        parameters=parameters,
        seed=seed,
        steps=steps,
        batch=recipe.batch,
        target=recipe.target_accuracy,
        rows=rows,
        mean=mean_accuracy(held_out) or 0.0,
    )
    (directory / "README.md").write_text(card, encoding="utf-8")
