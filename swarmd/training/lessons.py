"""What each embedded model is taught before reinforcement learning: right completions of training questions.

A teacher draws training questions as a node does, and writes a right completion to each. Half of the completions have
the rewarded form; reinforcement learning has to extend it to the rest.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from swarmd.config import TaskConfig
from swarmd.swarms.code import frame_output
from swarmd.swarms.gym_tasks import make_task_levels
from swarmd.swarms.math.texts import TAGS
from swarmd.swarms.plan import NO_MATERIAL, Material, Outcome, Plan, Question, Split, StageId
from swarmd.swarms.proposer.problems import (
    NUMBER,
    NUMBERS,
    SECTIONS,
    TESTS_MIN,
    Problem,
    StepFamily,
    Steps,
    compose_problem,
    do_tests_need_solution,
    parse_steps,
)
from swarmd.swarms.text import CLOSING, OPENING

PROGRAMS = {  # by task of reasoning-gym: pattern of the numbers in a question, and the expression for its answer
    "chain_sum": (re.compile(r"problem: (.*) ="), "{}"),
    "products": (re.compile(r"multiplication: ([\d *]+)\."), "{}"),
    "gcd": (re.compile(r"numbers: ([\d, ]+)\."), "math.gcd({})"),
    "lcm": (re.compile(r"numbers: ([\d, ]+)"), "math.lcm({})"),
}


def write_worked_program(question: Question, answer: str) -> str:
    """Write a program that computes the answer, with its output. Raises KeyError for other tasks than those in
    PROGRAMS."""
    pattern, expression = PROGRAMS[question.task]
    found = pattern.search(question.messages[-1].content)
    assert found is not None, question.messages[-1].content
    program = f"print({expression.format(found[1])})"
    if "math." in program:
        program = f"import math\n{program}"
    return f"<program>\n```python\n{program}\n```\n</program>{frame_output(answer, 1000)}"


TRIES_MAX = 200  # attempts to find values whose tests are informative
LETTERS = "kquvxz"


def write_program(steps: Steps) -> str:
    """Write the function `solve`, one line for each step."""
    lines = [f"    x = {step.python.format(k=k)}" for step, k in steps]
    return "\n".join(["def solve(x):", *lines, "    return x"])


def find_problem_steps(problem: Problem) -> tuple[StepFamily, Steps]:
    """Parse the steps of a built-in problem."""
    found = parse_steps(problem.text)
    assert found is not None, problem.text
    return found


def write_proposal_sections(problem: Problem, random: Random) -> dict[str, str] | None:
    """Write a proposal of the same steps with tests on small values; None if a step is not easy, or no tests are
    informative."""
    family, steps = find_problem_steps(problem)
    for _ in range(TRIES_MAX if all(step.easy for step, _ in steps) else 0):
        small = compose_problem(family, steps, [(value,) for value in draw_test_values(family, random)]).problem
        if len({test.arguments for test in small.tests}) == TESTS_MIN and do_tests_need_solution(small.tests):
            tests = "\n".join(test.source_line for test in small.tests)
            return dict(zip(SECTIONS, (small.text, tests, write_program(steps)), strict=True))
    return None


def draw_test_values(family: StepFamily, random: Random) -> list[Any]:
    """Draw values for the tests of a proposal: consecutive numbers, short lists, or short texts."""
    if family is NUMBER:
        first = random.randint(0, 9)
        return list(range(first, first + TESTS_MIN))
    if family is NUMBERS:
        return [[random.randint(0, 5) for _ in range(2)] for _ in range(TESTS_MIN)]
    return ["".join(random.choices(LETTERS, k=3)) for _ in range(TESTS_MIN)]


IN_FORM_SHARE = 0.5  # share of targets in the rewarded form
STUDENTS = 3  # students whose answers the math models learn to judge
RIGHT_SHARE = 0.6  # share of right answers among the students'
JUDGED_EVERY = 8  # one round of this many has lessons of the later stages
PROBLEMS = 64  # per round, for proposals and programs
SOLVE_STAGE = 1  # index of the solve stage in proposer-solver
ALL_LEVELS = 2000  # training problems of proposer-solver, of all levels


class Lesson(NamedTuple):
    """A training question and a right completion."""

    question: Question
    text: str


def draw_training_questions(plan: Plan, round: int = 0) -> Iterator[Question]:
    """Draw training questions as a node without peers does."""
    return plan.draw(StageId("recipe", round, 0), NO_MATERIAL)


def select_questions(plan: Any, task: str, side: Split, count: int) -> list[Question]:
    """Distinct questions of one side of the split; works with all of swarmd's own plans."""
    chosen: list[Question] = plan.select_questions(task, side, count)
    return chosen


def generate_answer_lessons(plan: Plan, seed: int) -> Iterator[Lesson]:
    """Teach right answers, half of them in tags."""
    random = Random(seed)
    for question in draw_training_questions(plan):
        answer = str(question.entry["answer"])
        yield Lesson(question, f"{OPENING}{answer}{CLOSING}" if random.random() < IN_FORM_SHARE else answer)


def generate_program_lessons(plan: Plan, seed: int) -> Iterator[Lesson]:
    """Teach programs with their output and the answer, half of the answers in tags."""
    for question, answer in generate_answer_lessons(plan, seed):
        yield Lesson(question, write_worked_program(question, str(question.entry["answer"])) + answer)


