"""Judging what a peer shows of a key, so that no answer keeps the network worker from all else. No hivemind in it.

An answer has room for some 16,000 records, and two seconds of signatures to check. What an honest peer never shows ends
the reading of its answer: it has checked every signature itself, and shows of each owner one record, and of those alone
whom it was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from swarmd.dht.wire.find_parts import Shown
from swarmd.dht.wire.records import SignedRecord
from swarmd.errors import RecordRejected

YIELD_EVERY = 16  # records checked before the loop may do something else
FORGED = "bad-signature"
FORGED_MAX = 4  # such records of one answer that are looked at

Entry = tuple[bytes, bytes, float]  # encoded owner, value, expiration


def check_asked_for(shown: Sequence[Shown], only: Collection[str]) -> None:
    """Is this one record of each owner, and of those alone who were asked for, where any were?

    Raises:
        RecordRejected: "unasked".
    """
    owners = {each.owner for each in shown}
    if len(owners) < len(shown) or (only and not owners <= set(only)):
        raise RecordRejected("unasked", f"{len(shown)} records of {len(owners)} owners, of whom {len(only)} were asked")


async def keep_genuine(protocol: Any, sender: str, key: Any, entries: Iterable[Entry]) -> list[SignedRecord]:
    """Those of an answer that count; the others are counted under the sender.

    Args:
        protocol: judges each, see `swarmd.dht.store.validator.GuardedProtocol.judge_shown`.
    """
    kept, forged = list[SignedRecord](), 0
    for number, entry in enumerate(entries):
        if number % YIELD_EVERY == YIELD_EVERY - 1:
            await asyncio.sleep(0)
        try:
            kept.append(protocol.judge_shown(key, *entry))
        except RecordRejected as error:
            protocol._refuse(sender, error)
            forged += error.reason == FORGED
            if forged == FORGED_MAX:
                break
    return kept
