"""Checks of what a plan gives, questions and scores: what breaks the rules is an error that names the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from swarmd.errors import SwarmError
from swarmd.swarms.plan import Material, Message, Plan, Question, Score, StageId
from swarmd.swarms.rollouts import find_fault

REWARD_MAX = 1e8  # either way: peers take no report of more than `REAL_MAX`, to which a stage's rewards are added up
ENDLESS = "Plan.draw gives questions without end, old ones again where there are no new: docs/swarms/writing.md"
BOUNDED = "A seed is SEED_MAX at most, an index INDEX_MAX, and both are Python's integers: docs/swarms/writing.md"
QUESTIONS = (
    "Plan.draw and Plan.hold_out give swarmd.plugin.Questions with one Message of text or more: docs/swarms/writing.md"
)
FIX = "Plan.score gives a list with a swarmd.plugin.Score of numbers for each completion: docs/swarms/writing.md"


def name_of(plan: Plan) -> str:
    """Where the plan's code is to be found."""
    return f"{type(plan).__module__}.{type(plan).__qualname__}"


def check_plan(plan: Plan) -> None:
    """Raise SwarmError where what a plan says of itself is not what is read of it, stage by stage."""
    tasks, stops, most = plan.tasks, plan.stops, plan.reward_max
    wrong = {
        "tasks": not isinstance(tasks, Iterable) or isinstance(tasks, str) or not _are_texts(tasks),
        "stops": bool(stops) and not (isinstance(stops, tuple) and _are_texts(stops)),
        "reward_max": most is not None and not (isinstance(most, int | float) and math.isfinite(most)),
    }
    for name, value in (("tasks", tasks), ("stops", stops), ("reward_max", most)):
        if wrong[name]:
            raise SwarmError(
                f"{name_of(plan)}.{name} is {value!r:.200}",
                "tasks and stops are tuples of texts, reward_max is a number or None: docs/swarms/writing.md",
            )


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) and value for value in values)


def draw_questions(plan: Plan, place: StageId, material: Material) -> Iterator[Question]:
    """What the plan draws for a stage. Raises SwarmError at once for what holds no questions, and later as
    `check_drawn`.
    """
    given = _iterable(plan, "draw", plan.draw(place, material), f"round {place.round}, stage {place.stage}")
    return (check_drawn(plan, question) for question in given)


def check_drawn(plan: Plan, question: object) -> Question:
    """The question. Raises SwarmError for one that no peer would know by its reference, better than when all is
    trained, and for what is none.
    """
    checked = _check_question(plan, "draw", question)
    fault = find_fault(checked.reference)
    if fault:
        raise SwarmError(
            f"{name_of(plan)}.draw gave a question by whose reference no peer can know it: {fault}", BOUNDED
        )
    return checked


def hold_out_questions(plan: Plan, task: str, count: int) -> list[Question]:
    """Up to `count` held-out questions of a task. Raises SwarmError where the plan gives something else."""
    given = _iterable(plan, "hold_out", plan.hold_out(task, count), task)
    return [_check_question(plan, "hold_out", question) for question in islice(given, count)]


def _iterable(plan: Plan, method: str, given: object, where: str) -> Iterable[object]:
    if not isinstance(given, Iterable):
        raise SwarmError(f"{name_of(plan)}.{method} gave {type(given).__name__} for {where}", QUESTIONS)
    return given


def _check_question(plan: Plan, method: str, given: object) -> Question:
    gave = f"{name_of(plan)}.{method} gave"
    if not isinstance(given, Question):
        raise SwarmError(f"{gave} no Question but {type(given).__name__}", QUESTIONS)
    if not isinstance(given.messages, tuple | list) or not given.messages:
        raise SwarmError(f"{gave} a question whose messages are {given.messages!r:.200}", QUESTIONS)
    for message in given.messages:
        if not (isinstance(message, Message) and _is_text(message.content)):
            raise SwarmError(f"{gave} a question with the message {message!r:.200}", QUESTIONS)
    return given


def _is_text(value: object) -> bool:
    """Whether it is a text that can be encoded: half of a surrogate pair is none."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def score_completions(plan: Plan, question: Question, texts: Sequence[str]) -> tuple[Score, ...]:
    """Scores of completions to one question. One whose reward, accuracy or form is NaN or beyond `REWARD_MAX` is 0, and
    failed; a part that is so, which is measured alone, is left out.

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
            {str(name): number for name, part in table.items() if abs(number := float(part)) <= REWARD_MAX}
            for table in (score.parts, score.values)
        )
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise SwarmError(f"{gave} what is no number: {error}", FIX) from error
    if not all(abs(number) <= REWARD_MAX for number in (reward, accuracy, form)):
        return Score(0.0, failed=True)
    return Score(reward, accuracy, form, parts, bool(score.failed), values)
