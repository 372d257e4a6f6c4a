"""An account's key, encrypted in a file: version 3 of Ethereum's keystores, which all Ethereum programs read.

The key leaves this module only inside a `LocalAccount`. No error contains the key or the passphrase, and none is
chained to one that might.
"""

import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_utils.address import to_checksum_address

from swarmd import secret_files
from swarmd.bounds import DECODE_ERRORS
from swarmd.config import ChainConfig
from swarmd.errors import ExitCode, KeystoreDamaged, KeystoreError
from swarmd.files import read_start
from swarmd.paths import NodeDirectory
from swarmd.secret_files import Secret, SecretKind, locate_secret, read_secret, write_secret

PASSPHRASE_CHARS_MIN = 8  # of a new one
PASSPHRASE_BYTES_MAX = 4096
PASSPHRASE_RANDOM_BYTES = 32
REASON_CHARS_MAX = 200  # of an error message

KEYSTORE = SecretKind("keystore", KeystoreError, 64 * 1024, "Make one with `swarmd account new FILE`")
PASSPHRASE = SecretKind(
    "passphrase file", KeystoreError, PASSPHRASE_BYTES_MAX, "Write the passphrase into it, mode 0600"
)
ANOTHER = "Name a node's account.json, or make one with `swarmd account new FILE`"
PASSPHRASE_FIX = "Write the passphrase into it, on one line, and nothing else"
_REIMPORT = "Export the key from the wallet that made it, and import it with `swarmd account import FILE`"


class Keystore(msgspec.Struct):
    """The fields of a keystore that swarmd itself reads. `address` is optional, and untrusted without the key."""

    version: int
    crypto: dict[str, Any]
    address: Annotated[str, msgspec.Meta(pattern=r"^((0x)?[0-9a-fA-F]{40})?\Z")] = ""


def load_account(config: ChainConfig, data: NodeDirectory) -> LocalAccount:
    """Return the configured account. Raises KeystoreError; the message names the file."""
    passphrase = load_passphrase(config.passphrase, data.root)
    return _decrypt_keystore(locate_secret(config.keystore, data.root, KEYSTORE), passphrase)


def load_passphrase(named: str, root: Path) -> str:
    """Return the passphrase in a file, without a final newline: `credential:NAME`, or a path relative to `root`. Raises
    KeystoreError: it cannot be read, others may read it, or it is empty."""
    secret = locate_secret(named, root, PASSPHRASE)
    try:
        text = read_secret(secret, PASSPHRASE).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KeystoreDamaged(f"the passphrase file {secret.path} is not UTF-8 text", PASSPHRASE_FIX) from None
    passphrase = text.removesuffix("\n").removesuffix("\r")
    if not passphrase:
        raise KeystoreDamaged(f"the passphrase file {secret.path} is empty", PASSPHRASE_FIX)
    return passphrase


def create_passphrase(path: Path) -> str:
    """Write a random passphrase into a new file. Raises KeystoreError as `write_secret` does."""
    passphrase = secrets.token_urlsafe(PASSPHRASE_RANDOM_BYTES)
    write_secret(path, f"{passphrase}\n".encode("ascii"), PASSPHRASE)
    return passphrase


def read_keystore(path: Path, passphrase: str) -> LocalAccount:
    """Return the account in a keystore. Raises KeystoreError: missing, not private, damaged, or another passphrase."""
    return _decrypt_keystore(Secret(path), passphrase)


def create_keystore(path: Path, passphrase: str, work: int | None = None) -> LocalAccount:
    """Create an account in a new file; `work` is scrypt's n. Raises KeystoreError; never overwrites a file."""
    account: LocalAccount = Account.create(extra_entropy="")
    _write_keystore(path, account, passphrase, work)
    return account


def import_key(path: Path, key: str, passphrase: str, work: int | None = None) -> LocalAccount:
    """Write the account of a key (64 hex digits) into a new file. Raises KeystoreError as `create_keystore` does."""
    account = account_from_key(key)
    _write_keystore(path, account, passphrase, work)
    return account


