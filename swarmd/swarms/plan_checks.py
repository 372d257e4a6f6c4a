"""Checks of what a plan gives, questions and scores: what breaks the rules is an error that names the plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swarmd.errors import SwarmError
from swarmd.swarms.plan import Plan, Question, Score
from swarmd.swarms.rollouts import find_fault

REWARD_MAX = 1e8  # either way: peers take no report of more than `REAL_MAX`, to which a stage's rewards are added up
ENDLESS = "Plan.draw gives questions without end, old ones again where there are no new: docs/swarms/writing.md"
BOUNDED = "A seed is SEED_MAX at most, an index INDEX_MAX, and both are Python's integers: docs/swarms/writing.md"
FIX = "Plan.score gives a list with a swarmd.plugin.Score of numbers for each completion: docs/swarms/writing.md"


def name_of(plan: Plan) -> str:
    """Where the plan's code is to be found."""
    return f"{type(plan).__module__}.{type(plan).__qualname__}"


def check_drawn(plan: Plan, question: Question) -> None:
    """Raise SwarmError for a question that no peer would know by its reference: better than when all is trained."""
    fault = find_fault(question.reference)
    if fault:
        raise SwarmError(
            f"{name_of(plan)}.draw gave a question by whose reference no peer can know it: {fault}", BOUNDED
        )


def score_completions(plan: Plan, question: Question, texts: Sequence[str]) -> tuple[Score, ...]:
    """Scores of completions to one question. One whose reward, accuracy or form is NaN or beyond `REWARD_MAX` is 0, and
    failed.

    Raises:
        SwarmError: the plan gave something else, more or fewer; names the plan, the task and what it gave.
        Exception: whatever the plan raises.
    """
    given = plan.score(question, texts)
    gave = f"{name_of(plan)}.score gave"
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
    if not all(abs(number) <= REWARD_MAX for number in (reward, accuracy, form)):
        return Score(0.0, failed=True)
    return Score(reward, accuracy, form, parts, bool(score.failed), values)
