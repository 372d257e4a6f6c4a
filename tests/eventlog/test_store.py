"""Opening, appending, sealing, and what happens when the disk does not play along."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.core.events import LinkDown, MemberSeen
from swarmd.errors import ExitCode, LogInUse, LogWriteFailed, NoSpaceLeft
from swarmd.eventlog import segment
from swarmd.eventlog.frame import NO_COMMANDS, RESERVE_BYTES
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.replay import check_log
from swarmd.eventlog.segment import list_segments
from tests.eventlog.making import members, open_log, write_groups
from tests.tmpfs import tmpfs

TMPFS_BYTES = 128 * 1024

WRITER = """
import sys
from pathlib import Path
from swarmd.core.events import MemberSeen
from swarmd.eventlog.frame import NO_COMMANDS
from swarmd.eventlog.store import EventLog

with EventLog.open(Path(sys.argv[1]), "12D3KooWAlice", "child", segment_bytes=4096) as log:
    while True:
        commit = log.append(1.0, [MemberSeen(f"peer{log.next_seq}")], NO_COMMANDS)
        print(commit.seq, flush=True)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is soon full."""
    with tmpfs(tmp_path / "small", f"size={TMPFS_BYTES}") as place:
        yield place


def write_and_die(directory: Path, appends: int) -> int:
    """A process writes, and is killed after so many appends or a few more; the last that it acknowledged."""
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    acknowledged = [int(child.stdout.readline()) for _ in range(appends)]
    child.kill()
    rest, _ = child.communicate()
    return int(rest.split()[-1]) if rest.split() else acknowledged[-1]


def fill(place: Path, leave_bytes: int) -> Path:
    """Use up the space but for about `leave_bytes`."""
    ballast = place / "ballast"
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    ballast.write_bytes(b"x" * max(0, free - leave_bytes))
    return ballast


def test_a_full_segment_is_sealed_and_never_written_again(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=1000) as log:
        for group in members(100):
            log.append(0.0, group, NO_COMMANDS)
            sealed = {path: path.read_bytes() for path in list_segments(tmp_path)[:-1]}
        assert all(1000 <= len(content) < 1200 for content in sealed.values())
    assert len(sealed) > 3
    assert {path: path.read_bytes() for path in sealed} == sealed
    assert check_log(tmp_path).events == 100


def test_most_appends_change_no_file_size(tmp_path: Path) -> None:
    """A sync has no metadata to write then; what was written ahead is gone when the segment is closed."""
    sizes = set()
    with open_log(tmp_path) as log:
        for group in members(200):
            log.append(0.0, group, NO_COMMANDS)
            sizes.add(list_segments(tmp_path)[0].stat().st_size)
    content = list_segments(tmp_path)[0].read_bytes()
    assert [RESERVE_BYTES < size <= RESERVE_BYTES + len(content) for size in sizes] == [True]
    assert content.endswith(NO_COMMANDS)
    assert check_log(tmp_path).events == 200


def test_without_room_ahead_the_log_goes_on(small_disk: Path) -> None:
    directory = small_disk / "events"
    with open_log(directory) as log:
        commits = [log.append(0.0, group, NO_COMMANDS) for group in members(50)]
        assert list_segments(directory)[0].stat().st_size < TMPFS_BYTES
    assert list(read_commits(directory)) == commits


def test_a_second_writer_is_told_who_holds_the_log(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n"
        with pytest.raises(LogInUse, match=rf"pid {child.pid}\) writes the event log in {tmp_path}") as caught:
            open_log(tmp_path)
        assert caught.value.exit_code == ExitCode.IN_USE
    finally:
        child.kill()
        child.communicate()
    with open_log(tmp_path) as log:
        assert log.next_seq > 0, "the lock ends with its holder"


@pytest.mark.parametrize("appends", [1, 40, 300])
def test_a_killed_writer_loses_nothing_it_had_acknowledged(tmp_path: Path, appends: int) -> None:
    last = write_and_die(tmp_path, appends)
    with open_log(tmp_path, "next") as log:
        assert log.next_seq > last
        log.append(2.0, [MemberSeen("after")], NO_COMMANDS)
    events = [event for commit in read_commits(tmp_path) for event in commit.events]
    assert events[:-1] == [MemberSeen(f"peer{seq}") for seq in range(len(events) - 1)]
    assert events[-1] == MemberSeen("after")


def test_unfinished_files_of_a_crash_are_removed(tmp_path: Path) -> None:
    write_groups(tmp_path, members(1))
    left = tmp_path / f"{1:020d}.seg.99.1.tmp"
    left.write_bytes(b"half a header")
    with open_log(tmp_path):
        assert not left.exists()


def test_a_full_disk_leaves_the_log_clean_and_writable(small_disk: Path) -> None:
    directory = small_disk / "events"
    with open_log(directory) as log:
        first = log.append(0.0, [MemberSeen("first")], NO_COMMANDS)
        ballast = fill(small_disk, leave_bytes=8192)
        large = [LinkDown("x" * 60_000)]
        with pytest.raises(NoSpaceLeft, match=r"no space left for .*Free space") as caught:
            log.append(1.0, large, NO_COMMANDS)
        assert caught.value.exit_code == ExitCode.CANNOT_CREATE
        assert list(read_commits(directory)) == [first]
        assert check_log(directory).torn_bytes == 0
        ballast.unlink()
        second = log.append(2.0, large, NO_COMMANDS)
    assert list(read_commits(directory)) == [first, second]


def test_a_segment_that_cannot_be_begun_for_want_of_space_is_begun_later(small_disk: Path) -> None:
    directory = small_disk / "events"
    with open_log(directory, segment_bytes=4000) as log:
        first = log.append(0.0, [LinkDown("x" * 4000)], NO_COMMANDS)
        ballast = fill(small_disk, leave_bytes=0)
        with pytest.raises(NoSpaceLeft):
            log.append(1.0, [LinkDown("b")], NO_COMMANDS)
        assert list(directory.glob("*.tmp")) == []
        ballast.unlink()
        second = log.append(2.0, [LinkDown("b")], NO_COMMANDS)
    assert list(read_commits(directory)) == [first, second]
    assert len(list_segments(directory)) == 2


def test_after_any_other_failed_write_no_more_is_taken(tmp_path: Path) -> None:
    """A file size limit makes the kernel write half a frame and then refuse the rest."""
    with open_log(tmp_path) as log:
        first = log.append(0.0, [MemberSeen("first")], NO_COMMANDS)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        try:
            with pytest.raises(LogWriteFailed, match="File too large") as caught:
                log.append(1.0, [LinkDown("x" * 5000)], NO_COMMANDS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.exit_code == ExitCode.IO_ERROR
        with pytest.raises(LogWriteFailed, match="a write failed"):
            log.append(2.0, [LinkDown("small")], NO_COMMANDS)
    assert list(read_commits(tmp_path)) == [first]
    assert check_log(tmp_path).torn_bytes == 0


def test_a_failed_sync_is_never_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = []

    def fail(descriptor: int) -> None:
        syncs.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    with open_log(tmp_path) as log:
        log.append(0.0, [MemberSeen("first")], NO_COMMANDS)
        monkeypatch.setattr(segment.os, "fdatasync", fail)
        with pytest.raises(LogWriteFailed, match=r"sync of .* failed: Input/output error"):
            log.append(1.0, [MemberSeen("second")], NO_COMMANDS)
        monkeypatch.undo()
        with pytest.raises(LogWriteFailed, match="a sync failed"):
            log.append(2.0, [MemberSeen("third")], NO_COMMANDS)
    assert len(syncs) == 1


def test_every_append_is_synced_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    write, sync = os.pwrite, os.fdatasync
    with open_log(tmp_path) as log:
        log.append(0.0, [MemberSeen("first")], NO_COMMANDS)
        monkeypatch.setattr(os, "pwrite", lambda *args: calls.append("write") or write(*args))
        monkeypatch.setattr(os, "fdatasync", lambda *args: calls.append("sync") or sync(*args))
        log.append(1.0, [MemberSeen("a"), MemberSeen("b")], NO_COMMANDS)
    assert calls == ["write", "sync"], "a group is one write and one sync"


def test_a_log_removed_under_the_daemon_is_noticed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(0.0, [MemberSeen("first")], NO_COMMANDS)
        list_segments(tmp_path)[0].unlink()
        with pytest.raises(LogWriteFailed, match="removed or changed"):
            log.append(1.0, [MemberSeen("second")], NO_COMMANDS)
