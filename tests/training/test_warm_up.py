"""The warm-up teaches where to write an answer, but no answers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from swarmd.config import VllmConfig, check_combined_settings
from swarmd.errors import ConfigError
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.training import warm_up
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.evaluation import mean_accuracy
from swarmd.training.warm_up import (
    FORMS,
    IN_A_ROW,
    FormExample,
    compute_form_loss,
    find_answer_form,
    make_example,
    make_examples,
    teach_form,
)
from swarmd.worker.messages import ProgressMessage
from tests.training.conftest import make_config, order
from tests.training.test_flatness import asked, digits

Maker = Callable[..., TrainingEngine]
PLACE = StageId("a", 0, 0)


def marks(engine: TrainingEngine, example: FormExample) -> str:
    """What is learnt of an example, in words."""
    chosen = zip(example.completion, example.learnt, strict=True)
    return engine.policy.decode_completion([token for token, learnt in chosen if learnt])


def test_the_form_is_the_one_in_which_the_swarm_finds_answers(tmp_path: Path) -> None:
    boxed = asked(tmp_path, answer="boxed")
    numbers = asked(tmp_path, answer="last-number", rewards=[{"name": "numeric"}])
    assert find_answer_form(digits(tmp_path), next(digits(tmp_path).draw(PLACE, NO_MATERIAL))) == FORMS[0]
    assert find_answer_form(boxed, next(boxed.draw(PLACE, NO_MATERIAL))) == FORMS[1]
    assert find_answer_form(numbers, next(numbers.draw(PLACE, NO_MATERIAL))) is None, "a number needs no marks"


def test_an_example_holds_a_wrong_answer_and_teaches_its_marks_alone(make_engine: Maker) -> None:
    engine = make_engine(completion_tokens=24)
    plan = engine._plan
    questions = list(islice(plan.draw(PLACE, NO_MATERIAL), 8))
    parts = (plan, engine.policy, engine._sampler, engine._training, iter(questions), 1, Cancellation())
    examples = make_examples(*parts)
    assert len(examples) == 8 and examples == make_examples(*parts[:4], iter(questions), *parts[5:])
    for question, example in zip(questions, examples, strict=True):
        text = engine.policy.decode_completion(example.completion)
        score = plan.score(question, [text])[0]
        assert score.answered and score.format and not score.accuracy
        assert marks(engine, example) == "<answer></answer>" and example.completion[-1] in engine.policy.stop_ids
        assert len(example.completion) <= 24


def test_the_form_is_learnt(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model never writes a box, and takes larger steps than a real one."""
    monkeypatch.setattr(warm_up, "RATE", 1e-3)
    engine = make_engine(completion_tokens=24)
    questions = list(islice(engine._plan.draw(PLACE, NO_MATERIAL), 4))
    prompts = [engine.policy.encode_prompt(question.messages) for question in questions]
    examples = [make_example(engine.policy, prompt, "", str(n), FORMS[1], 24) for n, prompt in enumerate(prompts)]
    before = [float(compute_form_loss(engine.policy, example)) for example in examples]
    taken = teach_form(engine.policy, engine._trainer.optimizer, examples * 48, Cancellation(), lambda *_: None)
    after = [float(compute_form_loss(engine.policy, example)) for example in examples]
    assert min(before) > 5 and max(after) < 1
    assert IN_A_ROW <= taken < 48, "it ends when the form is known"


def test_a_nodes_first_stage_begins_with_it_and_no_later_one_does(make_engine: Maker) -> None:
    engine = make_engine(warm_up="form", completion_tokens=24, steps=1)
    told: list[ProgressMessage] = []
    event = engine.train(order(0), Cancellation(), told.append)
    assert event.steps == engine.steps == 1 and event.held_out_before is not None
    whats = [progress.what for progress in told]
    first = [what for place, what in enumerate(whats) if what not in whats[:place]]
    assert first[1:4] == ["measuring held-out accuracy", "drawing examples of the form", "warming up the form"]
    assert mean_accuracy(engine._measured) is not None
    told.clear()
    engine.train(order(1), Cancellation(), told.append)
    assert not [progress for progress in told if "form" in progress.what]


def test_it_needs_a_model_in_one_process_that_draws_for_itself() -> None:
    for settings in ({"processes": 2}, {"vllm": VllmConfig("colocate")}):
        with pytest.raises(ConfigError, match=r"training\.warm_up needs"):
            check_combined_settings(make_config(warm_up="form", **settings))
