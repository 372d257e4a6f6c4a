"""Damage never changes what is read: it shortens the very end, or it is an error that names file and offset."""

import random
import shutil
from pathlib import Path

import msgspec
import pytest

from swarmd.core.events import MemberSeen, ReportSeen
from swarmd.core.state import State
from swarmd.core.step import RULES
from swarmd.errors import LogDamaged, LogForeign, OtherVersion
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.frame import NO_COMMANDS, RESERVE_BYTES, TAIL_BYTES_MAX, Commit, encode_commit, encode_frame
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.replay import check_log
from swarmd.eventlog.segment import (
    FORMAT,
    MAGIC,
    PREFIX,
    SegmentHeader,
    encode_header,
    list_segments,
    read_header,
    segment_name,
)
from swarmd.eventlog.snapshot import list_snapshots
from swarmd.eventlog.store import EventLog
from tests.eventlog.making import NODE, flip, members, open_log, write_groups

pytestmark = pytest.mark.usefixtures("without_sync")


def frame_ends(path: Path) -> list[int]:
    """Offsets behind the header and behind each frame."""
    content = path.read_bytes()
    with path.open("rb", buffering=0) as file:
        ends = [read_header(file, path).size_bytes]
    while ends[-1] < len(content):
        ends.append(ends[-1] + 8 + int.from_bytes(content[ends[-1] : ends[-1] + 4], "little"))
    return ends


@pytest.fixture
def two_segments(tmp_path: Path) -> tuple[Path, list[Commit]]:
    """A log of two lives, and its commits."""
    directory = tmp_path / "events"
    commits = write_groups(directory, members(4), run="first")
    return directory, commits + write_groups(directory, members(5, first=4), run="second")


def test_cut_at_every_byte_the_last_segment_gives_the_exact_prefix(two_segments) -> None:
    directory, commits = two_segments
    last = list_segments(directory)[-1]
    content, ends = last.read_bytes(), frame_ends(last)
    for size in range(ends[0], len(content) + 1):
        last.write_bytes(content[:size])
        whole = sum(end <= size for end in ends) - 1
        assert list(read_commits(directory)) == commits[: 4 + whole]
    for size in range(ends[0]):
        last.write_bytes(content[:size])
        with pytest.raises(LogDamaged, match=last.name):
            list(read_commits(directory))


def test_cut_at_every_byte_the_log_opens_and_goes_on(tmp_path: Path) -> None:
    source = tmp_path / "source"
    commits = write_groups(source, members(3))
    name = segment_name(0)
    content, ends = (source / name).read_bytes(), frame_ends(source / name)
    for size in range(ends[0], len(content) + 1):
        directory = tmp_path / str(size)
        directory.mkdir()
        (directory / name).write_bytes(content[:size])
        whole = sum(end <= size for end in ends) - 1
        with open_log(directory, "next") as log:
            assert log.next_seq == whole
            torn = content[ends[whole] : size].rstrip(b"\0")  # zeros may have been written ahead
            assert (log.cut.size_bytes if log.cut else 0) == len(torn)
            added = log.append(9.0, [MemberSeen("late")], NO_COMMANDS)
        assert list(read_commits(directory)) == [*commits[:whole], added]
        shutil.rmtree(directory)


def test_no_flipped_bit_goes_unnoticed(two_segments) -> None:
    directory, commits = two_segments
    outcomes = {"error": 0, "shorter": 0}
    for path in list_segments(directory):
        content = path.read_bytes()
        last_frame = frame_ends(path)[-2]
        for bit in (8 * byte + shift for byte in range(len(content)) for shift in (byte % 8, (byte + 4) % 8)):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            try:
                read = list(read_commits(directory))
            except LogDamaged:
                outcomes["error"] += 1
                continue
            outcomes["shorter"] += 1
            assert read == commits[:-1], f"bit {bit} of {path.name} changed what is read"
            assert path == list_segments(directory)[-1] and bit // 8 >= last_frame
        path.write_bytes(content)
    assert outcomes["error"] > outcomes["shorter"] > 0
    assert list(read_commits(directory)) == commits


