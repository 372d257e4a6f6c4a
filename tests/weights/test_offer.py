"""An offer of weights fits into a membership, and what does not keep to its form is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from swarmd.errors import RecordRejected
from swarmd.weights.manifest import MANIFEST_BYTES_MAX, OFFER_BYTES_MAX, WeightsOffer, decode_offer

OFFER = WeightsOffer(1, 2**31 - 1, b"a" * 32, b"b" * 32, b"c" * 32, MANIFEST_BYTES_MAX, 0.5)


def changed(**fields: Any) -> bytes:
    return msgspec.structs.replace(OFFER, **fields).encode()


@pytest.mark.parametrize("accuracy", [0.0, 1.0, None])
def test_what_is_encoded_is_decoded(accuracy: float | None) -> None:
    packed = changed(accuracy=accuracy)
    assert decode_offer(packed).accuracy == accuracy and len(packed) <= OFFER_BYTES_MAX


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (b"", "malformed"),
        (OFFER.encode()[:-1], "malformed"),
        (bytes(OFFER_BYTES_MAX + 1), "oversized"),
        (changed(format=2), "malformed"),
        (changed(manifest=b"short"), "malformed"),
        (changed(manifest_bytes=MANIFEST_BYTES_MAX + 1), "oversized"),
        (changed(manifest_bytes=0), "oversized"),
        (changed(accuracy=float("nan")), "non-finite"),
        (changed(accuracy=1.5), "malformed"),
        (changed(round=-1), "malformed"),
    ],
)
def test_a_bad_offer_is_refused(packed: bytes, reason: str) -> None:
    with pytest.raises(RecordRejected) as refused:
        decode_offer(packed)
    assert refused.value.reason == reason
