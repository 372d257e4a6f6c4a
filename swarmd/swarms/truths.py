"""Checks that right answers are rewarded: answers a sample of a user's questions with their own truths.

A truth is formatted as the swarm asks of a completion, and scored like one. If it does not get the full reward, no
answer of any model will, and nothing else would reveal that: rewards of 0 look like a model that learns nothing.
`swarmd config check`, `swarmd swarm new`, `swarmd join` and each trainer check this before they begin.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import SandboxUnavailable, SwarmError
from swarmd.swarms.dataset import is_hub_id
from swarmd.swarms.jsonl import read_rows
from swarmd.swarms.options import FileOptions, decode_options
from swarmd.swarms.packages import list_function_paths
from swarmd.swarms.plan import CORRECT, NO_MATERIAL, Plan, Question, SplitPlan, StageId, score_completions
from swarmd.swarms.registry import BUILT_IN, check_code, make_plan, questions_file_of
from swarmd.swarms.reward_process import check_source
from swarmd.swarms.rewards import COMPARING, TRLS_OWN

SAMPLED = 64  # questions sampled
SHOWN_CHARACTERS = 160  # of a question or truth in an error
PLUG_IN = "its kind is a plug-in, which does not say what a right answer looks like"


def check_questions(swarm: SwarmConfig, training: TrainingConfig, home: Path) -> str:
    """Check that the kind can train on its tasks, or on its question file, and rewards right answers.

    If the file is still to be made from a local data set, it is made in a temporary directory. Nothing is downloaded.
    Plug-ins and reward functions are not run: their requirements may not be installed yet.

    Returns:
        Why right answers were not tried; empty if they were, or if no file is named.

    Raises:
        SwarmError: the file is malformed, or its right answers are not rewarded.
    """
    name = swarm.options.get("data") if swarm.kind == "file" else questions_file_of(swarm.options)
    if swarm.kind not in BUILT_IN:
        return ""
    if not isinstance(name, str) or not name:
        if swarm.tasks:  # only the kind knows their names and settings
            make_plan(swarm, training, home)
        return ""
    functions, source = list_function_paths(swarm.options), swarm.options.get("dataset")
    if functions:
        has_columns = "environment_factory" not in swarm.options and ((home / name).exists() or not source)
        columns = _read_columns(swarm, home / name) if has_columns else None
        check_code(swarm, home)
        for path in functions:
            check_source(path, home, columns, path in swarm.options.get("reward_funcs", ()))
    if rewards := swarm.options.get("reward_funcs"):
        return f"the reward functions {', '.join(rewards)} decide"
    if functions or "openenv" in swarm.options:
        return "the environment decides"
    with suppress(SandboxUnavailable), TemporaryDirectory() as elsewhere:  # a missing sandbox is not the file's fault
        if source and not (home / name).exists():
            if is_hub_id(source) and not (home / source).exists():
                return f"{name} is still to be made of {source}"
            found = source if source.startswith("~") else str(home.resolve() / source)
            options = {**swarm.options, "dataset": found, "data": Path(name).name}
            swarm, home = msgspec.structs.replace(swarm, options=options), Path(elsewhere)
        return check_truths(make_plan(swarm, training, home))
    return ""


def _read_columns(swarm: SwarmConfig, path: Path) -> set[str]:
    """Column names that reward functions get. Raises SwarmError for a malformed file."""
    options = decode_options(swarm.options, FileOptions)
    return options.columns.add_their_names(read_rows(path, ("prompt",))[0]).keys() - set(TRLS_OWN)


def check_truths(plan: Plan, write: Callable[[str], str] = str) -> str:
    """Answer a sample of the plan's questions with their truths.

    Args:
        write: converts a text to what the model can write: without characters that its tokenizer lacks or takes for
        control tokens.

    Returns:
        Why that could not be done; empty if it was, or if the questions are generated.

    Raises:
        SwarmError: one does not get the full reward; has the question, its truth, how that was read, and the fix.
    """
    if not isinstance(plan, SplitPlan):
        return PLUG_IN
    if plan.unchecked:
        return plan.unchecked
    answered = [
        (question, write(text))
        for question in _sample_questions(plan)
        if (text := plan.make_true_completion(question)) is not None
    ]
    unpaid = [(question, text) for question, text in answered if not _is_truth_paid(plan, question, text)]
    if unpaid:
        question, text = unpaid[0]
        how, fix = plan.explain_answer_reading(question, text)
        raise SwarmError(
            f"{len(unpaid)} of {len(answered)} questions would not be paid in full for their own answers, such as row "
            f"{question.reference.index + 1}: {_shorten_text(question.messages[-1].content)!r} with the answer "
            f"{_shorten_text(plan.truth(question))!r}. {how}",
            fix,
        )
    return ""


def _sample_questions(plan: SplitPlan) -> list[Question]:
    """Distinct training questions, evenly spaced, the same on every node; none if they are generated."""
    found: dict[tuple[str, int], Question] = {}
    for round in range(SAMPLED):
        for question in islice(plan.draw(StageId("", round, 0), NO_MATERIAL), SAMPLED):
            if plan.make_true_completion(question) is None:
                return []
            found.setdefault((question.task, question.reference.index), question)
        if len(found) >= SAMPLED:
            break
    return list(found.values())[:SAMPLED]


def _is_truth_paid(plan: SplitPlan, question: Question, text: str) -> bool:
    """Whether every reward that compares with the truth is paid, except patterns, which may ask for more."""
    (score,) = score_completions(plan, question, [text])
    compared = [value for name, value in score.values.items() if name in COMPARING and name != "regex"]
    return min(compared, default=score.accuracy) >= CORRECT


def _shorten_text(text: str) -> str:
    text = " ".join(text.split())
    return (
        text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS // 2]} … {text[-SHOWN_CHARACTERS // 2 :]}"
    )
