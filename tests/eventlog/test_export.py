"""The log for other tools: JSON lines any reader takes, and a Parquet table."""

import io
import json
import math
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from swarmd.core.commands import Register, StartWorker
from swarmd.core.events import (
    Event,
    ReportSeen,
    tag_of,
)
from swarmd.core.state import NetworkLink, State
from swarmd.errors import LogDamaged, LogWriteFailed, PathUnusable
from swarmd.eventlog.export import (
    FieldChange,
    changes_between,
    export_json_lines,
    format_change,
    format_event,
    write_json_lines,
)
from swarmd.eventlog.frame import Commit
from swarmd.eventlog.reader import read_commits
from tests.core.story import announced, trained
from tests.eventlog.making import EVENTS, follower_story, write_groups


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_every_event_is_one_line_of_strict_json(event) -> None:
    out = io.BytesIO()
    assert write_json_lines([Commit(3, 1.5, 1, (event,), b"")], out) == 1
    assert out.getvalue().count(b"\n") == 1
    line = json.loads(out.getvalue(), parse_constant=refuse_constant)
    assert (line["seq"], line["at"], line["type"]) == (3, 1.5, tag_of(event))


def test_json_lines_hold_the_whole_log(tmp_path: Path) -> None:
    events = follower_story()
    write_groups(tmp_path / "events", [events[:5], events[5:]])
    out = tmp_path / "log.jsonl"
    assert export_json_lines(read_commits(tmp_path / "events"), out) == len(events)
    lines = out.read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(len(events)))
    assert [msgspec.json.decode(line, type=Event) for line in lines] == events


def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    write_groups(tmp_path / "events", [follower_story()[:2]])
    path = next((tmp_path / "events").glob("*.seg"))
    path.write_bytes(path.read_bytes()[:30] + b"\0" + path.read_bytes()[31:])
    with pytest.raises(LogDamaged):
        export_json_lines(read_commits(tmp_path / "events"), tmp_path / "a.jsonl")
    with pytest.raises(LogWriteFailed, match="No such file"):
        export_json_lines(iter(()), tmp_path / "missing" / "a.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events"]


def test_an_export_replaces_files_only(tmp_path: Path) -> None:
    """A pipe or device is left where it is: a rename over /dev/stdout would remove it for everybody."""
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    for out in (pipe, tmp_path):
        with pytest.raises(PathUnusable, match="is not a regular file"):
            export_json_lines(iter(()), out)
    assert pipe.is_fifo()
    file.write_bytes(b"old")
    export_json_lines(iter(()), link)
    assert link.is_symlink() and file.read_bytes() != b"old"


def test_an_event_is_one_line_with_what_is_not_default() -> None:
    line = format_event(7, 0.0, announced(3, 1, deadline_at=60.0))
    assert line.split() == (
        ["7", "1970-01-01", "00:00:00.000", "round_announced", "round=3", "stage=1", "opened_at=0", "deadline_at=60"]
    )
    assert "digest=dddddddddddd " in format_event(0, 0.0, trained(0))
    assert "record=<3 bytes>" in format_event(0, 0.0, ReportSeen("p", 0, 0, 0.5, record=b"abc"))


def test_states_that_are_equal_have_no_changes() -> None:
    state = State(run="a", reward_total=math.nan, link=NetworkLink(since=math.nan))
    assert changes_between(state, state) == ()
    assert changes_between(state, replace(state, reward_total=float("nan"), link=NetworkLink(since=float("nan")))) == ()


def test_changes_name_the_field_that_changed() -> None:
    before = State(chart="joining", done=(0, 0))
    after = replace(before, chart="round.training", done=(1, 0), link=NetworkLink(chart="up", peers=2))
    assert changes_between(before, after) == (
        FieldChange("chart", "joining", "round.training"),
        FieldChange("done", (0, 0), (1, 0)),
        FieldChange("link.chart", "down", "up"),
        FieldChange("link.peers", 0, 2),
    )
    assert format_change(FieldChange("chart", "joining", "round.training")) == "chart: joining → round.training"


def test_of_a_list_only_what_differs_is_shown() -> None:
    one, two, three = Register("a"), StartWorker("b", "trainer", 1), Register("c")
    before = State(pending=(one, two, three))
    assert changes_between(before, replace(before, pending=(one, three))) == (FieldChange("pending", (two,), ()),)
    assert changes_between(before, replace(before, pending=(one, two, three, one))) == (
        FieldChange("pending", (), (one,)),
    )
    assert changes_between(State(), before) == (FieldChange("pending", (), (one, two, three)),)
