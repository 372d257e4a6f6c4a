"""Proposals and programs as models would write them, and what peers make of them."""

from collections.abc import Sequence
from typing import Any

from swarmd.config import SwarmConfig
from swarmd.swarms.plan import Material, Outcome, Question, StageId
from swarmd.swarms.proposer.plan import ProposerSolverPlan

TESTS = (
    "assert solve([1, 2, 4]) == 6",
    "assert solve([]) == 0",
    "assert solve([2]) == 2",
    "assert solve([3, 8, 8]) == 16",
    "assert solve([5]) == 0",
)
SOLUTION = "def solve(numbers):\n    return sum(n for n in numbers if n % 2 == 0)"
STATEMENT = "Return the sum of the even numbers of a list."
LIMITS = {"wall_s": 20.0, "cpu_s": 1, "memory_bytes": 256 * 1024 * 1024, "output_bytes": 20_000}


def make_plan(**options: Any) -> ProposerSolverPlan:
    options = {"limits": LIMITS, "own_s": 600.0, "peer_s": 600.0, **options}
    return ProposerSolverPlan(SwarmConfig(id="test", kind="proposer-solver", stages=2, options=options))


def propose(solution: str = SOLUTION, tests: Sequence[str] = TESTS, statement: str = STATEMENT) -> str:
    lines = "\n".join(tests)
    return f"<problem>\n{statement}\n</problem>\n<tests>\n{lines}\n</tests>\n<solution>\n{solution}\n</solution>"


def fence(program: str) -> str:
    return f"So:\n```python\n{program}\n```"


def publish(
    plan: ProposerSolverPlan, place: StageId, question: Question, completions: Sequence[str], material: Material
) -> Outcome:
    """What `plan` makes of a group that a peer published."""
    again = plan.regenerate(question.reference, place, material)
    outcome = Outcome(place, again, tuple(completions), tuple(plan.score(again, completions)))
    material.add(outcome)
    return outcome