def generate_school_lessons(plan: Plan, seed: int) -> Iterator[Lesson]:
    """Teach answers with their working, and sometimes to judge three students' answers and to state their majority."""
    random = Random(seed)
    for round in itertools.count():
        questions = list(itertools.islice(draw_training_questions(plan, round), count_round_questions(plan)))
        yield from (Lesson(question, write_answer(question, random)) for question in questions)
        if round % JUDGED_EVERY == JUDGED_EVERY - 1:
            yield from generate_judging_lessons(plan, round, questions, random)


def count_round_questions(plan: Plan) -> int:
    """Number of distinct questions in a round."""
    seen = set()
    for question in draw_training_questions(plan):
        if question.reference in seen:
            break
        seen.add(question.reference)
    return len(seen)


def write_answer(question: Question, random: Random) -> str:
    """Write the working and the answer of a generated question, half of them in the template."""
    answer, working = str(question.entry["answer"]), " ".join(find_working(question))
    if random.random() < IN_FORM_SHARE:
        return fill_template(0, {"think": working, "answer": answer})
    return f"{working} {answer}"


def find_working(question: Question) -> Sequence[str]:
    """The working that the question's generator gives for its answer."""
    reference = question.reference
    (level,) = make_task_levels(TaskConfig(reference.task))
    working: Sequence[str] = level.make_dataset(reference.seed)[reference.index]["metadata"]["working"]
    return working


def fill_template(stage: int, sections: Mapping[str, str]) -> str:
    """Fill the template that a stage asks for."""
    return "\n".join(f"<{name}>\n{sections[name]}\n</{name}>" for name in TAGS[stage])


def generate_judging_lessons(plan: Plan, round: int, questions: Sequence[Question], random: Random) -> Iterator[Lesson]:
    """Yield lessons of the later stages, about three students who are sometimes right."""
    material = Material()
    students = [f"student-{number}-{round}" for number in range(STUDENTS)]  # new ids each round
    for peer in students:
        for question in questions:
            add_student_outcome(plan, StageId(peer, round, 0), question, answer_as_student(question, random), material)
    for peer in students:
        for question in itertools.islice(plan.draw(StageId(peer, round, 1), material), len(questions)):
            text = write_student_choice(question)
            add_student_outcome(plan, StageId(peer, round, 1), question, text, material)
            if peer == students[0]:
                yield Lesson(question, text)
    for question in itertools.islice(plan.draw(StageId(students[0], round, 2), material), len(questions)):
        yield Lesson(question, write_vote(question))


def add_student_outcome(plan: Plan, place: StageId, question: Question, text: str, material: Material) -> None:
    """Add one completion of a student to the material, scored as its peers would score it."""
    material.add(Outcome(place, question, (text,), tuple(plan.score(question, [text]))))


def answer_as_student(question: Question, random: Random) -> str:
    """Write the right answer, or sometimes one that is slightly off."""
    answer = int(question.entry["answer"])
    answer += 0 if random.random() < RIGHT_SHARE else random.choice((-2, -1, 1, 2))
    return fill_template(0, {"think": " ".join(find_working(question)), "answer": str(answer)})


def write_student_choice(question: Question) -> str:
    """Name a student who is right, or None."""
    chosen = next((name for name, student in question.entry["students"].items() if student["right"]), "None")
    return fill_template(1, {"compare": question.entry["answer"], "explain": chosen, "identify": chosen})


def write_vote(question: Question) -> str:
    """Name the first student with a vote, and state the answer."""
    chosen = next(iter(question.entry["votes"]), "None")
    answer = str(question.entry["answer"])
    working = " ".join(find_working(question))
    told = {"summarize_feedback": chosen, "majority": chosen, "question": answer, "think": working, "answer": answer}
    return fill_template(2, told)


def generate_problem_lessons(plan: Plan, seed: int) -> Iterator[Lesson]:
    """Teach in turn a proposal, a program for a problem of the node's level, and one for a problem of any level."""
    random = Random(seed)
    proposals = generate_proposal_lessons(plan, random)
    any_level = itertools.cycle(select_questions(plan, plan.tasks[SOLVE_STAGE], "train", ALL_LEVELS))
    for round in itertools.count():
        for question in itertools.islice(plan.draw(StageId("recipe", round, SOLVE_STAGE), NO_MATERIAL), PROBLEMS):
            yield next(proposals)
            yield from (Lesson(each, write_solution(each, random)) for each in (question, next(any_level)))


def generate_proposal_lessons(plan: Plan, random: Random) -> Iterator[Lesson]:
    """Yield proposals of easy training problems of the node's level."""
    for round in itertools.count():
        asked = draw_training_questions(plan, round)
        problems = itertools.islice(plan.draw(StageId("proposals", round, SOLVE_STAGE), NO_MATERIAL), PROBLEMS)
        for sections in filter(None, (write_proposal_sections(each.entry["problem"], random) for each in problems)):
            yield Lesson(next(asked), write_proposal(sections, random))


def write_proposal(sections: Mapping[str, str], random: Random) -> str:
    """Write a proposal, half of them in tags."""
    if random.random() < IN_FORM_SHARE:
        return "\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in sections.items())
    return "\n".join(sections.values())


def write_solution(question: Question, random: Random) -> str:
    """Write a program, half of them in a code block."""
    _, steps = find_problem_steps(question.entry["problem"])
    program = write_program(steps)
    return f"```python\n{program}\n```" if random.random() < IN_FORM_SHARE else program
