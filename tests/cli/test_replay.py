"""`swarmd replay`: from the log alone."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.long_log import write_long_log
from swarmd.core.chart import GAPS, shipped_charts_directory
from swarmd.core.events import RoundsSkipped
from swarmd.core.state import State
from swarmd.errors import ExitCode
from swarmd.eventlog.fold import oldest_base
from swarmd.eventlog.frame import NO_COMMANDS
from swarmd.eventlog.segment import first_seq_of, list_segments
from tests.cli.owning import Shell
from tests.core.story import Story, announced, gathered, settings, trained
from tests.eventlog.making import NODE, follower_story, open_log, write_groups, write_story
from tests.eventlog.recut import recut

EVENTS = follower_story()
LOG = Path(__file__).parents[1] / "golden" / "hostile" / "events"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory in which a follower has lived through three rounds."""
    with open_log(tmp_path / "events") as log:
        write_story(log, EVENTS, State(), group=2)
    return tmp_path


def json_lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_replay_lists_events_chart_states_and_commands(data: Path, shell: Shell) -> None:
    for place in (data, data / "events"):
        text = shell.well("replay", str(place))
        assert text.count("stage_trained") == 3
        assert "chart: round.gathering → round.training" in text
        assert "▶ train id=train/2/0 round=2 stage=0" in text
        assert text.endswith(f"{len(EVENTS)} events, {len(EVENTS)} shown; the node is in round.publishing\n")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--type", "stage_trained"), [8, 11, 14]),
        (("--type", "StageTrained", "--type", "registered"), [4, 8, 11, 14]),
        (("--round", "1"), [9, 10, 11]),
        (("--round", "1", "--stage", "1"), []),
        (("--from", "3", "--to", "5"), [3, 4, 5]),
    ],
)
def test_filters_choose_what_is_shown(data: Path, shell: Shell, args, expected) -> None:
    shown = json_lines(shell.well("replay", str(data), "--json", *args))
    assert [line["seq"] for line in shown] == expected


def test_a_type_that_no_event_has_is_told_with_the_nearest(data: Path, shell: Shell) -> None:
    told = shell.fails(ExitCode.USAGE, "replay", data, "--type", "StageTraind")
    assert "Did you mean stage_trained" in told


def test_a_round_filter_finds_rounds_skipped(tmp_path: Path, shell: Shell) -> None:
    write_groups(tmp_path / "events", [[RoundsSkipped(3, 6, "late"), *follower_story(1)]])
    assert len(json_lines(shell.well("replay", str(tmp_path), "--json", "--round", "5"))) == 1
    assert shell.well("replay", str(tmp_path), "--json", "--round", "7") == ""


def test_state_is_the_fold_up_to_an_event(data: Path, shell: Shell) -> None:
    early = json.loads(shell.well("replay", str(data), "--state", "--to", "6"))
    late = json.loads(shell.well("replay", str(data), "--state", "--json"))
    assert (early["chart"], early["done"]) == ("round.training", [-1, -1])
    assert (late["chart"], late["done"], late["exit_code"]) == ("round.publishing", [2, 0], 0)


def test_steps_show_every_changed_field(data: Path, shell: Shell) -> None:
    text = shell.well("replay", str(data), "--step", "--from", "8", "--to", "8")
    assert "done: [-1, -1] → [0, 0]" in text
    assert "trainer.chart: busy → idle" in text
    assert "▶ publish_report id=report/0/0" in text