def test_a_bad_frame_before_good_ones_is_refused_with_its_place(tmp_path: Path) -> None:
    write_groups(tmp_path, members(6))
    path = list_segments(tmp_path)[0]
    offset = frame_ends(path)[2]
    flip(path, offset + 20)
    content = path.read_bytes()
    for attempt in (lambda: list(read_commits(tmp_path)), lambda: open_log(tmp_path, "next")):
        with pytest.raises(LogDamaged, match=rf"{path.name} is damaged at byte {offset}: .*Restore"):
            attempt()
    assert path.read_bytes() == content, "nothing is cut when the log is refused"


@pytest.mark.parametrize("zeros", [b"", b"\0" * 5000])
@pytest.mark.parametrize("tail", [random.Random(7).randbytes(3000), b"\xff" * 9, b"\0\0\0\1"])
def test_the_remains_of_one_append_are_cut(tmp_path: Path, tail: bytes, zeros: bytes) -> None:
    commits = write_groups(tmp_path, members(3))
    path = list_segments(tmp_path)[0]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + tail + zeros)
    assert list(read_commits(tmp_path)) == commits
    assert check_log(tmp_path).torn_bytes == len(tail)
    with open_log(tmp_path, "next") as log:
        assert (log.cut.path, log.cut.offset, log.cut.size_bytes) == (path, size, len(tail))
    assert path.stat().st_size == size


@pytest.mark.parametrize("count", [1, 5000, RESERVE_BYTES])
def test_zeros_written_ahead_are_no_damage_and_go(tmp_path: Path, count: int) -> None:
    commits = write_groups(tmp_path, members(3))
    path = list_segments(tmp_path)[0]
    content = path.read_bytes()
    path.write_bytes(content + b"\0" * count)
    assert list(read_commits(tmp_path)) == commits
    assert check_log(tmp_path).torn_bytes == 0
    with open_log(tmp_path, "next") as log:
        assert log.cut is None
        assert path.read_bytes() == content
        added = log.append(9.0, [MemberSeen("late")], NO_COMMANDS)
    assert list(read_commits(tmp_path)) == [*commits, added]


def test_zeros_in_a_sealed_segment_are_damage(two_segments) -> None:
    directory, _ = two_segments
    first = list_segments(directory)[0]
    first.write_bytes(first.read_bytes() + b"\0")
    with pytest.raises(LogDamaged, match=first.name):
        list(read_commits(directory))


def test_a_frame_behind_zeros_is_damage(tmp_path: Path) -> None:
    write_groups(tmp_path, members(3))
    path = list_segments(tmp_path)[0]
    offset = frame_ends(path)[1]
    content = bytearray(path.read_bytes())
    content[offset : frame_ends(path)[2]] = bytes(frame_ends(path)[2] - offset)
    path.write_bytes(content + b"\0" * 5000)
    for attempt in (lambda: list(read_commits(tmp_path)), lambda: open_log(tmp_path, "next")):
        with pytest.raises(LogDamaged, match=f"is damaged at byte {offset}"):
            attempt()


def test_more_than_one_append_could_leave_is_damage(tmp_path: Path) -> None:
    write_groups(tmp_path, members(3))
    path = list_segments(tmp_path)[0]
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + TAIL_BYTES_MAX + 1)
    with pytest.raises(LogDamaged, match="is damaged at byte"):
        open_log(tmp_path, "next")


def test_a_frame_planted_in_a_record_is_no_frame(tmp_path: Path) -> None:
    """A peer's record may hold bytes that look like a frame; an interrupted append of it is still cut."""
    planted = encode_frame(encode_commit(Commit(1, 0.0, 1, (MemberSeen("evil"),), NO_COMMANDS)), 0)
    commits = write_groups(tmp_path, [[MemberSeen("good")], [ReportSeen("peer", 0, 0, 0.5, "", planted + b"x" * 50)]])
    path = list_segments(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-20])
    assert planted in path.read_bytes()
    with open_log(tmp_path, "next") as log:
        assert log.next_seq == 1
    assert list(read_commits(tmp_path)) == commits[:1]


