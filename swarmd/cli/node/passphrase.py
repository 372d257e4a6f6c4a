"""A passphrase from a terminal, without echo, or from a file. It is never taken from a command line."""

from __future__ import annotations

import getpass
import locale
import os
import stat
import sys
from pathlib import Path

from swarmd.errors import IdentityDamaged, IdentityError, NotFoundError
from swarmd.paths import quoted

FILE_BYTES_MAX = 4096


def take_passphrase(file: Path | None, prompt: str, twice: bool = False) -> str:
    """Read the passphrase from `file`, or ask for it; `twice` when a slip would lock something up.

    Raises:
        NotFoundError: there is no such file.
        IdentityError: others may read the file, it or the answer is no single line of text, there is no terminal to
            ask at, or the two answers differ.
    """
    if file is not None:
        return _read_file(file)
    if not sys.stdin.isatty():
        raise IdentityError("there is no terminal to ask for the passphrase at", "Give --passphrase-file FILE")
    passphrase = ask_hidden(prompt)
    if twice and ask_hidden("Once more") != passphrase:
        raise IdentityError("the two passphrases differ", "Try again")
    return passphrase


def ask_hidden(prompt: str) -> str:
    """Ask at the terminal without echo. Raises IdentityDamaged where what is typed is no text in its encoding."""
    try:
        answer = getpass.getpass(f"{prompt}: ")
        answer.encode("utf-8")  # Python may have let bytes through that are none
    except UnicodeError:
        encoding = locale.getencoding()
        fix = f"Set the terminal to {encoding}, as LC_ALL or LANG says, or give it in a file"
        raise IdentityDamaged(f"what was typed is no text in {encoding}", fix) from None
    return answer


def _read_file(path: Path) -> str:
    """One line, without its end. A pipe will do; a regular file must be private."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & 0o077:
                fix = f"Run `chmod 600 {quoted(path)}`"
                raise IdentityError(f"the passphrase file {path} may be read by others", fix)
            return _line_in(file.read(FILE_BYTES_MAX + 1), path)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no passphrase file {path}") from error
    except OSError as error:
        raise IdentityError(f"the passphrase file {path} cannot be read: {error.strerror}") from error


def _line_in(raw: bytes, path: Path) -> str:
    try:
        line = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise IdentityDamaged(f"the passphrase file {path} is no UTF-8 text") from error
    if not line or "\n" in line or len(raw) > FILE_BYTES_MAX:
        raise IdentityDamaged(f"the passphrase file {path} does not hold one line of text")
    return line
