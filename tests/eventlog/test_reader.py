"""Reading beside a writer, following it, and starting in the middle."""

import subprocess
import sys
from pathlib import Path

import pytest
from crc32c import crc32c

from swarmd.core.events import LinkDown, MemberSeen
from swarmd.errors import LogDamaged
from swarmd.eventlog import frame
from swarmd.eventlog.frame import CHUNK_BYTES, Commit, classify_tail, encode_commit, encode_frame, read_frames
from swarmd.eventlog.reader import LogReader, end_seq_of_log, follow_commits, read_commits
from swarmd.eventlog.segment import LogPosition, list_segments
from tests.eventlog.making import members, open_log, write_groups

EVENTS = 3000
WRITER = """
import sys
from pathlib import Path
from swarmd.core.events import MemberSeen
from swarmd.eventlog.frame import NO_COMMANDS
from swarmd.eventlog.store import EventLog

count = int(sys.argv[2])
for life in range(3):
    with EventLog.open(Path(sys.argv[1]), "12D3KooWAlice", f"run{life}", segment_bytes=20_000) as log:
        while log.next_seq < count * (life + 1) // 3:
            seq = log.next_seq
            log.append(1.0, [MemberSeen(f"peer{seq + n}", "y" * (n * 37 % 400)) for n in range(5)], NO_COMMANDS)
"""


def test_a_log_is_read_from_any_event_on(tmp_path: Path) -> None:
    groups = [[LinkDown(f"{number}a"), LinkDown(f"{number}b")] for number in range(30)]
    commits = write_groups(tmp_path, groups, segment_bytes=300)
    assert len(list_segments(tmp_path)) > 4
    for seq in range(64):
        assert list(read_commits(tmp_path, seq)) == [commit for commit in commits if commit.end_seq > seq]
    assert end_seq_of_log(tmp_path) == 60


def test_frames_larger_than_what_is_read_at_once_come_back(tmp_path: Path) -> None:
    groups = [[LinkDown("x" * size)] for size in (CHUNK_BYTES - 60, 3 * CHUNK_BYTES + 5, 10, CHUNK_BYTES)]
    commits = write_groups(tmp_path, groups)
    assert list(read_commits(tmp_path)) == commits


def test_an_empty_segment_replaced_by_the_next_life_is_followed(tmp_path: Path) -> None:
    write_groups(tmp_path, members(2))
    with open_log(tmp_path, "crashes at once") as log:
        log._begin_segment()
    with LogReader(tmp_path) as reader:
        assert len(list(reader.read())) == 2
        before = reader.position
        written = write_groups(tmp_path, members(2, first=2), run="next")
        assert list(reader.read()) == written
    first, second = list_segments(tmp_path)
    assert before == LogPosition(2, 0, first.stat().st_size), "of the empty one nothing lasts"
    assert reader.position == LogPosition(4, 2, second.stat().st_size)


def test_a_half_written_frame_is_waited_for(tmp_path: Path) -> None:
    commits = write_groups(tmp_path, members(3))
    path = list_segments(tmp_path)[0]
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    with LogReader(tmp_path) as reader:
        assert list(reader.read()) == commits[:2]
        assert reader.torn_bytes > 0
        path.write_bytes(content)
        assert list(reader.read()) == commits[2:]
        assert reader.torn_bytes == 0


def test_a_log_is_read_whole_while_it_is_written(tmp_path: Path) -> None:
    """Three lives append, rotate and take over; one reader follows to the end, others see prefixes."""
    directory = _made(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(directory), str(EVENTS)])
    prefixes, polls = [], iter(range(200_000))

    def pause() -> bool:
        if next(polls) % 50 == 0:
            prefixes.append(sum(len(commit.events) for commit in read_commits(directory)))
        return seen < EVENTS and (writer.poll() is None or seen < end_seq_of_log(directory))

    seen = 0
    for commit in follow_commits(directory, 0, pause):
        assert commit.seq == seen
        assert commit.events[0].peer == f"peer{seen}"
        seen = commit.end_seq
    assert writer.wait(timeout=30) == 0
    assert seen == EVENTS == end_seq_of_log(directory)
    assert prefixes == sorted(prefixes)


def test_a_segment_removed_while_reading_is_an_error(tmp_path: Path) -> None:
    write_groups(tmp_path, members(60), segment_bytes=300)
    reading = read_commits(tmp_path)
    next(reading)
    list_segments(tmp_path)[1].unlink()
    with pytest.raises(LogDamaged, match=r"was removed while the log was read.*Read the log again"):
        list(reading)


def test_a_tail_is_judged_by_what_follows(tmp_path: Path) -> None:
    seed = 77
    frames = [encode_frame(encode_commit(Commit(seq, 0.0, 1, (MemberSeen("p"),), b"")), seed) for seq in range(3)]
    broken = bytes([*frames[1][:-1], frames[1][-1] ^ 1])
    judged = {}
    for name, content in {
        "end": b"",
        "end of what was written ahead": b"\0" * 100,
        "torn before zeros": broken + b"\0" * 100,
        "damaged before zeros": broken + frames[2] + b"\0" * 100,
        "whole before zeros": frames[1] + b"\0" * 100,
        "whole": frames[1],
        "torn": broken,
        "damaged": broken + frames[2],
        "torn short": b"\x05",
        "torn elsewhere": encode_frame(b"payload", seed + 1) * 3,
    }.items():
        path = tmp_path / name
        path.write_bytes(frames[0] + content)
        with path.open("rb", buffering=0) as file:
            judged[name] = classify_tail(file, len(frames[0]), seed).verdict
            assert next(read_frames(file, 0, seed))[0] == len(frames[0])
    assert all(name.startswith(verdict) for name, verdict in judged.items())


def test_a_torn_frame_full_of_lengths_is_gone_through_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer's records may have lengths at every place; each could begin a frame that reaches far."""
    read: list[int] = []

    def count(content: bytes, seed: int = 0) -> int:
        read.append(len(content))
        return int(crc32c(content, seed))

    monkeypatch.setattr(frame, "crc32c", count)
    lengths = bytes.fromhex("00400000") * 10_000  # 16,384, at each place in four
    path = tmp_path / "tail"
    path.write_bytes(b"torn" + lengths + b"\0" * 50)
    with path.open("rb", buffering=0) as file:
        assert classify_tail(file, 0, 77).verdict == "torn"
        assert sum(read) == 0, "no commit begins so"
        path.write_bytes(b"torn" + b"\0\x40\0\0crc!\x95" * 5000 + bytes(50))
        monkeypatch.setattr(frame, "LOOKED_AT_MAX", 100_000)
        assert classify_tail(file, 0, 77).verdict == "damaged"
    assert sum(read) < 200_000


def _made(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return directory