def account_from_key(key: str) -> LocalAccount:
    """Return the account of a key, in memory only. Raises KeystoreDamaged if it is not a key."""
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{64}", key):
        raise KeystoreDamaged(
            "this is not a private key: 64 hex digits expected",
            "Give the key itself, as a wallet exports it: neither the account's address nor its recovery words",
        )
    try:
        account: LocalAccount = Account.from_key(key)
    except Exception:  # the libraries' errors may hold the key
        raise KeystoreDamaged(
            "this is not a private key: the number is out of range", "Copy the key again from the wallet that has it"
        ) from None
    return account


def _write_keystore(path: Path, account: LocalAccount, passphrase: str, work: int | None) -> None:
    check_passphrase(passphrase)
    if path.exists():  # checked before the slow part; `write_secret` enforces it
        fix = "Move it away first: a keystore is never overwritten"
        raise KeystoreError(f"{path} exists already", fix).with_exit_code(ExitCode.CANNOT_CREATE)
    encrypted = Account.encrypt(account.key, passphrase, kdf="scrypt", iterations=work or 1 << secret_files.SCRYPT_COST)
    write_secret(path, msgspec.json.encode(encrypted) + b"\n", KEYSTORE)


def check_passphrase(passphrase: str) -> None:
    """Raise KeystoreError for a passphrase that is too short, too long, or more than one line."""
    if len(passphrase) < PASSPHRASE_CHARS_MIN or len(passphrase.encode("utf-8")) > PASSPHRASE_BYTES_MAX:
        raise KeystoreDamaged(
            f"the length of the passphrase is {len(passphrase)}: at least {PASSPHRASE_CHARS_MIN} characters and at "
            f"most {PASSPHRASE_BYTES_MAX} bytes are allowed",
            "Choose another one",
        )
    if "\n" in passphrase or "\r" in passphrase:
        raise KeystoreDamaged("a passphrase is one line, not several", "Write it without line breaks")


def read_keystore_address(path: Path) -> str:
    """Return the account's address in a keystore, checksummed; needs no passphrase. Raises KeystoreError."""
    address = _parse_keystore(_read_keystore_file(Secret(path)), path).address
    if not address:
        raise KeystoreDamaged(
            f"the keystore {path} does not say its address", "Give its passphrase with --passphrase-file"
        )
    return to_checksum_address("0x" + address.removeprefix("0x"))


def _decrypt_keystore(secret: Secret, passphrase: str) -> LocalAccount:
    content = _read_keystore_file(secret)
    said = _parse_keystore(content, secret.path).address
    try:
        account: LocalAccount = Account.from_key(Account.decrypt(content.decode("utf-8"), passphrase))
    except Exception:  # the libraries' errors may hold secrets
        raise KeystoreError(
            f"the keystore {secret.path} does not open: the passphrase is another one, or the file is damaged",
            "Check the passphrase; restore a damaged file from a copy",
        ) from None
    if said and account.address.lower() != "0x" + said.removeprefix("0x").lower():
        raise KeystoreDamaged(
            f"the keystore {secret.path} says that it is of {said}, but its key is of {account.address}",
            "Find out which account is meant, and import its key again",
        )
    return account


def _read_keystore_file(secret: Secret) -> bytes:
    """Return the file's content. Reports a file that is not a keystore as such, whatever its mode."""
    with suppress(OSError):
        _parse_keystore(read_start(secret.path, KEYSTORE.bytes_max), secret.path)
    return read_secret(secret, KEYSTORE)


def _parse_keystore(content: bytes, path: Path) -> Keystore:
    """Decode a keystore; field names may have any case. eth-account checks the encrypted part."""
    try:
        keystore = msgspec.convert(_lowercase_keys(msgspec.json.decode(content)), Keystore)
    except msgspec.ValidationError as error:
        raise KeystoreDamaged(
            f"{path} is not a keystore that swarmd can read: {str(error)[:REASON_CHARS_MAX]}", ANOTHER
        ) from None
    except DECODE_ERRORS:
        raise KeystoreDamaged(f"{path} is not a keystore: it is not JSON", ANOTHER) from None
    if keystore.version != 3:
        raise KeystoreDamaged(f"the keystore {path} has version {keystore.version}, not 3", _REIMPORT)
    return keystore


def _lowercase_keys(value: Any) -> Any:
    return {key.lower(): _lowercase_keys(inner) for key, inner in value.items()} if isinstance(value, dict) else value
