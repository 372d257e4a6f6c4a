"""The archive of a coordinator that met a crowd, of whom all reported for some rounds."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from swarmd.core.events import Equivocated, Event, MemberSeen, ReportSeen, RoundPublished, TimerFired
from swarmd.core.state import State
from tests.core.story import Story, announced, coordinator_settings
from tests.eventlog.making import NODE, open_log, write_story
from tests.web.serving import served

PEERS = 1000
ROUNDS = 3
BARRED = 3  # the peer that signed two reports of one stage


def peer_id(number: int) -> str:
    return f"12D3KooW{number:06d}{'x' * 38}"


def name_of(number: int) -> str:
    return f"quiet lively heron {number}"


def events(peers: int) -> list[Event]:
    story = Story(replace(coordinator_settings(min_peers=1), peer=NODE, coordinator=NODE, name="wary old newt"))
    commands = story.join()
    story.tell(*[MemberSeen(peer_id(number), name_of(number)) for number in range(peers)])
    for round in range(ROUNDS):
        story.tell(*[RoundPublished(each.id, round, 0) for each in commands if each.id.startswith("announce")])
        story.tell(announced(round, deadline_at=9000.0, opened_at=1000.0))
        reports = [ReportSeen(peer_id(number), round, 0, 1 / (1 + number / 60), "d" * 64) for number in range(peers)]
        commands = story.tell(*reports, ReportSeen(NODE, round, 0, 0.5, "d" * 64))
    story.tell(Equivocated("report", peer_id(BARRED), ROUNDS, 0, b"1", b"2"))
    return [event for event in story.recorded if not isinstance(event, TimerFired)]


@contextmanager
def serving(peers: int = PEERS) -> Iterator[str]:
    """The archive on a free port of loopback; gives its URL."""
    with tempfile.TemporaryDirectory() as place:
        with open_log(Path(place) / "events") as log:
            write_story(log, events(peers), State(), group=16)
        with served(Path(place), archive=Path(place) / "events") as server:
            yield server.url
