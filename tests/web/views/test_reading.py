"""The last events of a long log are shown while all of it is read, and each event is told once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmd.core.applied import Applied
from swarmd.core.events import MemberSeen
from swarmd.core.state import State
from swarmd.eventlog.blobs import Blobs
from swarmd.eventlog.fold import load, recent_base
from swarmd.paths import NodeDirectory
from swarmd.web.views import reading as reading_module
from swarmd.web.views.node import LogNode
from swarmd.web.views.reading import LogReading, LogTail, is_long
from tests.core.story import Story, coordinator_settings
from tests.eventlog.making import open_log, write_story
from tests.web.serving import LONG_S, until

LAST = 10  # events shown at once
LATER = 16  # members that come after the snapshot


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory whose log counts as long, with a snapshot in it."""
    monkeypatch.setattr(reading_module, "LONG_EVENTS", 40)
    monkeypatch.setattr(reading_module, "RECENT_EVENTS", LAST)
    story = Story(coordinator_settings(min_peers=500))
    story.join()
    story.tell(*[MemberSeen(f"peer{number:04d}", f"name {number}") for number in range(60)])
    with open_log(tmp_path / "events") as log:
        write_story(log, story.recorded, State(), group=1)
        log.write_snapshot(story.state)
    append(tmp_path, [f"later{number}" for number in range(LATER)])
    return tmp_path


def append(directory: Path, peers: list[str]) -> None:
    """Members come."""
    state, _ = load(directory / "events")
    with open_log(directory / "events") as log:
        write_story(log, [MemberSeen(peer, "") for peer in peers], state, group=1)


def test_the_last_events_are_folded_on_what_was_before(log: Path) -> None:
    state, end = load(log / "events")
    assert recent_base(log / "events", LAST).seq == end - LAST
    recent = LogReading(log / "events", Blobs(log / "blobs"), lambda batch: None, grows=False, recent=True)
    recent.tail.start()
    assert recent.tail.caught_up.wait(LONG_S) and recent.is_sound
    assert (recent.history.first, recent.history.next_seq) == (end - LAST, end)
    assert recent.history.state == state


def test_a_log_is_long_by_what_lies_before_its_newest_snapshot(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_long(log / "events")
    monkeypatch.setattr(reading_module, "LONG_EVENTS", 1000)
    assert not is_long(log / "events")
    assert not is_long(log / "nothing")


async def met(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, condition)


def test_a_long_log_is_shown_before_it_is_read_and_each_event_is_told_once(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, end = load(log / "events")
    held = threading.Event()
    monkeypatch.setattr(
        LogTail, "after", property(lambda tail: None if tail._recent else held, lambda tail, event: None), raising=False
    )
    told: list[int] = []

    def note(batch: list[Applied]) -> None:
        told.extend(applied.seq for applied in batch)

    async def play() -> None:
        node = LogNode(NodeDirectory(log))
        node.told = note  # type: ignore[assignment]
        await node.start()
        try:
            await met(lambda: node.here().recent)
            assert node.here().read < 1 and node.state == state
            assert (await node.events(0, 5)).begin == end - LAST
            append(log, ["new0", "new1"])
            await met(lambda: told == [end, end + 1])
            held.set()
            await met(lambda: node.here().read == 1.0)
            assert not node.here().recent
            assert [row.seq for row in (await node.events(0, 5)).events] == [0, 1, 2, 3, 4]
            append(log, ["new2", "new3"])
            await met(lambda: node.next_seq == end + 4 and len(told) >= 4)
            append(log, ["new4"])
            await met(lambda: node.next_seq == end + 5 and len(told) >= 5)
        finally:
            held.set()
            await node.stop()

    asyncio.run(play())
    assert told == list(range(end, end + 5))
