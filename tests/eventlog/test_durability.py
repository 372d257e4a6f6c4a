"""After every step of the log a power cut takes nothing: files and directories are synced, and before their names."""

from pathlib import Path

from swarmd.core.state import State
from swarmd.eventlog.frame import NO_COMMANDS
from swarmd.eventlog.segment import list_segments
from swarmd.eventlog.snapshot import list_snapshots, snapshot_directory
from swarmd.eventlog.store import LOCK_NAME
from tests.durability import Disk, recording
from tests.eventlog.making import members, open_log, write_groups


def lost(disk: Disk) -> set[str]:
    """What a power cut would take; the lock's pid is only for people."""
    assert disk.hazards == []
    return {str(path) for path in disk.lost if path.name != LOCK_NAME}


def test_the_record_tells_what_was_not_synced(tmp_path: Path) -> None:
    with recording() as disk:
        (tmp_path / "a").write_text("content")
        (tmp_path / "a").rename(tmp_path / "b")
    assert disk.lost == {tmp_path} and len(disk.hazards) == 1


def test_a_new_log_with_the_directories_above_it_stays(tmp_path: Path) -> None:
    directory = tmp_path / "node" / "events"
    with recording() as disk, open_log(directory) as log:
        assert lost(disk) == set()
        assert {tmp_path, directory.parent} <= disk.synced
        log.append(0.0, *members(1), NO_COMMANDS)
        assert lost(disk) == set()
        assert {directory, *list_segments(directory)} <= disk.synced


def test_a_sealed_segment_stays_without_its_zeros(tmp_path: Path) -> None:
    with recording() as disk, open_log(tmp_path, segment_bytes=1000) as log:
        for group in members(100):
            log.append(0.0, group, NO_COMMANDS)
            assert lost(disk) == set()
        assert len(list_segments(tmp_path)) > 3


def test_what_recovery_cuts_off_stays_cut(tmp_path: Path) -> None:
    write_groups(tmp_path, members(3))
    with list_segments(tmp_path)[0].open("ab") as file:
        file.write(b"torn")
    with recording() as disk, open_log(tmp_path, "next") as log:
        assert log.cut is not None
        assert list_segments(tmp_path)[0] in disk.synced
        assert lost(disk) == set()


def test_what_a_life_left_unsynced_is_on_disk_before_the_next_one_writes(tmp_path: Path) -> None:
    """Its end, where the zeros were cut off; and a commit that it wrote and died before it was synced."""
    with recording() as disk:
        write_groups(tmp_path, members(3))
        assert lost(disk) == {str(list_segments(tmp_path)[0])}
        with open_log(tmp_path, "next") as log:
            assert lost(disk) == set()
            log.append(0.0, *members(1), NO_COMMANDS)


def test_a_snapshot_stays_and_what_it_lets_go_stays_gone(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=1000, bytes_max=1) as log:
        for group in members(50):
            log.append(0.0, group, NO_COMMANDS)
        before = len(list_segments(tmp_path))
        for _ in range(2):
            with recording() as disk:
                log.write_snapshot(State(run="run"))
                assert lost(disk) == set()
                log.append(0.0, *members(1), NO_COMMANDS)
            assert lost(disk) == set()
            assert {tmp_path, snapshot_directory(tmp_path), *list_snapshots(tmp_path)} <= disk.synced
    assert len(list_segments(tmp_path)) < before
    assert len(list_snapshots(tmp_path)) == 1