def test_steps_wait_for_the_operator_on_a_terminal(data: Path) -> None:
    ours, theirs = pty.openpty()
    stepping = subprocess.Popen(
        [sys.executable, "-m", "swarmd", "replay", str(data), "--step"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    os.write(ours, b"\n4\ns\nq\n")
    text, _ = stepping.communicate(timeout=30)
    os.close(ours)
    os.close(theirs)
    assert stepping.returncode == ExitCode.OK
    assert [seq for seq in range(len(EVENTS)) if f"\n{seq:>8}  19" in "\n" + text] == [0, 1, 2, 3, 4]
    assert '"chart": "syncing"' in text


def test_verify_passes_and_says_how_much(data: Path, shell: Shell) -> None:
    commits = -(-len(EVENTS) // 2)
    assert f"all {commits} commits ({len(EVENTS)} events)" in shell.well("replay", str(data), "--verify")
    assert json.loads(shell.well("replay", str(data), "--verify", "--json"))["commits"] == commits


def test_verify_names_the_first_difference(tmp_path: Path, shell: Shell) -> None:
    write_groups(tmp_path / "events", [[event] for event in EVENTS])
    captured = shell("replay", tmp_path, "--verify", "--json")
    assert captured.code == ExitCode.DIFFERENCE
    assert "differs first at seq 0 (node_started)" in captured.err
    assert NO_COMMANDS.hex() in captured.err and "start_worker" in captured.err
    assert json.loads(captured.out)["seq"] == 0


def other_charts(place: Path, name: str, old: str, new: str) -> Path:
    shutil.copytree(shipped_charts_directory(), place)
    path = place / f"{name}.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return place


def test_other_charts_are_compared(data: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GAPS, "raises", False)  # charts of one's own may leave something open
    charts = other_charts(tmp_path / "charts", "trainer", "trigger: ready", "trigger: never_ready")
    text = shell("replay", str(data), "--against", str(charts)).out
    assert "they part at seq 5:" in text and "trainer_ready" in text
    assert "here  trainer.chart: loading → idle" in text
    assert text.index("here") < text.index("there")
    (row,) = [line.split() for line in text.splitlines() if line.strip().startswith("train ")]
    assert row == ["train", "3", "0"]
    found = json.loads(shell("replay", str(data), "--against", str(charts), "--json").out)
    assert found["first"]["seq"] == 5


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """The data directory of a follower that was still at its first stage when the swarm went on to the second round."""
    story = Story.joined(settings(peer=NODE))
    story.tell(announced(0, deadline_at=1e6), gathered(0), announced(1, deadline_at=2e6))
    story.tell(trained(0, reward=0.5))
    with open_log(tmp_path / "events") as log:
        write_story(log, story.recorded, State(), group=1)
    return tmp_path


def test_another_setting_is_compared(slow: Path, shell: Shell) -> None:
    text = shell("replay", str(slow), "--against", "round.behind=abandon").out
    assert "there round.behind=abandon: they part at seq 8:" in text and "round_announced" in text
    assert "there ▶ cancel_training" in text and "settings" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["cancel_training", "0", "1"] in rows
    found = json.loads(shell("replay", str(slow), "--against", "round.behind=abandon", "--json").out)
    assert found["first"]["seq"] == 8 and found["decisions"] >= 1
    for same in ("round.behind=finish-stage", "workers.restarts_max=3"):
        assert "go the same way" in shell.well("replay", str(slow), "--against", same)
    both = ("--against", "round.train_s=60", "--against", str(shipped_charts_directory()))
    assert "they part at seq 6:" in shell("replay", str(slow), *both).out


@pytest.mark.parametrize(
    ("against", "message"),
    [
        (("round.behnd=abandon",), "Did you mean round.behind?"),
        (("training.steps=5",), "not a setting that a log holds"),
        (("round.behind=hurry",), "round.behind"),
        (("round.train_s=-1",), "round.train_s"),
        (("coordinator.quorum=0.5",), "means nothing in this log"),
        (("a", "b"), "one CHARTDIR at a time"),
    ],
)
def test_a_setting_that_no_log_holds_is_refused(
    data: Path, shell: Shell, against: tuple[str, ...], message: str
) -> None:
    given = [word for one in against for word in ("--against", one)]
    said = shell("replay", data, *given)
    assert said.code in (ExitCode.BAD_CONFIG, ExitCode.USAGE) and message in said.err


def test_a_log_under_a_running_daemon_is_replayed(tmp_path: Path, shell: Shell) -> None:
    with open_log(tmp_path / "events") as log:
        state = write_story(log, EVENTS, State())
        assert "round.publishing" in shell.well("replay", str(tmp_path))
        write_story(log, EVENTS[:1], state)
        assert f"{len(EVENTS) + 1} events" in shell.well("replay", str(tmp_path))


@pytest.mark.parametrize("seed", range(3))
def test_a_replay_from_an_event_on_is_the_end_of_the_whole_one_wherever_snapshots_lie(
    tmp_path: Path, shell: Shell, seed: int
) -> None:
    recut(LOG, tmp_path, seed)
    whole = shell.well("replay", str(LOG), "--json").splitlines()
    for first in (0, len(whole) // 3, len(whole) - 1, len(whole) + 5):
        assert shell.well("replay", str(tmp_path), "--json", "--from", str(first)).splitlines() == whole[first:]
        early = shell.well("replay", str(tmp_path), "--json", "--from", str(first), "--to", str(first + 7))
        assert early.splitlines() == whole[first : first + 8]
        told = shell.well("replay", str(tmp_path), "--from", str(first)).splitlines()[-1]
        assert told == shell.well("replay", str(LOG), "--from", str(first)).splitlines()[-1]


def test_a_replay_from_an_event_on_does_not_read_what_lies_before_the_snapshot(tmp_path: Path, shell: Shell) -> None:
    recut(LOG, tmp_path, seed=0)
    last = list_segments(tmp_path)[-1]
    expected = shell.well("replay", str(tmp_path), "--json", "--from", str(first_seq_of(last)))
    for segment in list_segments(tmp_path)[1:-1]:
        segment.write_bytes(b"gone")
    assert shell.well("replay", str(tmp_path), "--json", "--from", str(first_seq_of(last))) == expected


@pytest.mark.parametrize("seed", range(3))
def test_a_state_is_the_same_wherever_snapshots_lie(tmp_path: Path, shell: Shell, seed: int) -> None:
    recut(LOG, tmp_path, seed)
    for upto in ([], ["--to", "0"], ["--to", "40"], ["--to", "41"], ["--to", "90"]):
        expected = shell.well("replay", str(LOG), "--state", "--json", *upto)
        assert shell.well("replay", str(tmp_path), "--state", "--json", *upto) == expected


@pytest.mark.parametrize("mode", [(), ("--state",), ("--verify",)])
def test_what_was_removed_is_not_replayed_as_something_later(
    tmp_path: Path, shell: Shell, mode: tuple[str, ...]
) -> None:
    write_long_log(tmp_path, 2_000, segment_bytes=20_000, bytes_max=80_000)
    first = oldest_base(tmp_path).seq
    told = shell("replay", tmp_path, *mode, "--to", first - 2)
    assert (
        told.code == ExitCode.NO_INPUT
        and not told.out
        and f"begins at event {first}" in told.err
        and f"after event {first - 1}, or" in told.err
    )
    shell.well("replay", tmp_path, *mode, "--to", first)
