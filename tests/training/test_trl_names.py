"""Steps are told under TRL's own names, with the values that TRL would have logged."""

import inspect
from collections.abc import Callable

import pytest
import torch
import transformers
from trl import GRPOTrainer
from trl.trainer.utils import nanstd

from swarmd.results.trackers import Trackers
from swarmd.swarms.plan import Question, Score
from swarmd.swarms.rollouts import Reference
from swarmd.training.batches.groups import TrainingGroup
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.trl_names import OF_LOSS, OF_TRAINER, read_as_trl
from tests.training.conftest import order
from tests.training.test_results import Kept

STOP = 9


def group(values: list[float], lengths: list[int], cut: int = 0) -> TrainingGroup:
    """Completions of these rewards and lengths; the first `cut` of them have no end."""
    completions = [[1] * (n - 1) + [1 if place < cut else STOP] for place, n in enumerate(lengths)]
    scores = [Score(2 * value, parts={"exact": 2 * value}, values={"exact": value}) for value in values]
    question = Question(Reference("t", "0" * 16, 0, 0), (), {})
    texts = [""] * len(values)
    return TrainingGroup(question, [1], completions, texts, [s.reward for s in scores], scores, completions)


def test_the_values_are_those_of_trl() -> None:
    groups = [group([0.0, 1.0, 0.5], [4, 6, 2], cut=1), group([0.5, 0.5, 0.5], [3, 3, 3])]
    told = read_as_trl(groups, {STOP}, {"loss": 0.25, "gradient_norm": 2.0}, {"kl": [9.0, 1.0, 3.0]}, 2)
    values = torch.tensor([0.0, 1.0, 0.5, 0.5, 0.5, 0.5])
    assert told.pop("train/rewards/exact/std") == pytest.approx(float(nanstd(values)))
    assert told.pop("train/reward_std") == pytest.approx(float(nanstd(2 * values)))
    assert told == {
        "train/rewards/exact/mean": 0.5,
        "train/reward": 1.0,
        "train/frac_reward_zero_std": 0.5,
        "train/completions/clipped_ratio": pytest.approx(1 / 6),
        "train/completions/mean_length": 3.5,
        "train/completions/min_length": 2.0,
        "train/completions/max_length": 6.0,
        "train/completions/mean_terminated_length": pytest.approx(17 / 5),
        "train/completions/min_terminated_length": 2.0,
        "train/completions/max_terminated_length": 6.0,
        "train/loss": 0.25,
        "train/grad_norm": 2.0,
        "train/kl": 2.0,
    }


def test_a_step_of_the_engine_is_told_by_names_that_trl_and_transformers_log(
    make_engine: Callable[..., TrainingEngine],
) -> None:
    kept = Kept()
    engine = make_engine(steps=1, beta=0.1)
    engine.trackers = Trackers({"kept": lambda: kept})
    engine.train(order(0), Cancellation())
    figures = kept.figures[0][1]
    names = {name.removeprefix("train/") for name in figures if name.startswith("train/")}
    assert names >= {"reward", "reward_std", "frac_reward_zero_std", *OF_LOSS, *OF_TRAINER}
    assert figures["train/reward"] == pytest.approx(figures["step/reward"])
    assert figures["train/completions/mean_length"] == pytest.approx(figures["step/completion_tokens"])
    assert (figures["train/kl"], figures["train/loss"]) == (figures["step/kl"], figures["step/loss"])
    source = inspect.getsource(GRPOTrainer) + inspect.getsource(transformers.Trainer)
    assert 'f"rewards/{reward_func_name}/mean"' in source and 'f"rewards/{reward_func_name}/std"' in source
    assert not {name for name in names if not name.startswith("rewards/") and f'"{name}"' not in source}
