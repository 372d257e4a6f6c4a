"""The errors that swarmd raises on purpose: each names the thing that is wrong and, if there is one, the fix.

The command line and the daemon end with an error's `exit_code`; docs/OPERATING.md has the table, and the systemd unit
follows it. Codes of 64 and more are permanent: a restart cannot help.
"""

from typing import Self


class ExitCode:
    """Exit codes of all commands (sysexits.h where it has one)."""

    OK = 0
    FAILURE = 1  # unexpected or transient; a restart may help
    UNFIT = 2  # the doctor found errors
    DIFFERENCE = 3  # replay --verify or log verify found a difference
    NEVER_STARTED = 4  # the node was made and never started, so it has no log yet
    USAGE = 64
    BAD_DATA = 65  # input is damaged, another node's, or of a newer version
    NO_INPUT = 66  # a named file does not exist
    UNAVAILABLE = 69  # a worker's restart budget is spent
    CANNOT_CREATE = 73  # no space left, read-only
    IO_ERROR = 74  # a failed fsync: what is on disk is unknown
    IN_USE = 75  # another daemon holds the data directory; a restart may help later
    NO_PERMISSION = 77  # a secret that others may read, another user's file, or a wrong passphrase
    BAD_CONFIG = 78  # invalid, or needs what this machine lacks
    IDENTITY_CONFLICT = 79  # the same identity runs elsewhere
    CHAIN_CONFLICT = 80  # another chain, a reset one, or one that knows this peer under another account
    INTERRUPTED = 130  # Ctrl-C


FOREIGN_ERRORS = (Exception, SystemExit)  # what third-party code, such as a plug-in, may raise
EXIT_FOR_ROOM = 99  # of a worker process that peers made too large: it is restarted, and no failure is counted


class SwarmdError(Exception):
    """Base of all deliberate errors: what is wrong, with the file, key, peer or value, and what to do about it."""

    exit_code = ExitCode.FAILURE

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def with_exit_code(self, exit_code: int) -> Self:
        """The same error with another exit code."""
        self.exit_code = exit_code
        return self

    def __str__(self) -> str:
        return f"{self.message}. {self.fix}" if self.fix else self.message


class ConfigError(SwarmdError):
    exit_code = ExitCode.BAD_CONFIG


class SwarmMismatch(ConfigError):
    """The data directory holds a node of another swarm than the configured one; nothing was changed."""


class NotFoundError(SwarmdError):
    exit_code = ExitCode.NO_INPUT


class NeverStarted(SwarmdError):
    """A node was created but never started, so it has no log to read."""

    exit_code = ExitCode.NEVER_STARTED


class LogDamaged(SwarmdError):
    """The event log cannot be trusted: a bad frame before good ones, a broken chain, a foreign file."""

    exit_code = ExitCode.BAD_DATA


class LogForeign(LogDamaged):
    """The log, or one of its segments, belongs to another node."""


class OtherVersion(LogDamaged):
    """A version of rules, layout, protocol or a format that this swarmd does not support."""

    @classmethod
    def from_numbers(cls, what: str, number: str, found: int, known: int) -> "OtherVersion":
        """Make the error for `what`: its `number` ("rules", "layout") is `found`, this swarmd supports `known`."""
        newer = "Use the newer swarmd that wrote it"
        older = "An unreleased swarmd wrote it, and no other reads it: begin a new one"
        message = f"{what} has {number} {found}, this swarmd has {number} {known}"
        return cls(message, newer if found > known else older)


class CommitTooLarge(SwarmdError):
    """One commit's events together exceed what a frame may hold; nothing was written."""


class BlobError(SwarmdError):
    """A blob is damaged or too large."""

    exit_code = ExitCode.BAD_DATA


class LogInUse(SwarmdError):
    exit_code = ExitCode.IN_USE


class LogWriteFailed(SwarmdError):
    """Appending or syncing failed; the process must end, because what is on disk is unknown."""

    exit_code = ExitCode.IO_ERROR


class NoSpaceLeft(LogWriteFailed):
    exit_code = ExitCode.CANNOT_CREATE


class ReplayDifference(SwarmdError):
    exit_code = ExitCode.DIFFERENCE


class ChartError(SwarmdError):
    exit_code = ExitCode.BAD_CONFIG


class IdentityError(SwarmdError):
    exit_code = ExitCode.NO_PERMISSION


class IdentityDamaged(IdentityError):
    """A key, its backup or a file that belongs to it is damaged, or belongs to another identity."""

    exit_code = ExitCode.BAD_DATA


class IdentityInUse(SwarmdError):
    exit_code = ExitCode.IDENTITY_CONFLICT


class ArchiveError(SwarmdError):
    """A backup or support bundle cannot be made as asked for, or is damaged, or must not be restored like this."""

    exit_code = ExitCode.BAD_DATA


class ArchiveUnwritable(ArchiveError):
    """An archive, or the directory to unpack one to, cannot be created at the given path."""

    exit_code = ExitCode.CANNOT_CREATE


class UnitError(SwarmdError):
    """A systemd unit cannot be written as requested."""

    exit_code = ExitCode.CANNOT_CREATE


class PathUnusable(SwarmdError):
    """A file or directory cannot be created at the given path."""

    exit_code = ExitCode.CANNOT_CREATE


class RecordRejected(SwarmdError):
    """A peer's record failed validation; `reason` is a short word for statistics, such as `seed`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WeightsUnavailable(SwarmdError):
    """No trusted peer offers usable weights."""

    exit_code = ExitCode.NO_INPUT


class WeightsUnfinished(WeightsUnavailable):
    """Not all chunks of a peer's weights arrived: those that did are kept for the next attempt."""


class FrameError(SwarmdError):
    """The byte stream between daemon and worker is broken."""


