"""The signer: one account that submits for many nodes, each submission once (`swarmd signer`).

- A submission is identified by kind, round, stage and peer. A repeated request gets the hash of the pending
  transaction; if the signer has forgotten a submission, the contract refuses a second one.
- All attempts at one submission have the same nonce as long as that nonce is free.
- The audit log records who requested what and the outcome, in JSON lines that are on disk before anything is sent. The
  line for a signed transaction contains the transaction: after a crash the log shows what is pending, and the same
  bytes are sent again instead of a second transaction. They are public once sent. No line contains a key, a passphrase
  or a token.
"""

import asyncio
import errno
import fcntl
import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time
from typing import Any, Literal, NamedTuple

import msgspec
from eth_account.signers.local import LocalAccount

from swarmd.bounds import DECODE_ERRORS
from swarmd.chain.contract import check_contract_exists
from swarmd.chain.coordinator import CoordinatorContract
from swarmd.chain.endpoints import RpcPool
from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.fees import DailyBudget, counted_cost_wei
from swarmd.chain.ports import Block
from swarmd.chain.senders import AccountSigner, MinedAttempt, Wallet
from swarmd.chain.submitter import ATTEMPTS_MAX, TrackedSubmission
from swarmd.chain.watcher import FinalityTracker
from swarmd.config import ChainConfig
from swarmd.core.commands import Submit
from swarmd.core.values import BlockRef, SubmissionAttempt, SubmissionKind, utc_day_of
from swarmd.errors import ChainError, ChainMismatch, ContractRefused, EndpointFailed, LogDamaged, LogInUse
from swarmd.files import describe_irregular_file, make_write_error, read_regular, sync_directory, write_all
from swarmd.logger import get_logger

FILE_BYTES_MAX = 16 * 1024 * 1024  # of lines; then a new file is started
FILES_KEPT = 8  # including the current one; older ones are removed

What = Literal[
    "started",  # the signer, with this account
    "stopped",
    "signed",  # a transaction, which may be sent from now on
    "sent",
    "unsure",  # it may have been sent, but no endpoint confirmed that
    "refused",  # nothing was signed, because the contract would revert it, see `code`
    "failed",  # nothing was signed, for another reason
    "mined",
    "reorganised",  # its block was replaced
    "confirmed",  # its block is deep enough to be final
    "spent",  # the most that the day's transactions may cost, in a file that does not contain them
    "ended",  # it will not be mined, or it was reverted, see `code`
]
log = get_logger(__name__)


class SignerRequest(NamedTuple):
    """A validated request, and who sent it."""

    kind: SubmissionKind
    peer: str
    round: int = 0
    stage: int = 0
    reward: int = 0
    winners: tuple[str, ...] = ()
    org: str = ""
    remote: str = ""  # address of the client

    @property
    def submission_name(self) -> str:
        """The submission's name; the same for a repeated request."""
        return f"{self.kind}/{self.round}/{self.stage}/{self.peer}"

    def to_submit_command(self) -> Submit:
        """Convert the request to a sender's command."""
        name = self.submission_name
        return Submit(name, name, self.kind, self.round, self.stage, self.reward, self.winners)


class AuditLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the audit log; fields that do not apply are omitted."""

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
    code: str = ""  # the contract error's name, or a short word
    reason: str = ""
    cost_wei: str = ""  # the most that the transaction may cost; in "spent" lines, the day's transactions

    def __post_init__(self) -> None:
        """Raise ValueError, which msgspec turns into a decoding error, for fields that could not be parsed later."""
        datetime.fromisoformat(self.at)
        int(self.cost_wei or 0)
        int(self.fee_wei or 0)
        self.to_prepared()

    @property
    def posix_time(self) -> float:
        return datetime.fromisoformat(self.at).timestamp()

    def to_request(self) -> SignerRequest:
        """Return the request; complete only in lines that begin a submission."""
        kind = self.kind or "register"
        return SignerRequest(kind, self.peer, self.round, self.stage, self.reward, self.winners, self.org, self.remote)

    def to_prepared(self) -> SubmissionAttempt:
        """Return the transaction of a "signed" line."""
        raw = bytes.fromhex(self.raw.removeprefix("0x"))
        return SubmissionAttempt(self.hash, self.nonce, raw, self.fee_wei or "0", self.cost_wei or "0")


def current_timestamp() -> str:
    """Return the current time in the log's format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class AuditLog:
    """Appends lines to a file that only this process writes.

    Args:
        path: of the current file; older ones have the suffix .1, .2 and so on.
        carried: returns the lines about open submissions, with which a new file must begin.

    Raises:
        LogInUse: another process writes it.
        LogDamaged: a line before the last one is malformed.
        NoSpaceLeft, LogWriteFailed: it cannot be opened or repaired.
    """

    def __init__(self, path: Path, carried: Callable[[], Iterable[AuditLine]] = tuple) -> None:
        self._path = path
        self._carried = carried
        self._lock = _acquire_lock(path.with_name(path.name + ".lock"))
        try:
            self._descriptor = _open_log_file(path)
            self._size = self._limit = 0
            self.lines = list(self._recover_lines())
        except BaseException:
            os.close(self._lock)
            raise
        self._limit = FILE_BYTES_MAX

    def _recover_lines(self) -> Iterator[AuditLine]:
        """Read all lines. Truncate a last one that a crash left incomplete: it was never acted on."""
        try:
            content = read_regular(self._path)
        except OSError as error:
            raise make_write_error(error, self._path, "reading") from error
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            yield self._parse_line(line, number)
        self._size = whole
        try:
            os.ftruncate(self._descriptor, whole)
            os.fsync(self._descriptor)
            sync_directory(self._path.parent)
        except OSError as error:
            raise make_write_error(error, self._path, "recovery") from error

    def _parse_line(self, line: bytes, number: int) -> AuditLine:
        try:
            return msgspec.json.decode(line, type=AuditLine)
        except DECODE_ERRORS:
            raise LogDamaged(
                f"line {number} of the audit log {self._path} makes no sense",
                "Mend the line if you know how; else move the file away once no transaction of the account is pending",
            ) from None

    def append(self, line: AuditLine) -> None:
        """Write a line durably. Raises NoSpaceLeft or LogWriteFailed: then nothing may be signed."""
        encoded = msgspec.json.encode(line) + b"\n"
        try:
            write_all(self._descriptor, encoded, self._size)
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise make_write_error(error, self._path, "writing") from error
        self._size += len(encoded)
        if self._size > self._limit:
            self._rotate_file()

    def _rotate_file(self) -> None:
        """Start a new file with the lines about open submissions. A complete file is in place at every moment."""
        fresh = self._path.with_name(self._path.name + ".new")
        content = b"".join(msgspec.json.encode(line) + b"\n" for line in self._carried())
        try:
            fresh.unlink(missing_ok=True)
            descriptor = _open_log_file(fresh)
            write_all(descriptor, content, 0)
            os.fsync(descriptor)
            self._shift_rotated_files()
            os.link(self._path, self._rotated_file_path(1))
            fresh.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise make_write_error(error, self._path, "rotation") from error
        os.close(self._descriptor)
        self._descriptor, self._size = descriptor, len(content)
        self._limit = self._size + FILE_BYTES_MAX

    def _shift_rotated_files(self) -> None:
        self._rotated_file_path(FILES_KEPT - 1).unlink(missing_ok=True)
        for number in range(FILES_KEPT - 2, 0, -1):
            if self._rotated_file_path(number).exists():
                self._rotated_file_path(number).replace(self._rotated_file_path(number + 1))

    def _rotated_file_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._lock)


def _open_log_file(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, describe_irregular_file(mode))
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise make_write_error(error, path, "opening") from error
    return descriptor


def _acquire_lock(path: Path) -> int:
    """Lock a file beside the log, which rotation replaces. The kernel unlocks it when the process ends."""
    descriptor = _open_log_file(path)
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
        raise make_write_error(error, path, "locking") from error
    return descriptor


CONFIRMED_MAX = 10_000  # remembered submissions; the contract refuses to repeat older ones


