"""Two stages among peers: what is proposed, checked by running, solved, refused, and what it is worth."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
import pytest

from swarmd.config import SwarmConfig, TaskConfig
from swarmd.errors import RecordRejected, SandboxUnavailable, SwarmError
from swarmd.sandbox import Verdict
from swarmd.swarms.plan import Material, Outcome, Question, StageId, split_of
from swarmd.swarms.proposer.plan import PROPOSE, SOLVE, ProposerSolverPlan
from swarmd.swarms.proposer.problems import read_test
from swarmd.swarms.proposer.running import ProgramJob, make_test_program
from swarmd.swarms.rollouts import Source
from tests.swarms.making import refusal, take
from tests.swarms.proposer.texts import LIMITS, SOLUTION, TESTS, fence, make_plan, propose, publish

ANNA, OTTO, ZOE = (StageId(peer, 3, 0) for peer in ("anna", "otto", "zoe"))
SQUARES = [f"assert solve({n}) == {n * n}" for n in range(2, 7)]
OTHER = propose("def solve(n):\n    return n * n", SQUARES, "Return the square.")


def at(place: StageId, stage: int, round: int = 3) -> StageId:
    return StageId(place.peer, round, stage)


@pytest.fixture(scope="module")
def plan() -> ProposerSolverPlan:
    return make_plan()


@pytest.fixture(scope="module")
def material(plan: ProposerSolverPlan) -> Material:
    """Anna proposed something valid and something not; Otto proposed something else, and Anna's once more."""
    known = Material()
    asked = {place: take(plan, 1, place)[0] for place in (ANNA, OTTO)}
    publish(plan, ANNA, asked[ANNA], [propose(), propose("def solve(x): return 0")], known)
    publish(plan, OTTO, asked[OTTO], [OTHER, propose()], known)
    return known


def solving(plan: ProposerSolverPlan, material: Material, count: int = 6) -> list[Question]:
    return take(plan, count, at(ZOE, 1), material)


def test_proposals_differ_between_nodes_rounds_and_places_and_name_their_level(plan: ProposerSolverPlan) -> None:
    drawn = [q for place in (ANNA, OTTO, at(ANNA, 0, 4)) for q in take(plan, 20, place)]
    assert len({(q.reference.seed, q.reference.index) for q in drawn}) == 60
    assert len({q.messages[-1].content for q in drawn}) > 40
    assert {q.entry["level"] for q in drawn} == {2} and all(
        "Difficulty 2 of 5" in q.messages[-1].content for q in drawn
    )
    harder = make_plan(level=4)
    question = take(harder, 1, ANNA)[0]
    assert plan.regenerate(question.reference, ANNA, Material()).messages == question.messages
    assert question.entry["level"] == 4 and take(harder, 1, ANNA) == [question]


def test_what_proposals_are_worth(plan: ProposerSolverPlan) -> None:
    question = take(plan, 1, ANNA)[0]
    texts = [
        propose(),
        propose(tests=[*TESTS[:4], "assert solve([5]) == 1"]),
        propose(tests=TESTS[:2]),
        "I propose to count.",
        propose("import random\ndef solve(x):\n    return random.random()"),
        propose("def solve(x:\n"),
        propose("raise SystemExit"),
    ]
    scores = plan.score(question, texts)
    assert [round(score.reward, 6) for score in scores] == [0.95, 0.2, 0.1, 0.0, 0.2, 0.2, 0.2]
    assert [score.accuracy for score in scores] == [1.0, 0, 0, 0, 0, 0, 0] and not any(score.failed for score in scores)


def test_a_solution_that_differs_from_run_to_run_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan()
    question = take(plan, 1, ANNA)[0]
    returned = iter(['["6", "0", "2", "16", "0"]', '["6", "0", "2", "16", "1"]'])

    def run_all(programs: Sequence[str], wall_s: float) -> list[Verdict]:
        return [Verdict(status="ok", stdout=f"\n{next(returned)}") for _ in programs]

    monkeypatch.setattr(plan._runner._sandbox, "run_all", run_all)
    assert [score.accuracy for score in plan.score(question, [propose()])] == [0.0]
    assert next(returned, None) is None, "it ran twice"


