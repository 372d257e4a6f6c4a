"""The story of a round is told up to a bound of events, and says what was not read."""

from pathlib import Path

import pytest

from swarmd.cli.explain import story_of_round
from swarmd.core.events import Event, MemberSeen
from swarmd.core.state import State
from swarmd.eventlog.fold import FoldBase
from swarmd.observe.story import Story as Told
from swarmd.web import history as history_module
from swarmd.web import reading as reading_module
from swarmd.web import stages as stages_module
from swarmd.web.history import LogHistory, read_commits_from
from swarmd.web.reading import Stories
from swarmd.web.stages import StageFollower, Timeline
from tests.core.story import Story, announced, gathered, settings, trained
from tests.eventlog.making import open_log, write_story

LONG = 23_000  # events


class Reader:
    """The page's books on a log."""

    def __init__(self, directory: Path, base: FoldBase | None = None) -> None:
        stages, timeline = StageFollower(), Timeline()
        self._events = directory / "events"
        self._history = LogHistory(self._events, (stages, timeline))
        self._history.restart(base or FoldBase())
        self._stories = Stories(self._history, stages, timeline)
        self.read()

    def read(self) -> None:
        for commit, end in read_commits_from(self._events, self._history.end_position, self._history.next_seq):
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
