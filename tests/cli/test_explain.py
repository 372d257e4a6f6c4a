"""`swarmd explain`: from the command line."""

import base64
import json
import re
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarmd.cli.explain import latest_stories, story_of_round
from swarmd.core.applied import AppliedEvent
from swarmd.core.events import Equivocated, Event
from swarmd.dht.wire.evidence import decode_evidence, make_evidence
from swarmd.dht.wire.records import sign
from swarmd.errors import ExitCode
from swarmd.eventlog.fold import fold_commits, load_state, oldest_base
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.store import EventLog
from swarmd.observe.story import StoryTeller, highest_known_round
from tests.cli.owning import Shell
from tests.core.story import Story, announced, settings
from tests.dht.making import ALICE, BOB, REPORT
from tests.golden.test_golden import LOGS

GOLDEN = Path(__file__).parents[1] / "golden"
NODE = str(GOLDEN / "follower")
STATE = load_state(GOLDEN / "follower" / "events")[0]
GAP = STATE.skips[-1]
SIGNED_AT = time.time()
PAIR = make_evidence(sign(ALICE, REPORT, SIGNED_AT), sign(ALICE, replace(REPORT, reward=0.25), SIGNED_AT + 1))


def test_without_a_round_the_last_gap_and_the_last_round_are_told(shell: Shell) -> None:
    text = shell.well("explain", NODE)
    words = " ".join(text.split())
    gap = f"Round {GAP.last} was" if GAP.first == GAP.last else f"Rounds {GAP.first} to {GAP.last} were"
    assert f"{gap} skipped, cause {GAP.cause}" in words and len(re.findall("Rounds? ", words)) == 2


def test_chain_submissions_belong_to_their_round(shell: Shell) -> None:
    told = shell.well("explain", GOLDEN / "chain", 1)
    assert set(re.findall(r"reward/\d+/\d+", told)) == {"reward/1/0"}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("1", "2"), ExitCode.BAD_CONFIG, "one round at most is explained, not 1 and 2"),
        (("nowhere",), ExitCode.NO_INPUT, "nowhere"),
        ((".", "abc"), ExitCode.BAD_CONFIG, "'abc' is not a round"),
        ((NODE, "99999"), ExitCode.BAD_CONFIG, f"its rounds go up to {highest_known_round(STATE)}"),
    ],
)
def test_bad_arguments_are_one_clear_error(args: tuple[str, ...], code: int, said: str, shell: Shell) -> None:
    assert said in shell.fails(code, "explain", *args)


def log_with(directory: Path, *events: Event) -> Path:
    """A follower's log that holds these."""
    node = Story.joined(settings())
    node.tell(announced(3), *events)
    with EventLog.open(directory / "events", "me", "run") as store:
        store.append(1.7e9, node.recorded, b"d" * 16)
    return directory


def test_evidence_is_shown_and_checked_offline(tmp_path: Path, shell: Shell) -> None:
    told = Equivocated("report", ALICE.peer_id, 3, 0, PAIR.first.encode(), PAIR.second.encode())
    directory = log_with(tmp_path, told)
    text = shell.well("explain", directory, "--evidence")
    assert "both signatures are genuine" in text and "reward 0.5" in text and "reward 0.25" in text
    (exhibit,) = json.loads(shell.well("explain", directory, "--evidence", "--json"))
    records = [base64.b64decode(each) for each in exhibit["signed"]]
    assert decode_evidence(*records)[1].peer == exhibit["peer"] == ALICE.peer_id
    story = " ".join(shell.well("explain", directory, "3").split())
    assert "signed two different reports of round 3 stage 0: nothing of it counts until round 67" in story


def test_evidence_that_proves_nothing_is_named(tmp_path: Path, shell: Shell) -> None:
    accusations = (
        Equivocated("report", ALICE.peer_id, 3, 0, PAIR.first.encode(), PAIR.first.encode()),
        Equivocated("report", BOB.peer_id, 3, 0, PAIR.first.encode(), PAIR.second.encode()),
    )
    text = shell("explain", log_with(tmp_path, *accusations), "--evidence").out
    assert "no-evidence" in text and "the records show something else" in text


@pytest.mark.parametrize("node", LOGS, ids=lambda node: node.name)
def test_a_story_that_begins_at_a_snapshot_is_the_same(node: Path, tmp_path: Path) -> None:
    """All that is read less of the log than the whole is what came after the node was through with the round."""
    log = node / "events"
    if oldest_base(log).seq:
        pytest.skip("the log has lost its beginning")
    heard = with_snapshots(log, tmp_path / "events")
    for round_ in range(highest_known_round(heard[-1].after) + 2):
        whole = StoryTeller(round_)
        for applied in heard:
            whole.apply(applied)
        story, (told,) = whole.story(), story_of_round(tmp_path, round_)
        assert told.sentences == story.sentences[: len(told.sentences)]
        assert all(each.settles or each.round is None for each in story.sentences[len(told.sentences) :])
        assert replace(told, sentences=()) == replace(story, sentences=())


def with_snapshots(log: Path, copy: Path) -> list[AppliedEvent]:
    """Write a log again with a snapshot after every tenth commit. Returns its events, applied."""
    heard: list[AppliedEvent] = []
    with EventLog.open(copy, "node", "run", segment_bytes=2000) as event_log:
        for number, commit in enumerate(read_commits(log), 1):
            event_log.append(commit.at, commit.events, commit.commands_digest)
            heard += fold_commits([commit], heard[-1].after if heard else None)
            if number % 10 == 0:
                event_log.write_snapshot(heard[-1].after)
    return heard


def test_a_round_late_in_a_long_log_is_told_without_reading_what_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = with_snapshots(GOLDEN / "follower" / "events", tmp_path / "events")
    begins: list[int] = []
    monkeypatch.setattr(
        "swarmd.cli.replay.commits_from", lambda log, base: begins.append(base.seq) or read_commits(log, base.seq)
    )
    story_of_round(tmp_path, highest_known_round(heard[-1].after))
    assert begins and min(begins) > 0


@pytest.mark.parametrize("node", LOGS, ids=lambda node: node.name)
def test_the_latest_rounds_are_told_as_when_they_are_asked_for(node: Path) -> None:
    latest = latest_stories(node)
    assert latest == [story for told in latest for story in story_of_round(node, told.round)]
