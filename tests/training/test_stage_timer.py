"""The trainer's time is measured part by part, on real stages, and what is slow in them is named."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from swarmd.config import SwarmConfig
from swarmd.core.state import StageTimes
from swarmd.core.values import TrainerTimes
from swarmd.observe.times import find_bottleneck, split_by_part
from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import make_plan
from swarmd.training import stage_timer
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.models.device import LIGHT_PARAMETERS_MAX
from swarmd.training.models.model import Policy
from swarmd.training.sampling import Sampler
from swarmd.training.stage_timer import StageTimer, count_idle_cores
from tests.training.conftest import make_config, train_stage

Maker = Callable[..., TrainingEngine]


def train_timed(engine: TrainingEngine, round: int) -> StageTimes:
    """Train a stage, as the log would know of its time."""
    began = time.perf_counter()
    event = train_stage(engine, round)
    return StageTimes(round, 0, (("train", time.perf_counter() - began),), trained=True, trainer=event.times)


def test_the_parts_of_a_stage_make_up_its_time(make_engine: Maker) -> None:
    engine = make_engine()
    train_timed(engine, 0)
    shares = []
    for round in (1, 2):
        times = train_timed(engine, round)
        parts = split_by_part(times)
        assert {"prefill", "decode", "score", "forward", "backward", "optimiser", "evaluation"} <= parts.keys()
        assert times.trainer is not None and times.trainer.processor_s > 0
        shares.append(1 - parts.get("other", 0.0) / sum(parts.values()))
    assert max(shares) >= 0.95


def test_a_reward_function_that_sleeps_is_the_bottleneck(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1)} for n in range(40)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    slow = "import time\n\ndef right(completions, **_):\n    time.sleep(0.2)\n    return [0.0] * len(completions)\n"
    (tmp_path / "mine.py").write_text(slow)
    options = {"data": "q.jsonl", "reward_funcs": ["mine:right"]}
    config = make_config(held_out_questions=0)
    config = msgspec.structs.replace(config, swarm=SwarmConfig("test", kind="file", options=options))
    plan = make_plan(config.swarm, config.training, tmp_path)
    engine = TrainingEngine(config, NodeDirectory(tmp_path / "a"), "a", plan)
    times = train_timed(engine, 0)
    assert find_bottleneck(split_by_part(times), times) == "score"
    engine.close()


def test_the_tail_of_a_batch_is_measured(policy: Policy) -> None:
    sampler = Sampler(policy)
    sampler._stop_ids = []

    def draw(*rooms: int) -> TrainerTimes:
        sampler.timer.start()
        sampler.sample([[5, 6, 7]] * 16, 1, 60, 1.0, torch.Generator(), Cancellation(), rooms=rooms)
        return sampler.timer.read()

    one_long, even = draw(*[2] * 15, 60), draw(*[30] * 16)
    assert one_long.tail_s > 0.5 * dict(one_long.parts)["decode"]
    assert even.tail_s < 0.5 * dict(even.parts)["decode"]


def test_parts_within_parts_are_told_apart_but_not_in_an_evaluation_or_judging(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(StageTimer, "clock", staticmethod(lambda: now[0]))

    def take(timer: StageTimer, parts: Sequence[str], *rest: Any) -> None:
        if parts:
            with timer.time(parts[0]):  # type: ignore[arg-type]
                now[0] += 1.0
                take(timer, parts[1:])
                now[0] += 1.0

    timer = StageTimer()
    take(timer, ["forward", "decode", "prefill"])
    take(timer, ["evaluation", "decode", "prefill"])
    take(timer, ["judge", "score"])
    now[0] += 5.0
    expected = (
        *(("other", 5.0), ("forward", 2.0), ("decode", 2.0), ("prefill", 2.0)),
        *(("evaluation", 6.0), ("judge", 4.0)),
    )
    assert timer.read().parts == expected
    timer.start()
    with pytest.raises(KeyError), timer.time("score"):
        now[0] += 1.0
        raise KeyError
    now[0] += 1.0
    assert timer.read().parts == (("other", 1.0), ("score", 1.0))


def test_only_cores_that_would_help_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_timer.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(stage_timer.torch, "get_num_threads", lambda: 1)
    large = LIGHT_PARAMETERS_MAX + 1
    assert count_idle_cores(large, "cpu") == 7
    assert count_idle_cores(large, "cuda") == count_idle_cores(LIGHT_PARAMETERS_MAX, "cpu") == 0
    assert TrainerTimes(()).idle_cores == 0