def test_solvers_get_the_valid_proposals_once_and_then_built_in_problems(
    plan: ProposerSolverPlan, material: Material
) -> None:
    questions = solving(plan, material)
    proposed = [q for q in questions if q.reference.sources]
    assert questions[: len(proposed)] == proposed and len(proposed) == 2, "Anna's and Otto's same problem counts once"
    assert {q.reference.sources[0].peer for q in proposed} <= {"anna", "otto"}
    assert {q.messages[-1].content.splitlines()[0] for q in proposed} == {
        "Return the sum of the even numbers of a list.",
        "Return the square.",
    }
    assert len({q.messages[-1].content for q in questions}) == len(questions)
    for question in questions:
        again = plan.regenerate(question.reference, at(ZOE, 1), material)
        assert (again.messages, again.reference) == (question.messages, question.reference)
        assert question.messages[-1].content.count("assert") == 2, "the other tests are hidden"
    late = take(plan, 3, at(ZOE, 1))
    assert all(q.reference.sources == () and q.stage == 1 for q in late)


def change(question: Question, **changes: Any) -> Any:
    return msgspec.structs.replace(question.reference, **changes)


def test_forged_references_are_refused_with_a_reason(plan: ProposerSolverPlan, material: Material) -> None:
    topic, (proposed, *_, built_in) = take(plan, 1, ANNA)[0], solving(plan, material)
    (source,) = proposed.reference.sources
    invalid = change(proposed, index=proposed.reference.index // 64 * 64 + 1, sources=(Source(0, "anna", 1),))
    held_out = plan.hold_out(SOLVE, 1)[0]
    cases = [
        (change(topic, task="other"), ANNA, "unknown-task"),
        (change(topic, config_digest="0"), ANNA, "config-digest"),
        (topic.reference, OTTO, "seed"),
        (topic.reference, at(ANNA, 0, 4), "seed"),
        (change(topic, index=2**31 - 1), ANNA, "seed"),
        (topic.reference, at(ANNA, 1), "source"),
        (change(topic, sources=(Source(0, "anna"),)), ANNA, "source"),
        (proposed.reference, at(ZOE, 0), "source"),
        (change(proposed, sources=(Source(0, "nobody", source.choice),)), at(ZOE, 1), "source"),
        (change(proposed, sources=(Source(1, source.peer, source.choice),)), at(ZOE, 1), "source"),
        (change(proposed, sources=(Source(0, source.peer, 63),)), at(ZOE, 1), "source"),
        (change(proposed, sources=(source, Source(0, "zoe"))), at(ZOE, 1), "source"),
        (proposed.reference, at(ZOE, 1, 4), "source"),
        (change(proposed, index=proposed.reference.index + 320), at(ZOE, 1), "source"),
        (invalid, at(ZOE, 1), "source"),
        (built_in.reference, at(ANNA, 1), "seed"),
        (change(built_in, seed=held_out.reference.seed), at(ZOE, 1), "seed"),
    ]
    for reference, place, reason in cases:
        assert refusal(plan, reference, place, material) == reason, reference


def test_held_out_problems_are_the_same_everywhere_and_never_trained_on(plan: ProposerSolverPlan) -> None:
    held_out = plan.hold_out(SOLVE, 10)
    assert held_out == plan.hold_out(SOLVE, 10) and plan.hold_out(PROPOSE, 10) == []
    texts = {question.entry["problem"].text for question in held_out}
    assert len(texts) == 10
    drawn = list(islice(plan.draw(at(ANNA, 1), Material()), 150))
    assert texts.isdisjoint(question.entry["problem"].text for question in drawn)
    refused = 0
    for index in range(40):
        try:
            plan.regenerate(change(drawn[0], index=index), at(ANNA, 1), Material())
        except RecordRejected as error:
            refused += error.reason == "held-out"
    assert 0 < refused < 40


def test_a_proposal_of_a_held_out_problem_is_not_valid_and_nobody_solves_it(plan: ProposerSolverPlan) -> None:
    steps = [(k, f"solve takes a whole number. Add {k}. Return the result.") for k in range(1, 10)]
    texts = [
        propose(f"def solve(x):\n    return x + {k}", [f"assert solve({n}) == {n + k}" for n in range(4)], words)
        for k, words in steps
    ]
    sides = [split_of(SOLVE, f"number: add {k}") for k, _ in steps]
    known = Material()
    outcome = publish(plan, ANNA, take(plan, 1, ANNA)[0], texts, known)
    assert [score.accuracy for score in outcome.scores] == [float(side != "held-out") for side in sides]
    assert {score.format for score in outcome.scores} == {1.0}, "each can be read"
    solved = {question.entry["problem"].text for question in solving(plan, known, 40)}
    for (_, words), side in zip(steps, sides, strict=True):
        assert (words in solved) == (side != "held-out")
    assert 0 < sides.count("held-out") < len(sides)


def test_programs_are_paid_by_the_hidden_tests(plan: ProposerSolverPlan, material: Material) -> None:
    question = next(q for q in solving(plan, material) if "even" in q.messages[-1].content)
    shown = "def solve(x):\n    return {(1, 2, 4): 6, (): 0}[tuple(x)]"
    texts = [
        fence(SOLUTION),
        fence(shown),
        fence("def solve(x): return 2"),
        SOLUTION,
        fence(SOLUTION) + fence(SOLUTION),
        fence('import os\nos.write(1, b\'["6", "0", "2", "16", "0"]\')\nos._exit(0)'),
        fence("print('noise')\n" + SOLUTION + "\nimport sys\nsys.exit()"),
        fence("def solve(x):\n    raise ValueError"),
        "",
    ]
    scores = plan.score(question, texts)
    shares = [1.0, 0.0, 1 / 3, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert [score.accuracy for score in scores] == shares, "who forges the line must know what is expected"
    assert [score.format for score in scores] == [1, 1, 1, 0, 0, 0, 1, 1, 0]


def test_compat_gives_codezeros_numbers(material: Material) -> None:
    plan = make_plan(rewards="compat", solution_bytes=300)
    known = Material()
    publish(plan, ANNA, take(plan, 1, ANNA)[0], [propose()], known)
    question = take(plan, 1, at(ZOE, 1), known)[0]
    long = fence(SOLUTION + "\n# " + "x" * 300)
    texts = [
        "",
        "no block",
        "no block " * 99,
        fence(SOLUTION),
        fence("def solve(x): return 2"),
        f"{'long ' * 99}{long}",
    ]
    scores = plan.score(question, texts)
    assert [round(score.reward, 6) for score in scores] == [-1.2, -0.8, -1.2, 1.2, 0.2, -0.2]
    proposed = plan.score(take(plan, 1, ANNA)[0], [propose(), "x"])
    assert [score.reward for score in proposed] == [0.5, 0.0]


def test_difficulty_pays_proposers_in_the_next_round_and_peers_are_scored_without(
    plan: ProposerSolverPlan, material: Material
) -> None:
    known = Material(material.at(3, 0))
    for question in solving(plan, material, 3):
        text = fence(SOLUTION), fence("def solve(x): return 2")
        outcome: Outcome = publish(plan, at(ZOE, 1), question, text, known)
        assert len(outcome.scores) == 2
    asked = take(plan, 1, at(ANNA, 0, 4), known)[0]
    fresh = propose(statement="Add up all even numbers of the list.")
    parts = [score.parts["difficulty"] for score in plan.score(asked, [propose(), OTHER, fresh, "x"])]
    assert parts == [0.25, 0.0, 0.25, 0.0], (
        "half solved the first, nobody the second, and of the third nothing is known"
    )
    again = plan.regenerate(asked.reference, at(ANNA, 0, 4), known)
    assert [score.parts["difficulty"] for score in plan.score(again, [propose(), OTHER])] == [0.25, 0.25]


def test_what_a_node_learns_moves_its_level_and_survives_a_restart() -> None:
    learner = make_plan()
    for round in range(21):
        question = take(learner, 1, at(ANNA, 1, round))[0]
        score = learner.score(question, ["nothing"])[0]
        learner.learn(question, [msgspec.structs.replace(score, reward=float(round >= 10))] * 2)
        learner.learn(take(learner, 1, at(ANNA, 0, round))[0], [score])
    assert learner.level == 3
    reborn = make_plan()
    reborn.load_memory(learner.read_memory())
    assert reborn.read_memory() == learner.read_memory() and reborn.level == 3
    assert take(reborn, 1, at(ANNA, 0, 21))[0].entry["level"] == 3
    reborn.load_memory({})
    assert reborn.level == 3


def test_options_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SwarmError, match="tasks"):
        ProposerSolverPlan(SwarmConfig(id="test", stages=2, tasks=(TaskConfig("chain_sum"),)))
    monkeypatch.setattr("swarmd.sandbox.sandbox.BEST_FIRST", ())
    with pytest.raises(SandboxUnavailable, match="cannot be confined"):
        make_plan(limits=LIMITS)


def test_what_tests_expect_never_enters_the_sandbox() -> None:
    tests = tuple(filter(None, map(read_test, ("assert solve(1) == 'sesame'", "assert solve(2) == 4711"))))
    program = make_test_program(ProgramJob("def solve(x): return x", tests))
    assert "(1,), (2,)" in program and "sesame" not in program and "4711" not in program
