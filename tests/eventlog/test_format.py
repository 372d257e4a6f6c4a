"""The bytes on disk, read by docs/LOG.md alone: with struct, msgpack and a CRC, without the code that wrote them."""

import hashlib
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings

from swarmd.core.commands import Register, StartWorker
from swarmd.core.events import LinkDown, MemberSeen, ReportSeen
from swarmd.core.state import State
from swarmd.core.step import RULES
from swarmd.errors import CommitTooLarge, OtherVersion
from swarmd.eventlog.frame import (
    COMMANDS_DIGEST_BYTES,
    COMMIT_BYTES_MAX,
    NO_COMMANDS,
    Commit,
    decode_commit,
    digest_commands,
    encode_commit,
)
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.segment import list_segments
from swarmd.eventlog.snapshot import list_snapshots
from tests.eventlog.making import COMMITS_EVENTS, NODE, members, open_log, packed, write_groups

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
        "from swarmd.eventlog.frame import digest_commands\n"
        "print(digest_commands((StartWorker('start', 'trainer', 1),)).hex())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("0", "1")
    ]
    assert runs == ["1620ffaeec5b136a5023024a8537ced2"] * 2


PAGE = Path(__file__).resolve().parents[2] / "docs" / "LOG.md"


def parse(content: bytes) -> tuple[dict[str, Any], list[list[Any]]]:
    """Header and commits of a segment."""
    magic, version, length, seed = struct.unpack_from("<8sIII", content)
    assert (magic, version) == (b"SWRMLOG1", 1)
    header = content[20 : 20 + length]
    assert crc32c(content[:16] + header) == seed
    position, commits = 20 + length, []
    while position < len(content):
        size, check = struct.unpack_from("<II", content, position)
        payload = content[position + 8 : position + 8 + size]
        assert crc32c(payload, seed) == check
        commits.append(msgpack.unpackb(payload))
        position += 8 + size
    return msgpack.unpackb(header), commits


def test_segments_are_as_documented(tmp_path: Path) -> None:
    write_groups(tmp_path, [[LinkDown("a"), MemberSeen("p", "n")], [LinkDown("b")]], run="first")
    write_groups(tmp_path, [[LinkDown("c")]], run="second")
    first, second = (path.read_bytes() for path in list_segments(tmp_path))
    header, commits = parse(first)
    assert header == {"node": NODE, "run": "first", "first_seq": 0, "previous": b""}
    events = [{"type": "link_down", "reason": "a"}, {"type": "member_seen", "peer": "p", "name": "n"}]
    assert commits == [
        [0, 0.0, RULES, events, NO_COMMANDS],
        [2, 1.0, RULES, [{"type": "link_down", "reason": "b"}], NO_COMMANDS],
    ]
    header, commits = parse(second)
    assert header == {"node": NODE, "run": "second", "first_seq": 3, "previous": hashlib.sha256(first).digest()}
    assert commits[0][0] == 3


def test_the_bytes_of_a_log_never_change(tmp_path: Path) -> None:
    """A change here is a new format, and needs a new number."""
    with open_log(tmp_path) as log:
        log.append(0.0, [LinkDown("a"), MemberSeen("p", "n")], NO_COMMANDS)
        log.append(1.0, [LinkDown("b")], NO_COMMANDS)
    digest = hashlib.sha256(list_segments(tmp_path)[0].read_bytes()).hexdigest()
    assert digest == "c41a2496b554f46af096777ebc6fb37287e9747dd78562acdceeb074f575d694"


def test_snapshots_are_as_documented(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(0.0, [LinkDown("a")], NO_COMMANDS)
        log.write_snapshot(State(run="r"))
    content = list_snapshots(tmp_path)[0].read_bytes()
    magic, version, length = struct.unpack_from("<8sII", content)
    assert (magic, version, length) == (b"SWRMSNP1", 1, len(content) - 48)
    assert hashlib.sha256(content[:16] + content[48:]).digest() == content[16:48]
    snapshot = msgpack.unpackb(content[48:])
    assert snapshot.pop("state") == msgspec.to_builtins(State(run="r"))
    assert snapshot == {"node": NODE, "run": "run", "seq": 1, "rules": RULES}


def test_the_documented_reader_works(tmp_path: Path) -> None:
    write_groups(tmp_path / "events", members(5))
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == [f"[{seq}" for seq in range(5)]
