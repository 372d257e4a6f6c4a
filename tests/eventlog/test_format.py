"""The bytes on disk, read by docs/LOG.md alone: with struct, msgpack and a CRC, without the code that wrote them."""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import msgspec
from crc32c import crc32c

from swarmd.core.events import LinkDown, MemberSeen
from swarmd.core.state import State
from swarmd.core.step import RULES
from swarmd.eventlog.digest import NO_COMMANDS
from swarmd.eventlog.segment import list_segments
from swarmd.eventlog.snapshot import list_snapshots
from tests.eventlog.making import NODE, members, open_log, write_groups

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
