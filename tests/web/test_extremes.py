"""A log with numbers as great as it can hold opens, is shown and is taken along."""

from pathlib import Path

from msgspec.structs import replace

from swarmd.backup.bundle import open_bundle, write_bundle
from swarmd.bounds import INTEGER_MAX, WORD_MAX
from swarmd.cli.explain import story_of_round
from swarmd.cli.status import read_status
from swarmd.core.events import Event, MemberSeen, RecordsRejected, ReportSeen, RoundPublished, TimerFired
from swarmd.core.state import State
from swarmd.core.step import RULES, StateFold
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.fold import apply_commit, load_state
from swarmd.eventlog.frame import Commit, digest_commands
from swarmd.eventlog.store import compact_event_log
from swarmd.observe.panel import panel_of
from swarmd.paths import NodeDirectory
from swarmd.results.history import read_history
from tests.core.story import Story, announced, coordinator_settings, gathered, trained
from tests.eventlog.making import NODE, open_log
from tests.web.serving import served

PAGES = ("/api/v1/swarm", "/api/v1/node/stages", "/api/v1/node/status", "/api/v1/node/overview", "/metrics")
GREAT = RolloutsRef("anna", 0, 0, "d" * 64, WORD_MAX, WORD_MAX)


def events() -> list[Event]:
    """A coordinator's rounds, in which a peer announces so many groups, and so great rewards, that sums break."""
    story = Story(replace(coordinator_settings(min_peers=1), peer=NODE, coordinator=NODE))
    (announce, *_) = [each for each in story.join() if each.id.startswith("announce")]
    story.tell(RoundPublished(announce.id, 0, 0), MemberSeen("anna"))
    for round in range(3):
        refused = replace(trained(round), rejected=(("missing", WORD_MAX),))
        story.tell(
            announced(round), gathered(round, rollouts=(GREAT,)), refused, RecordsRejected("anna", "full", WORD_MAX)
        )
        told = story.tell(ReportSeen("anna", round, 0, 1e308), ReportSeen(NODE, round, 0, 0.5))
        story.tell(*[RoundPublished(each.id, round + 1, 0) for each in told if each.id.startswith("announce")])
    return [event for event in story.recorded if not isinstance(event, TimerFired)]


def write(directory: Path) -> State:
    fold = StateFold()
    with open_log(directory / "events") as log:
        for event in events():
            commit = Commit(log.next_seq, 1000.0 + log.next_seq, RULES, (event,), b"")
            log.append(commit.at, commit.events, digest_commands(apply_commit(fold, commit)))
    return fold.state


def test_a_log_with_the_greatest_numbers_is_folded_shown_and_taken_along(tmp_path: Path) -> None:
    node = tmp_path / "node"
    state = write(node)
    assert dict(state.rejections) == {"full": INTEGER_MAX, "missing": INTEGER_MAX}
    write_bundle(node / "events", tmp_path / "b.tar.gz", {}, [], 2**30)
    open_bundle(tmp_path / "b.tar.gz", tmp_path / "opened")
    assert load_state(tmp_path / "opened" / "events")[0] == state
    compact_event_log(node / "events")
    assert load_state(node / "events")[0] == state
    status = read_status(NodeDirectory(node))
    panel_of(status)
    read_history(node)
    assert story_of_round(node, 1, None)
    with served(node) as server:
        for page in PAGES:
            answer = server.get(page)
            assert answer.status_code == 200, (page, answer.text)
