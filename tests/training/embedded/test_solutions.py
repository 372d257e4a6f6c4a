"""What the model of proposer-solver is taught: programs that do what the words say, of training problems only."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from swarmd.swarms.plan import split_of
from swarmd.swarms.proposer.plan import SOLVE
from swarmd.swarms.proposer.pool import FAMILIES, Family, Step, compose, find_steps, name_steps
from swarmd.swarms.proposer.proposals import ProposalBounds, find_sections, read_proposal
from swarmd.training.embedded.kinds import find_recipe
from swarmd.training.embedded.lessons import write_program, write_sections

STEPS = [(family, step) for family in FAMILIES for step in (*family.steps, *family.endings)]


def solve(program: str, value: Any) -> Any:
    scope: dict[str, Any] = {}
    exec(program, scope)
    return scope["solve"](value)


@pytest.mark.parametrize(("family", "step"), STEPS, ids=lambda each: getattr(each, "words", None))
def test_the_program_of_a_step_does_what_the_step_does(family: Family, step: Step) -> None:
    random = Random(0)
    for _ in range(20):
        k, value = random.randint(step.least, step.most), family.draw(random)
        assert solve(write_program([(step, k)]), value) == step.apply(value, k)


def test_proposals_that_are_taught_can_be_read_and_their_solutions_pass() -> None:
    random, written = Random(0), 0
    for family, step in STEPS:
        problem = compose(family, [(step, max(step.least, 1))], [(family.draw(random),)]).problem
        sections = write_sections(problem, random)
        if sections is None:
            continue
        written += 1
        proposal = read_proposal(sections, ProposalBounds(300, 80, 500))
        assert proposal is not None and proposal.problem.text == problem.text
        exec("\n".join([proposal.solution, *(test.line for test in proposal.problem.tests)]), {})
    assert written > 8


def test_no_lesson_is_on_a_problem_that_is_held_out_or_kept_for_development() -> None:
    made = find_recipe("proposer-solver")
    plan = made.make_plan()
    sides, levels = [], set()
    for question, text in itertools.islice(made.teach(plan, 0), 600):
        sections = find_sections(text) or {"problem": text.partition("\n")[0]}
        asked = question.entry["problem"].text if question.task == SOLVE else sections["problem"]
        found = find_steps(asked)
        assert found is not None
        levels.add(len(found[1]))
        sides.append(split_of(SOLVE, name_steps(*found)))
    assert sides == ["train"] * 600
    assert levels == {1, 2, 3, 4, 5}
