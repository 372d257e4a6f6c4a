"""Backups of an identity: one sealed file of a few hundred bytes, with the node's progress at that time.

A note beside the key file (`identity.key.saved`) names the last backup made on this machine, for `swarmd doctor`.
"""

from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.state import State
from swarmd.dht.identity.identity import Identity, parse_identity
from swarmd.errors import IdentityDamaged, IdentityError, NotFoundError
from swarmd.eventlog.fold import load_state, peer_id_of_log
from swarmd.eventlog.segment import list_segments
from swarmd.files import advise_on_path_error, read_start
from swarmd.paths import NodeDirectory
from swarmd.secret_files import read_sealed_header, seal, unseal

FILE_BYTES_MAX = 64 * 1024
NOTE_BYTES_MAX = 16 * 1024
NOTE_SUFFIX = ".saved"


class BackupProgress(msgspec.Struct, frozen=True):
    """How far the node had come when the backup was made; it had signed nothing later. -1: nothing yet."""

    done: tuple[int, int] = (-1, -1)  # last (round, stage) trained
    reward: tuple[int, int] = (-1, -1)  # highest (round, stage) whose reward was on the chain or on its way
    vote: int = -1  # highest round whose vote was on the chain or on its way

    @property
    def highest_round(self) -> int:
        """The highest round of all marks, -1 for none."""
        return max(self.done[0], self.reward[0], self.vote)


class Backup(msgspec.Struct, frozen=True):
    key: bytes  # the key file's contents
    peer: str
    made_at: float  # POSIX seconds
    marks: BackupProgress | None = None  # absent when no event log was at hand

    @property
    def identity(self) -> Identity:
        """The key in the backup. Raises IdentityError if it is damaged or belongs to another peer."""
        identity = parse_identity(self.key, "the backup's key")
        if identity.peer_id != self.peer or not identity.has_valid_key_pair():
            raise IdentityDamaged(
                f"the backup of {self.peer} holds another key or a damaged one", "Take another copy of the backup"
            )
        return identity


def seal_backup(backup: Backup, passphrase: str, cost: int | None = None) -> bytes:
    """Return the backup file's contents. Raises IdentityDamaged if the passphrase is too short or too long."""
    return seal(msgspec.msgpack.encode(backup), passphrase, cost)


def read_backup(path: Path) -> bytes:
    """Return a backup file's contents for `open_backup`, with its header checked. Raises NotFoundError: there is no
    such file; IdentityError: it cannot be read or is not a backup."""
    try:
        raw = read_start(path, FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no backup {path}", "`swarmd identity backup` makes one") from error
    except OSError as error:
        other = "Name a file that `swarmd identity backup` wrote"
        fix = advise_on_path_error(error, path) if isinstance(error, PermissionError) else other
        raise IdentityError(f"the backup {path} cannot be read: {error.strerror}", fix) from error
    read_sealed_header(raw if len(raw) <= FILE_BYTES_MAX else b"", str(path))
    return raw


def open_backup(raw: bytes, passphrase: str, origin: str) -> Backup:
    """Decrypt the output of `seal_backup`; `origin` names the file in errors. Raises IdentityError: it is not a backup,
    it is a newer one, or damaged, or the passphrase is wrong."""
    try:
        return msgspec.msgpack.decode(unseal(raw, passphrase, origin), type=Backup)
    except DECODE_ERRORS as error:
        raise IdentityDamaged(f"{origin} opens, but holds no backup of an identity") from error


def read_progress(data: NodeDirectory, peer: str) -> BackupProgress | None:
    """Return the node's progress by the event log in a data directory; None if there is no log. Raises IdentityError:
    the log is another node's; LogDamaged, OtherVersion: it cannot be read."""
    if not data.events.is_dir() or not list_segments(data.events):
        return None
    owner = peer_id_of_log(data.events)
    if owner and owner != peer:
        fix = "Name the file or directory of that node, or another directory"
        raise IdentityDamaged(f"{data.events} holds the log of {owner}, the identity is {peer}", fix)
    return progress_of(load_state(data.events)[0])


def progress_of(state: State) -> BackupProgress:
    """Return the progress in a node's state: what is on the chain, and what the node may have signed since."""
    rewards = [(one.round, one.stage) for one in state.submissions if one.kind == "reward" and one.prepared]
    votes = [one.round for one in state.submissions if one.kind == "winners" and one.prepared]
    if state.chain is not None:
        rewards.append(state.chain.reward_mark)
        votes.append(state.chain.vote_mark)
    return BackupProgress(state.done, max(rewards, default=(-1, -1)), max(votes, default=-1))


class BackupNote(msgspec.Struct, frozen=True):
    """The latest backup made on this machine."""

    peer: str
    at: float  # POSIX seconds
    file: str  # absolute


def note_path_of(key: Path) -> Path:
    return key.with_name(key.name + NOTE_SUFFIX)


def write_backup_note(key: Path, peer: str, at: float, out: Path) -> None:
    """Write the note about a backup. Raises OSError."""
    note_path_of(key).write_bytes(msgspec.json.encode(BackupNote(peer, at, str(out.absolute()))))


def read_backup_note(key: Path, peer: str = "") -> BackupNote | None:
    """Return the latest backup made here of this peer's key, or of any key if `peer` is empty; None if unknown."""
    try:
        saved = msgspec.json.decode(read_start(note_path_of(key), NOTE_BYTES_MAX), type=BackupNote)
    except (OSError, *DECODE_ERRORS):
        return None
    return saved if peer in ("", saved.peer) else None
