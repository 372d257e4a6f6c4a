"""The benchmarks `skills` and `staleness`: that they run real nodes, and that their figures are what they say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench import skills, staleness
from bench.sharing import COMMON
from bench.skills import ASKED, BARE, GUARDED
from bench.specialists import FIRST
from swarmd.training.library_logging import quieten

quieten()
EMBEDDED = Path("embedded")
SMALL = {"steps": 1, "generations": 4, "questions": 4, "own_questions": 4}


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
