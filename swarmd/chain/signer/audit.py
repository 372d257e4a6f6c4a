"""The signer's audit log: JSON lines of who asked for what and what came of it, on disk before anything is sent.

A line about a signed transaction holds the transaction, so that after a crash the log tells what is out, and the same
bytes can be sent again in the place of a second transaction. They are public once they are sent; no line holds a key, a
passphrase or a token.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Literal

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.chain.fees import counted
from swarmd.core.commands import Submit
from swarmd.core.values import Prepared, SubmissionKind, day_of
from swarmd.errors import LogDamaged, LogInUse
from swarmd.files import irregular, read_regular, sync_directory, write_all, write_failure

FILE_BYTES_MAX = 16 * 1024 * 1024  # of lines since the file was begun; then another one is
FILES_KEPT = 8  # the one in use among them; older ones are removed

What = Literal[
    "started",  # the signer, with this account
    "stopped",
    "signed",  # a transaction; it may be sent from now on
    "sent",
    "unsure",  # no endpoint said that it took it; it may have been sent
    "refused",  # nothing was signed: the contract would revert it, see `code`
    "failed",  # nothing was signed, for another reason
    "mined",
    "reorganised",  # the block that had it is gone
    "confirmed",  # so deep that it counts for good
    "spent",  # the day's transactions cost so much at most, for a file that does not hold them
    "ended",  # it will not be mined, or was reverted, see `code`
]


class AuditLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line; fields that do not apply are left out."""

    at: str  # ISO 8601, UTC
    what: What
    submission: str = ""  # kind, round, stage and peer
    kind: SubmissionKind | Literal[""] = ""
    round: int = 0
    stage: int = 0
    peer: str = ""
    reward: int = 0
    winners: tuple[str, ...] = ()
    org: str = ""
    remote: str = ""  # address of the client
    account: str = ""
    hash: str = ""
    nonce: int = -1
    fee_wei: str = ""
    raw: str = ""  # the signed transaction as hex
    block: int = -1
    block_hash: str = ""
    code: str = ""  # the contract's error by name, or a short word
    reason: str = ""
    cost_wei: str = ""  # most that the transaction may cost in all; of "spent" lines, those of the day

    def __post_init__(self) -> None:
        """Raise ValueError, of which a decoder makes an error of its own, for what could not be understood later."""
        datetime.fromisoformat(self.at)
        int(self.cost_wei or 0)
        int(self.fee_wei or 0)
        self.prepared()

    @property
    def posix(self) -> float:
        """The line's time in POSIX seconds."""
        return datetime.fromisoformat(self.at).timestamp()

    def command(self) -> Submit:
        """What was asked for. Only lines that begin a submission hold it."""
        return Submit(
            self.submission, self.submission, self.kind or "register", self.round, self.stage, self.reward, self.winners
        )

    def prepared(self) -> Prepared:
        """The transaction of a "signed" line."""
        raw = bytes.fromhex(self.raw.removeprefix("0x"))
        return Prepared(self.hash, self.nonce, raw, self.fee_wei or "0", self.cost_wei or "0")


def now() -> str:
    """The time as lines have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class AuditLog:
    """Writes lines to a file that belongs to this process alone.

    Args:
        path: of the file in use; older ones have .1, .2 and so on after it.
        carried: the lines that a new file must begin with, because what they tell of is not over.

    Raises:
        LogInUse: another process writes it.
        LogDamaged: a line before the last one makes no sense.
        NoSpaceLeft, LogWriteFailed: it cannot be opened or mended.
    """

    def __init__(self, path: Path, carried: Callable[[], Iterable[AuditLine]] = tuple) -> None:
        self._path = path
        self._carried = carried
        self._lock = _take_lock(path.with_name(path.name + ".lock"))
        try:
            self._descriptor = _open(path)
            self._size = self._limit = 0
            self.lines = list(self._recover())
        except BaseException:
            os.close(self._lock)
            raise
        self._limit = FILE_BYTES_MAX

    def _recover(self) -> Iterator[AuditLine]:
        """The lines there are; a last one that a crash cut short, and that was never acted on, is cut off."""
        try:
            content = read_regular(self._path)
        except OSError as error:
            raise write_failure(error, self._path, "reading") from error
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            yield self._parse(line, number)
        self._size = whole
        try:
            os.ftruncate(self._descriptor, whole)
            os.fsync(self._descriptor)
            sync_directory(self._path.parent)
        except OSError as error:
            raise write_failure(error, self._path, "recovery") from error

    def _parse(self, line: bytes, number: int) -> AuditLine:
        try:
            return msgspec.json.decode(line, type=AuditLine)
        except DECODE_ERRORS:
            raise LogDamaged(
                f"line {number} of the audit log {self._path} makes no sense",
                "Mend the line if you know how; else move the file away once no transaction of the account is pending",
            ) from None

    def append(self, line: AuditLine) -> None:
        """Write a line; it is on disk when this returns. Raises NoSpaceLeft or LogWriteFailed: then sign nothing."""
        encoded = msgspec.json.encode(line) + b"\n"
        try:
            write_all(self._descriptor, encoded, self._size)
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise write_failure(error, self._path, "writing") from error
        self._size += len(encoded)
        if self._size > self._limit:
            self._rotate()

    def _rotate(self) -> None:
        """Begin a new file with what is not over. At every moment one file is whole and in place."""
        fresh = self._path.with_name(self._path.name + ".new")
        content = b"".join(msgspec.json.encode(line) + b"\n" for line in self._carried())
        try:
            fresh.unlink(missing_ok=True)
            descriptor = _open(fresh)
            write_all(descriptor, content, 0)
            os.fsync(descriptor)
            self._shift()
            os.link(self._path, self._numbered(1))
            fresh.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise write_failure(error, self._path, "rotation") from error
        os.close(self._descriptor)
        self._descriptor, self._size = descriptor, len(content)
        self._limit = self._size + FILE_BYTES_MAX

    def _shift(self) -> None:
        self._numbered(FILES_KEPT - 1).unlink(missing_ok=True)
        for number in range(FILES_KEPT - 2, 0, -1):
            if self._numbered(number).exists():
                self._numbered(number).replace(self._numbered(number + 1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
        os.close(self._lock)


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, irregular(mode))
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise write_failure(error, path, "opening") from error
    return descriptor


def _take_lock(path: Path) -> int:
    """Beside the file, which rotation replaces. The kernel lets go of it when the process ends."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LogInUse(
            f"another signer writes {path.with_suffix('')}",
            "Stop it: one place numbers an account's transactions. Or give this one an account and a log of its own",
        ) from None
    except OSError as error:
        os.close(descriptor)
        raise write_failure(error, path, "locking") from error
    return descriptor


