"""Exceptions of a plan's methods: reported with the method's name, and survived if they concern own completions.

An exception over a peer's group costs only that group, see `swarmd.training.groups`.
"""

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from swarmd.errors import FOREIGN_ERRORS, PlanFailed, SwarmdError
from swarmd.logger import get_logger
from swarmd.swarms.plan import Plan, Question, Score, qualified_plan_name, score_completions
from swarmd.training.footprint import is_device_lost, is_out_of_memory

TOLD_MAX = 300  # characters quoted of the exception, which may contain peers' texts
FIX = "Mend the plan, or write to its author; docs/swarms/writing.md has what each method keeps to"

log = get_logger(__name__)


def is_plan_failure(error: BaseException) -> bool:
    """Whether an exception may be the plan's mistake: not an error of swarmd's, nor of memory or the accelerator."""
    return not (isinstance(error, SwarmdError) or is_out_of_memory(error) or is_device_lost(error))


def find_failure(plan: Plan, error: BaseException) -> PlanFailed | None:
    """An error that names the plan's method that raised `error`; None if none did."""
    if not is_plan_failure(error):
        return None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_locals.get("self") is plan:
            told = " ".join(f"{type(error).__name__}: {error}".split())[:TOLD_MAX]
            where = f"{Path(frame.f_code.co_filename).name}, line {line}"
            return PlanFailed(f"{qualified_plan_name(plan)}.{frame.f_code.co_name} raised {told} ({where})", FIX)
    return None


@contextlib.contextmanager
def name_plan_failures(plan: Plan) -> Iterator[None]:
    """Turn what a method of the plan raises within the block into a PlanFailed that names the method."""
    try:
        yield
    except FOREIGN_ERRORS as error:
        failed = find_failure(plan, error)
        if failed is None:
            raise
        log.debug("a plan's method raised", exc_info=True)
        raise failed from error


def score_own(plan: Plan, question: Question, texts: Sequence[str]) -> tuple[tuple[Score, ...], BaseException | None]:
    """Score this node's own completions. If the plan raises, each completion is scored by itself, and those over which
    it raises again count as failed. Returns the scores, and the plan's first exception, if any. Raises SwarmError: as
    `score_completions`."""
    try:
        return score_completions(plan, question, texts), None
    except FOREIGN_ERRORS as error:
        if not is_plan_failure(error):
            raise
        if len(texts) == 1:
            return (Score(0.0, failed=True),), error
        return tuple(score_own(plan, question, [text])[0][0] for text in texts), error


def warn_of_failure(plan: Plan, raised: BaseException, words: str, **more: object) -> None:
    """Log what a plan raised and what follows from it; the traceback is for the plan's author."""
    log.warning(words, plan=str(find_failure(plan, raised) or repr(raised)), exc_info=raised, **more)
