"""Right completions with programs in them, for the model of the kind `code`."""

from __future__ import annotations

import re

from swarmd.swarms.code.form import frame_output
from swarmd.swarms.plan import Question

PROGRAMS = {  # of reasoning-gym's tasks: what stands in the question, and the expression that computes the answer
    "chain_sum": (re.compile(r"problem: (.*) ="), "{}"),
    "products": (re.compile(r"multiplication: ([\d *]+)\."), "{}"),
    "gcd": (re.compile(r"numbers: ([\d, ]+)\."), "math.gcd({})"),
    "lcm": (re.compile(r"numbers: ([\d, ]+)"), "math.lcm({})"),
}


def write_reasoning(question: Question, answer: str) -> str:
    """A program that computes the answer and what it prints; the answer follows. Raises KeyError for other tasks."""
    pattern, expression = PROGRAMS[question.task]
    found = pattern.search(question.messages[-1].content)
    assert found is not None, question.messages[-1].content
    program = f"print({expression.format(found[1])})"
    if "math." in program:
        program = f"import math\n{program}"
    return f"<program>\n```python\n{program}\n```\n</program>{frame_output(answer, 1000)}"
