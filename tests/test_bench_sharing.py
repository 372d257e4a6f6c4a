"""The benchmark `sharing`: that it runs, that peers' groups are trained on, and that its figures are what they say."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import learning
from bench.sharing import HOSTILE, LONER, MAIN, STALE, VARIANTS, Swarm, make_arms
from bench.specialists import FIRST
from swarmd.config import TrainingConfig
from swarmd.core.events import StageTrained
from swarmd.training.engine import TrainingEngine
from swarmd.training.library_logging import quieten

quieten()
EMBEDDED = [Path("embedded")] * 2


def run_slice(directory: Path, settings: Mapping[str, Any]) -> Swarm:
    """Two rounds of two nodes with the embedded model, under the words that it knows."""
    small = {"steps": 1, "generations": 4}
    swarm = Swarm(directory, EMBEDDED, 0, {**settings, **small}, FIRST)
    assert all(0 <= swarm.train(round) <= 1 for round in range(2))
    return swarm


def test_a_swarm_trains_on_what_its_peers_published_and_a_loner_does_not(tmp_path: Path) -> None:
    arms = make_arms()
    shared = run_slice(tmp_path / "swarm", arms["4/4"])
    assert shared.peer_groups > 0
    loner = run_slice(tmp_path / "loner", arms[LONER])
    assert loner.peer_groups == 0
    assert 0.5 < shared.tokens / loner.tokens < 2  # as many completions


def test_arms_fill_a_batch_and_have_own_groups_in_it() -> None:
    assert set(MAIN) <= set(make_arms()) >= {f"4/4 {name}" for name in VARIANTS}
    for settings in make_arms().values():
        training = TrainingConfig(**{key: value for key, value in settings.items() if key not in (HOSTILE, STALE)})
        assert training.peer_questions + training.replay_questions < 8


@pytest.mark.soak
def test_learning_measures_before_the_first_step_and_after_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the default settings learn is in test_engine.py; here they are smaller."""
    small = {"steps": 1, "questions": 4, "generations": 4, "peer_questions": 2, "held_out_questions": 8}
    monkeypatch.setattr(learning, "TrainingConfig", functools.partial(TrainingConfig, **small))
    told: list[StageTrained] = []
    train = TrainingEngine.train

    def note(engine: TrainingEngine, *arguments: Any) -> StageTrained:
        told.append(train(engine, *arguments))
        return told[-1]

    monkeypatch.setattr(TrainingEngine, "train", note)
    accuracies = learning.learn(tmp_path / "nodes", "learning-test", 2, 2)
    before = [event.held_out_before for event in told[:2]]
    after = [event.held_out for event in told]
    means = [sum(map(float, pair)) / 2 for pair in (before, after[:2], after[2:])]  # type: ignore[arg-type]
    assert accuracies == pytest.approx(means) and accuracies[0] > 0
    assert len({event.rollouts.peer for event in told}) == 2 and len(set(after)) > 1
    assert [event.round for event in told] == [0, 0, 1, 1]
    assert all(event.peer_groups > 0 for event in told[2:]), "each trains on what the other published"
    assert not (tmp_path / "nodes").exists()
