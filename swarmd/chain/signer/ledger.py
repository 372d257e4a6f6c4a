"""What the signer has signed and what became of it: the fold of its audit log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import time

from swarmd.chain.signer.audit import AuditLine, now
from swarmd.chain.signer.budget import counted
from swarmd.core.commands import Submit
from swarmd.core.values import Prepared, day_of

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
