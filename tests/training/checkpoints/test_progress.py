"""What a checkpoint gives back: the optimiser's state to its own kind only, and what a plan remembers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from fractions import Fraction

import pytest

from swarmd.errors import SwarmError
from swarmd.training.cancellation import Cancellation
from swarmd.training.checkpoints.checkpoint import read_checkpoint
from swarmd.training.checkpoints.progress import check_plain
from swarmd.training.engine import TrainingEngine
from tests.log_capture import capture_logs
from tests.training.conftest import order


@pytest.mark.parametrize("value", [deque([1]), Fraction(1, 2), lambda: 1])
def test_what_no_checkpoint_gives_back_is_refused_when_it_is_written(value: object) -> None:
    with pytest.raises(SwarmError, match="cannot be kept"):
        check_plain({"level": value})


def test_another_optimiser_begins_anew_and_the_weights_go_on(make_engine: Callable[..., TrainingEngine]) -> None:
    round = 0
    for before, after in (("adamw", "adamw_8bit"), ("adamw_8bit", "adamw"), ("adamw", "adamw")):
        engine = make_engine(optimizer=before, steps=1, held_out_questions=0)
        trained = engine.train(order(round), Cancellation())
        place = engine.place_of(trained)
        assert read_checkpoint(place).meta.optimizer == before
        with capture_logs() as logs:
            again = make_engine(optimizer=after, steps=1, held_out_questions=0)
        told = [(line["written"], line["now"]) for line in logs if "another optimiser" in line["event"]]
        assert told == ([(before, after)] if before != after else [])
        assert (again.steps, again.weights_digest) == (engine.steps, engine.weights_digest)
        assert bool(again._trainer.optimizer.state_dict()["state"]) == (before == after)
        assert again._pace.fresh_from == (engine._pace.fresh_from if before == after else engine.steps)
        again.train(order(round + 1), Cancellation())
        round += 2
