"""What a plan raises: told with the name of its method, and over this node's own completions no reason to lose a stage.

Over peers' groups it costs the group alone, see `swarmd.training.groups`.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from swarmd.errors import FOREIGN_ERRORS, PlanFailed, SwarmdError
from swarmd.logger import get_logger
from swarmd.swarms.plan import Plan, Question, Score, name_of, score_completions
from swarmd.training.footprint import is_device_lost, is_out_of_memory

TOLD_MAX = 300  # characters of what was raised: peers' texts may stand in it
FIX = "Mend the plan, or write to its author; docs/swarms/writing.md has what each method keeps to"

log = get_logger(__name__)


def is_plans_own(error: BaseException) -> bool:
    """Whether it may be a mistake of the plan's: no error on purpose, nor the end of memory or of the accelerator."""
    return not (isinstance(error, SwarmdError) or is_out_of_memory(error) or is_device_lost(error))


def find_failure(plan: Plan, error: BaseException) -> PlanFailed | None:
    """The error that names the method of the plan out of which `error` came; None where it came out of none."""
    if not is_plans_own(error):
        return None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_locals.get("self") is plan:
            told = " ".join(f"{type(error).__name__}: {error}".split())[:TOLD_MAX]
            where = f"{Path(frame.f_code.co_filename).name}, line {line}"
            return PlanFailed(f"{name_of(plan)}.{frame.f_code.co_name} raised {told} ({where})", FIX)
    return None


@contextlib.contextmanager
def naming_failures(plan: Plan) -> Iterator[None]:
    """Within it, what comes out of a method of the plan is a PlanFailed that names it."""
    try:
        yield
    except FOREIGN_ERRORS as error:
        failed = find_failure(plan, error)
        if failed is None:
            raise
        log.debug("a plan's method raised", exc_info=True)
        raise failed from error


def score_own(plan: Plan, question: Question, texts: Sequence[str]) -> tuple[tuple[Score, ...], BaseException | None]:
    """Scores of this node's own completions. Where the plan raises over them, each is scored by itself, and those over
    which it raises again count as failed.

    Returns:
        the scores, and what the plan raised first, None if nothing.

    Raises:
        SwarmError: as `score_completions`.
    """
    try:
        return score_completions(plan, question, texts), None
    except FOREIGN_ERRORS as error:
        if not is_plans_own(error):
            raise
        if len(texts) == 1:
            return (Score(0.0, failed=True),), error
        return tuple(score_own(plan, question, [text])[0][0] for text in texts), error


def warn_of(plan: Plan, raised: BaseException, words: str, **more: object) -> None:
    """Say what a plan raised and what follows from it; the traceback is for its author."""
    log.warning(words, plan=str(find_failure(plan, raised) or repr(raised)), exc_info=raised, **more)
