"""Simulated records as they travel."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from swarmd.dht.evidence import SeenRecord
from swarmd.dht.ports import Record
from swarmd.dht.wire.records import ReportRecord, SignedRecord

DIGEST_LENGTH = 64  # of a sha256; those of simulated rollouts are shorter


def signed_of(record: Record) -> SignedRecord:
    """A record as it travels in gossip; its digest is as long as a real one."""
    if isinstance(record, SignedRecord):
        return record
    content = record.content
    if isinstance(content, ReportRecord) and content.digest:
        content = replace(content, digest=content.digest.ljust(DIGEST_LENGTH, "0"))
    return SignedRecord(record.owner, msgspec.msgpack.encode(content), record.expiration, b"")


def seen_of(record: Record) -> SeenRecord:
    """The same with what it says."""
    signed = signed_of(record)
    return SeenRecord(signed, signed.content)
