"""Which programs of a completion count."""

from __future__ import annotations

import pytest

from swarmd.sandbox import Verdict
from swarmd.swarms.code.form import find_executions
from swarmd.swarms.code.rewards import count_programs

TEXT = "<program>\n```python\nprint(1)\n```\n</program>\n<output>\n1\n</output>\n"


@pytest.mark.parametrize(
    ("verdict", "count"),
    [
        (Verdict(status="ok", stdout="1\n"), 1),
        (Verdict(status="failed", stdout="1\n", exit_code=1), 0),
        (Verdict(status="timeout", stdout="1\n", exit_code=137), 0),
        (Verdict(status="ok", stdout="2\n"), 0),
        (Verdict(status="ok", stdout=" \n"), 0),
        (None, 0),
    ],
)
def test_only_a_program_that_ran_well_and_printed_what_stands_there_counts(verdict: Verdict | None, count: int) -> None:
    (execution,) = find_executions(TEXT)
    assert execution.program is not None
    assert count_programs([execution, execution], {execution.program: verdict}) == count
