"""Signatures by a peer id alone, whichever kind of key is behind it.

An Ed25519 signature has 64 bytes, and the peer id holds the key. An RSA one brings its key along:
`swarmd.dht.identity.rsa`.
"""

from __future__ import annotations

from swarmd.dht.identity.identity import key_digest_of, public_key_of

ED25519_BYTES = 64
ED25519_START = "12D3KooW"  # of every Ed25519 peer id


def signature_bytes(peer_id: str, value: bytes) -> int:
    """How many bytes of the end of a signed `value` are the signature that the owner's kind of key makes.

    Raises:
        ValueError: there is none, or `peer_id` is no peer id.
    """
    if not peer_id.startswith(ED25519_START) and key_digest_of(peer_id) is not None:
        from swarmd.dht.identity.rsa import rsa_signature_bytes

        return rsa_signature_bytes(value)
    if len(value) <= ED25519_BYTES:
        raise ValueError("too short to be signed")
    return ED25519_BYTES


def verify(peer_id: str, signature: bytes, message: bytes) -> bool:
    """True when the peer signed exactly this; False whatever else is given."""
    from cryptography.exceptions import InvalidSignature

    try:
        if key_digest_of(peer_id) is not None:
            from swarmd.dht.identity.rsa import verify_rsa

            return verify_rsa(peer_id, signature, message)
        public_key_of(peer_id).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