class WorkerLimitExceeded(SwarmdError):
    """Peers made a worker use more memory, files or tasks than allowed: it exits and is restarted."""

    exit_code = EXIT_FOR_ROOM


class NetworkDown(SwarmdError):
    """A DHT operation was called while the DHT node is down, or the node died during it."""


class AddressInUse(SwarmdError):
    """Another process listens on the address that this node was to use."""

    exit_code = ExitCode.BAD_CONFIG


class ChainError(SwarmdError):
    """A chain failure that may pass: no endpoint answers, or an answer makes no sense."""


class EndpointFailed(ChainError):
    """An RPC endpoint timed out, refused, or sent garbage; the next one is tried."""


class GasTooDear(ChainError):
    """The chain asks for more than chain.fees.max_gwei; nothing is signed until it is cheaper."""


class InsufficientFunds(ChainError):
    """The account has less than a transaction may cost; nothing is signed until it has `needed_wei`."""

    def __init__(self, message: str, fix: str, needed_wei: int) -> None:
        super().__init__(message, fix)
        self.needed_wei = needed_wei


class BudgetSpent(ChainError):
    """The account has signed for its daily limit; it signs nothing more until the next day."""


class RpcRefused(ChainError):
    """A node answered with a JSON-RPC error about the request itself: a revert, a nonce too low, a range too long.

    `code` is JSON-RPC's, `data` the revert data as hex where there is any.
    """

    def __init__(self, code: int, message: str, data: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class ChainMismatch(SwarmdError):
    """Another chain than configured, no such contract on it, or a chain that was reset: nothing is signed."""

    exit_code = ExitCode.CHAIN_CONFLICT


class ContractRefused(SwarmdError):
    """The contract reverted a call; `code` is its error by name, empty for one that is not known."""

    def __init__(self, code: str, message: str, fix: str = "") -> None:
        super().__init__(message, fix)
        self.code = code


class KeystoreError(SwarmdError):
    """An account's key cannot be read: no keystore, a wrong passphrase, or a file that others may read."""

    exit_code = ExitCode.NO_PERMISSION


class KeystoreDamaged(KeystoreError):
    """A keystore or a file that belongs to it is damaged, or belongs to another account."""

    exit_code = ExitCode.BAD_DATA


class SignerError(ChainError):
    """The signer proxy did not do as asked; `status` is its HTTP status, 0 where there was none."""

    def __init__(self, message: str, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class ManifestError(SwarmdError):
    """A swarm's manifest is malformed or altered, or its signature or digest does not match."""

    exit_code = ExitCode.BAD_DATA


class ModelError(SwarmdError):
    """A model or tokenizer is missing, or cannot be fetched."""

    exit_code = ExitCode.NO_INPUT


class ModelUnfit(ModelError):
    """A model is there, but this machine or configuration cannot use it as asked."""

    exit_code = ExitCode.BAD_CONFIG


class HubUnreachable(ModelError):
    """The Hub does not answer, or a proxy or login page answers instead; another try may succeed."""


class GgufRefused(ModelError):
    """No model can be read from a GGUF file: damaged, of an unknown architecture, or nothing reads such files."""

    exit_code = ExitCode.BAD_DATA


class ReferenceFailed(SwarmdError):
    """The reference server did not give log-probabilities; the stage cannot be trained without them."""


class ReferenceMismatch(ReferenceFailed):
    """The reference server has another model than the one this node began with, or answers another request."""


class SwarmError(SwarmdError):
    """A swarm or task is unknown or its settings are wrong."""

    exit_code = ExitCode.BAD_CONFIG


class PlanFailed(SwarmdError):
    """A plan's method, which may be a plug-in's, raised an error: names the method and the error."""


class DatasetRefused(SwarmError):
    """A data set is larger than this node downloads, or nothing says how large it is; none of it was downloaded."""


class EnvironmentMissing(SwarmError):
    """A swarm runs Python packages that this node lacks or has in another version; none was installed."""


class SandboxUnavailable(SwarmdError):
    """Programs cannot be confined on this machine, so none is run."""

    exit_code = ExitCode.BAD_CONFIG


class CheckpointDamaged(SwarmdError):
    """A checkpoint is not whole; the trainer falls back to the one before."""

    exit_code = ExitCode.BAD_DATA


class CheckpointUnreadable(SwarmdError):
    """A checkpoint may be whole, and cannot be read now: to begin without it would lose what was trained."""


class CheckpointFailed(SwarmdError):
    """A checkpoint could not be written; earlier ones are untouched."""

    exit_code = ExitCode.CANNOT_CREATE


class TrainingDiverged(SwarmdError):
    """A step's gradient is not finite; model and optimiser go back to the last checkpoint."""


class GenerationFailed(SwarmdError):
    """vLLM cannot be reached, failed, or answered nonsense; another try may do better."""


class ControlError(SwarmdError):
    """The daemon's control socket cannot be created or reached, or its message is malformed."""


class BundleHoldsSecret(ArchiveError):
    """One of the node's secrets occurs in a file of the bundle."""


class NotifyFailed(SwarmdError):
    """A health notification could not be delivered."""


class NoSafeMoment(SwarmdError):
    """No moment came at which a stop would not have cost a round; the node runs on."""


class StopOverran(SwarmdError):
    """An embedded node did not stop in time: its workers were killed, its log is intact."""


class NodeEnded(SwarmdError):
    """An embedded node ended by itself: a worker's fault, its identity running elsewhere, another chain."""


class LocalSwarmFailed(SwarmdError):
    """A node of a local swarm ended by itself, does not end, or does not do what was waited for."""


def single_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error of a group to report: a SwarmdError if there is one."""
    error: BaseException = group.subgroup(SwarmdError) or group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
