"""Files that a node cannot do without are on disk before they have their names, and with their names."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from swarmd.backup.backup import BackupPlan, make_backup
from swarmd.chain.operator import Attempt, Journal
from swarmd.chain.signer import AuditLine, AuditLog
from swarmd.daemon.directory import Moved, write_note
from swarmd.dht.rounds.publisher import OwnRecordFile, OwnRecordStore
from swarmd.errors import ArchiveUnwritable, IdentityError, LogWriteFailed
from swarmd.secret_files import SecretKind, write_secret
from tests.backup.making import make_node
from tests.dht.making import CLOCK, SWARM
from tests.durability import recording

KEY = SecretKind("key", IdentityError, 1000)


def write_own_records(path: Path) -> None:
    shelf = OwnRecordStore(OwnRecordFile(path), SWARM)
    shelf.keep(CLOCK, 7.0)
    anyio.run(shelf.save)


def write_audit_lines(path: Path) -> None:
    """Two files: the second begins with what the first left open."""
    line = AuditLine("2026-01-01T00:00:00Z", "signed", "reward/1/0/me")
    log = AuditLog(path, lambda: [line])
    log._limit = 1
    log.append(line)
    assert path.with_name("file.1").exists()
    log.append(line)
    log.close()


def write_journal(path: Path) -> None:
    journal = Journal(path)
    journal.begin(1, "0x" + "1" * 64, "0xme")
    journal.note("deploy", Attempt("0xhash", 0, "00", "1"))


WRITERS: dict[str, Callable[[Path], None]] = {
    "a secret": lambda path: write_secret(path, b"secret", KEY),
    "a note": lambda path: write_note(path, Moved(1.0)),
    "an empty audit log": lambda path: AuditLog(path).close(),
    "an audit log that was begun anew": write_audit_lines,
    "a journal of orders": write_journal,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_power_cut_takes_nothing_of(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with recording() as disk:
        WRITERS[name](path)
    assert path in disk.synced and tmp_path in disk.synced
    assert (disk.lost, disk.hazards) == (set(), [])


def test_own_records_are_written_before_they_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    with recording() as disk:
        write_own_records(tmp_path / "records.bin")
    assert tmp_path / "records.bin" in disk.synced and disk.hazards == []


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that takes no writes, as one is after an error of its disk."""
    place = tmp_path / "read-only"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_read_only_disk_is_named_by_the_error_of_the_write(read_only: Path, tmp_path: Path) -> None:
    """There, to remove what is not even there fails as well."""
    with pytest.raises(LogWriteFailed, match=r"writing of .*note.* failed: Read-only file system"):
        write_note(read_only / "note", Moved(1.0))
    with pytest.raises(ArchiveUnwritable, match=r"node\.tar cannot be written: .*Read-only file system"):
        make_backup(make_node(tmp_path / "node"), read_only / "node.tar", BackupPlan(None))
