"""Restoring into a directory that is there: a mount point, a crash at every step, what it must not touch."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from swarmd.backup.create import BackupPlan, make_backup
from swarmd.backup.restore import restore_backup
from swarmd.daemon.layout import claim_layout
from swarmd.daemon.notes import read_restored
from swarmd.errors import BackupError, LogDamaged
from swarmd.eventlog.fold import load
from swarmd.paths import DataPaths
from tests.backup.crash import dying
from tests.backup.making import PASSPHRASE, make_node
from tests.durability import recording


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> DataPaths:
    return make_node(tmp_path_factory.mktemp("node") / "node")


@pytest.fixture(scope="module")
def archive(node: DataPaths) -> Path:
    out = node.root.parent / "node.tar.gz"
    make_backup(node, out, BackupPlan(None))
    return out


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that, like a mount point, can be neither removed nor renamed over."""
    root = tmp_path / "mounted"
    root.mkdir(mode=0o755)
    for name in ("rmdir", "rename", "replace"):
        monkeypatch.setattr(os, name, _busy(root, getattr(os, name)))
    return root


def _busy(root: Path, work):  # type: ignore[no-untyped-def]
    def call(*paths, **more):  # type: ignore[no-untyped-def]
        if str(root) in map(str, paths):
            raise OSError(errno.EBUSY, "Device or resource busy", str(root))
        return work(*paths, **more)

    return call


def test_a_mount_point_is_restored_into(node: DataPaths, archive: Path, mounted: Path) -> None:
    (mounted / "lost+found").mkdir()
    inode = mounted.stat().st_ino
    restore_backup(archive, mounted, None)
    data = DataPaths(mounted)
    assert load(data.events) == load(node.events) and read_restored(data) is not None
    assert mounted.stat().st_ino == inode
    assert not [path for path in mounted.iterdir() if path.name.startswith(".")]
    claim_layout(data)


@pytest.mark.parametrize("there", [False, True])
def test_a_power_cut_takes_nothing_of_what_was_restored(archive: Path, tmp_path: Path, there: bool) -> None:
    root = tmp_path / "restored"
    if there:
        root.mkdir()
    with recording() as disk:
        restore_backup(archive, root, None)
    parts = {path.relative_to(root) for path in root.rglob("*")}
    synced = {Path(*path.relative_to(tmp_path).parts[2 if there else 1 :]) for path in disk.synced if path != tmp_path}
    assert Path("events") in parts and parts <= synced
    assert {path for path in disk.lost if path.is_relative_to(root) and path.exists()} == set()


def test_with_keys_too(node: DataPaths, tmp_path: Path, mounted: Path) -> None:
    make_backup(node, tmp_path / "sealed.tar", BackupPlan(PASSPHRASE))
    restore_backup(tmp_path / "sealed.tar", mounted, PASSPHRASE)
    assert (mounted / "identity.key").read_bytes() == (node.root / "identity.key").read_bytes()


def crashed(archive: Path, root: Path) -> Iterator[bool]:
    """After a crash at every step of a restore, whether there was one."""
    for step in count():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        with dying(step) as died:
            restore_backup(archive, root, None)
        yield died()
        if not died():
            assert step > 20
            return


def test_no_node_starts_on_half_of_it_and_another_try_ends_it(node: DataPaths, archive: Path, tmp_path: Path) -> None:
    data = DataPaths(tmp_path / "there")
    refused, whole = 0, load(node.events)
    for died in crashed(archive, data.root):
        if not died or not any(data.root.iterdir()):
            continue
        if data.restoring.exists():
            refused += 1
            with pytest.raises(LogDamaged, match="cut off") as told:
                claim_layout(data)
            assert "swarmd restore" in told.value.fix
            restore_backup(archive, data.root, None)
        claim_layout(data)
        assert load(data.events) == whole and read_restored(data) is not None
        assert not data.restoring.exists()
    assert refused > 10


def test_a_second_crash_while_the_first_is_cleared_away(node: DataPaths, archive: Path, tmp_path: Path) -> None:
    data = DataPaths(tmp_path / "there")
    for nth, died in enumerate(crashed(archive, data.root)):
        if died and data.restoring.exists():
            with dying(nth % 9):
                restore_backup(archive, data.root, None)
            restore_backup(archive, data.root, None)
            assert load(data.events) == load(node.events)


def test_a_failure_leaves_the_directory_as_empty_as_it_was(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, root = os.rename, tmp_path / "there"
    root.mkdir()

    def fail_for_events(source, target, **more):  # type: ignore[no-untyped-def]
        if Path(source).name == "network":
            raise OSError(errno.EIO, "Input/output error")
        real(source, target, **more)

    monkeypatch.setattr(os, "rename", fail_for_events)
    with pytest.raises(BackupError, match="Input/output error"):
        restore_backup(archive, root, None)
    assert not list(root.iterdir())


def test_what_is_none_of_its_own_is_left_alone(archive: Path, tmp_path: Path) -> None:
    data = DataPaths(tmp_path / "there")
    data.root.mkdir()
    (data.root / "identity.key").write_bytes(b"mine")
    (data.root / ".restoring").mkdir()
    with pytest.raises(BackupError, match="is not empty"):
        restore_backup(archive, data.root, None)
    assert (data.root / "identity.key").read_bytes() == b"mine"
    (tmp_path / "file").touch()
    with pytest.raises(BackupError, match="is no directory"):
        restore_backup(archive, tmp_path / "file", None)


def test_two_restores_do_not_meet(archive: Path, tmp_path: Path) -> None:
    root = tmp_path / "there"
    root.mkdir()
    other = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BackupError, match="goes on"):
            restore_backup(archive, root, None)
    finally:
        os.close(other)
    restore_backup(archive, root, None)


def test_what_a_killed_restore_left_beside_a_new_directory_goes_with_the_next(archive: Path, tmp_path: Path) -> None:
    """In a container the next one often has the same process id."""
    own, earlier, going_on, others = (tmp_path / f".new.{name}.restoring" for name in (os.getpid(), "1", "2", "copy.3"))
    for place in (own, earlier, going_on, others):
        place.mkdir()
        (place / "identity.key").write_bytes(b"a key")
    other = os.open(going_on, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        restore_backup(archive, tmp_path / "new", None)
    finally:
        os.close(other)
    assert sorted(tmp_path.glob(".new*")) == sorted((going_on, others))
    assert DataPaths(tmp_path / "new").events.is_dir()


@pytest.mark.parametrize(
    "left", [b'["../victim"]', b'["/tmp/victim"]', b'["a/../../victim"]', b'[".."]', b'[""]', b"no list", b"[" * 50_000]
)
def test_what_somebody_else_left_in_the_directory_has_nothing_removed(
    archive: Path, mounted: Path, left: bytes
) -> None:
    victim = mounted.parent / "victim"
    victim.mkdir()
    making = DataPaths(mounted).restoring
    making.mkdir()
    (making / ".whole").write_bytes(left)
    with pytest.raises(BackupError, match="none that a restore has left"):
        restore_backup(archive, mounted, None)
    assert victim.is_dir() and mounted.is_dir()
