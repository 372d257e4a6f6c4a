"""The benchmarks' own parts: they must measure what they say. Nothing here is timed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import bench.__main__
from bench.__main__ import BENCHMARKS, LONG, closing_line
from bench.footprint import part_of
from bench.long_log import write_long_log
from bench.measure import Sample, cpu_of, memory_of, process_tree, ratios, take_turns
from bench.recording import record, write_log
from bench.table import Result, Row, figure, to_markdown
from swarmd.core.events import tag_of
from swarmd.core.values import Role
from swarmd.eventlog.offline.replay import verify

ROOT = Path(__file__).resolve().parent.parent


def test_contestants_take_turns_in_changing_order() -> None:
    order: list[str] = []
    contestants = {name: lambda name=name: float(order.append(name) or len(order)) for name in "abc"}
    values = take_turns(contestants, 8)
    rounds = [tuple(order[first : first + 3]) for first in range(0, 24, 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(rounds)) > 2
    assert list(values["a"].values) == [1 + i for i, name in enumerate(order) if name == "a"]


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios(Sample((2.0, 9.0)), Sample((1.0, 3.0))).values == (2.0, 3.0)
    assert Sample((5.0, 1.0, 3.0)).median == 3.0
    assert Sample(tuple(float(i) for i in range(100))).percentile(0.95) == 95.0


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


def test_a_process_is_measured_by_proc() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in process_tree(os.getpid())
        assert process_tree(child.pid) == [child.pid]
        memory = memory_of(os.getpid())
        assert 0 < memory["Pss"] <= memory["Rss"]
        assert cpu_of(os.getpid()) > 0
        assert part_of(child.pid).startswith("python")
    finally:
        child.communicate(b"\n")
    with pytest.raises(OSError, match=str(child.pid)):
        cpu_of(child.pid)


def test_results_are_told_with_goals_and_troubles() -> None:
    rows = (
        Row("fast", "ms", Sample((1.0, 2.0, 4.0)), "peer", Sample((2.0, 4.0, 8.0)), Sample((0.5,)), "<= 1", True),
        Row("slow", "ms", Sample((3.0,)), goal="<= 1 ms", met=False),
    )
    results = [Result("one", "first", rows), Result("two", "second", trouble="nothing to run on")]
    assert closing_line(results) == "1 of 2 goals met; missed: slow"
    text = to_markdown(results)
    assert "| fast | 2 (1..4) ms | peer: 4 (2..8) ms | 0.5 | <= 1 | met |" in text
    assert "Could not run: nothing to run on" in text
    assert [figure(value) for value in (0, 0.01234, 7.654, 12.34, 123456.7)] == [
        "0",
        "0.0123",
        "7.65",
        "12.3",
        "123,457",
    ]


def test_every_benchmark_is_documented() -> None:
    page = (ROOT / "docs" / "BENCHMARKS.md").read_text(encoding="utf-8")
    assert all(f"### {name}" in page for name in BENCHMARKS | LONG)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("apend", "there is no benchmark 'apend'"),
        ("append --peers 5", "--peers is an option of dashboard, page alone"),
        ("sharing --study", "--study is an option of gain alone"),
        ("sharing --seeds 1,a", "--seeds: 'a' is no whole number from 0 on"),
        ("sharing --rounds 0", "--rounds: '0' is no whole number from 1 on"),
        ("sharing --arms 4/4,", "--arms: '4/4,' is no list"),
        ("hostile --seconds nan", "--seconds: 'nan' is no number from 0 on"),
        ("append --json missing/out.json", "--json: missing is no directory"),
        ("append --markdown tests", "tests is a directory; name a file"),
        ("sharing --outcomes missing/out", "--outcomes: missing is no directory"),
        ("sharing worked --outcomes out", "--outcomes keeps those of one benchmark"),
        ("append --outcomes out", "--outcomes keeps those of one benchmark"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(
    words: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["bench", *words.split()])
    monkeypatch.setattr(bench.__main__, "run", lambda *_: pytest.fail("it has begun"))
    with pytest.raises(SystemExit) as ended:
        bench.__main__.main()
    assert ended.value.code == 2 and told in capsys.readouterr().err


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
