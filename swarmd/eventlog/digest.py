"""Digests: of the commands a commit caused, and of whole files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from io import FileIO

import msgspec

from swarmd.core.commands import Command

COMMANDS_DIGEST_BYTES = 16

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def _digest(commands: Sequence[Command]) -> bytes:
    return hashlib.blake2b(_encoder.encode(commands), digest_size=COMMANDS_DIGEST_BYTES).digest()


NO_COMMANDS = _digest(())


def digest_commands(commands: Sequence[Command]) -> bytes:
    """BLAKE2b (16 bytes) over the deterministic msgpack array of the commands, in the order they were emitted."""
    return _digest(commands) if commands else NO_COMMANDS


def digest_file(file: FileIO) -> bytes:
    """SHA-256 of a whole open file, as `sha256sum` prints it in hex."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").digest()
