"""Held-out questions are drawn in batches that memory was reckoned for, and within the limits of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.sampling.generation import Sampling


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Lengths of the prompts of each batch."""
    batches: list[list[int]] = []
    draw = Sampling.sample

    def note(self: Any, prompts: Sequence[Sequence[int]], *args: Any, **kwargs: Any) -> Any:
        batches.append([len(prompt) for prompt in prompts])
        return draw(self, prompts, *args, **kwargs)

    monkeypatch.setattr(Sampling, "sample", note)
    return batches


def test_as_many_are_drawn_together_as_completions_in_a_step(
    make_engine: Callable[..., TrainingEngine], drawn: list[list[int]]
) -> None:
    engine = make_engine(questions=3, generations=2, held_out_questions=16)
    assert engine._measure(Cancellation()).keys() == set(engine._plan.tasks)
    assert max(map(len, drawn)) == 6
    assert sum(map(len, drawn)) == 16 * len(engine._plan.tasks)


def test_questions_that_are_too_long_are_not_asked(
    make_engine: Callable[..., TrainingEngine], drawn: list[list[int]]
) -> None:
    whole = make_engine("whole", held_out_questions=16)
    whole._measure(Cancellation())
    lengths = sorted(length for batch in drawn for length in batch)
    limit = lengths[len(lengths) // 2]
    assert limit < lengths[-1], "some are longer"
    drawn.clear()
    make_engine("limited", held_out_questions=16, prompt_tokens=limit)._measure(Cancellation())
    assert sorted(length for batch in drawn for length in batch) == [each for each in lengths if each <= limit]
    drawn.clear()
    assert make_engine("none", held_out_questions=16, prompt_tokens=1)._measure(Cancellation()) == {}
    assert drawn == []
