"""Undoing an upgrade, cut off at every step: the log is the older one or the newer one, and whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from swarmd.backup.rollback import roll_back
from swarmd.cli import run_command
from swarmd.core.events import MemberSeen
from swarmd.daemon.notes import Restored, read_restored, write_note
from swarmd.daemon.upgrade import NOTE, UNDOING, drop_copy, keep_copy, put_back, read_copied, read_layout, take_over
from swarmd.errors import LogDamaged, LogInUse
from swarmd.eventlog.fold import node_of
from swarmd.eventlog.lock import take_lock
from swarmd.eventlog.offline.replay import verify
from swarmd.eventlog.store import EventLog
from swarmd.paths import NodeDirectory
from tests.backup.crash import dying
from tests.backup.making import make_node
from tests.durability import recording

OTHER = ("before-upgrade", "before-upgrade.tmp", "after-upgrade", "restored.json", "layout.json")


def files_of(root: Path, without: tuple[str, ...] = OTHER) -> dict[str, bytes]:
    """What a directory holds, but for locks and files that a crash left half written."""
    found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path.read_bytes()
        for name, path in found.items()
        if name.parts[0] not in without and path.name != "writer.lock" and path.suffix != ".tmp"
    }


class Upgraded:
    """A directory of layout 1 that was taken over and went on, and files of it then and now."""

    def __init__(self, root: Path) -> None:
        self.data = make_node(root)
        self.data.peers.rename(root / "peers.json")
        self.data.records.rename(root / "records.bin")
        self.data.invitations.unlink()  # there were none then
        self.data.network.rmdir()
        self.older = files_of(root)
        take_over(self.data)
        with EventLog.open(self.data.events, node_of(self.data.events), "run2") as log:
            log.append(1.0, [MemberSeen("somebody")], b"\0" * 16)
        self.data.peers.write_bytes(b"[1]")
        self.newer = files_of(root)
        (self.data.after_upgrade / "events").mkdir(parents=True)
        (self.data.after_upgrade / "events" / "of long ago").write_bytes(b"x")

    def copies(self, to: Path) -> Iterator[tuple[int, NodeDirectory]]:
        """As many of it as are wanted, one at a time."""
        for step in count():
            shutil.rmtree(to, ignore_errors=True)
            shutil.copytree(self.data.root, to)
            yield step, NodeDirectory(to)


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Upgraded:
    return Upgraded(tmp_path_factory.mktemp("upgraded") / "node")


def is_older(data: NodeDirectory, upgraded: Upgraded) -> bool:
    """Whether the log that lies there is the one from before the upgrade."""
    return events_of(files_of(data.root)) == events_of(upgraded.older)


def events_of(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name.startswith("events/")}


def crash_everywhere(upgraded: Upgraded, to: Path, work: Callable[[NodeDirectory], object]) -> Iterator[NodeDirectory]:
    """The directory after a crash at every step of some work."""
    for step, data in upgraded.copies(to):
        with dying(step) as died:
            work(data)
        yield data
        if not died():
            assert step > 20, "these are not all steps"
            return


def test_a_rollback_cut_off_at_any_step_is_taken_to_its_end_by_the_next(upgraded: Upgraded, tmp_path: Path) -> None:
    for data in crash_everywhere(upgraded, tmp_path / "node", roll_back):
        assert read_restored(data) is not None or not is_older(data, upgraded), "an old log without its mark"
        if read_copied(data) is not None:
            roll_back(data)
        assert files_of(data.root) == upgraded.older and read_layout(data) == 1
        assert events_of(files_of(data.after_upgrade, ())) == events_of(upgraded.newer), "what came after is kept"
        assert read_restored(data) is not None
        verify(data.events)


def test_a_rollback_cut_off_at_any_step_and_the_node_started(upgraded: Upgraded, tmp_path: Path) -> None:
    seen = set()
    for data in crash_everywhere(upgraded, tmp_path / "node", roll_back):
        take_over(data)
        older = is_older(data, upgraded)
        seen.add(older)
        assert older or events_of(files_of(data.root)) == events_of(upgraded.newer), "it begins no log of its own"
        assert read_restored(data) is not None or not older
        assert read_layout(data) == 2 and data.peers.exists()
        if read_copied(data) is not None:
            roll_back(data)
        assert files_of(data.root) == upgraded.older
    assert seen == {True, False}


def test_an_end_that_is_cut_off_again_and_again_comes(upgraded: Upgraded, tmp_path: Path) -> None:
    for first, data in upgraded.copies(tmp_path / "node"):
        with dying(first) as died:
            roll_back(data)
        if not died():
            break
        with dying(first % 7):
            take_over(data)
        if read_copied(data) is not None:
            roll_back(data)
        assert files_of(data.root) == upgraded.older


def test_a_failed_step_up_that_is_undone_and_cut_off_leaves_no_mark(upgraded: Upgraded, tmp_path: Path) -> None:
    """`put_back` alone: the daemon undoes its own migration before the node signs anything."""
    for data in crash_everywhere(upgraded, tmp_path / "node", put_back):
        if read_copied(data) is not None:
            put_back(data)
        assert files_of(data.root) == upgraded.older and read_restored(data) is None


def test_a_power_cut_takes_nothing_of_a_copy(tmp_path: Path) -> None:
    """Whatever is put back of it, after an upgrade that was cut off, takes the place of what there was."""
    data = make_node(tmp_path / "node")
    with recording() as disk:
        keep_copy(data, 1, 1, ("network",))
    made = data.before_upgrade.with_name("before-upgrade.tmp")
    parts = [path.relative_to(data.before_upgrade) for path in data.before_upgrade.rglob("*")]
    assert Path("network/peers.json") in parts and Path("events") in parts
    assert {made / part for part in parts} <= disk.synced


def test_a_copy_that_is_dropped_halfway_is_none(upgraded: Upgraded, tmp_path: Path) -> None:
    whole = files_of(upgraded.data.before_upgrade, ())
    dropped = 0
    for step, data in upgraded.copies(tmp_path / "node"):
        with dying(step) as died:
            drop_copy(data)
        assert read_copied(data) is None or files_of(data.before_upgrade, ()) == whole
        dropped += read_copied(data) is None
        keep_copy(data, 1, 1, ("peers.json",))
        assert read_copied(data) is not None
        if not died():
            break
    assert dropped > 3


# --- refused ---


def test_a_log_that_is_gone_does_not_begin_again(upgraded: Upgraded, tmp_path: Path) -> None:
    """Also what an older swarmd's rollback left, which made no mark."""
    data = next(upgraded.copies(tmp_path / "node"))[1]
    shutil.rmtree(data.after_upgrade)
    data.after_upgrade.mkdir()
    data.events.rename(data.after_upgrade / "events")
    with pytest.raises(LogDamaged, match="is gone") as refused:
        take_over(data)
    assert f"swarmd rollback {data.root}" in refused.value.fix
    assert not data.events.exists()
    roll_back(data)
    assert is_older(data, upgraded)
    assert events_of(files_of(data.after_upgrade, ())) == events_of(upgraded.newer), "the newer one is not thrown away"


