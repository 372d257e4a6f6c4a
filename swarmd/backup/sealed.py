"""The part of a backup that a passphrase protects: the node's keys and whatever else in its directory may be secret.

A 54-byte header (magic, version, log2 of scrypt's n, salt, nonce), then ciphertext. scrypt (r = 8, p = 1) makes the key
of the passphrase, ChaCha20-Poly1305 encrypts a msgpack map from file name to contents, and authenticates the header.
"""

from __future__ import annotations

import os
import struct

import msgspec

from swarmd import secret_files
from swarmd.dht.identity.backup import COST_MAX, COST_MIN, check_passphrase, derive_key
from swarmd.errors import BackupError, IdentityError

MAGIC = b"swarmd-sealed-part\x00\x00\x00\x00\x00\x00"
VERSION = 1
HEADER = struct.Struct(f">{len(MAGIC)}sBB16s12s")
SEALED_BYTES_MAX = 4 * 1024 * 1024


def seal(files: dict[str, bytes], passphrase: str, cost: int | None = None) -> bytes:
    """Encrypt files, at SCRYPT_COST where no `cost` is given.

    Raises:
        IdentityError: the passphrase is too short or too long.
    """
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    cost = secret_files.SCRYPT_COST if cost is None else cost
    salt, nonce = os.urandom(16), os.urandom(12)
    header = HEADER.pack(MAGIC, VERSION, cost, salt, nonce)
    key = derive_key(check_passphrase(passphrase), salt, cost)
    return header + ChaCha20Poly1305(key).encrypt(nonce, msgspec.msgpack.encode(files), header)


def unseal(raw: bytes, passphrase: str) -> dict[str, bytes]:
    """What `seal` encrypted.

    Raises:
        BackupError: it is no sealed part, or of a version that this swarmd does not know.
        IdentityError: the passphrase is another, or the part is damaged.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    if len(raw) <= HEADER.size or not raw.startswith(MAGIC):
        raise BackupError("the backup's sealed part is none that swarmd wrote", "Take another copy of the backup")
    _, version, cost, salt, nonce = HEADER.unpack_from(raw)
    if version != VERSION or not COST_MIN <= cost <= COST_MAX:
        raise BackupError(f"the backup's sealed part has version {version} and cost {cost}, unknown to this swarmd")
    try:
        key = derive_key(passphrase, salt, cost)
        plain = ChaCha20Poly1305(key).decrypt(nonce, raw[HEADER.size :], raw[: HEADER.size])
    except InvalidTag as error:
        problem = "the backup's sealed part does not open: the passphrase is wrong or the file is damaged"
        raise IdentityError(problem, "Try the passphrase again, or another copy of the backup") from error
    return msgspec.msgpack.decode(plain, type=dict[str, bytes])