class SignedSubmission(TrackedSubmission):
    """A signed submission: its transaction may be, or is, on the chain."""

    def __init__(self, line: AuditLine) -> None:
        self.asked = line.to_request()
        super().__init__(self.asked.to_submit_command())
        self.lines: list[AuditLine] = []  # lines with which a new file must begin
        self.confirmed = False
        self.trouble = ""  # why the last check failed

    @property
    def newest(self) -> str:
        """Hash of the mined transaction, or of the newest one that may be mined."""
        return self.hash or self.attempts[-1].hash

    def apply_line(self, line: AuditLine) -> None:
        if line.what == "signed":
            self.add_attempt(line.to_prepared(), line.posix_time)
            self.lines.append(line)
        elif line.what == "mined":
            self.mark_included(BlockRef(line.block, line.block_hash), line.hash)
            self.lines.append(line)
        elif line.what == "reorganised":
            self.forget_block()
            self.lines = [each for each in self.lines if each.what == "signed"]
            self.confirmed = False
        elif line.what == "confirmed":
            self.confirmed = True


class SignerLedger:
    """The state computed from the audit log: open and confirmed submissions, and the day's cost."""

    def __init__(self, lines: Iterable[AuditLine] = ()) -> None:
        self.entries: dict[str, SignedSubmission] = {}  # by submission, in the order of their last change
        self.spent: tuple[int, int] = (-1, 0)  # the last day on which something was signed, and its cost in wei
        for line in lines:
            self.apply_line(line)

    def apply_line(self, line: AuditLine) -> None:
        if line.what == "spent":
            self.spent = (utc_day_of(line.posix_time), int(line.cost_wei or 0))
        if line.what == "ended":
            self.entries.pop(line.submission, None)
        if line.what not in ("signed", "mined", "reorganised", "confirmed"):
            return
        entry = self.entries.pop(line.submission, None) or (SignedSubmission(line) if line.what == "signed" else None)
        if entry is None:  # an older file has its beginning
            return
        if line.what == "signed":
            day = max(utc_day_of(line.posix_time), self.spent[0])
            more_wei = max(int(line.cost_wei or 0) - counted_cost_wei(entry.attempts, line.nonce), 0)
            self.spent = (day, more_wei + (self.spent[1] if day == self.spent[0] else 0))
        entry.apply_line(line)
        self.entries[line.submission] = entry
        if line.what == "confirmed":
            confirmed = [name for name, entry in self.entries.items() if entry.confirmed]
            for name in confirmed[: max(len(confirmed) - CONFIRMED_MAX, 0)]:
                del self.entries[name]

    def open_submissions(self) -> list[SignedSubmission]:
        """Return the unconfirmed submissions, ordered by the nonce of their newest attempt."""
        return sorted(
            (each for each in self.entries.values() if not each.confirmed), key=lambda entry: entry.attempts[-1].nonce
        )

    def reserved_nonces(self) -> set[int]:
        """Return the nonces of open submissions, which no other transaction may use."""
        return {attempt.nonce for entry in self.entries.values() if not entry.confirmed for attempt in entry.attempts}

    def lines_for_new_file(self) -> Iterator[AuditLine]:
        """Yield the lines with which a new file must begin: those about open submissions, and the day's cost."""
        for entry in self.open_submissions():
            yield from entry.lines
        if utc_day_of(time()) == self.spent[0]:  # last, because it includes the cost of the lines before it
            yield AuditLine(current_timestamp(), "spent", cost_wei=str(self.spent[1]))


class NonceReservingClient(EthereumClient):
    """A client whose pending nonce skips those of open submissions. An endpoint may lack, or may have dropped, a
    transaction that another endpoint accepted."""

    def __init__(self, rpc: RpcPool, held: Callable[[], set[int]]) -> None:
        super().__init__(rpc)
        self._held = held

    async def nonce(self, account: str, block: Block = "latest") -> int:
        nonce, held = await super().nonce(account, block), self._held()
        while block == "pending" and nonce in held:
            nonce += 1
        return nonce


RESEND_S = 60.0  # interval after which a pending transaction is sent again
TURN_S = 30.0  # longest time that a request waits for those before it
TRIES = 3  # attempts, each with another nonce, if another program uses the account's nonces
IDLE_S = 15.0  # between two checks of the chain while nothing is open
OPEN_MAX = 1000  # unconfirmed submissions; more are refused

# The contract's errors for repeated submissions.
TAKEN: dict[SubmissionKind, str] = {
    "register": "PeerIdAlreadyRegistered",
    "reward": "RewardAlreadySubmitted",
    "winners": "WinnerAlreadyVoted",
}


