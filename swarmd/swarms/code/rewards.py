"""What a completion is worth: its answer, its form, and its programs.

`compat` gives the numbers of simple_GRPO's `Auto_Program` (commit 4ab94c6), quirks included, with the task's own scorer
in the place of math_verify.
"""

from __future__ import annotations

from collections.abc import Mapping

from swarmd.plugin import Verdict, is_well_formed
from swarmd.swarms.code.programs import (
    ERROR_COMPAT,
    OUTPUT_CHARACTERS_MAX,
    PROGRAM_CLOSING,
    PROGRAM_OPENING,
    Execution,
    clean_output,
    leave_out_outputs,
    same_output,
)
from swarmd.swarms.text import TAGS

_COMPAT_SEAMS = ("</think>\n<answer>", "</think> <answer>")
_PYTHON_FENCE = "```python"
FIRST_WEIGHTS = (1.0, 2.0, 2.0)  # of answer, form and programs, in the first 16 weight updates
LATER_WEIGHTS = (2.0, 1.0, 1.0)


def is_in_form(text: str) -> bool:
    """One pair of answer tags at the end, and as many programs closed as opened."""
    own = leave_out_outputs(text)
    return is_well_formed(own) and own.count(PROGRAM_OPENING) == own.count(PROGRAM_CLOSING)


def count_programs(executions: list[Execution], verdicts: Mapping[str, Verdict | None]) -> int:
    """Different programs that ran without error, printed something, and whose output is the one that stands there."""
    counted = set()
    for execution in executions:
        verdict = verdicts.get(execution.program) if execution.program is not None else None
        if verdict is None or verdict.status != "ok" or not verdict.stdout.strip():
            continue
        if same_output(execution.output, clean_output(verdict.stdout, OUTPUT_CHARACTERS_MAX)):
            counted.add(execution.program)
    return len(counted)


def compat_parts(text: str, correct: bool) -> dict[str, float]:
    """Upstream's three rewards: +-1, +-1, and a tenth for each fence that is not outweighed by an error."""
    formed = _is_in_compat_form(text)
    calls = text.count(_PYTHON_FENCE) - text.count(ERROR_COMPAT.strip())
    return {"correct": 1.0 if correct else -1.0, "format": 1.0 if formed else -1.0, "programs": 0.1 * calls}


def _is_in_compat_form(text: str) -> bool:
    r"""Whether upstream's `^<think>.*?</think>[\n ]<answer>.*?</answer>$` matches, each tag standing there once.

    Looked up tag by tag, which takes time linear in the text: the pattern tries every pair of tags.
    """
    ends = text.startswith("<think>") and text.removesuffix("\n").endswith("</answer>")  # `$` lets one line break stand
    return ends and all(text.count(tag) == 1 for tag in TAGS) and any(seam in text for seam in _COMPAT_SEAMS)
