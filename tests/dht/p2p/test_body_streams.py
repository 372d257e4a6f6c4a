"""Bodies and weights are fetched from any peer that has them; peers that only claim to have them are found out."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from swarmd.dht.p2p import body_streams as fetch
from swarmd.dht.p2p.body_streams import (
    BODIES_MAX,
    HOLDERS_MAX,
    NAMED_MAX,
    WEIGHTS,
    BodyHolders,
    BodyServer,
    decode_peer_ids,
    encode_peer_ids,
    fetch_body,
)
from swarmd.dht.p2p.limits import ConcurrencyBudget, PeerBounds
from swarmd.dht.ports import ChunkFetch
from swarmd.dht.weights import ServedWeights, fetch_manifest, fetch_weights
from swarmd.errors import NetworkDown, RecordRejected, WeightsUnavailable
from swarmd.eventlog.blobs import BlobStore
from swarmd.weights.manifest import CHUNK_BYTES, WeightsOffer
from swarmd.weights.offered import FetchedWeights, OfferedWeights
from tests.dht.p2p.conftest import Single, Start, trio
from tests.weights.making import bfloat16
from tests.weights.test_offered import offer
from tests.weights.test_tensors import moved

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


VALUES = bfloat16(3 * CHUNK_BYTES // 2, 0)  # four chunks with the header


def chunks_of(node: Single) -> ChunkFetch:
    """What fetches chunks and manifests for a node."""
    return partial(fetch_body, node.node, bounds=WEIGHTS)


class Node(NamedTuple):
    """A node that gives weights."""

    single: Single
    server: BodyServer
    offered: OfferedWeights
    fetched: FetchedWeights
    wanted: set[str]  # digests of manifests that somebody offers

    @property
    def peer_id(self) -> str:
        return self.single.identity.peer_id

    async def take(self, owner: Node, offered: WeightsOffer, timeout_s: float = 60.0) -> bytes:
        """Fetch what a peer offers, and give it on."""
        source, digest = chunks_of(self.single), offered.manifest.hex()
        manifest = await fetch_manifest(source, [owner.peer_id], offered)
        path = self.fetched.directory / f"{manifest.whole.digest}.safetensors"
        await fetch_weights(source, [owner.peer_id], manifest, path, timeout_s, 2**30)
        self.fetched.forward_file(manifest, digest)
        return path.read_bytes()

    def is_busy(self) -> None:
        self.server._serving = ConcurrencyBudget(NOBODY)


async def giving(single: Single, root: Path) -> Node:
    place, wanted = root / single.identity.peer_id, set[str]()
    offered, fetched = OfferedWeights(place / "own"), FetchedWeights(place / "peers", wanted.__contains__)
    given = ServedWeights(offered, fetched)
    server = BodyServer(single.node, given, lambda peer: True, WEIGHTS, given.file_digest_of)
    await single.run.p2p.add_binary_stream_handler(WEIGHTS.protocol, server.serve)
    return Node(single, server, offered, fetched, wanted)


async def three_nodes(start: Start, root: Path) -> tuple[Node, Node, Node, WeightsOffer]:
    """An owner with an offer, and two that know it and each other."""
    owner, first, second = [await giving(single, root) for single in await trio(start)]
    for peer in (first, second):
        owner.single.node.peer_limits.mark_known(peer.peer_id)
        peer.fetched.directory.mkdir(parents=True)
    made = offer(owner.offered, VALUES, 7)
    for node in (owner, first, second):
        node.wanted.add(made.manifest.hex())
    return owner, first, second, made


async def test_whom_a_busy_owner_has_no_time_for_gets_all_from_one_that_has_fetched_it(
    start: Start, tmp_path: Path
) -> None:
    owner, first, second, made = await three_nodes(start, tmp_path)
    whole = await first.take(owner, made)
    owner.is_busy()
    assert await second.take(owner, made) == whole and whole.endswith(VALUES)
    assert owner.server._holders.sample_holders(made.manifest.hex(), second.peer_id) == [first.peer_id]


async def test_one_that_has_other_chunks_is_named_and_not_believed(start: Start, tmp_path: Path) -> None:
    owner, first, second, made = await three_nodes(start, tmp_path)
    await first.take(owner, made)
    (path,) = first.fetched.directory.glob("*.safetensors")
    with path.open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(b"damaged!")
    manifest = await fetch_manifest(chunks_of(second.single), [owner.peer_id], made)
    owner.is_busy()
    place = second.fetched.directory / path.name
    with pytest.raises(WeightsUnavailable, match="1 of 4 chunks"):
        await fetch_weights(chunks_of(second.single), [owner.peer_id], manifest, place, 60.0, 2**30)
    assert not place.exists()


async def test_what_nobody_offers_any_more_is_not_given_on(start: Start, tmp_path: Path) -> None:
    owner, first, second, made = await three_nodes(start, tmp_path)
    await first.take(owner, made)
    later = offer(owner.offered, moved(VALUES, 0.01), 8)
    assert first.fetched.has(made.manifest.hex())
    first.wanted.clear()
    first.wanted.add(later.manifest.hex())
    assert not first.fetched.has(made.manifest.hex())
    with pytest.raises(WeightsUnavailable):
        await second.take(first, made)
