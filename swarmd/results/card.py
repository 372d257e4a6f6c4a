"""The model card: a README.md for the Hub that says what the model is and how it was trained."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from swarmd.animals import animal_name
from swarmd.core.state import FirstAccuracy
from swarmd.core.values import SkipCause
from swarmd.results.history import RoundResult, StageResult, TrainingHistory

TAGS = ("rl-swarm", "genrl-swarm", "grpo", "gensyn", "swarmd", "trl")  # RL Swarm's tags, and swarmd's
TABLE_ROWS_MAX = 60  # rounds in the table; of more, a selection with the first and last
TEXT_CHARS_MAX = 200  # of a name in the text

HERE = "path/to/this/model"  # stands for the repository in the usage example, if unknown
HUB_DATA = {"gsm8k": "openai/gsm8k", "math-hard": "open-r1/DAPO-Math-17k-Processed"}  # if `data = "hub"`

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#.|~&$:@])")


class TrainingData(msgspec.Struct, frozen=True):
    """The data that a node trains on, for the card."""

    dataset: str = ""  # id on the Hub
    details: tuple[tuple[str, str], ...] = ()  # name and value


def describe_training_data(
    kind: str, options: Mapping[str, Any], tasks: Sequence[str], home: Path = Path()
) -> TrainingData:
    """Describe a swarm's data from its configuration; of a path, only the last part is shown.

    A data set that exists below `home`, the node's data directory, is not described as one of the Hub.
    """
    name = str(options.get("dataset") or (HUB_DATA.get(kind, "") if options.get("data") == "hub" else ""))
    keys = ("subset", "split", "revision", "digest") if name else ("digest",)
    details = [(key, str(options[key])) for key in keys if options.get(key)]
    if name and (not _HUB_ID.fullmatch(name) or (home / name).exists()):
        name, details = "", [("name", public_model_name(name)), *details]
    elif not name and options.get("data"):
        details = [("file", public_model_name(str(options["data"]))), *details]
    return TrainingData(name, (*details, *((("tasks", ", ".join(tasks)),) if tasks else ())))


class CardSubject(msgspec.Struct, frozen=True):
    """What a card needs besides the log. `base`: `training.model`; `kind`: `swarm.kind`."""

    kind: str = ""
    base: str = ""
    adapters: bool = False  # the repository holds adapters, not a whole model
    repo: str = ""  # repository that the card is for
    revision: str = ""  # of the base model, `training.revision`
    data: TrainingData = TrainingData()


def make_card(history: TrainingHistory, subject: CardSubject) -> str:
    """Make the card's text. Names from configurations and peers are escaped, so that they cannot add markup or
    headings."""
    return "\n".join([_header(history, subject), *_body(history, subject), ""])


def escape(text: str) -> str:
    """Escape text for Markdown, on one line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return _SPECIAL.sub(r"\\\1", line[:TEXT_CHARS_MAX])


def public_model_name(name: str) -> str:
    """A base model's public name: of a directory only its last part."""
    return name if _HUB_ID.fullmatch(name) else name.rstrip("/").rpartition("/")[2]


def _header(history: TrainingHistory, subject: CardSubject) -> str:
    library = "peft" if subject.adapters else "transformers"
    fields: dict[str, object] = {"library_name": library, "pipeline_tag": "text-generation"}
    base = public_model_name(subject.base or history.model)
    if _HUB_ID.fullmatch(base):
        fields["base_model"] = base
    if _HUB_ID.fullmatch(subject.data.dataset):
        fields["datasets"] = [subject.data.dataset]
    fields["tags"] = [*TAGS, f"I am {animal_name(history.peer)}"]
    return f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=False)}---\n"


def _body(history: TrainingHistory, subject: CardSubject) -> list[str]:
    base = escape(public_model_name(subject.base or history.model)) or "unknown"
    kind = f" of kind {escape(subject.kind)}" if subject.kind else ""
    base += f", revision {escape(subject.revision)}," if subject.revision else ""
    return [
        f"# {escape(history.label)}",
        "",
        f"Trained with GRPO from {base} by one node of the swarm {escape(history.swarm)}{kind}, with swarmd.",
        f"The node is {escape(animal_name(history.peer))}, peer id {escape(history.peer)}.",
        "",
        "## Usage",
        "",
        *_usage_section(subject),
        "",
        "## Data",
        "",
        *_data_section(subject),
        "",
        "## Training",
        "",
        *_facts_section(history),
        "",
        "Reward is the mean over the node's own completions. Held-out accuracy is pass@1: one sampled completion for",
        "each of a fixed set of questions that nobody trains on, the mean over tasks.",
        "",
        *_table(history.rounds),
        "",
        "## Licence",
        "",
        "None is stated here. Whoever publishes this model chooses one that the base model's licence and the data's",
        "allow, and puts it into the header above as `license:`.",
    ]


