"""The recipe's digest and the creator's signature.

Both are over the canonical form: msgpack with the keys of every map sorted, integers in their shortest form, floats of
64 bits. The signature covers everything in the manifest but the signature itself.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from swarmd.dht.identity.identity import Identity
from swarmd.dht.identity.identity import verify as verify_signature
from swarmd.errors import ManifestError
from swarmd.manifest.form import Manifest, ManifestRecipe, Signature, check_form

DOMAIN = b"swarmd-manifest-v1\x00"

_FETCH = "Get the file again from the swarm's creator"
_encoder = msgspec.msgpack.Encoder(order="sorted")


def recipe_digest(recipe: ManifestRecipe) -> str:
    """The sha256 of the recipe without its digest, lower-case hex."""
    return hashlib.sha256(_canonical(recipe, "digest")).hexdigest()


def signed_message(manifest: Manifest) -> bytes:
    """The bytes under the signature."""
    return DOMAIN + _canonical(manifest, "signature")


def _canonical(value: msgspec.Struct, left_out: str) -> bytes:
    content: dict[str, Any] = msgspec.to_builtins(value)
    content.pop(left_out)
    return _encoder.encode(content)


def sign_manifest(manifest: Manifest, identity: Identity) -> Manifest:
    """The same with the recipe's digest and the creator's signature made anew.

    Raises:
        ManifestError: the identity is not the creator's, or the manifest is not sound.
    """
    if identity.peer_id != manifest.creator:
        raise ManifestError(f"{identity.peer_id} is not the creator, {manifest.creator}: it cannot sign the manifest")
    recipe = msgspec.structs.replace(manifest.recipe, digest=recipe_digest(manifest.recipe))
    sealed = msgspec.structs.replace(manifest, recipe=recipe)
    value = identity.sign(signed_message(sealed)).hex()
    sealed = msgspec.structs.replace(sealed, signature=Signature(identity.peer_id, value))
    check_form(sealed)
    try:
        return msgspec.convert(msgspec.to_builtins(sealed), Manifest)  # what cannot be read again is not signed
    except msgspec.ValidationError as error:
        raise ManifestError(f"no manifest can say this: {error}") from error


def verify(manifest: Manifest) -> None:
    """Prove that the recipe is the one of the digest, and that the creator signed exactly this.

    Raises:
        ManifestError: it is not so; the message says which of them.
    """
    check_form(manifest)
    if recipe_digest(manifest.recipe) != manifest.recipe.digest:
        raise ManifestError("the recipe does not have its digest: one of them was altered", _FETCH)
    if manifest.signature.by != manifest.creator:
        raise ManifestError(f"the creator is {manifest.creator}, but {manifest.signature.by!r} signed", _FETCH)
    value = bytes.fromhex(manifest.signature.value)
    if not verify_signature(manifest.creator, value, signed_message(manifest)):
        raise ManifestError("the signature is not the creator's: the manifest was altered after it was signed", _FETCH)
