"""Bodies and weights are fetched from any peer that has them; peers that only claim to have them are found out."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from swarmd.dht.p2p import body_streams as fetch
from swarmd.dht.p2p.body_streams import (
    BODIES_MAX,
    HOLDERS_MAX,
    NAMED_MAX,
    BodyHolders,
    BodyServer,
    decode_peer_ids,
    encode_peer_ids,
    fetch_body,
)
from swarmd.dht.p2p.limits import ConcurrencyBudget, PeerBounds
from swarmd.errors import NetworkDown, RecordRejected
from swarmd.eventlog.blobs import BlobStore
from tests.dht.p2p.conftest import Single, Start, trio

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]

BODY = b"rollouts" * 4096

DIGEST = hashlib.sha256(BODY).hexdigest()

PATIENCE_S = 60.0

NOBODY = PeerBounds(0, 0, 0)


class Served(NamedTuple):
    """A node that serves bodies."""

    node: Single
    server: BodyServer
    blobs: BlobStore

    @property
    def peer_id(self) -> str:
        return self.node.identity.peer_id

    async def fetch(self, owner: Served) -> bytes:
        """Fetch the body from its owner or others, and keep it."""
        body = await fetch_body(self.node.node, owner.peer_id, DIGEST, len(BODY), PATIENCE_S)
        self.blobs.put(body)
        return body


async def serving(node: Single, root: Path) -> Served:
    """Have a node serve what it keeps under a folder."""
    blobs = BlobStore(root / node.identity.peer_id)
    server = BodyServer(node.node, blobs, lambda peer: True)
    await node.run.p2p.add_binary_stream_handler(fetch.PROTOCOL, server.serve)
    return Served(node, server, blobs)


async def three(start: Start, root: Path) -> tuple[Served, Served, Served]:
    """An owner, and two that know it and each other."""
    owner, first, second = [await serving(node, root) for node in await trio(start)]
    owner.blobs.put(BODY)
    for peer in (first, second):
        owner.node.node.peer_limits.mark_known(peer.peer_id)
    return owner, first, second


async def test_whom_an_owner_has_no_time_for_gets_the_body_from_one_that_has_it(start: Start, tmp_path: Path) -> None:
    owner, first, second = await three(start, tmp_path)
    assert await first.fetch(owner) == BODY
    owner.server._serving = ConcurrencyBudget(NOBODY)
    assert await second.fetch(owner) == BODY
    assert owner.server._holders.sample_holders(DIGEST, "") == [first.peer_id]


async def test_one_that_is_named_and_gives_another_body_or_none_is_not_believed(start: Start, tmp_path: Path) -> None:
    owner, first, second = await three(start, tmp_path)
    owner.server._serving = ConcurrencyBudget(NOBODY)
    with pytest.raises(NetworkDown, match="nor has anybody"):
        await second.fetch(owner)
    owner.server._holders.add_holder(DIGEST, first.peer_id)
    with pytest.raises(NetworkDown, match="nor has anybody"):
        await second.fetch(owner)
    first.server._blobs = cast(Any, SimpleNamespace(has=lambda digest: True, get=lambda digest: BODY[::-1]))
    with pytest.raises(NetworkDown, match="nor has anybody"):
        await second.fetch(owner)


def test_holders_are_bounded_and_the_asker_is_none_of_them() -> None:
    holders = BodyHolders()
    for body in range(2 * BODIES_MAX):
        for peer in range(2 * HOLDERS_MAX):
            holders.add_holder(f"body {body}", f"peer {peer}")
    last = f"body {2 * BODIES_MAX - 1}"
    assert len(holders._holders) == BODIES_MAX and len(holders._holders[last]) == HOLDERS_MAX
    assert len(set(holders.sample_holders(last, ""))) == NAMED_MAX
    assert holders.sample_holders("body 0", "") == []
    holders = BodyHolders()
    for peer in ("one", "two"):
        holders.add_holder("body", peer)
    assert holders.sample_holders("body", "one") == ["two"]


@pytest.mark.parametrize(
    "encoded", [b"", b"\x91\x01", b"\x81\xa1a\xa1b", b"\x91" * 20, encode_peer_ids(["x" * 200])[2:]]
)
def test_names_that_are_none_are_refused(encoded: bytes) -> None:
    with pytest.raises(RecordRejected):
        decode_peer_ids(encoded)
