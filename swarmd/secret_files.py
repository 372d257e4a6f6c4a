"""Files that hold a secret: read only if nobody else may read them, written durably and never overwritten.

- A secret is named by a path, or as ``credential:NAME``: then the service manager keeps it, and the file is in
  $CREDENTIALS_DIRECTORY (systemd.exec(5), LoadCredential=).
- A secret that leaves the machine is sealed with a passphrase, in one format: magic, version (u8), log2 of scrypt's n
  (u8), salt (16), nonce (12), ciphertext and tag. scrypt (r 8, p 1) derives the key from the passphrase (UTF-8, NFC);
  ChaCha20-Poly1305 encrypts, and authenticates everything, including what precedes the ciphertext.
"""

import errno
import os
import re
import stat
import struct
import unicodedata
from pathlib import Path
from typing import NamedTuple

from swarmd.errors import ExitCode, IdentityDamaged, IdentityError, SwarmdError
from swarmd.files import advise_on_path_error, remove_leftover, sync_directory
from swarmd.paths import quote_for_shell

CREDENTIAL = "credential:"
SCRYPT_COST = 17  # log2 of scrypt's n when sealing: 128 MiB and some 0.1 s for each passphrase tried
SEALED_MAGIC = b"swarmd-sealed\x00"
SEALED_VERSION = 1
SEALED_HEADER = struct.Struct(f">{len(SEALED_MAGIC)}sBB16s12s")
COST_MIN, COST_MAX = 10, 18  # accepted when opening: at most 256 MiB of memory
PASSPHRASE_LENGTH_MIN, PASSPHRASE_LENGTH_MAX = 8, 1024  # characters
_CREDENTIAL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")


class SecretKind(NamedTuple):
    """A kind of secret, for error messages."""

    noun: str
    error: type[SwarmdError]
    bytes_max: int  # a larger file is refused
    make: str = ""  # how to create one, for the error about a missing file


class Secret(NamedTuple):
    path: Path
    guarded: bool = False  # the service manager protects it by its directory; owner and mode do not matter


def locate_secret(named: str, root: Path, kind: SecretKind) -> Secret:
    """The file that a configuration names: `credential:NAME`, or a path relative to `root`.

    Raises `kind.error` for a credential that the service manager did not pass.
    """
    if not named.startswith(CREDENTIAL):
        return Secret(root / named)
    name = named.removeprefix(CREDENTIAL)
    if not _CREDENTIAL_NAME.fullmatch(name):
        raise kind.error(
            f"the {kind.noun} {named!r} is not the name of a credential",
            "Write credential:NAME, of letters, digits, points, - and _",
        )
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory:
        raise kind.error(
            f"the {kind.noun} is to be the credential {name}, but the service manager has passed none",
            f"Put `LoadCredential={name}:FILE` into the unit, or name a file instead",
        ).with_exit_code(ExitCode.NO_INPUT)
    return Secret(Path(directory) / name, guarded=True)


