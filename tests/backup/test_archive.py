"""Archives that anybody may have made, and the directory that one is unpacked to: whole, or as it was."""

import errno
import gzip
import io
import os
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from swarmd.backup.archive import read_archive
from swarmd.backup.backup import BackupManifest, BackupPlan, check_backup, make_backup, restore_backup
from swarmd.backup.bundle import BundleManifest, open_bundle
from swarmd.daemon.directory import read_restore_note, write_layout_if_absent
from swarmd.errors import ArchiveError, LogDamaged, OtherVersion, PathUnusable
from swarmd.eventlog.fold import load_state
from swarmd.files import hold_directory_lock
from swarmd.paths import NodeDirectory
from tests.backup.crash import dying
from tests.backup.making import PASSPHRASE, make_node
from tests.durability import recording

MIB = 2**20
PEAK = 24 * MIB  # bytes that reading may take; the bombs hold more


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def long_header(kind: bytes) -> bytes:
    return header(kind, 48 * MIB) + b"a" * (48 * MIB) + header(tarfile.REGTYPE, 0)


BOMBS: dict[str, Callable[[], bytes]] = {
    "a long name": lambda: long_header(tarfile.GNUTYPE_LONGNAME),
    "a long link": lambda: long_header(tarfile.GNUTYPE_LONGLINK),
    "pax records": lambda: long_header(tarfile.XHDTYPE),
    "a size below zero, which has read() take all": lambda: header(tarfile.GNUTYPE_LONGNAME, -512) + b"a" * (48 * MIB),
    "long names one after another": lambda: (header(tarfile.GNUTYPE_LONGNAME, 512) + b"a" * 512) * 3000,
    "holes": lambda: header(tarfile.GNUTYPE_SPARSE, 0),
    "a global header": lambda: header(tarfile.XGLTYPE, 12) + b"12 abc=defg\n".ljust(512, b"\0"),
    "a link": lambda: header(tarfile.SYMTYPE, 0),
}


@pytest.mark.parametrize("name", BOMBS)
def test_no_header_takes_memory(name: str, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.tar.gz"
    bomb.write_bytes(gzip.compress(BOMBS[name]() + b"\0" * 1024, 1))
    tracemalloc.start()
    try:
        for work in (check_backup, lambda path: restore_backup(path, tmp_path / "new", None)):
            with pytest.raises(ArchiveError):
                work(bomb)
        with pytest.raises(ArchiveError):
            open_bundle(bomb, tmp_path / "opened")
        assert tracemalloc.get_traced_memory()[1] < PEAK
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "new").exists() and not (tmp_path / "opened").exists()


