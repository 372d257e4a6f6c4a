"""Files that hold a secret: read only when nobody else may read them, made durably and never overwritten.

A secret is named by a path, or as ``credential:NAME``: then the service manager keeps it, and the file lies in
$CREDENTIALS_DIRECTORY (systemd.exec(5), LoadCredential=).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from swarmd.errors import ExitCode, SwarmdError
from swarmd.eventlog.files import remedy, remove_left, sync_directory
from swarmd.paths import quoted

CREDENTIAL = "credential:"
SCRYPT_COST = 17  # log2 of scrypt's n for what is written: 128 MiB and some tenths of a second to try one passphrase
_CREDENTIAL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")


class SecretKind(NamedTuple):
    """What a file is, for the errors about it."""

    noun: str
    error: type[SwarmdError]
    bytes_max: int  # a larger file is refused unread
    make: str = ""  # how to get one, for a missing file


class Secret(NamedTuple):
    """Where a secret lies."""

    path: Path
    guarded: bool = False  # the service manager chose owner and mode, and keeps others out by the directory


def locate_secret(named: str, root: Path, kind: SecretKind) -> Secret:
    """The file that a configuration names: `credential:NAME`, or a path relative to `root`.

    Raises:
        `kind.error`: a credential that the service manager did not pass.
    """
    if not named.startswith(CREDENTIAL):
        return Secret(root / named)
    name = named.removeprefix(CREDENTIAL)
    if not _CREDENTIAL_NAME.fullmatch(name):
        raise kind.error(f"the {kind.noun} {named!r} is no name of a credential")
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory:
        raise kind.error(
            f"the {kind.noun} is to be the credential {name}, but the service manager has passed none",
            f"Put `LoadCredential={name}:FILE` into the unit, or name a file instead",
        ).ending(ExitCode.NO_INPUT)
    return Secret(Path(directory) / name, guarded=True)


def read_secret(secret: Secret, kind: SecretKind) -> bytes:
    """The contents of a file that its owner alone may read.

    Raises:
        `kind.error`: missing, no regular file, another user's, readable by others, or too large.
    """
    path = secret.path
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise kind.error(f"there is no {kind.noun} {path}", kind.make).ending(ExitCode.NO_INPUT) from None
    except OSError as error:
        link = f"Name the file that it leads to: no link is followed to a {kind.noun}"
        fix = link if error.errno == errno.ELOOP else remedy(error, path)
        raise _shut(kind, f"the {kind.noun} {path} cannot be opened: {error.strerror}", fix) from None
    try:
        _check(secret, os.fstat(descriptor), kind)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(kind.bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(content) > kind.bytes_max:
        raise kind.error(f"the {kind.noun} {path} is larger than {kind.bytes_max} bytes: it is something else").ending(
            ExitCode.BAD_DATA
        )
    return content


def _check(secret: Secret, status: os.stat_result, kind: SecretKind) -> None:
    path, mode = secret.path, stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise _shut(kind, f"the {kind.noun} {path} is not a regular file")
    if secret.guarded:
        return
    if status.st_uid != os.geteuid():
        fix = f"Run as that user, or give the file away with `chown {os.geteuid()} {quoted(path)}`"
        raise _shut(kind, f"the {kind.noun} {path} belongs to user {status.st_uid}, not to {os.geteuid()}", fix)
    if mode & 0o077:
        fix = f"Run `chmod 600 {quoted(path)}`"
        raise _shut(kind, f"the {kind.noun} {path} has mode {mode:04o}: others may read it", fix)


def _shut(kind: SecretKind, message: str, fix: str = "") -> SwarmdError:
    return kind.error(message, fix).ending(ExitCode.NO_PERMISSION)


def write_secret(path: Path, content: bytes, kind: SecretKind) -> None:
    """Make a file with mode 0600, durably.

    Raises:
        `kind.error`: it exists already (it is never overwritten) or cannot be written; then nothing is left of it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        fix = f"Move it away first, or choose another name: a {kind.noun} is never overwritten"
        raise kind.error(f"{path} exists already", fix).ending(ExitCode.CANNOT_CREATE) from None
    except OSError as error:
        make = f"Make its directory first: `mkdir -m 700 -p {quoted(path.parent)}`"
        fix = make if isinstance(error, FileNotFoundError) else remedy(error, path)
        raise kind.error(f"{path} cannot be created: {error.strerror}", fix).ending(ExitCode.CANNOT_CREATE) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        sync_directory(path.parent)
    except OSError as error:
        remove_left(path)
        fix = remedy(error, path) or "Make room for it, and try again"
        raise kind.error(f"{path} cannot be written: {error.strerror}", fix).ending(ExitCode.CANNOT_CREATE) from None
