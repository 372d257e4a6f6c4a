"""Backups of an identity: one file, encrypted with a passphrase, that also says how far the node had come.

    magic || version (u8) || log2 of scrypt's n (u8) || salt (16) || nonce (12) || ciphertext and tag

scrypt (r 8, p 1) makes a 32-byte key of the passphrase (UTF-8, NFC), ChaCha20-Poly1305 encrypts the msgpack map
`Backup` with it; everything before the ciphertext is authenticated along.
"""

from __future__ import annotations

import os
import struct
import unicodedata
from pathlib import Path

import msgspec

from swarmd import secret_files
from swarmd.bounds import DECODE_ERRORS
from swarmd.core.state import State
from swarmd.dht.identity.identity import Identity, parse_identity
from swarmd.errors import IdentityDamaged, IdentityError, NotFoundError
from swarmd.eventlog.files import remedy
from swarmd.eventlog.fold import load, node_of
from swarmd.eventlog.segment import list_segments
from swarmd.paths import DataPaths
from swarmd.regular_files import read_start

MAGIC = b"swarmd-identity-backup\x00"
VERSION = 1
HEADER = struct.Struct(f">{len(MAGIC)}sBB16s12s")
FILE_BYTES_MAX = 64 * 1024
COST_MIN, COST_MAX = 10, 18  # of a backup that is opened; a file cannot ask for more memory than 256 MiB
PASSPHRASE_LENGTH_MIN = 8  # characters
PASSPHRASE_LENGTH_MAX = 1024

_AGAIN = "Take another copy of the backup"


class BackupMarks(msgspec.Struct, frozen=True):
    """How far the node had come when the backup was made: it had signed nothing beyond. -1 for nothing yet."""

    done: tuple[int, int] = (-1, -1)  # last (round, stage) trained
    reward: tuple[int, int] = (-1, -1)  # highest (round, stage) whose reward was on the chain or on its way
    vote: int = -1  # highest round whose vote was

    @property
    def round(self) -> int:
        """The highest round of them all, -1 for none."""
        return max(self.done[0], self.reward[0], self.vote)


class Backup(msgspec.Struct, frozen=True):
    """What a backup holds."""

    key: bytes  # the key file's contents
    peer: str
    made_at: float  # POSIX seconds
    marks: BackupMarks | None = None  # absent when no event log was at hand

    @property
    def identity(self) -> Identity:
        """The key. Raises IdentityError when it is not whole, which a backup that opens never is."""
        identity = parse_identity(self.key, "the backup's key")
        if identity.peer_id != self.peer or not identity.is_whole():
            raise IdentityDamaged(f"the backup of {self.peer} holds another key or a damaged one", _AGAIN)
        return identity


def seal_backup(backup: Backup, passphrase: str, cost: int | None = None) -> bytes:
    """The file's contents. `cost` is SCRYPT_COST where none is given.

    Raises:
        IdentityError: the passphrase is too short or too long.
    """
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    cost = secret_files.SCRYPT_COST if cost is None else cost
    salt, nonce = os.urandom(16), os.urandom(12)
    header = HEADER.pack(MAGIC, VERSION, cost, salt, nonce)
    key = derive_key(check_passphrase(passphrase), salt, cost)
    return header + ChaCha20Poly1305(key).encrypt(nonce, msgspec.msgpack.encode(backup), header)


def read_backup(path: Path) -> bytes:
    """A backup file's contents, its header checked, to be given to `open_backup`.

    Raises:
        NotFoundError: there is no such file.
        IdentityError: it cannot be read or is no backup.
    """
    try:
        raw = read_start(path, FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no backup {path}", "`swarmd identity backup` makes one") from error
    except OSError as error:
        other = "Name a file that `swarmd identity backup` wrote"
        fix = remedy(error, path) if isinstance(error, PermissionError) else other
        raise IdentityError(f"the backup {path} cannot be read: {error.strerror}", fix) from error
    _read_header(raw, str(path))
    return raw


def open_backup(raw: bytes, passphrase: str, origin: str) -> Backup:
    """What `seal_backup` made; `origin` names the file in errors.

    Raises:
        IdentityError: it is no backup, a newer one, or damaged, or the passphrase is another.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    cost, salt, nonce = _read_header(raw, origin)
    key = derive_key(passphrase, salt, cost)
    try:
        plain = ChaCha20Poly1305(key).decrypt(nonce, raw[HEADER.size :], raw[: HEADER.size])
    except InvalidTag as error:
        problem = f"{origin} does not open: the passphrase is wrong or the file is damaged"
        raise IdentityError(problem, "Try the passphrase again, or another copy of the backup") from error
    try:
        return msgspec.msgpack.decode(plain, type=Backup)
    except DECODE_ERRORS as error:
        raise IdentityDamaged(f"{origin} opens, but holds no backup that this swarmd knows") from error


def _read_header(raw: bytes, origin: str) -> tuple[int, bytes, bytes]:
    """(cost, salt, nonce), in bounds."""
    if not HEADER.size < len(raw) <= FILE_BYTES_MAX or not raw.startswith(MAGIC):
        raise IdentityDamaged(
            f"{origin} is no backup of an identity", "Name a file that `swarmd identity backup` wrote"
        )
    _, version, cost, salt, nonce = HEADER.unpack_from(raw)
    if version != VERSION:
        raise IdentityDamaged(f"{origin} is a backup of version {version}, this swarmd reads version {VERSION}")
    if not COST_MIN <= cost <= COST_MAX:
        raise IdentityDamaged(f"{origin} is damaged: it asks for a cost of 2^{cost}", _AGAIN)
    return cost, salt, nonce


def derive_key(passphrase: str, salt: bytes, cost: int) -> bytes:
    """The 32 bytes that a passphrase comes to, by scrypt with n = 2**cost."""
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    secret = unicodedata.normalize("NFC", passphrase).encode("utf-8", "surrogatepass")
    return Scrypt(salt=salt, length=32, n=1 << cost, r=8, p=1).derive(secret)


def check_passphrase(passphrase: str) -> str:
    """A passphrase that may protect a new backup. Raises IdentityError."""
    if not PASSPHRASE_LENGTH_MIN <= len(passphrase) <= PASSPHRASE_LENGTH_MAX:
        raise IdentityDamaged(
            f"the passphrase has {len(passphrase)} characters, "
            f"{PASSPHRASE_LENGTH_MIN} to {PASSPHRASE_LENGTH_MAX} are allowed"
        )
    return passphrase


def read_marks(data: DataPaths, peer: str) -> BackupMarks | None:
    """How far the event log in a data directory says that the node has come; None where there is no log.

    Raises:
        IdentityError: the log is another node's.
        LogDamaged, OtherVersion: it cannot be read.
    """
    if not data.events.is_dir() or not list_segments(data.events):
        return None
    owner = node_of(data.events)
    if owner and owner != peer:
        fix = "Name the file or directory of that node, or another directory"
        raise IdentityDamaged(f"{data.events} holds the log of {owner}, the identity is {peer}", fix)
    return marks_of(load(data.events)[0])


def marks_of(state: State) -> BackupMarks:
    """The marks in a node's state: what the chain has, and what the node may have signed since."""
    rewards = [(one.round, one.stage) for one in state.submissions if one.kind == "reward" and one.prepared]
    votes = [one.round for one in state.submissions if one.kind == "winners" and one.prepared]
    if state.chain is not None:
        rewards.append(state.chain.reward_mark)
        votes.append(state.chain.vote_mark)
    return BackupMarks(state.done, max(rewards, default=(-1, -1)), max(votes, default=-1))