class SignerBusy(ChainError):
    """Too many requests or open submissions; nothing was signed."""


class Signer:
    """Submits for nodes, one request at a time, and follows each submission until it is confirmed. `account`: the
    address of all submissions. `ledger`: the state after all lines of `audit` so far."""

    def __init__(
        self, config: ChainConfig, rpc: RpcPool, account: LocalAccount, audit: AuditLog, ledger: SignerLedger
    ) -> None:
        self._config = config
        self._rpc = rpc
        self._chain = NonceReservingClient(rpc, ledger.reserved_nonces)
        self._audit = audit
        self._ledger = ledger
        self.budget = DailyBudget(config.fees)
        self.budget.restore(*ledger.spent)
        key = AccountSigner(account, config.chain_id, config.drive)
        self.account = key.account
        self._wallet = Wallet(config, self._chain, key, self.budget)
        self._coordinator = CoordinatorContract(rpc, config.contract)
        self._blocks = self._coordinator.blocks
        self._finality = FinalityTracker(config, self._blocks)
        self._turns = asyncio.Lock()
        self._ready = False
        self.trouble = "the chain has not been asked yet"  # why nothing can be signed now; empty if it can

    # --- requests ---

    async def submit(self, asked: SignerRequest) -> str:
        """Submit, and return the hash of the transaction, which may not be mined yet.

        The hash is empty if the peer is registered to this account already by an unknown transaction: clients of RL
        Swarm up to 0.4.3 exit if refused.

        Raises:
            ContractRefused: the contract would revert it.
            SignerBusy: too many requests or open submissions.
            ChainError: not now; the message says why.
            ChainMismatch: it is another chain, or the contract is gone; nothing is signed.
            LogWriteFailed: nothing may be signed any more.
        """
        async with self._exclusive_turn():
            await self._ensure_ready()
            entry = self._ledger.entries.get(asked.submission_name)
            if entry is not None and (again := await self._repeat_submission(entry, asked)):
                return again
            if asked.kind == "register":
                owner = await self._coordinator.account_of_peer(asked.peer)
                if owner.lower() == self.account.lower():
                    return ""
            return await self._start_submission(asked)

    @asynccontextmanager
    async def _exclusive_turn(self) -> AsyncIterator[None]:
        """Admit one request at a time, because the next nonce depends on the outcome of the one before."""
        try:
            async with asyncio.timeout(TURN_S):
                await self._turns.acquire()
        except TimeoutError:
            raise SignerBusy(f"the requests before this one took longer than {TURN_S:g} s") from None
        try:
            yield
        finally:
            self._turns.release()

    async def _ensure_ready(self) -> None:
        """Check chain and contract before anything is signed; initially also an earlier process's attempts."""
        try:
            if self._ready:
                await check_contract_exists(self._chain, self._config.contract)
                return
            await self._rpc.detect_base_fee()
            await self._coordinator.check_contract()
        except ChainMismatch:
            self._ready = False
            raise
        for entry in self._ledger.open_submissions():
            await self._log_own_failure(entry, self._update_from_chain(entry, resend=True))
        self._ready = True

    async def check_chain(self) -> None:
        """Run the checks that `submit` begins with, and raise what it would."""
        async with self._exclusive_turn():
            await self._ensure_ready()

    async def _repeat_submission(self, entry: SignedSubmission, asked: SignerRequest) -> str:
        """Return the hash of a repeated submission's transaction; empty if the submission has ended."""
        await self._update_from_chain(entry, resend=True)
        if entry.submission not in self._ledger.entries:
            return ""
        if (entry.asked.reward, entry.asked.winners) != (asked.reward, asked.winners):
            raise ContractRefused(
                TAKEN[asked.kind], f"{entry.newest} was submitted for {entry.submission} with another content"
            )
        return entry.newest

    async def _start_submission(self, asked: SignerRequest) -> str:
        if len(self._ledger.open_submissions()) >= OPEN_MAX:
            raise SignerBusy(f"{OPEN_MAX} submissions wait for the chain already")
        for _ in range(TRIES):
            try:
                await self._sign_first_attempt(asked)
            except ContractRefused as error:
                self._write_audit_line("refused", asked, code=error.code, reason=error.message)
                raise
            except ChainError as error:
                self._write_audit_line("failed", asked, reason=error.message)
                raise
            if (hash := await self._send_first_attempt(asked)) is not None:
                return hash
        raise ChainError(
            f"other programs take the nonces of {self.account}", "Let one signer or wallet alone use the account"
        )

    async def _send_first_attempt(self, asked: SignerRequest) -> str | None:
        """Send for the first time; None if the nonce was used meanwhile, so that another attempt makes sense."""
        entry = self._ledger.entries[asked.submission_name]  # it was signed just now
        try:
            hash = await self._send_newest_attempt(entry)
        except EndpointFailed as error:
            self._write_audit_line("unsure", asked, hash=entry.newest, reason=error.message)
            raise
        except ContractRefused as error:
            self._write_audit_line("ended", asked, code=error.code or "refused", reason=error.message)
            raise
        except ChainError as error:
            self._write_audit_line("ended", asked, code="refused", reason=error.message)
            raise
        if hash is not None:
            self._write_audit_line("sent", asked, hash=hash)
            return hash
        fate = await self._wallet.trace_attempts(entry.attempts)
        if isinstance(fate, MinedAttempt) and fate.succeeded:
            return entry.newest  # one endpoint accepted it, another refused its used nonce
        self._write_audit_line("ended", asked, code="not-taken", reason="another transaction has its nonce")
        return None

    # --- pending transactions ---

    async def run(self) -> None:
        """Follow pending transactions until cancelled. Raises LogWriteFailed, which must end the signer."""
        checked_at = -IDLE_S
        while True:
            if self._ledger.open_submissions() or monotonic() - checked_at >= IDLE_S:
                try:
                    await self._check_open_submissions()
                    self._log_trouble_change("")
                except SignerBusy:
                    log.debug("requests go first")
                except (ChainError, ChainMismatch) as error:
                    self._log_trouble_change(str(error))
                checked_at = monotonic()
            await asyncio.sleep(self._config.poll_s)

    def _log_trouble_change(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log.warning("%s", trouble)
        elif self.trouble and not trouble:
            log.info("the chain answers; submissions come from %s", self.account)
        self.trouble = trouble

    async def _check_open_submissions(self) -> None:
        await self.check_chain()
        confirmed = await self._finality.find_confirmed_number((await self._blocks.get_head()).number)
        for entry in self._ledger.open_submissions():
            async with self._exclusive_turn():
                if self._ledger.entries.get(entry.submission) is entry:
                    await self._log_own_failure(entry, self._check_submission(entry, confirmed))

    async def _log_own_failure(self, entry: SignedSubmission, look: Awaitable[None]) -> None:
        """Log the failure of one submission's check, so that the others are still checked."""
        try:
            await look
        except EndpointFailed:
            raise
        except (ChainError, ContractRefused) as error:
            level = logging.DEBUG if entry.trouble == str(error) else logging.WARNING  # only a new one is a warning
            log.log(level, "%s: %s", entry.submission, error)
            entry.trouble = str(error)

    async def _check_submission(self, entry: SignedSubmission, confirmed: int) -> None:
        await self._update_from_chain(entry, resend=entry.pushed_at is None or monotonic() - entry.pushed_at > RESEND_S)
        if self._ledger.entries.get(entry.submission) is not entry:
            return
        if entry.block is not None:
            if entry.block.number <= confirmed:
                self._write_audit_line("confirmed", entry.asked, hash=entry.hash, block=entry.block.number)
        elif time() - entry.prepared_at > self._config.fees.stuck_s and self._ledger.open_submissions()[0] is entry:
            await self._replace_stuck_transaction(entry)

    async def _update_from_chain(self, entry: SignedSubmission, resend: bool) -> None:
        """Record a submission's outcome; with `resend`, send the same bytes again if it is still waiting."""
        fate = await self._wallet.trace_attempts(entry.attempts)
        if isinstance(fate, MinedAttempt):
            await self._record_mined(entry, fate)
        elif fate == "gone":
            await self._sign_with_new_nonce(entry)
        else:
            entry.missing_checks = 0
            if entry.block is not None:
                self._write_audit_line("reorganised", entry.asked, hash=entry.hash, block=entry.block.number)
            if resend:
                await self._resend_newest_attempt(entry)

    async def _sign_with_new_nonce(self, entry: SignedSubmission) -> None:
        """Sign with another nonce if two checks found the nonces of all attempts used by other transactions."""
        if not entry.count_missing_check():
            return
        if len(entry.attempts) >= ATTEMPTS_MAX:
            reason = f"other transactions took the nonces of {ATTEMPTS_MAX} attempts"
            self._write_audit_line("ended", entry.asked, code="lost", reason=reason)
            return
        taken = entry.attempts[-1].nonce
        try:
            await self._sign_first_attempt(entry.asked)
        except ContractRefused as error:
            self._write_audit_line("ended", entry.asked, code=error.code or "refused", reason=error.message)
            return
        log.warning("%s: another program took nonce %d of %s", entry.submission, taken, self.account)
        entry.missing_checks = 0
        await self._resend_newest_attempt(entry)

    async def _record_mined(self, entry: SignedSubmission, fate: MinedAttempt) -> None:
        if fate.succeeded:
            if entry.block is None or entry.block.hash != fate.block.hash:
                block: dict[str, Any] = {"block": fate.block.number, "block_hash": fate.block.hash}
                self._write_audit_line("mined", entry.asked, hash=fate.hash, **block)
            return
        code, reason = "reverted", f"{fate.hash} was reverted"
        try:
            await self._wallet.explain_revert(entry.asked.peer, entry.command, fate)
        except ContractRefused as error:
            code, reason = error.code or code, error.message
        self._write_audit_line("ended", entry.asked, code=code, reason=reason)

    async def _resend_newest_attempt(self, entry: SignedSubmission) -> None:
        try:
            await self._send_newest_attempt(entry)
        except EndpointFailed:
            raise
        except (ChainError, ContractRefused) as error:  # the next check finds out more
            log.info("%s: %s", entry.submission, error)

    async def _replace_stuck_transaction(self, entry: SignedSubmission) -> None:
        """Replace a stuck transaction, which blocks all later ones, by one at a higher price."""
        try:
            prepared = await self._wallet.prepare_attempt(entry.asked.peer, entry.command, entry.attempts)
        except ContractRefused:  # already done, or no longer allowed: free its nonce
            prepared = await self._wallet.prepare_withdrawal(entry.attempts)
        if prepared is None:
            log.warning("%s waits, and the bounds on fees allow no dearer transaction", entry.submission)
            return
        self._record_signed_attempt(entry.asked, prepared)
        await self._resend_newest_attempt(entry)

    async def _send_newest_attempt(self, entry: SignedSubmission) -> str | None:
        entry.pushed_at = monotonic()
        return await self._wallet.send_attempt(entry.asked.peer, entry.command, entry.attempts[-1])

    # --- the audit log ---

    async def _sign_first_attempt(self, asked: SignerRequest) -> None:
        """Sign a transaction with a new nonce. Raises ContractRefused, ChainError."""
        prepared = await self._wallet.prepare_attempt(asked.peer, asked.to_submit_command(), ())
        assert prepared is not None, "it replaces none"
        self._record_signed_attempt(asked, prepared)

    def _record_signed_attempt(self, asked: SignerRequest, prepared: SubmissionAttempt) -> None:
        said = {name: getattr(prepared, name) for name in ("hash", "nonce", "fee_wei", "cost_wei")}
        self._write_audit_line("signed", asked, raw="0x" + prepared.raw.hex(), **said)

    def _write_audit_line(self, what: What, asked: SignerRequest, **fields: Any) -> None:
        """Append a line to the audit log, and apply it to the ledger. Raises LogWriteFailed."""
        place = (asked.submission_name, asked.kind, asked.round, asked.stage, asked.peer)
        if what in ("signed", "refused", "failed"):
            fields |= {name: getattr(asked, name) for name in ("reward", "winners", "org", "remote")}
        line = AuditLine(current_timestamp(), what, *place, account=self.account, **fields)
        self._audit.append(line)
        self._ledger.apply_line(line)
        log.info(
            "%s %s %s%s", asked.submission_name, what, line.hash or line.code, f": {line.reason}" if line.reason else ""
        )
