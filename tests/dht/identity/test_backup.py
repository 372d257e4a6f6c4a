"""Backups: they restore what was saved, need the passphrase, and damaged ones are refused."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.core.state import ChainState, State, Submission
from swarmd.core.values import SubmissionAttempt
from swarmd.dht.identity.backup import (
    FILE_BYTES_MAX,
    Backup,
    BackupProgress,
    open_backup,
    progress_of,
    read_backup,
    read_progress,
    seal_backup,
)
from swarmd.dht.identity.identity import Identity
from swarmd.errors import IdentityError, NotFoundError
from swarmd.eventlog.store import LOG_BYTES_MAX, EventLog
from swarmd.paths import NodeDirectory
from swarmd.secret_files import COST_MIN, SEALED_MAGIC
from tests.dht.making import ALICE, BOB, RSA
from tests.eventlog.making import follower_story, write_story

PASSPHRASE = "correct horse battery"
MARKS = BackupProgress((7, 0), (6, 0), 5)


def backup_of(identity: Identity, marks: BackupProgress | None = MARKS) -> Backup:
    return Backup(identity.encode(), identity.peer_id, 1.7e9, marks)


SEALED = seal_backup(backup_of(ALICE), PASSPHRASE, COST_MIN)


@pytest.mark.parametrize("identity", [ALICE, RSA], ids=["ed25519", "rsa"])
@pytest.mark.parametrize("marks", [MARKS, None])
def test_a_backup_holds_key_time_and_marks(identity: Identity, marks: BackupProgress | None) -> None:
    sealed = seal_backup(backup_of(identity, marks), PASSPHRASE, COST_MIN)
    opened = open_backup(sealed, PASSPHRASE, "file")
    assert opened == backup_of(identity, marks)
    assert opened.identity.encode() == identity.encode()
    assert identity.encode()[4:36] not in sealed and identity.peer_id.encode() not in sealed


def test_a_passphrase_is_the_same_however_it_was_typed() -> None:
    sealed = seal_backup(backup_of(ALICE), "caf\u00e9 cr\u00e8me", COST_MIN)
    assert open_backup(sealed, "cafe\u0301 cre\u0300me", "file").peer == ALICE.peer_id


@pytest.mark.parametrize("wrong", ["", "correct horse batterY", PASSPHRASE + " ", "\ud800"])
def test_another_passphrase_does_not_open_it(wrong: str) -> None:
    with pytest.raises(IdentityError, match="passphrase is wrong"):
        open_backup(SEALED, wrong, "file")


@pytest.mark.parametrize("short", ["", "1234567", "x" * 1025])
def test_a_passphrase_of_no_length_is_refused(short: str) -> None:
    with pytest.raises(IdentityError, match="characters"):
        seal_backup(backup_of(ALICE), short, COST_MIN)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_changed_bit_anywhere_is_found(data: st.DataObject) -> None:
    changed = bytearray(SEALED)
    place = data.draw(st.integers(0, len(changed) - 1).filter(lambda place: place != len(SEALED_MAGIC) + 1))
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(IdentityError):
        open_backup(bytes(changed), PASSPHRASE, "file")


@pytest.mark.parametrize("cost", [0, 9, 19, 30, 63, 255])
def test_a_file_cannot_ask_for_much_memory(cost: int) -> None:
    raw = bytearray(SEALED)
    raw[len(SEALED_MAGIC) + 1] = cost
    with pytest.raises(IdentityError, match="cost"):
        open_backup(bytes(raw), PASSPHRASE, "file")


@pytest.mark.parametrize(
    "key",
    [b"", BOB.encode(), ALICE.encode()[:36] + BOB.encode()[36:], b"x" * 68],
    ids=["none", "another", "mixed", "junk"],
)
def test_a_backup_of_another_key_than_it_says_is_refused(key: bytes) -> None:
    with pytest.raises(IdentityError):
        assert Backup(key, ALICE.peer_id, 0.0).identity


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_backup(tmp_path / "none")
    with pytest.raises(IdentityError, match="cannot be read"):
        read_backup(tmp_path)
    for content in (b"", SEALED_MAGIC, SEALED + bytes(FILE_BYTES_MAX), ALICE.encode()):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(IdentityError, match="is not a backup"):
            read_backup(tmp_path / "file")


def test_marks_come_from_the_log_of_the_same_node(tmp_path: Path) -> None:
    data = NodeDirectory(tmp_path)
    assert read_progress(data, ALICE.peer_id) is None
    with EventLog.open(data.events, ALICE.peer_id, "run", bytes_max=LOG_BYTES_MAX) as log:
        write_story(log, follower_story(3), State())
    assert read_progress(data, ALICE.peer_id) == BackupProgress((2, 0))
    with pytest.raises(IdentityError, match=f"log of {ALICE.peer_id}"):
        read_progress(data, BOB.peer_id)


def test_marks_count_what_is_on_the_chain_and_what_may_be_on_its_way() -> None:
    assert progress_of(State()) == BackupProgress() and BackupProgress().highest_round == -1
    state = State(done=(3, 1), chain=ChainState(reward_mark=(2, 1), vote_mark=2))
    assert progress_of(state) == BackupProgress((3, 1), (2, 1), 2)
    signed, intended = (SubmissionAttempt("0x1"),), ()
    more = (
        Submission("reward/3/0", "reward", round=3, stage=0, prepared=signed),
        Submission("reward/3/1", "reward", round=3, stage=1, prepared=intended),
        Submission("winners/4", "winners", round=4, prepared=signed),
    )
    marks = progress_of(msgspec.structs.replace(state, submissions=more))
    assert marks == BackupProgress((3, 1), (3, 0), 4) and marks.highest_round == 4