def read_secret(secret: Secret, kind: SecretKind) -> bytes:
    """The contents of a file that only its owner may read.

    Raises `kind.error` if it is missing, not a regular file, another user's, readable by others, or too large.
    """
    path = secret.path
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise kind.error(f"there is no {kind.noun} {path}", kind.make).with_exit_code(ExitCode.NO_INPUT) from None
    except OSError as error:
        link = f"Name the file that it leads to: no link is followed to a {kind.noun}"
        fix = link if error.errno == errno.ELOOP else advise_on_path_error(error, path)
        raise _make_access_error(kind, f"the {kind.noun} {path} cannot be opened: {error.strerror}", fix) from None
    try:
        _check(secret, os.fstat(descriptor), kind)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(kind.bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(content) > kind.bytes_max:
        raise kind.error(
            f"the {kind.noun} {path} is larger than {kind.bytes_max} bytes: it is something else", kind.make
        ).with_exit_code(ExitCode.BAD_DATA)
    return content


def _check(secret: Secret, status: os.stat_result, kind: SecretKind) -> None:
    path, mode = secret.path, stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        fix = "Name the file in that directory" if stat.S_ISDIR(status.st_mode) else "Name the file itself"
        raise _make_access_error(kind, f"the {kind.noun} {path} is not a regular file", fix)
    if secret.guarded:
        return
    if status.st_uid != os.geteuid():
        fix = f"Run as that user, or give the file away with `chown {os.geteuid()} {quote_for_shell(path)}`"
        raise _make_access_error(
            kind, f"the {kind.noun} {path} belongs to user {status.st_uid}, not to {os.geteuid()}", fix
        )
    if mode & 0o077:
        fix = f"Run `chmod 600 {quote_for_shell(path)}`"
        raise _make_access_error(kind, f"the {kind.noun} {path} has mode {mode:04o}: others may read it", fix)


def _make_access_error(kind: SecretKind, message: str, fix: str = "") -> SwarmdError:
    return kind.error(message, fix).with_exit_code(ExitCode.NO_PERMISSION)


def write_secret(path: Path, content: bytes, kind: SecretKind) -> None:
    """Create a file with mode 0600, durably.

    Raises `kind.error` if it exists (it is never overwritten) or cannot be written; then nothing is left of it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        fix = f"Move it away first, or choose another name: a {kind.noun} is never overwritten"
        raise kind.error(f"{path} exists already", fix).with_exit_code(ExitCode.CANNOT_CREATE) from None
    except OSError as error:
        make = f"Make its directory first: `mkdir -m 700 -p {quote_for_shell(path.parent)}`"
        fix = make if isinstance(error, FileNotFoundError) else advise_on_path_error(error, path)
        raise kind.error(f"{path} cannot be created: {error.strerror}", fix).with_exit_code(
            ExitCode.CANNOT_CREATE
        ) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        sync_directory(path.parent)
    except OSError as error:
        remove_leftover(path)
        fix = advise_on_path_error(error, path) or "Make room for it, and try again"
        raise kind.error(f"{path} cannot be written: {error.strerror}", fix).with_exit_code(
            ExitCode.CANNOT_CREATE
        ) from None


def seal(content: bytes, passphrase: str, cost: int | None = None) -> bytes:
    """Encrypt with a passphrase. Raises IdentityDamaged if the passphrase is too short or too long."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    if not PASSPHRASE_LENGTH_MIN <= len(passphrase) <= PASSPHRASE_LENGTH_MAX:
        raise IdentityDamaged(
            f"the passphrase has {len(passphrase)} characters, "
            f"{PASSPHRASE_LENGTH_MIN} to {PASSPHRASE_LENGTH_MAX} are allowed",
            "Choose another one",
        )
    cost = SCRYPT_COST if cost is None else cost
    salt, nonce = os.urandom(16), os.urandom(12)
    header = SEALED_HEADER.pack(SEALED_MAGIC, SEALED_VERSION, cost, salt, nonce)
    return header + ChaCha20Poly1305(_derive_key(passphrase, salt, cost)).encrypt(nonce, content, header)


def unseal(raw: bytes, passphrase: str, origin: str) -> bytes:
    """Decrypt what `seal` made. Raises IdentityDamaged (`read_sealed_header`), IdentityError for a wrong passphrase."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    cost, salt, nonce = read_sealed_header(raw, origin)
    size = SEALED_HEADER.size
    try:
        return ChaCha20Poly1305(_derive_key(passphrase, salt, cost)).decrypt(nonce, raw[size:], raw[:size])
    except InvalidTag as error:
        problem = f"{origin} does not open: the passphrase is wrong or the file is damaged"
        raise IdentityError(problem, "Try the passphrase again, or another copy of the backup") from error


_OTHER_SWARMD = "Open it with the swarmd that wrote it, or take another copy"
SEALED_FIX = "Name the file that `swarmd identity backup` wrote; `swarmd restore` takes a whole node's backup"


def read_sealed_header(raw: bytes, origin: str) -> tuple[int, bytes, bytes]:
    """Parse (cost, salt, nonce). Raises IdentityDamaged if `raw` is not sealed, has another version, or a cost out of
    bounds."""
    if len(raw) <= SEALED_HEADER.size or not raw.startswith(SEALED_MAGIC):
        raise IdentityDamaged(f"{origin} is not a backup that swarmd sealed", SEALED_FIX)
    _, version, cost, salt, nonce = SEALED_HEADER.unpack_from(raw)
    if version != SEALED_VERSION:
        raise IdentityDamaged(f"{origin} is sealed in version {version}, not {SEALED_VERSION}", _OTHER_SWARMD)
    if not COST_MIN <= cost <= COST_MAX:
        raise IdentityDamaged(f"{origin} is damaged: it asks for a cost of 2^{cost}", "Take another copy of the backup")
    return cost, salt, nonce


def _derive_key(passphrase: str, salt: bytes, cost: int) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    secret = unicodedata.normalize("NFC", passphrase).encode("utf-8", "surrogatepass")
    return Scrypt(salt=salt, length=32, n=1 << cost, r=8, p=1).derive(secret)
