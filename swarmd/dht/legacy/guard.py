"""What this node takes from peers in a legacy network: any record that v0.4 could have written, and no other.

Nothing there is signed, so a record's writer is unknown; what can be asked is that it has a v0.4 record's form, that it
ends when a v0.4 record ends, and that nobody fills this node's memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from swarmd.dht.legacy import keys
from swarmd.dht.legacy.records import LIFE_S, read_place
from swarmd.dht.legacy.values import VALUE_BYTES_MAX, decode
from swarmd.dht.limits.rejections import Rejections
from swarmd.dht.limits.token_bucket import TokenBuckets
from swarmd.dht.p2p.hivemind_api import DHTRecord, RecordValidatorBase
from swarmd.dht.wire import names
from swarmd.errors import RecordRejected
from swarmd.worker.runtime import TimeSource

AHEAD_S = 300.0  # a writer's clock may be wrong by so much
PAST_S = 60.0
SUBKEY_LENGTH_MAX = 16384  # versions before 0.3 have whole questions there
RECORDS_BURST, RECORDS_PER_S = 65536.0, 512.0  # one sender's; a holder that meets us hands on thousands at once
BYTES_BURST, BYTES_PER_S = 64.0 * 1024 * 1024, 4.0 * 1024 * 1024
KEPT_BURST, KEPT_PER_S = 64.0 * 1024 * 1024, 64.0 * 1024 * 1024 / LIFE_S  # held for one sender: twice the burst at most
KEY_ID_BYTES = 20
CLOCK_ID = names.key_id(keys.CLOCK)

Stored = Callable[[bytes], None]
Record = tuple[str | None, bytes, float]  # subkey (None: a plain value), value, expiration


class LegacyGuard(RecordValidatorBase):  # type: ignore[misc]
    """Checks of form and of amount.

    Args:
        rejections: where refusals are counted.
        stored: called with the key id of every record that a peer stored here.
        now: the clock, POSIX seconds.
    """

    def __init__(self, rejections: Rejections, stored: Stored | None = None, now: TimeSource = time.time) -> None:
        self.rejections = rejections
        self.stored = stored
        self._now = now
        self.records_quota = TokenBuckets(RECORDS_BURST, RECORDS_PER_S, time.monotonic)
        self.bytes_quota = TokenBuckets(BYTES_BURST, BYTES_PER_S, time.monotonic)
        self.kept_quota = TokenBuckets(KEPT_BURST, KEPT_PER_S, time.monotonic)

    def check(self, key: bytes, subkey: object, value: object, expiration: object) -> Record:
        """A record's parts, typed; a plain value has the subkey None.

        Raises:
            RecordRejected: "malformed", "oversized", "nested", "far-expiration" or "stale".
        """
        if len(key) != KEY_ID_BYTES:
            raise RecordRejected("malformed", f"a key id of {len(key)} bytes")
        if not isinstance(value, bytes):
            raise RecordRejected("malformed", "the value is not bytes")
        if len(value) > VALUE_BYTES_MAX:
            raise RecordRejected("oversized", f"a value of {len(value)} bytes")
        if subkey is not None and not isinstance(subkey, str):
            raise RecordRejected("malformed", "a subkey that is no text")
        if subkey is not None and len(subkey) > SUBKEY_LENGTH_MAX:
            raise RecordRejected("oversized", f"a subkey of {len(subkey)} characters")
        if key == CLOCK_ID and subkey is not None:
            raise RecordRejected("malformed", "a clock with a subkey")
        return subkey, value, self._ends_in_time(expiration)

    def check_kept(
        self, key: bytes, subkey: object, value: object, expiration: object
    ) -> tuple[str | None, bytes, float]:
        """The same for what is to be kept here and handed on: the value must be one that v0.4 can read."""
        checked = self.check(key, subkey, value, expiration)
        if key == CLOCK_ID:
            read_place(checked[1])
        else:
            decode(checked[1])
        return checked

    def _ends_in_time(self, expiration: object) -> float:
        if not isinstance(expiration, int | float) or isinstance(expiration, bool) or not math.isfinite(expiration):
            raise RecordRejected("far-expiration", "an expiration that is no time")
        now = self._now()
        if expiration > self.latest(now):
            raise RecordRejected("far-expiration", f"expires {expiration - now:.0f} s from now")
        if expiration < now - PAST_S:
            raise RecordRejected("stale", f"expired {now - expiration:.0f} s ago")
        return float(expiration)

    def latest(self, now: float) -> float:
        """The latest expiration that is taken."""
        return now + LIFE_S + AHEAD_S

    def validate(self, record: DHTRecord) -> bool:
        """hivemind asks this before it stores by itself, which it is never told to here; True."""
        return True

    def sign_value(self, record: DHTRecord) -> bytes:
        """Return the value as it is: legacy records carry no signature."""
        return bytes(record.value)

    def strip_value(self, record: DHTRecord) -> bytes:
        """Return the value as it is: legacy records carry no signature."""
        return bytes(record.value)