CONFIRMED_MAX = 10_000  # remembered; of older ones only the chain tells, and it refuses a second one


class SignedEntry:
    """One submission with a transaction that may be, or is, on the chain."""

    def __init__(self, line: AuditLine) -> None:
        self.peer = line.peer
        self.command: Submit = line.command()
        self.signed: list[AuditLine] = []
        self.attempts: list[Prepared] = []
        self.mined: AuditLine | None = None
        self.confirmed = False
        self.trouble = ""  # why nothing could be done about it at the last look that failed
        self.dead_looks = 0  # at the chain, one after another, that found the nonces of all attempts taken by others

    @property
    def submission(self) -> str:
        return self.command.submission

    @property
    def hash(self) -> str:
        """The transaction that did it, or the newest that may."""
        return self.mined.hash if self.mined is not None else self.attempts[-1].hash

    def take(self, line: AuditLine) -> None:
        """What a line says about it."""
        if line.what == "signed":
            self.signed.append(line)
            self.attempts.append(line.prepared())
        elif line.what == "mined":
            self.mined = line
        elif line.what == "reorganised":
            self.mined, self.confirmed = None, False
        elif line.what == "confirmed":
            self.confirmed = True


class SignerLedger:
    """Takes each line of the audit log, at start and as it is written."""

    def __init__(self, lines: Iterable[AuditLine] = ()) -> None:
        self._entries: dict[str, SignedEntry] = {}  # in the order of their last change
        self.spent: tuple[int, int] = (-1, 0)  # the last day on which something was signed, and its cost, in wei
        for line in lines:
            self.apply(line)

    def apply(self, line: AuditLine) -> None:
        """Apply one more line of the audit log."""
        if line.what == "spent":
            self.spent = (day_of(line.posix), int(line.cost_wei or 0))
        if line.what == "ended":
            self._entries.pop(line.submission, None)
        if line.what not in ("signed", "mined", "reorganised", "confirmed"):
            return
        entry = self._entries.pop(line.submission, None) or (SignedEntry(line) if line.what == "signed" else None)
        if entry is None:  # told of in an older file
            return
        if line.what == "signed":
            self._spend(line, entry)
        entry.take(line)
        self._entries[line.submission] = entry
        if line.what == "confirmed":
            self._forget()

    def _spend(self, line: AuditLine, entry: SignedEntry) -> None:
        day, before_wei = max(day_of(line.posix), self.spent[0]), self.spent[1]
        more_wei = max(int(line.cost_wei or 0) - counted(entry.attempts, line.nonce), 0)
        self.spent = (day, more_wei + (before_wei if day == self.spent[0] else 0))

    def _forget(self) -> None:
        confirmed = [name for name, entry in self._entries.items() if entry.confirmed]
        for name in confirmed[: max(len(confirmed) - CONFIRMED_MAX, 0)]:
            del self._entries[name]

    def find(self, submission: str) -> SignedEntry | None:
        """What is known of a submission."""
        return self._entries.get(submission)

    def open(self) -> list[SignedEntry]:
        """Those that are not confirmed, by the nonce of their newest attempt."""
        return sorted((each for each in self._entries.values() if not each.confirmed), key=_nonce)

    def held(self) -> set[int]:
        """Nonces that no other transaction may be given."""
        return {attempt.nonce for entry in self._entries.values() if not entry.confirmed for attempt in entry.attempts}

    def carried(self) -> Iterator[AuditLine]:
        """The lines that tell of all that is not over."""
        for entry in self.open():
            yield from entry.signed
            if entry.mined is not None:
                yield entry.mined
        if day_of(time()) == self.spent[0]:  # last: it counts what stands before it
            yield AuditLine(now(), "spent", cost_wei=str(self.spent[1]))


def _nonce(entry: SignedEntry) -> int:
    return entry.attempts[-1].nonce
