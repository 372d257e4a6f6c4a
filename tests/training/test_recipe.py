"""The embedded model's recipe: reproducible, honest, and what is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from swarmd.cli import run_command
from swarmd.config import SwarmConfig
from swarmd.errors import ExitCode
from swarmd.swarms.digit_plan import DigitsPlan
from swarmd.swarms.plan import NO_MATERIAL, Place
from swarmd.training import recipe
from swarmd.training.evaluation import mean_accuracy
from swarmd.training.source import EMBEDDED_DIR

PLAN = DigitsPlan(SwarmConfig(id="test"))


def test_the_same_seed_gives_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STEPS_MAX": 4, "EVALUATE_EVERY": 2, "DEV_QUESTIONS": 10, "CARD_QUESTIONS": 10}.items():
        monkeypatch.setattr(recipe, name, value)
    steps: list[int] = []
    built = [
        recipe.build_model(tmp_path / name, seed, lambda step, *_: steps.append(step))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert built[0].digest == built[1].digest != built[2].digest
    assert steps == [2, 4] * 3
    assert built[0].size_bytes < 3 * 1024 * 1024
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "Accuracy on held-out questions" in (tmp_path / "a/README.md").read_text()


def test_the_shipped_tokenizer_is_the_recipes() -> None:
    shipped = (EMBEDDED_DIR / "tokenizer.json").read_text()
    assert recipe.build_tokenizer(PLAN).backend_tokenizer.to_str(pretty=True) == shipped


def test_the_shipped_model_is_what_its_card_says() -> None:
    result = recipe.check_model(EMBEDDED_DIR, PLAN, questions=100)
    mean = mean_accuracy(result)
    assert mean is not None and 0.1 < mean < 0.3
    assert f"{AutoModelForCausalLM.from_pretrained(EMBEDDED_DIR).num_parameters():,} parameters" in (
        EMBEDDED_DIR / "README.md"
    ).read_text(encoding="utf-8")


def test_warm_start_uses_training_questions_and_right_answers_only() -> None:
    policy = recipe.make_policy(recipe.build_tokenizer(PLAN))
    allowed = {}
    for task in PLAN.tasks:
        for side in ("dev", "held-out"):
            for question in PLAN.select(task, side, 200):  # type: ignore[arg-type]
                allowed[tuple(policy.encode_prompt(question.messages))] = side
    answers, tagged = 0, 0
    batches = recipe.draw_batches(policy, PLAN, 0)
    questions = PLAN.draw(Place("recipe", 0, 0), NO_MATERIAL)
    for prompt, target in next(batches) + next(batches):
        assert tuple(prompt) not in allowed
        text = policy.decode_completion(target)
        answer = next(questions).entry["answer"]
        answers += 1
        tagged += text == f"<answer>{answer}</answer>"
        assert text in (answer, f"<answer>{answer}</answer>")
    assert 0.3 < tagged / answers < 0.7


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(recipe, "STEPS_MAX", 10)
    monkeypatch.setattr(recipe, "DEV_QUESTIONS", 5)
    monkeypatch.setattr(recipe, "CARD_QUESTIONS", 5)
    assert run_command(["model", "build", "--out", str(tmp_path / "m"), "--seed", "3"]) == 0
    assert "step   10" in (told := capsys.readouterr().out) and "weights " in told
    assert run_command(["model", "check", str(tmp_path / "m"), "--questions", "5"]) == 0
    assert "digits_sort" in (told := capsys.readouterr().out) and "mean" in told
    assert run_command(["model", "check", str(tmp_path)]) == ExitCode.NO_INPUT
    assert f"there is no model in {tmp_path}" in capsys.readouterr().err
