"""Files that a node cannot do without are on disk before they have their names, and with their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from swarmd.chain.operator.transactions import Attempt, Journal
from swarmd.chain.signer.audit import AuditLine, AuditLog
from swarmd.daemon.notes import Moved, write_note
from swarmd.dht.store.own_records import OwnRecordFile, OwnRecordStore
from swarmd.errors import IdentityError
from swarmd.secret_files import SecretKind, write_secret
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
