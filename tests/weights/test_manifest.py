"""Manifests and offers of weights are checked against their bounds before anything in them is believed."""

import hashlib
from typing import Any

import msgspec
import pytest

from swarmd.errors import RecordRejected
from swarmd.weights.manifest import (
    CHUNKS_MAX,
    DELTAS_MAX,
    MANIFEST_BYTES_MAX,
    OFFER_BYTES_MAX,
    ChunkedFile,
    Delta,
    WeightsManifest,
    WeightsOffer,
    decode_manifest,
    decode_offer,
)

FILE = ChunkedFile(5000, "a" * 64, 4096, bytes(64))
DELTA = Delta("b" * 64, FILE)
GOOD = WeightsManifest(1, "c" * 64, "d" * 64, 7, "BF16", FILE, (DELTA,))


def changed(**fields: Any) -> bytes:
    return msgspec.structs.replace(GOOD, **fields).encode()


def with_file(**fields: Any) -> bytes:
    return changed(whole=msgspec.structs.replace(FILE, **fields))


def test_what_is_encoded_is_decoded() -> None:
    encoded = GOOD.encode()
    assert decode_manifest(encoded, hashlib.sha256(encoded).hexdigest()) == GOOD
    assert GOOD.delta_from("b" * 64) == DELTA and GOOD.delta_from("c" * 64) is None
    assert (len(FILE), FILE.chunk_size(0), FILE.chunk_size(1)) == (2, 4096, 904)


MILLION = 1_000_000
LARGER = Delta("b" * 64, ChunkedFile(5001, "a" * 64, 4096, bytes(64)))
MALFORMED = [
    b"",
    b"\xc1",
    b"\x80",
    GOOD.encode()[:-1],
    GOOD.encode() + b"\0",
    changed(format=2),
    changed(round=-1),
    changed(architecture="../../etc/passwd"),
    changed(tokenizer="D" * 64),
    changed(dtype="F64"),
    changed(deltas=(Delta("b", FILE),)),
    with_file(size_bytes=0),
    with_file(size_bytes=2**63),
    with_file(size_bytes=9000),
    with_file(size_bytes=4096 * MILLION),
    with_file(chunk_bytes=0),
    with_file(chunk_bytes=2**30),
    with_file(chunks=bytes(63)),
    with_file(digest="a" * 63),
    with_file(size_bytes=4096 * (CHUNKS_MAX + 1), chunks=bytes(32 * (CHUNKS_MAX + 1))),
]
OVERSIZED = [
    bytes(MANIFEST_BYTES_MAX + 1),
    changed(deltas=(DELTA,) * (DELTAS_MAX + 1)),
    changed(deltas=(LARGER,)),
    changed(deltas=(Delta("b" * 64, msgspec.structs.replace(FILE, size_bytes=4096 * MILLION)),)),
    with_file(size_bytes=4096 * MILLION, chunks=bytes(32 * MILLION)),
]


@pytest.mark.parametrize(
    ("encoded", "digest", "reason"),
    [
        *((encoded, "", "malformed") for encoded in MALFORMED),
        *((encoded, "", "oversized") for encoded in OVERSIZED),
        (GOOD.encode(), "0" * 64, "wrong-digest"),  # another than was announced
    ],
)
def test_a_bad_manifest_is_refused(encoded: bytes, digest: str, reason: str) -> None:
    with pytest.raises(RecordRejected) as refused:
        decode_manifest(encoded, digest)
    assert refused.value.reason == reason


OFFER = WeightsOffer(1, 2**31 - 1, b"a" * 32, b"b" * 32, b"c" * 32, MANIFEST_BYTES_MAX, 0.5)


def changed_offer(**fields: Any) -> bytes:
    return msgspec.structs.replace(OFFER, **fields).encode()


@pytest.mark.parametrize("accuracy", [0.0, 1.0, None])
def test_an_offer_is_read_as_it_was_written(accuracy: float | None) -> None:
    packed = changed_offer(accuracy=accuracy)
    assert decode_offer(packed).accuracy == accuracy and len(packed) <= OFFER_BYTES_MAX


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (b"", "malformed"),
        (OFFER.encode()[:-1], "malformed"),
        (bytes(OFFER_BYTES_MAX + 1), "oversized"),
        (changed_offer(format=2), "malformed"),
        (changed_offer(manifest=b"short"), "malformed"),
        (changed_offer(manifest_bytes=MANIFEST_BYTES_MAX + 1), "oversized"),
        (changed_offer(manifest_bytes=0), "oversized"),
        (changed_offer(accuracy=float("nan")), "non-finite"),
        (changed_offer(accuracy=1.5), "malformed"),
        (changed_offer(round=-1), "malformed"),
    ],
)
def test_a_bad_offer_is_refused(packed: bytes, reason: str) -> None:
    with pytest.raises(RecordRejected) as refused:
        decode_offer(packed)
    assert refused.value.reason == reason
