"""Numbers as extreme as a log can hold, in every field of every event: the state stays one that can be written."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from swarmd.bounds import SUM_MAX
from swarmd.core.events import (
    Envelope,
    Event,
    LinkUp,
    MemberSeen,
    NodeStarted,
    Registered,
    ReportSeen,
    RoundPublished,
    StageTrained,
    TimerFired,
)
from swarmd.core.state import State
from swarmd.core.step import step
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.frame import digest_commands
from swarmd.eventlog.snapshot import decode_state, encode_state
from tests import extremes
from tests.core.story import Story, announced, chain_settings, chain_up, coordinator_settings, gathered, settings

ROUND = 3


def training() -> Story:
    story = Story.joined(settings())
    story.tell(announced(ROUND), gathered(ROUND))
    return story


def coordinating() -> Story:
    story = Story(coordinator_settings(min_peers=1))
    (announce, *_) = [each for each in story.join() if each.id.startswith("announce")]
    story.tell(MemberSeen("a"), RoundPublished(announce.id, 0, 0), announced(0))
    return story


def restored() -> Story:
    """A coordinator that was brought back from a backup and still listens for where its swarm is."""
    story = Story(coordinator_settings(min_peers=2))
    story.restore()
    return story


def chained() -> Story:
    story = Story.on_chain(chain_settings(), chain_up(ROUND))
    story.tell(gathered(ROUND))
    return story


def named(round: int) -> dict[str, Any]:
    """Values of fields with which an event is about what the node is at."""
    return {
        "round": round,
        "stage": 0,
        "command": f"train/{round}/0",
        "submission": f"reward/{round}/0",
        "peer": "a",
        "chain_id": 1,
        "contract": "0xc",
        "account": "0xme",
        "registered_to": "0xme",
    }


SCENES: list[tuple[Callable[[], Story], int]] = [(training, ROUND), (coordinating, 0), (restored, 0), (chained, ROUND)]


def plot(round: int, event: Event) -> list[Event]:
    """The event, twice, and what would happen anyway: so that its numbers get into sums, and these into the state."""
    reference = RolloutsRef("me", round, 0, "d", 1, 1)
    trained = StageTrained(f"train/{round}/0", round, 0, 0.5, reference)
    again = replace(event, round=round + 1) if isinstance(event, StageTrained) else event
    return [event, LinkUp(1), again, Registered("register"), trained, ReportSeen("me", round, 0, 0.5), announced(9)]


def write(state: State, at: float, event: Event) -> State:
    """Step, and write everything down that a node would."""
    after, commands = step(state, Envelope(7, at, event))
    digest_commands(commands)
    decode_state(encode_state(after))
    return after


def drive(story: Story, round: int, event: Event) -> State:
    state = story.state
    for each in plot(round, event):
        state = write(state, story.at, each)
    for name in ("stage", "muster", "train", "drive"):
        for deadline in state.deadlines:
            if deadline.name == name:
                state = write(state, deadline.due_at, TimerFired(name, deadline.due_at))
    return state


@pytest.mark.parametrize(("scene", "round"), SCENES, ids=lambda given: getattr(given, "__name__", ""))
def test_no_number_of_any_event_makes_a_state_that_cannot_be_written(scene: Callable[[], Story], round: int) -> None:
    story = scene()
    for path, value in extremes.extremes(Event, named(round)):
        event = extremes.convert(value, Event)
        if isinstance(event, NodeStarted):
            continue  # an operator's configuration, which has bounds of its own
        try:
            state = drive(story, round, event)
        except (OverflowError, ValueError) as error:
            raise AssertionError(f"{type(event).__name__}.{path}: {event}") from error
        assert all(math.isfinite(total) and abs(total) <= SUM_MAX for total in sums(state)), (path, event)


def sums(state: State) -> list[float]:
    """Everything in a state that rewards were added up to."""
    found = [state.reward_total]
    for tally in (state.tally, state.judging):
        found += [] if tally is None else [score.reward for score in tally.scores]
    if state.coordination is not None:
        found += [each.reward for each in state.coordination.members]
        found += [each.reward for each in state.coordination.standings]
    return found