def _usage_section(subject: CardSubject) -> list[str]:
    """An example program that loads the model."""
    place = subject.repo if _HUB_ID.fullmatch(subject.repo) else HERE
    if subject.adapters:
        load = [
            "from peft import AutoPeftModelForCausalLM",
            "from transformers import AutoTokenizer, pipeline",
            "",
            f'model = AutoPeftModelForCausalLM.from_pretrained("{place}")',
            f'generate = pipeline("text-generation", model=model, tokenizer=AutoTokenizer.from_pretrained("{place}"))',
        ]
    else:
        load = ["from transformers import pipeline", "", f'generate = pipeline("text-generation", model="{place}")']
    ask = [
        'messages = [{"role": "user", "content": "What is 3 + 4?"}]',
        'print(generate(messages, max_new_tokens=256)[0]["generated_text"][-1]["content"])',
    ]
    return ["```python", *load, *ask, "```"]


def _data_section(subject: CardSubject) -> list[str]:
    """The section on the origin of the questions."""
    data = subject.data
    if _HUB_ID.fullmatch(data.dataset):
        first = f"Questions of the data set [{escape(data.dataset)}](https://huggingface.co/datasets/{data.dataset})."
    elif data.details:
        first = "Questions of the swarm's own."
    else:
        first = f"Questions that swarms of kind {escape(subject.kind)} make." if subject.kind else "Not known."
    return [first, *(line for name, value in data.details for line in ("", f"- {escape(name)}: {escape(value)}"))]


def _facts_section(history: TrainingHistory) -> list[str]:
    rounds = history.rounds
    lines = [f"- Rounds trained: {len(rounds)}, skipped: {history.rounds_skipped}{_describe_skip_causes(history)}"]
    if history.from_seq:
        lines.append("- The log begins later than the node: what was trained before is not counted here")
    if rounds:
        best = max(rounds, key=lambda row: row.reward if math.isfinite(row.reward) else -math.inf)
        last = rounds[-1]
        ends = [
            f"{word} {_format_number(row.reward)} (round {row.round})" for word, row in (("last", last), ("best", best))
        ]
        lines.append(f"- Reward: {', '.join(ends)}")
    lines.append(f"- Held-out accuracy: {describe_accuracy(history)}")
    groups = sum(stage.peer_groups for stage in history.stages)
    refused = sum(stage.refused for stage in history.stages)
    lines.append(f"- Groups of peers trained on: {groups}, refused: {refused}")
    steps, tokens = (sum(getattr(stage, name) for stage in history.stages) for name in ("steps", "tokens"))
    lines.append(f"- Optimiser steps: {steps}, completion tokens generated: {tokens}")
    return lines


def describe_accuracy(history: TrainingHistory) -> str:
    """Describe accuracy before and after training."""
    last = _find_first_measured(reversed(history.stages))
    before, first = history.held_out_before, _find_first_measured(history.stages)
    if before is not None:
        return describe_accuracy_change(FirstAccuracy(before, untrained=True), last)
    return describe_accuracy_change(FirstAccuracy(first, untrained=False) if first is not None else None, last)


def describe_accuracy_change(first: FirstAccuracy | None, last: float | None) -> str:
    """Describe held-out accuracy before and after training, in the same words for all views."""
    if first is None or last is None:
        return "not measured"
    when = "before the first step" if first.untrained else "when first measured"
    return f"{first.held_out:.3f} {when}, {last:.3f} when last measured"


def _find_first_measured(stages: Iterable[StageResult]) -> float | None:
    return next((row.held_out for row in stages if row.held_out is not None), None)


def _describe_skip_causes(history: TrainingHistory) -> str:
    counts: dict[SkipCause, int] = {}
    for skip in history.skips:
        counts[skip.cause] = counts.get(skip.cause, 0) + skip.last - skip.first + 1
    return f" ({', '.join(f'{cause} {count}' for cause, count in sorted(counts.items()))})" if counts else ""


def _table(rounds: Sequence[RoundResult]) -> list[str]:
    head = ["| Round | Reward | Held-out accuracy | Groups of peers |", "|---:|---:|---:|---:|"]
    rows = [
        f"| {row.round} | {_format_number(row.reward)} | "
        f"{'' if row.held_out is None else _format_number(row.held_out)} "
        f"| {row.peer_groups} |"
        for row in thin_out(rounds, TABLE_ROWS_MAX)
    ]
    return [*head, *rows] if rows else ["No round has been trained yet."]


def thin_out(rounds: Sequence[RoundResult], rows_max: int) -> list[RoundResult]:
    """Select at most `rows_max` rounds, evenly spaced, with the first and the last."""
    if len(rounds) <= rows_max:
        return list(rounds)
    step = (len(rounds) - 1) / (rows_max - 1)
    return [rounds[round(place * step)] for place in range(rows_max)]


def _format_number(value: float) -> str:
    return f"{value:.3f}"
