"""Who has fetched weights gives them to others, whom their owner names where it has no time; over real p2pd."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from swarmd.dht.adapters import HiveChunks
from swarmd.dht.limits.budget import ConcurrencyBudget, PeerBounds
from swarmd.dht.rounds.fetch import WEIGHTS, BodyServer
from swarmd.dht.weights import fetching
from swarmd.dht.weights.fetching import fetch_manifest, fetch_weights
from swarmd.dht.weights.giving import GivenWeights
from swarmd.errors import WeightsUnavailable
from swarmd.weights.chunks import FetchedWeights
from swarmd.weights.manifest import CHUNK_BYTES, WeightsOffer
from swarmd.weights.offered import OfferedWeights
from tests.dht.driver import until
from tests.dht.p2p.conftest import Single, Start, pair
from tests.weights.making import bfloat16
from tests.weights.test_delta import moved
from tests.weights.test_offered import offer

pytestmark = pytest.mark.anyio
VALUES = bfloat16(3 * CHUNK_BYTES // 2, 0)  # four chunks with the header
NOBODY = PeerBounds(0, 0, 0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "AGAIN_S", 0.001)
    monkeypatch.setattr(fetching, "PATIENCE_S", 0.0)


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
        source, digest = HiveChunks(self.single.node), offered.manifest.hex()
        manifest = await fetch_manifest(source, [owner.peer_id], offered)
        path = self.fetched.directory / f"{manifest.whole.digest}.safetensors"
        await fetch_weights(source, [owner.peer_id], manifest, path, timeout_s, 2**30)
        self.fetched.keep(manifest, digest)
        return path.read_bytes()

    def is_busy(self) -> None:
        self.server._serving = ConcurrencyBudget(NOBODY)


async def giving(single: Single, root: Path) -> Node:
    place, wanted = root / single.identity.peer_id, set[str]()
    offered, fetched = OfferedWeights(place / "own"), FetchedWeights(place / "peers", wanted.__contains__)
    given = GivenWeights(offered, fetched)
    server = BodyServer(single.node, given, lambda peer: True, WEIGHTS, given.part_of)
    await single.life.p2p.add_binary_stream_handler(WEIGHTS.protocol, server.serve)
    return Node(single, server, offered, fetched, wanted)


async def three(start: Start, root: Path) -> tuple[Node, Node, Node, WeightsOffer]:
    """An owner with an offer, and two that know it and each other."""
    one, two = await pair(start)
    three = await start(one.identity.peer_id, (await one.address(), await two.address()))
    await until(lambda: one.node.peers == two.node.peers == three.node.peers == 2)
    owner, first, second = [await giving(single, root) for single in (one, two, three)]
    for peer in (first, second):
        one.node.door.meet(peer.peer_id)
        peer.fetched.directory.mkdir(parents=True)
    made = offer(owner.offered, VALUES, 7)
    for node in (owner, first, second):
        node.wanted.add(made.manifest.hex())
    return owner, first, second, made


async def test_whom_a_busy_owner_has_no_time_for_gets_all_from_one_that_has_fetched_it(
    start: Start, tmp_path: Path
) -> None:
    owner, first, second, made = await three(start, tmp_path)
    whole = await first.take(owner, made)
    owner.is_busy()
    assert await second.take(owner, made) == whole and whole.endswith(VALUES)
    assert owner.server._holders.some(made.manifest.hex(), second.peer_id) == [first.peer_id]


async def test_one_that_has_other_chunks_is_named_and_not_believed(start: Start, tmp_path: Path) -> None:
    owner, first, second, made = await three(start, tmp_path)
    await first.take(owner, made)
    (path,) = first.fetched.directory.glob("*.safetensors")
    with path.open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(b"damaged!")
    manifest = await fetch_manifest(HiveChunks(second.single.node), [owner.peer_id], made)
    owner.is_busy()
    place = second.fetched.directory / path.name
    with pytest.raises(WeightsUnavailable, match="1 of 4 chunks"):
        await fetch_weights(HiveChunks(second.single.node), [owner.peer_id], manifest, place, 60.0, 2**30)
    assert not place.exists()


async def test_what_nobody_offers_any_more_is_not_given_on(start: Start, tmp_path: Path) -> None:
    owner, first, second, made = await three(start, tmp_path)
    await first.take(owner, made)
    later = offer(owner.offered, moved(VALUES, 0.01), 8)
    assert first.fetched.has(made.manifest.hex())
    first.wanted.clear()
    first.wanted.add(later.manifest.hex())
    assert not first.fetched.has(made.manifest.hex())
    with pytest.raises(WeightsUnavailable):
        await second.take(first, made)
