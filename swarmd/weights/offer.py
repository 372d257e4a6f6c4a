"""What a signed record says of the weights that its owner offers, small enough to travel in a membership."""

from __future__ import annotations

import math

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import RecordRejected
from swarmd.weights.manifest import DIGEST_BYTES, MANIFEST_BYTES_MAX, Round

FORMAT = 1
OFFER_BYTES_MAX = 160  # with the field's name within what nodes of before take of unknown fields


class WeightsOffer(msgspec.Struct, frozen=True, array_like=True):
    """Claims about one checkpoint; its manifest has the rest."""

    format: int
    round: Round  # the last one that it was trained in
    architecture: bytes  # SHA-256, see `swarmd.weights.tensors`
    tokenizer: bytes  # SHA-256
    manifest: bytes  # SHA-256 of the encoded manifest
    manifest_bytes: int
    accuracy: float | None = None  # on held-out questions, as the owner has measured it

    def encode(self) -> bytes:
        """As it travels."""
        return msgspec.msgpack.encode(self)


def decode_offer(packed: bytes) -> WeightsOffer:
    """An offer out of a record. Raises RecordRejected: "oversized", "non-finite" or "malformed"."""
    if len(packed) > OFFER_BYTES_MAX:
        raise RecordRejected("oversized", f"an offer of {len(packed)} bytes, the limit is {OFFER_BYTES_MAX}")
    try:
        offer = msgspec.msgpack.decode(packed, type=WeightsOffer)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"no offer of weights: {error}") from error
    digests = (offer.architecture, offer.tokenizer, offer.manifest)
    if offer.format != FORMAT or any(len(digest) != DIGEST_BYTES for digest in digests):
        raise RecordRejected("malformed", f"an offer of format {offer.format}, or with digests of another length")
    if not 0 < offer.manifest_bytes <= MANIFEST_BYTES_MAX:
        raise RecordRejected("oversized", f"a manifest of {offer.manifest_bytes} bytes")
    if offer.accuracy is not None and not math.isfinite(offer.accuracy):
        raise RecordRejected("non-finite", "the accuracy is no number")
    if offer.accuracy is not None and not 0.0 <= offer.accuracy <= 1.0:
        raise RecordRejected("malformed", f"an accuracy of {offer.accuracy:g}")
    return offer
