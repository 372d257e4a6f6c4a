"""The node's own records on disk, so that a restart publishes them again and never with an earlier expiration."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
import msgspec

from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS
from swarmd.dht.wire.records import (
    ClockRecord,
    LeaderboardRecord,
    Membership,
    Payload,
    ReportRecord,
    RolloutsRecord,
    check_payload,
)
from swarmd.errors import RecordRejected
from swarmd.files import replace_durably
from swarmd.logger import get_logger

KEPT = {Membership: 1, ClockRecord: 1, ReportRecord: 3, RolloutsRecord: 3, LeaderboardRecord: 3}  # latest of each kind

log = get_logger(__name__)


class OwnRecord(msgspec.Struct, array_like=True):
    """One own record in the file: its payload, the expiration it was published with last, and the latest before."""

    payload: bytes
    expiration: float
    before: float = 0.0


class Kept(NamedTuple):
    """One own record.

    Attributes:
        expiration: that it was published with last, POSIX seconds.
        before: the latest that was used under its key before, which may lie further ahead: a clock was ahead then.
    """

    content: Payload
    expiration: float
    before: float = 0.0


class OwnRecordStorage(Protocol):
    """What keeps own records from life to life."""

    def load(self) -> list[Kept]:
        """What was saved last."""

    async def save(self, kept: list[Kept]) -> None:
        """Keep these in the place of what was saved before."""


class OwnRecordStore:
    """Own records by key.

    Args:
        store: keeps them.
        swarm: records of another swarm are dropped.
    """

    def __init__(self, store: OwnRecordStorage, swarm: str) -> None:
        self._store = store
        self._kept = {kept.content.key: kept for kept in store.load() if kept.content.swarm == swarm}

    def __contains__(self, key: str) -> bool:
        """Is there a record under a key?"""
        return key in self._kept

    def floors(self, key: str) -> tuple[float, float]:
        """Expirations used under a key so far, 0 for none: the last, and the latest of those before."""
        kept = self._kept.get(key)
        return (kept.expiration, kept.before) if kept else (0.0, 0.0)

    def contents(self) -> list[Payload]:
        """All records that are kept, oldest first."""
        return [kept.content for kept in self._kept.values()]

    def keep(self, content: Payload, expiration: float) -> None:
        """Keep a record in place of the one under the same key; `save` makes it durable."""
        before = max(self.floors(content.key))
        self._kept.pop(content.key, None)
        self._kept[content.key] = Kept(content, expiration, before)
        self._drop_oldest(type(content))

    def _drop_oldest(self, kind: type[Payload]) -> None:
        same = [key for key, kept in self._kept.items() if isinstance(kept.content, kind)]
        for key in same[: -KEPT[kind]]:
            del self._kept[key]

    async def save(self) -> None:
        """Make all of it durable, as far as the store can."""
        await self._store.save(list(self._kept.values()))


class OwnRecordFile:
    """A file of own records, see `OwnRecordStorage`.

    Args:
        path: the file; a damaged one is put aside and an empty one begun, for its records can be made again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saving = anyio.Lock()

    def load(self) -> list[Kept]:
        try:
            entries = msgspec.msgpack.decode(self._path.read_bytes(), type=list[OwnRecord])
            return [Kept(check_payload(entry.payload), entry.expiration, entry.before) for entry in entries]
        except FileNotFoundError:
            return []
        except (OSError, *DECODE_ERRORS, RecordRejected) as error:
            log.warning("own records in %s cannot be read and are put aside: %s", self._path, error)
            with contextlib.suppress(OSError):  # what is in the way says so when records are written
                self._path.replace(self._path.with_suffix(".damaged"))
            return []

    async def save(self, kept: list[Kept]) -> None:
        """Write the file. A full disk costs the records' survival of a restart, not the network."""
        entries = [OwnRecord(msgspec.msgpack.encode(each.content), each.expiration, each.before) for each in kept]
        async with self._saving:
            try:
                write = partial(replace_durably, self._path, msgspec.msgpack.encode(entries), mode=0o600)
                await anyio.to_thread.run_sync(write)
            except OSError as error:
                log.warning("own records cannot be written to %s: %s", self._path, error)
