"""The benchmarks' own parts: they must measure what they say. Nothing here is timed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import bench.__main__
from bench.__main__ import BENCHMARKS, LONG
from bench.long_log import write_long_log
from bench.measure import Sample
from bench.recording import record, write_log
from bench.table import Row
from swarmd.core.events import tag_of
from swarmd.core.values import Role
from swarmd.eventlog.replay import verify

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("role", ["coordinator", "follower"])
def test_a_recorded_life_is_a_log_that_verifies(tmp_path: Path, role: Role) -> None:
    life = record(role, 600)
    tags = Counter(tag_of(event) for commit in life.commits for event in commit.events)
    found = verify(write_log(tmp_path / "events", life.commits, group=8))
    assert found.events == life.events == sum(tags.values()) >= 600
    assert life.state.rounds_skipped == 0
    assert life.state.done[0] >= life.round - 1 > 50, "every round is trained"
    assert tags["report_seen"] == (3 * tags["report_published"] if role == "coordinator" else 0)


def test_a_long_log_has_snapshots_and_verifies_and_its_signed_reports_add_up(tmp_path: Path) -> None:
    last = write_long_log(tmp_path / "events", 1500, segment_bytes=100_000)
    found = verify(tmp_path / "events")
    assert found.events >= 1500
    assert found.snapshots >= 2
    told = subprocess.run(
        [sys.executable, "-m", "swarmd", "leaderboard", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert f"signed reports of {last} rounds add up" in told.stdout


def test_every_benchmark_is_documented() -> None:
    page = (ROOT / "docs" / "BENCHMARKS.md").read_text(encoding="utf-8")
    assert all(f"### {name}" in page for name in BENCHMARKS | LONG)


def test_a_benchmark_that_is_interrupted_leaves_no_directory_and_what_was_measured_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(directory: Path) -> list[Row]:
        (directory / "kept").touch()
        raise KeyboardInterrupt

    out = tmp_path / "out.json"
    monkeypatch.setattr(bench.__main__, "PLACE", tmp_path / "bench")
    monkeypatch.setattr("bench.append.run", lambda directory: [Row("measured", "ms", Sample((1.0,)))])
    monkeypatch.setattr("bench.simulator.run", interrupt)
    monkeypatch.setattr(sys, "argv", ["bench", "append", "simulator", "restart", "--json", str(out)])
    assert bench.__main__.main() == 130
    assert "simulator was interrupted" in capsys.readouterr().out
    assert [result["name"] for result in msgspec.json.decode(out.read_bytes())["results"]] == ["append"]
    assert {path.name for path in (tmp_path / "bench").iterdir()} == {"append.lock", "simulator.lock"}