@pytest.mark.parametrize("bound", ["MEMBERS_MAX", "BYTES_MAX"])
def test_an_archive_of_more_than_its_bounds_is_refused(
    bound: str, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound == "MEMBERS_MAX":
        monkeypatch.setattr("swarmd.backup.archive.MEMBERS_MAX", 2)
    else:
        monkeypatch.setattr(BackupManifest, "BYTES_MAX", 2000)
    with pytest.raises(ArchiveError, match="more than a backup of a node may"):
        restore_backup(archive, tmp_path / "new", None)


def member(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, io.BytesIO(content)


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/passwd",
        "identity.key",
        "restored.json",
        "events/../../x",
        "events/",
        "events/..",
        "checkpoints/../identity.key",
        "checkpoints/./x",
        "a/b/c",
        "blobs/zz/x",
        "x/",
    ],
)
def test_a_name_that_leads_elsewhere_is_not_a_member(name: str, tmp_path: Path) -> None:
    assert not BackupManifest.allows(name)
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.addfile(*member(name))
    with pytest.raises(ArchiveError):
        restore_backup(tmp_path / "evil.tar", tmp_path / "new", None)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b'{"format": 2}', "format 2"),
        (b'{"format": 1, "more": ' + 50_000 * b"[" + 50_000 * b"]" + b"}", "cannot be read"),
    ],
)
def test_an_archive_of_a_later_format_or_without_a_readable_manifest_is_refused(
    raw: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "later.tar"
    for kind in (BackupManifest, BundleManifest):
        with tarfile.open(path, "w") as tar:
            tar.addfile(*member(kind.FILE, raw))
        with pytest.raises((ArchiveError, OtherVersion), match=said):
            read_archive(path, kind)


# --- unpacking ---


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> NodeDirectory:
    return make_node(tmp_path_factory.mktemp("node") / "node")


@pytest.fixture(scope="module")
def archive(node: NodeDirectory) -> Path:
    out = node.root.parent / "node.tar.gz"
    make_backup(node, out, BackupPlan(None))
    return out


def test_a_mount_point_is_restored_into(node: NodeDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory that can be neither removed nor renamed over."""
    root = tmp_path / "mounted"
    root.mkdir(mode=0o755)
    for name in ("rmdir", "rename", "replace"):
        monkeypatch.setattr(os, name, _busy(root, getattr(os, name)))
    (root / "lost+found").mkdir()
    inode = root.stat().st_ino
    make_backup(node, tmp_path / "sealed.tar", BackupPlan(PASSPHRASE))
    restore_backup(tmp_path / "sealed.tar", root, PASSPHRASE)
    data = NodeDirectory(root)
    assert load_state(data.events) == load_state(node.events) and read_restore_note(data) is not None
    assert (root / "identity.key").read_bytes() == (node.root / "identity.key").read_bytes()
    assert root.stat().st_ino == inode
    assert not [path for path in root.iterdir() if path.name.startswith(".")]
    write_layout_if_absent(data)


def _busy(root: Path, work):  # type: ignore[no-untyped-def]
    def call(*paths, **more):  # type: ignore[no-untyped-def]
        if str(root) in map(str, paths):
            raise OSError(errno.EBUSY, "Device or resource busy", str(root))
        return work(*paths, **more)

    return call


@pytest.mark.parametrize("there", [False, True])
def test_a_power_cut_takes_nothing_of_what_was_restored(archive: Path, tmp_path: Path, there: bool) -> None:
    root = tmp_path / "restored"
    if there:
        root.mkdir()
    with recording() as disk:
        restore_backup(archive, root, None)
    parts = {path.relative_to(root) for path in root.rglob("*")}
    synced = {Path(*path.relative_to(root).parts[1:]) for path in disk.synced if path.is_relative_to(root)}
    assert Path("events") in parts and parts <= synced
    assert {path for path in disk.lost if path.is_relative_to(tmp_path) and path.exists()} == set()


def crashed(archive: Path, root: Path, new: bool) -> Iterator[bool]:
    """After a crash at every step of a restore, whether there was one."""
    for step in count():
        shutil.rmtree(root, ignore_errors=True)
        if not new:
            root.mkdir()
        with dying(step) as died:
            restore_backup(archive, root, None)
        yield died()
        if not died():
            assert step > 20
            return


@pytest.mark.parametrize("new", [False, True])
def test_no_node_starts_on_half_of_it_and_another_try_ends_it(
    node: NodeDirectory, archive: Path, tmp_path: Path, new: bool
) -> None:
    data = NodeDirectory(tmp_path / "there")
    refused, emptied, whole = 0, 0, load_state(node.events)
    for died in crashed(archive, data.root, new):
        if not died or not data.root.exists() or not any(data.root.iterdir()):
            continue
        if data.restoring.exists():
            refused += 1
            with pytest.raises(LogDamaged, match="cut off") as told:
                write_layout_if_absent(data)
            assert "swarmd restore" in told.value.fix
            if data.events.exists() or data.blobs.exists():  # it was cut off as its files moved up
                emptied += 1
                with pytest.raises(ArchiveError, match="is not empty") as refusal:
                    restore_backup(archive, data.root, None)
                assert "empty the directory" in refusal.value.fix
                shutil.rmtree(data.root)
            restore_backup(archive, data.root, None)
        write_layout_if_absent(data)
        assert load_state(data.events) == whole and read_restore_note(data) is not None
        assert not data.restoring.exists()
    assert refused > 10 and emptied > 3


def test_a_second_crash_while_the_first_is_cleared_away(node: NodeDirectory, archive: Path, tmp_path: Path) -> None:
    data = NodeDirectory(tmp_path / "there")
    for nth, died in enumerate(crashed(archive, data.root, False)):
        if died and [path.name for path in data.root.iterdir()] == [".restoring"]:
            with dying(nth % 9):
                restore_backup(archive, data.root, None)
            restore_backup(archive, data.root, None)
            assert load_state(data.events) == load_state(node.events)


def test_a_failure_leaves_the_directory_as_empty_as_it_was(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, root = os.rename, tmp_path / "there"
    root.mkdir()

    def fail_for_network(source, target, **more):  # type: ignore[no-untyped-def]
        if Path(source).name == "network":
            raise OSError(errno.EIO, "Input/output error")
        real(source, target, **more)

    monkeypatch.setattr(os, "rename", fail_for_network)
    with pytest.raises(ArchiveError, match="Input/output error"):
        restore_backup(archive, root, None)
    assert not list(root.iterdir())


def test_what_is_not_its_own_is_left_alone(archive: Path, tmp_path: Path) -> None:
    data = NodeDirectory(tmp_path / "there")
    data.root.mkdir()
    (data.root / "identity.key").write_bytes(b"mine")
    data.restoring.mkdir()
    with pytest.raises(ArchiveError, match="is not empty"):
        restore_backup(archive, data.root, None)
    assert (data.root / "identity.key").read_bytes() == b"mine"
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="File exists"):
        restore_backup(archive, tmp_path / "file", None)
    assert (tmp_path / "file").is_file()


def test_two_restores_do_not_meet(archive: Path, tmp_path: Path) -> None:
    root = tmp_path / "there"
    root.mkdir()
    with hold_directory_lock(root), pytest.raises(PathUnusable, match="another command is at work") as refused:
        restore_backup(archive, root, None)
    assert refused.value.exit_code == 75
    restore_backup(archive, root, None)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_a_bundle_that_does_not_open_leaves_nothing(late: bool, there: bool, tmp_path: Path) -> None:
    into, bundle = tmp_path / "opened", tmp_path / "b.tar.gz"
    bundle.write_bytes(b"no archive")
    if late:  # it is found out after it was unpacked
        with tarfile.open(bundle, "w:gz") as tar:
            for name in ("file", BundleManifest.FILE):
                tar.addfile(*member(name, b"{}"))
    if there:
        into.mkdir()
    for _ in range(2):
        with pytest.raises(ArchiveError) as told:
            open_bundle(bundle, into)
        assert "not empty" not in str(told.value)
    assert into.exists() == there and not (there and list(into.iterdir()))
