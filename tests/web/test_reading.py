"""The last events of a long log are shown while all of it is read, and each event is told once."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmd.cli.explain import story_of_round
from swarmd.core.applied import AppliedEvent
from swarmd.core.events import Event, MemberSeen
from swarmd.core.state import State
from swarmd.eventlog.blobs import Blobs
from swarmd.eventlog.fold import Base, load, recent_base
from swarmd.observe.story import Story as Told
from swarmd.paths import NodeDirectory
from swarmd.web import history as history_module
from swarmd.web import reading as reading_module
from swarmd.web import stages as stages_module
from swarmd.web.history import LogHistory, commits_at
from swarmd.web.node import LogNode
from swarmd.web.reading import LogReading, LogTail, Stories, is_long
from swarmd.web.stages import StageFollower, Timeline
from tests.core.story import Story, announced, coordinator_settings, gathered, settings, trained
from tests.eventlog.making import open_log, write_story
from tests.web.serving import LONG_S, until

LAST = 10  # events shown at once
LATER = 16  # members that come after the snapshot


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory whose log counts as long, with a snapshot in it."""
    monkeypatch.setattr(reading_module, "LONG_EVENTS", 40)
    monkeypatch.setattr(reading_module, "RECENT_EVENTS", LAST)
    story = Story.joined(coordinator_settings(min_peers=500))
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

    def note(batch: list[AppliedEvent]) -> None:
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


LONG = 23_000  # events


class Reader:
    """The page's books on a log."""

    def __init__(self, directory: Path, base: Base | None = None) -> None:
        stages, timeline = StageFollower(), Timeline()
        self._events = directory / "events"
        self._history = LogHistory(self._events, (stages, timeline))
        self._history.begin(base or Base())
        self._stories = Stories(self._history, stages, timeline)
        self.read()

    def read(self) -> None:
        for commit, end in commits_at(self._events, self._history.place, self._history.next_seq):
            self._history.apply(commit, end)

    def tell(self, round_: int) -> Told:
        return self._stories.story(round_, 1e6)


def crowd(count: int) -> list[Event]:
    """So many members are seen."""
    return [MemberSeen(f"peer-{number % 50}", "name") for number in range(count)]


def node() -> Story:
    return Story.joined(settings())


def test_a_round_of_more_events_than_are_read_says_so_and_claims_no_outcome(tmp_path: Path) -> None:
    story = node()
    story.tell(announced(0), gathered(0))
    opened = story.seq
    story.tell(*crowd(LONG))
    story.tell(trained(0), announced(1))
    reader = Reader(written(tmp_path, story))
    shown = reader.tell(0)
    assert story_of_round(tmp_path, 0, 1e6)[0].outcome == "trained"
    assert (shown.outcome, shown.verdict) == ("unknown", "Round 0 is too long to be told whole here.")
    assert shown.unread.startswith("It goes on beyond event 200") and "`swarmd explain DIR 0`" in shown.unread
    assert opened < 20 and shown.sentences
    assert reader.tell(1).unread == ""


def test_what_was_long_before_a_missed_round_is_said_not_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "STORY_EVENTS_MAX", 40)
    story = node()
    story.tell(announced(0), gathered(0), *crowd(60), announced(3), trained(0))
    story.tell(announced(4), *crowd(5))
    reader = Reader(written(tmp_path, story))
    shown, whole = reader.tell(1), story_of_round(tmp_path, 1, 1e6)[0]
    assert shown.outcome == whole.outcome == "skipped"
    assert shown.unread.startswith("What was before event ") and "may be the cause" in shown.unread


def long_lived(rounds: int) -> Story:
    """A node that has trained so many rounds."""
    story = node()
    for round_ in range(rounds):
        story.tell(announced(round_), gathered(round_), trained(round_), *crowd(20))
    story.tell(announced(rounds))
    return story


def test_a_round_of_which_the_opening_was_forgotten_is_found_by_the_states_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages_module, "ROUNDS_MAX", 16)
    monkeypatch.setattr(history_module, "KEYFRAME_EVENTS", 32)
    monkeypatch.setattr(reading_module, "STORY_EVENTS_MAX", 100)
    reader = Reader(written(tmp_path, long_lived(60), group=4))
    for round_ in (0, 1, 7, 30, 59):
        shown, whole = reader.tell(round_), story_of_round(tmp_path, round_, 1e6)[0]
        assert (shown.outcome, shown.sentences) == ("trained", whole.sentences), round_


def written(directory: Path, story: Story, group: int = 500) -> Path:
    with open_log(directory / "events") as log:
        write_story(log, story.recorded, State(), group=group)
    return directory
