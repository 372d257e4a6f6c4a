"""The node's own records on disk, so that a restart publishes them again and never with an earlier expiration."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import anyio
import msgspec

from swarmd.dht.plain import DECODE_ERRORS
from swarmd.dht.records import (
    ClockRecord,
    LeaderboardRecord,
    Membership,
    Payload,
    ReportRecord,
    RolloutsRecord,
    check_payload,
)
from swarmd.errors import RecordRejected

KEPT = {Membership: 1, ClockRecord: 1, ReportRecord: 3, RolloutsRecord: 3, LeaderboardRecord: 3}  # latest of each kind

log = logging.getLogger(__name__)


class Entry(msgspec.Struct, array_like=True):
    """One own record: its payload and the latest expiration it was published with."""

    payload: bytes
    expiration: float

    @property
    def content(self) -> Payload:
        """The decoded payload."""
        return check_payload(self.payload)


class Shelf:
    """Own records by key.

    Args:
        path: the file; a damaged one is put aside and an empty shelf begun, for its records can be made again.
        swarm: records of another swarm are dropped.
    """

    def __init__(self, path: Path, swarm: str) -> None:
        self._path = path
        self._entries: dict[str, Entry] = {}
        self._saving = anyio.Lock()
        for entry in self._load():
            content = entry.content
            if content.swarm == swarm:
                self._entries[content.key] = entry

    def _load(self) -> list[Entry]:
        try:
            raw = self._path.read_bytes()
            entries = msgspec.msgpack.decode(raw, type=list[Entry])
            for entry in entries:
                check_payload(entry.payload)
        except FileNotFoundError:
            return []
        except (OSError, *DECODE_ERRORS, RecordRejected) as error:
            log.warning("own records in %s cannot be read and are put aside: %s", self._path, error)
            self._path.replace(self._path.with_suffix(".damaged"))
            return []
        return entries

    def floor(self, key: str) -> float:
        """The latest expiration used under a key so far, 0 for none."""
        entry = self._entries.get(key)
        return entry.expiration if entry else 0.0

    def contents(self) -> list[Payload]:
        """All records on the shelf, oldest first."""
        return [entry.content for entry in self._entries.values()]

    def keep(self, content: Payload, expiration: float) -> None:
        """Put a record on the shelf, in place of the one under the same key; `save` makes it durable."""
        self._entries.pop(content.key, None)
        self._entries[content.key] = Entry(msgspec.msgpack.encode(content), expiration)
        self._drop_oldest(type(content))

    def _drop_oldest(self, kind: type[Payload]) -> None:
        same = [key for key, entry in self._entries.items() if isinstance(entry.content, kind)]
        for key in same[: -KEPT[kind]]:
            del self._entries[key]

    async def save(self) -> None:
        """Write the file. A full disk costs the records' survival of a restart, not the network."""
        async with self._saving:
            encoded = msgspec.msgpack.encode(list(self._entries.values()))
            try:
                await anyio.to_thread.run_sync(_write, self._path, encoded)
            except OSError as error:
                log.warning("own records cannot be written to %s: %s", self._path, error)


def _write(path: Path, encoded: bytes) -> None:
    temporary = path.with_suffix(".new")
    with open(temporary, "wb", opener=_open_private) as file:
        file.write(encoded)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
