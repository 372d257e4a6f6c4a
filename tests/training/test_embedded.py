"""The recipes of the embedded models: reproducible, honest, and what is shipped."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from transformers import AutoModelForCausalLM

from swarmd.cli import run_command
from swarmd.errors import ExitCode
from swarmd.swarms.options import ProposerOptions
from swarmd.swarms.plan import Plan, split_of
from swarmd.swarms.proposer.plan import SOLVE
from swarmd.swarms.proposer.problems import (
    FAMILIES,
    canonical_form_of_steps,
    compose_problem,
    find_sections,
    parse_steps,
    read_proposal,
)
from swarmd.training import embedded as recipe
from swarmd.training.embedded import RECIPES, EmbeddedRecipe, find_recipe
from swarmd.training.evaluation import mean_accuracy
from swarmd.training.lessons import Lesson, select_questions, write_proposal_sections
from swarmd.training.models.source import EMBEDDED_DIR, MODELS_DIR, list_embedded

DIGITS = find_recipe("digits")
PLAN = DIGITS.make_plan()
LESSONS = 120  # that are looked at of each recipe
RUN_LESSONS = 24  # where they have programs that are run
MODELS_BYTES_MAX = 8 * 1024 * 1024  # all of them
each_recipe = pytest.mark.parametrize("made", RECIPES, ids=lambda made: made.model)


def shorten(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> EmbeddedRecipe:
    """The recipe of the digits with other numbers, in place of the one that is there."""
    short = msgspec.structs.replace(DIGITS, **changes)
    monkeypatch.setattr(recipe, "RECIPES", (short, *RECIPES[1:]))
    return short


def test_the_same_seed_gives_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = shorten(monkeypatch, steps_max=4, evaluate_every=2, dev_questions=10, card_questions=10)
    steps: list[int] = []
    built = [
        recipe.build_model(tmp_path / name, short, seed, lambda step, *_: steps.append(step))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert built[0].digest == built[1].digest != built[2].digest
    assert steps == [2, 4] * 3
    assert built[0].size_bytes < 3 * 1024 * 1024
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "Accuracy on held-out questions" in (tmp_path / "a/README.md").read_text()


@each_recipe
def test_the_shipped_tokenizer_is_the_recipes(made: EmbeddedRecipe) -> None:
    shipped = (MODELS_DIR / made.model / "tokenizer.json").read_text()
    texts = recipe.list_tokenizer_texts(made, made.make_plan())
    assert recipe.build_tokenizer(texts, made.vocabulary).backend_tokenizer.to_str(pretty=True) == shipped


def test_every_recipe_has_its_model_and_they_are_small() -> None:
    assert sorted(made.model for made in RECIPES) == sorted(list_embedded())
    files = [file for name in list_embedded() for file in (MODELS_DIR / name).iterdir()]
    assert sum(file.stat().st_size for file in files) < MODELS_BYTES_MAX


def test_the_shipped_model_is_what_its_card_says() -> None:
    result = recipe.measure_model_accuracy(EMBEDDED_DIR, PLAN, DIGITS.completion_tokens_max, questions=100)
    mean = mean_accuracy(result)
    assert mean is not None and 0.1 < mean < 0.3
    assert f"{AutoModelForCausalLM.from_pretrained(EMBEDDED_DIR).num_parameters():,} parameters" in (
        EMBEDDED_DIR / "README.md"
    ).read_text(encoding="utf-8")


def draw_lessons(made: EmbeddedRecipe, plan: Plan) -> Iterator[Lesson]:
    return itertools.islice(made.teach(plan, 0), LESSONS)


@each_recipe
def test_lessons_are_of_training_questions_only(made: EmbeddedRecipe) -> None:
    plan = made.make_plan()
    told = {
        question.messages[-1].content
        for task in plan.tasks
        for side in ("dev", "held-out")
        for question in select_questions(plan, task, side, 200)
    }
    assert told
    for question, _ in draw_lessons(made, plan):
        assert question.messages[-1].content not in told
        assert question.entry.get("question", "") not in told, "shown in a later stage"


@each_recipe
def test_lessons_are_right_and_about_half_of_them_in_form(made: EmbeddedRecipe) -> None:
    """Right whatever the form: a lesson without it is right once it is put on."""
    plan = made.make_plan()
    formed = right = 0
    count = RUN_LESSONS if made.kind in ("code", "proposer-solver") else LESSONS
    for question, text in itertools.islice(draw_lessons(made, plan), count):
        (score,) = plan.score(question, [text])
        formed += score.format == 1.0
        right += score.accuracy == 1.0
        if made.kind in ("digits", "reasoning-gym"):
            assert text.removeprefix("<answer>").removesuffix("</answer>") == question.entry["answer"]
    assert right <= formed
    assert right >= 0.9 * formed, "all that are in form, but for agreements on what was wrong"
    assert 0.3 < formed / count < 0.8


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shorten(monkeypatch, steps_max=10, dev_questions=5, card_questions=5)
    assert run_command(["model", "build", "--out", str(tmp_path / "m"), "--seed", "3"]) == 0
    assert "step   10" in (told := capsys.readouterr().out) and "weights " in told
    assert run_command(["model", "check", str(tmp_path / "m"), "--questions", "5"]) == 0
    assert "digits_sort" in (told := capsys.readouterr().out) and "mean" in told
    assert run_command(["model", "check", str(tmp_path)]) == ExitCode.NO_INPUT
    assert f"there is no model in {tmp_path}" in capsys.readouterr().err


STEPS = [(family, step) for family in FAMILIES for step in (*family.steps, *family.endings)]


def test_proposals_that_are_taught_can_be_read_and_their_solutions_pass() -> None:
    random, written = Random(0), 0
    for family, step in STEPS:
        problem = compose_problem(family, [(step, max(step.least, 1))], [(family.draw(random),)]).problem
        sections = write_proposal_sections(problem, random)
        if sections is None:
            continue
        written += 1
        proposal = read_proposal(sections, ProposerOptions(problem_bytes=300, test_bytes=80, solution_bytes=500))
        assert proposal is not None and proposal.problem.text == problem.text
        exec("\n".join([proposal.solution, *(test.source_line for test in proposal.problem.tests)]), {})
    assert written > 8


def test_no_lesson_is_on_a_problem_that_is_held_out_or_kept_for_development() -> None:
    made = find_recipe("proposer-solver")
    plan = made.make_plan()
    sides, levels = [], set()
    for question, text in itertools.islice(made.teach(plan, 0), 300):
        sections = find_sections(text) or {"problem": text.partition("\n")[0]}
        asked = question.entry["problem"].text if question.task == SOLVE else sections["problem"]
        found = parse_steps(asked)
        assert found is not None
        levels.add(len(found[1]))
        sides.append(split_of(SOLVE, canonical_form_of_steps(*found)))
    assert sides == ["train"] * 300
    assert levels == {1, 2, 3, 4, 5}
