"""A stopped node's log made small: the state stays, the beginning goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.core.state import State
from swarmd.errors import LogInUse
from swarmd.eventlog.fold import load
from swarmd.eventlog.offline.check import check_log
from swarmd.eventlog.offline.compact import compact
from swarmd.eventlog.offline.replay import verify
from swarmd.eventlog.segment import list_segments
from tests.eventlog.making import follower_story, open_log, write_story


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with open_log(tmp_path / "events", segment_bytes=600) as log:
        write_story(log, follower_story(12), State())
    return tmp_path / "events"


def test_the_state_stays_and_the_log_goes_on(log: Path) -> None:
    before = load(log)
    count = len(list_segments(log))
    done = compact(log)
    assert load(log) == before
    assert done.segments == count - 1 and done.after_bytes < done.before_bytes
    check_log(log)
    verify(log)
    with open_log(log, "later") as later:
        write_story(later, follower_story(1)[:1], before[0])
    verify(log)


def test_no_more_goes_than_was_asked_for(log: Path) -> None:
    whole = compact(log, 1 << 30)
    assert whole.segments == 0
    some = compact(log, whole.after_bytes - 5000)
    assert 0 < some.segments < len(list_segments(log)) + some.segments - 1
    assert some.after_bytes <= whole.after_bytes - 5000


def test_a_running_node_is_left_alone(log: Path) -> None:
    with open_log(log, "running"), pytest.raises(LogInUse):
        compact(log)
