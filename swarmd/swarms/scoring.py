"""A plan's scores, held to what a plan promises: one for each completion, of plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from swarmd.errors import SwarmError
from swarmd.swarms.plan import Plan, Question, Score

FIX = "Plan.score gives a list with a swarmd.plugin.Score of numbers for each completion: docs/swarms/writing.md"


def score_completions(plan: Plan, question: Question, texts: Sequence[str]) -> tuple[Score, ...]:
    """Scores of completions to one question. Where the reward, accuracy or form is NaN or infinite, it counts as 0 and
    as failed.

    Raises:
        SwarmError: the plan gave something else, more or fewer; names the plan, the task and what it gave.
        Exception: whatever the plan raises.
    """
    given = plan.score(question, texts)
    gave = f"{type(plan).__module__}.{type(plan).__qualname__}.score gave"
    if not isinstance(given, Iterable):
        raise SwarmError(f"{gave} {type(given).__name__} for completions of {question.task}", FIX)
    scores = tuple(given)
    if len(scores) != len(texts):
        raise SwarmError(f"{gave} {len(scores)} scores for {len(texts)} completions of {question.task}", FIX)
    return tuple(_plain(score, f"{gave} for a completion of {question.task}") for score in scores)


def _plain(score: object, gave: str) -> Score:
    """With numbers of Python in the place of numpy's or torch's, which neither an event nor a checkpoint can hold."""
    if not isinstance(score, Score):
        raise SwarmError(f"{gave} no Score but {type(score).__name__}", FIX)
    try:
        reward, accuracy, form = map(float, (score.reward, score.accuracy, score.format))
        parts, values = (
            {str(name): float(part) for name, part in table.items()} for table in (score.parts, score.values)
        )
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise SwarmError(f"{gave} what is no number: {error}", FIX) from error
    if not all(map(math.isfinite, (reward, accuracy, form))):
        return Score(0.0, failed=True)
    return Score(reward, accuracy, form, parts, bool(score.failed), values)
