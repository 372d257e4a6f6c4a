"""The archive of a coordinator that met a crowd, of whom all reported for some rounds."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from swarmd.core.events import Equivocated, Event, MemberSeen, ReportSeen, RoundPublished, TimerFired
from swarmd.core.state import State
from swarmd.paths import NodeDirectory
from swarmd.uvicorn_server import url_of
from swarmd.web.node import NodeLogSource
from tests.core.story import Story, announced, coordinator_settings
from tests.eventlog.making import NODE, open_log, write_story
from tests.web.serving import running, until

PEERS = 1000
ROUNDS = 3
READ_S = 120.0  # longest reading of the log
BARRED = 3  # the peer that signed two reports of one stage


def peer_id(number: int) -> str:
    return f"12D3KooW{number:06d}{'x' * 38}"


def name_of(number: int) -> str:
    return f"quiet lively heron {number}"


def events(peers: int, rounds: int) -> list[Event]:
    story = Story(replace(coordinator_settings(min_peers=1), peer=NODE, coordinator=NODE, name="wary old newt"))
    commands = story.join()
    story.tell(*[MemberSeen(peer_id(number), name_of(number)) for number in range(peers)])
    for round in range(rounds):
        story.tell(*[RoundPublished(each.id, round, 0) for each in commands if each.id.startswith("announce")])
        story.tell(announced(round, deadline_at=9000.0, opened_at=1000.0))
        reports = [ReportSeen(peer_id(number), round, 0, 1 / (1 + number / 60), "d" * 64) for number in range(peers)]
        commands = story.tell(*reports, ReportSeen(NODE, round, 0, 0.5, "d" * 64))
    story.tell(Equivocated("report", peer_id(BARRED), rounds, 0, b"1", b"2"))
    return [event for event in story.recorded if not isinstance(event, TimerFired)]


@contextmanager
def serving(peers: int = PEERS, rounds: int = ROUNDS) -> Iterator[str]:
    """The archive on a free port of loopback; gives its URL."""
    with tempfile.TemporaryDirectory() as place:
        with open_log(Path(place) / "events") as log:
            write_story(log, events(peers, rounds), State(), group=16)
        node = NodeLogSource(NodeDirectory(Path(place)), archive=Path(place) / "events")
        with running(node) as endpoint:
            until(lambda: node.describe_source().read == 1.0, READ_S)
            yield url_of(endpoint)
