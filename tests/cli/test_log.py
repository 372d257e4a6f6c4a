"""`swarmd log`: on a data directory or the events alone, with the daemon up or down."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.core.events import MemberSeen
from swarmd.errors import ExitCode
from swarmd.eventlog.frame import NO_COMMANDS
from swarmd.eventlog.segment import list_segments
from tests.cli.owning import Shell
from tests.eventlog.making import NODE, flip, follower_story, members, open_log, write_groups


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory whose log has 40 events in several segments."""
    write_groups(tmp_path / "events", members(40), segment_bytes=500)
    return tmp_path


def seqs_of(lines: list[str]) -> list[int]:
    return [json.loads(line)["seq"] for line in lines]


def test_cat_prints_json_lines(data: Path, shell: Shell) -> None:
    for place in (data, data / "events"):
        lines = shell.well("log", "cat", place).splitlines()
        assert seqs_of(lines) == list(range(40))
    told = shell.fails(ExitCode.BAD_CONFIG, "log", "cat", data, "--from", 5, "--to", 2)
    assert "--to 2 comes before --from 5" in told and "Write --from 2 --to 5" in told
    assert json.loads(lines[3]) == {"seq": 3, "at": 3.0, "type": "member_seen", "peer": "peer3", "name": "xxx"}


@pytest.mark.parametrize(("count", "first"), [("3", 37), ("0", 40), ("99", 0)])
def test_tail_prints_the_last_events(data: Path, shell: Shell, count: str, first: int) -> None:
    assert seqs_of(shell.well("log", "tail", data, "-n", count).splitlines()) == list(range(first, 40))


def test_tail_follows_a_running_daemon(data: Path) -> None:
    follower = subprocess.Popen(
        [sys.executable, "-m", "swarmd", "log", "tail", "-f", "-n", "2", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    try:
        assert seqs_of([follower.stdout.readline() for _ in range(2)]) == [38, 39]
        with open_log(data / "events", "next", segment_bytes=200) as log:
            for seq in range(40, 45):
                log.append(0.0, [MemberSeen(f"peer{seq}")], NO_COMMANDS)
                assert seqs_of([follower.stdout.readline()]) == [seq]
    finally:
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=20)
    assert "Traceback" not in errors


def test_verify_says_what_it_checked(data: Path, shell: Shell) -> None:
    (line,) = shell.well("log", "verify", data).splitlines()
    segments = len(list_segments(data / "events"))
    assert "40 events (seq 0 to 39) in 40 commits" in line
    assert f"{segments} segments, 0 snapshots; node {NODE}" in line


def test_verify_counts_an_unfinished_append(data: Path, shell: Shell) -> None:
    last = list_segments(data / "events")[-1]
    last.write_bytes(last.read_bytes() + b"abc")
    assert "last 3 bytes are an unfinished append" in shell.well("log", "verify", data).splitlines()[1]


def test_verify_names_file_and_offset_of_damage(data: Path, shell: Shell) -> None:
    first = list_segments(data / "events")[0]
    flip(first, -1)
    for verb in ("verify", "cat"):
        errors = shell.fails(ExitCode.BAD_DATA, "log", verb, data)
        assert f"{first} is damaged at byte" in errors and "fix: Restore" in errors


def test_export_writes_a_file(tmp_path: Path, shell: Shell) -> None:
    events = follower_story()
    write_groups(tmp_path / "events", [events])
    lines = tmp_path / "out.jsonl"
    assert shell.well("log", "export", tmp_path, "--jsonl", lines) == f"{lines}: {len(events)} events\n"
    assert len(lines.read_text().splitlines()) == len(events)