def test_a_segment_of_another_life_cannot_be_slipped_in(two_segments) -> None:
    directory, _ = two_segments
    first, second = list_segments(directory)
    other = directory.parent / "other"
    write_groups(other, members(4, first=50), run="first")
    first.write_bytes((other / first.name).read_bytes())
    with pytest.raises(LogDamaged, match=f"{second.name} is damaged.*not the one that it was written after"):
        list(read_commits(directory))


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    for life in range(3):
        write_groups(tmp_path, members(2, first=2 * life), run=f"run{life}")
    list_segments(tmp_path)[1].unlink()
    with pytest.raises(LogDamaged, match=f"{segment_name(4)} is damaged.*begins at seq 4, the one before ends at 2"):
        list(read_commits(tmp_path))


def test_a_gap_in_the_sequence_is_refused(tmp_path: Path) -> None:
    header = encode_header(SegmentHeader(NODE, "run", 0, b""))
    seed = PREFIX.unpack_from(header)[-1]
    frames = [encode_frame(encode_commit(Commit(seq, 0.0, 1, (MemberSeen("p"),), b"")), seed) for seq in (0, 2)]
    (tmp_path / segment_name(0)).write_bytes(header + b"".join(frames))
    with pytest.raises(LogDamaged, match="seq 1 is expected, seq 2 is there"):
        list(read_commits(tmp_path))


def test_a_log_of_another_node_is_refused(two_segments) -> None:
    directory, _ = two_segments
    with pytest.raises(LogForeign, match=rf"belongs to node {NODE}, this node is bob.*identity"):
        EventLog.open(directory, "bob", "run")


def test_segments_of_two_nodes_are_no_log(two_segments) -> None:
    directory, _ = two_segments
    second = list_segments(directory)[1]
    with second.open("rb", buffering=0) as file:
        header = read_header(file, second).header
    second.write_bytes(encode_header(msgspec.structs.replace(header, node="bob")))
    with pytest.raises(LogForeign, match="of node bob"):
        list(read_commits(directory))


def test_another_format_is_named(tmp_path: Path) -> None:
    header = encode_header(SegmentHeader(NODE, "run", 0, b""))
    newer = PREFIX.pack(MAGIC, FORMAT + 1, *PREFIX.unpack_from(header)[2:]) + header[PREFIX.size :]
    (tmp_path / segment_name(0)).write_bytes(newer)
    for attempt in (lambda: list(read_commits(tmp_path)), lambda: open_log(tmp_path)):
        with pytest.raises(OtherVersion, match=f"log format {FORMAT + 1}.*newer swarmd"):
            attempt()


@pytest.mark.parametrize(("rules", "fix"), [(RULES + 1, "newer swarmd"), (RULES - 1, "unreleased swarmd")])
def test_a_log_of_other_rules_is_read_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: int, fix: str
) -> None:
    monkeypatch.setattr("swarmd.eventlog.store.RULES", rules)
    with open_log(tmp_path) as log:
        log.append(0.0, [MemberSeen("p")], NO_COMMANDS)
    for attempt in (lambda: list(read_commits(tmp_path)), lambda: open_log(tmp_path), lambda: load_state(tmp_path)):
        with pytest.raises(OtherVersion, match=f"rules {rules}.*{fix}"):
            attempt()


@pytest.mark.parametrize("content", [b"", b"\0" * 5000])
def test_an_empty_newest_segment_costs_what_stood_in_it_and_nothing_before(tmp_path: Path, content: bytes) -> None:
    commits = write_groups(tmp_path, members(3))
    (tmp_path / segment_name(commits[-1].end_seq)).write_bytes(content)
    for attempt in (lambda: list(read_commits(tmp_path)), lambda: open_log(tmp_path, "next")):
        with pytest.raises(LogDamaged, match=r"is empty.*move that file away"):
            attempt()
    list_segments(tmp_path)[-1].unlink()
    assert list(read_commits(tmp_path)) == commits


@pytest.mark.parametrize("content", [b"not a log", b"SWRMLOG1", b"\x89PNG" + b"\0" * 200])
def test_another_kind_of_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / segment_name(0)).write_bytes(content)
    with pytest.raises(LogDamaged, match="does not begin as a segment"):
        list(read_commits(tmp_path))


def test_snapshots_without_segments_are_no_log(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(0.0, [MemberSeen("p")], NO_COMMANDS)
        log.write_snapshot(State())
    assert list_snapshots(tmp_path)
    for path in list_segments(tmp_path):
        path.unlink()
    with pytest.raises(LogDamaged, match="events are lost"):
        open_log(tmp_path)
