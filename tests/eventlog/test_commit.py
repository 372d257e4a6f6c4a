"""What a commit keeps, and what a digest tells apart."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings

from swarmd.core.commands import Register, StartWorker
from swarmd.core.events import ReportSeen
from swarmd.errors import CommitTooLarge, OtherVersion
from swarmd.eventlog.commit import COMMIT_BYTES_MAX, Commit, decode_commit, encode_commit
from swarmd.eventlog.digest import COMMANDS_DIGEST_BYTES, NO_COMMANDS, digest_commands
from swarmd.eventlog.reader import read_commits
from tests.eventlog.making import COMMITS_EVENTS, packed, write_groups

pytestmark = pytest.mark.usefixtures("without_sync")

HERE = Path("log.seg")


@settings(max_examples=60, deadline=None)
@given(COMMITS_EVENTS)
def test_every_event_comes_back_as_it_was_written(tmp_path_factory, groups) -> None:
    directory = tmp_path_factory.mktemp("log")
    written = write_groups(directory, groups, segment_bytes=600)
    assert packed(list(read_commits(directory))) == packed(written)


def test_a_commit_over_the_limit_is_refused() -> None:
    huge = ReportSeen("peer", 0, 0, 0.0, "", b"x" * COMMIT_BYTES_MAX)
    with pytest.raises(CommitTooLarge, match="limit is 16777216"):
        encode_commit(Commit(0, 0.0, 1, (huge,), NO_COMMANDS))


@pytest.mark.parametrize(
    ("rules", "event", "message"),
    [(2, {"type": "member_seen", "peer": "p"}, "rules 2"), (1, {"type": "moon_rose"}, "moon_rose")],
)
def test_what_a_newer_swarmd_wrote_is_refused_by_name(rules, event, message) -> None:
    payload = msgspec.msgpack.encode([0, 1.0, rules, [event], NO_COMMANDS])
    with pytest.raises(OtherVersion, match=message):
        decode_commit(payload, HERE)


def test_a_digest_tells_commands_and_their_order_apart() -> None:
    one, two = Register("register"), StartWorker("start", "trainer", 1)
    digests = {digest_commands(commands) for commands in ((), (one,), (two,), (one, two), (two, one))}
    assert len(digests) == 5
    assert {len(digest) for digest in digests} == {COMMANDS_DIGEST_BYTES}


def test_a_digest_is_the_same_in_every_process() -> None:
    program = (
        "from swarmd.core.commands import StartWorker\n"
        "from swarmd.eventlog.digest import digest_commands\n"
        "print(digest_commands((StartWorker('start', 'trainer', 1),)).hex())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("0", "1")
    ]
    assert runs == ["1620ffaeec5b136a5023024a8537ced2"] * 2
