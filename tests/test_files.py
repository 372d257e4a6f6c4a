"""Files that a node cannot do without outlive a power cut, and what a user names to be read is a regular file."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from swarmd.backup.backup import BackupPlan, check_backup, make_backup
from swarmd.backup.bundle import open_bundle
from swarmd.chain.endpoints import read_endpoint_urls
from swarmd.chain.operator import OrderJournal
from swarmd.chain.signer import AuditLine, AuditLog
from swarmd.config import load_config
from swarmd.core.values import SubmissionAttempt
from swarmd.daemon.directory import MoveNote, write_note
from swarmd.dht.identity.backup import read_backup
from swarmd.dht.publisher import OwnRecordFile
from swarmd.errors import ArchiveUnwritable, IdentityError, LogWriteFailed, SwarmdError
from swarmd.manifest import read_manifest
from swarmd.secret_files import SecretKind, write_secret
from swarmd.swarms.jsonl import read_rows
from swarmd.training.models.source import locate_model
from tests.backup.making import make_node
from tests.dht.making import CLOCK, SWARM
from tests.durability import recording
from tests.tmpfs import tmpfs

KEY = SecretKind("key", IdentityError, 1000)


def write_own_records(path: Path) -> None:
    shelf = OwnRecordFile(path, SWARM)
    shelf.keep_record(CLOCK, 7.0)
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
    journal = OrderJournal(path)
    journal.bind_to_account(1, "0x" + "1" * 64, "0xme")
    journal.add_attempt("deploy", SubmissionAttempt("0xhash", 0, b"\0", "1"))


WRITERS: dict[str, Callable[[Path], None]] = {
    "a secret": lambda path: write_secret(path, b"secret", KEY),
    "a note": lambda path: write_note(path, MoveNote(1.0)),
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
    with tmpfs(tmp_path / "read-only", "ro") as place:
        yield place


def test_a_read_only_disk_is_named_by_the_error_of_the_write(read_only: Path, tmp_path: Path) -> None:
    """There, to remove what is not even there fails as well."""
    with pytest.raises(LogWriteFailed, match=r"writing of .*note.* failed: Read-only file system"):
        write_note(read_only / "note", MoveNote(1.0))
    with pytest.raises(ArchiveUnwritable, match=r"node\.tar cannot be written: .*Read-only file system"):
        make_backup(make_node(tmp_path / "node"), read_only / "node.tar", BackupPlan(None))


PATIENCE_S = 20.0
Reader = Callable[[Path], object]  # of a path that a user gave


def read_model(path: Path) -> object:
    """A model directory with the path as one of its files."""
    model = path.parent / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").symlink_to(path)
    return locate_model(str(model))


READERS: dict[str, Reader] = {
    "configuration": load_config,
    "manifest": read_manifest,
    "questions": lambda path: list(read_rows(path)),
    "backup": check_backup,
    "bundle": lambda path: open_bundle(path, path.parent / "opened"),
    "identity's backup": read_backup,
    "endpoints": lambda path: read_endpoint_urls([f"file:{path}"], path.parent),
    "model": read_model,
}


def ending(read: Reader, path: Path) -> BaseException | None:
    """What a reader raises; fails where it waits for somebody to write."""
    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            read(path)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # so that it ends
        pytest.fail("it waits")
    return raised[0] if raised else None


@pytest.mark.parametrize("what", READERS)
def test_a_named_pipe_is_refused_and_not_waited_for(what: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    error = ending(READERS[what], pipe)
    assert isinstance(error, SwarmdError) and "named pipe" in str(error) and str(pipe.parent) in str(error)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("what", READERS)
def test_a_device_is_refused(what: str, tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.symlink_to("/dev/zero")
    error = ending(READERS[what], device)
    assert isinstance(error, SwarmdError) and "it is a device" in str(error) and str(device.parent) in str(error)
