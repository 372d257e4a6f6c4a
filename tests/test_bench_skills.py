"""The benchmarks `skills` and `staleness`: that they run real nodes, and that their figures are what they say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench import skills, staleness
from bench.paired import interval
from bench.sharing import COMMON
from bench.skills import ASKED, BARE, GUARDED
from bench.specialists import FIRST
from swarmd.training.library_logging import quieten

quieten()
EMBEDDED = Path("embedded")
SMALL = {"steps": 1, "generations": 4, "questions": 4, "own_questions": 4}


def test_the_interval_is_of_the_mean_of_pairs() -> None:
    low, mean, high = interval([0.5, 0.9, 0.7], [0.4, 0.8, 0.6]).values
    assert low == pytest.approx(0.1) == pytest.approx(mean) and high == pytest.approx(0.1)
    low, mean, high = interval([1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]).values
    assert low < 0 < mean < high <= 1.0


def outcome(arm: str, seed: int, *after: float) -> skills.Outcome:
    return skills.Outcome(arm, seed, [0.9, 0.9, 0.9], list(after), [0.5], 3, 100, 1.0)


def test_the_guard_meets_its_goal_only_where_nothing_is_unlearnt() -> None:
    kept, worn = [outcome(GUARDED, 1, 0.9, 0.9, 0.8)], [outcome(BARE, 1, 0.9, 0.9, 0.3)]
    rows = {row.what: row for row in skills.make_rows({GUARDED: kept, BARE: worn})}
    assert rows["guard: skills unlearnt, of 3"].met is True and rows["no guard: skills unlearnt, of 3"].met is None
    assert rows[f"guard less no guard: {ASKED[-1]} at the end"].ours.median == pytest.approx(0.5)
    rows = {row.what: row for row in skills.make_rows({GUARDED: [outcome(GUARDED, 1, 0.9, 0.9, 0.1)], BARE: worn})}
    assert rows["guard: skills unlearnt, of 3"].met is False


@pytest.mark.soak
def test_a_node_that_is_asked_for_one_skill_rarely_is_measured_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills, "COMMON", {**COMMON, **SMALL})
    monkeypatch.setattr(skills, "HELD_OUT", 4)
    monkeypatch.setattr(skills, "FOLLOWED", 4)
    found = skills.train(tmp_path / "node", EMBEDDED, GUARDED, 1, rounds=2)
    assert len(found.before) == len(found.after) == len(ASKED) and len(found.rounds) == 2
    assert found.tokens > 0 and not (tmp_path / "node").exists()
    assert msgspec.json.decode(msgspec.json.encode(found), type=skills.Outcome) == found


@pytest.mark.soak
def test_all_arms_go_on_from_the_same_nodes_and_the_stale_ones_train_on_old_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staleness, "SETTINGS", {**staleness.SETTINGS, **SMALL, "peer_questions": 2})
    monkeypatch.setattr(staleness, "HELD_OUT", 4)
    monkeypatch.setattr(staleness, "SECOND", FIRST)  # the phrasing that the embedded model knows
    arms = [staleness.ON_POLICY, "stale"]
    own, stale = staleness.part(tmp_path / "nodes", EMBEDDED, arms, 1, rounds=2, delay=3)
    assert own.before == stale.before and own.peers == 0 < stale.peers
    assert not (tmp_path / "nodes").exists()


def stale_outcome(arm: str, seed: int, held_out: float) -> staleness.Outcome:
    return staleness.Outcome(arm, seed, 0.5, held_out, [0.5], 0.5, 100, 1.0)


@pytest.mark.parametrize(("step", "met"), [(0.0, True), (0.01, False)])
def test_staleness_meets_its_goal_only_with_the_whole_interval(step: float, met: bool) -> None:
    own = [stale_outcome(staleness.ON_POLICY, seed, 0.7) for seed in range(3)]
    stale = [stale_outcome("stale", seed, 0.695 - step * seed) for seed in range(3)]
    rows = {row.what: row for row in staleness.make_rows({staleness.ON_POLICY: own, "stale": stale})}
    below = rows["stale: held-out below own"]
    assert below.ours.median == pytest.approx(0.005 + step) and below.met is met