def test_what_was_written_meanwhile_is_not_written_over(upgraded: Upgraded, tmp_path: Path) -> None:
    for step, data in upgraded.copies(tmp_path / "node"):
        if not _without_log(data, step):
            continue
        data.events.mkdir()
        (data.events / "of another swarmd").touch()
        for again in (take_over, roll_back):
            with pytest.raises(LogDamaged, match="written anew"):
                again(data)
        shutil.rmtree(data.events)
        roll_back(data)
        assert is_older(data, upgraded)
        return


def _without_log(data: NodeDirectory, step: int) -> bool:
    """Crash a rollback. Whether that was where neither log lies in place."""
    with dying(step):
        roll_back(data)
    return not data.events.exists()


def test_two_do_not_undo_at_once(upgraded: Upgraded, tmp_path: Path) -> None:
    data = next(upgraded.copies(tmp_path / "node"))[1]
    with_lock = take_lock(data.before_upgrade / "events")
    try:
        with pytest.raises(LogInUse):
            roll_back(data)
    finally:
        os.close(with_lock)
    assert not (data.before_upgrade / UNDOING).exists() and not is_older(data, upgraded)


def test_the_round_of_an_earlier_restore_is_kept(upgraded: Upgraded, tmp_path: Path) -> None:
    data = next(upgraded.copies(tmp_path / "node"))[1]
    write_note(data.restored, Restored(1.0, 1.0, from_round=40))
    roll_back(data)
    note = read_restored(data)
    assert note is not None and note.from_round == 40


def test_a_directory_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["rollback", str(tmp_path / "nonexist")]) == 66
    told = capsys.readouterr().err
    assert "no event log" in told and "disk" not in told
    assert not (tmp_path / "nonexist").exists()


def test_the_note_of_a_copy_is_what_makes_it_one(upgraded: Upgraded, tmp_path: Path) -> None:
    data = next(upgraded.copies(tmp_path / "node"))[1]
    (data.before_upgrade / UNDOING).write_bytes(b"[")
    with pytest.raises(LogDamaged, match="undoing"):
        take_over(data)
    (data.before_upgrade / NOTE).unlink()
    take_over(data)
    assert not is_older(data, upgraded)
