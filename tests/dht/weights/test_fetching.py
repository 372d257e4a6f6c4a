"""Weights are fetched in chunks from several peers, and offered to others."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest

from swarmd.bounds import Backoff
from swarmd.core.commands import Register
from swarmd.core.events import LinkUp, MemberSeen, RecordsRejected, Registered
from swarmd.dht import weights as subject
from swarmd.dht.p2p.hivemind_api import PeerID
from swarmd.dht.rounds.fetch import BODIES, WEIGHTS, StreamBounds, _fetch
from swarmd.dht.weights import fetch_manifest, fetch_weights
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Membership, _decoder
from swarmd.errors import NetworkDown, NotFoundError, WeightsUnavailable
from swarmd.weights.manifest import CHUNK_BYTES, WeightsManifest, WeightsOffer, decode_offer
from swarmd.weights.offered import OfferedWeights, PartialFile
from tests.dht.driver import SWARM, Driver
from tests.dht.making import ALICE, signed_by
from tests.dht.outsider import Outsider
from tests.weights.making import bfloat16
from tests.weights.test_offered import manifest_of, offer

pytestmark = pytest.mark.anyio

VALUES = bfloat16(5 * CHUNK_BYTES // 2, 0)  # six chunks with the header

MIB = 1024 * 1024


class Peers:
    """Peers that share one shelf, each with its own conduct: "good", "gone", "lies", "stops" after one chunk,
    "hangs" for ever on every chunk, "dawdles" before it gives garbage."""

    def __init__(self, shelf: OfferedWeights, **conduct: str) -> None:
        self._shelf = shelf
        self.conduct = conduct
        self.asked: Counter[str] = Counter()
        self.gave: Counter[str] = Counter()

    async def fetch(self, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        self.asked[peer] += 1
        conduct = self.conduct[peer]
        if conduct == "gone" or (conduct == "stops" and self.gave[peer]):
            raise NetworkDown(f"{peer} is not there")
        if conduct == "hangs":
            await anyio.sleep_forever()
        if conduct == "dawdles":
            await anyio.sleep(3 * subject.DOUBTED_S)
        self.gave[peer] += 1
        if conduct in ("lies", "dawdles"):
            return bytes(size_bytes)
        if conduct == "truncates":
            return self._shelf.get(digest)[:-1]
        try:
            return self._shelf.get(digest)
        except NotFoundError as error:
            raise NetworkDown(str(error)) from error


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "AGAIN", Backoff(0.001, 0.001))
    monkeypatch.setattr(subject, "PATIENCE_S", 0.0)
    monkeypatch.setattr(subject, "DOUBTED_S", 0.05)


@pytest.fixture
def shelf(tmp_path: Path) -> OfferedWeights:
    return OfferedWeights(tmp_path / "shelf")


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def take(
    peers: Peers, manifest: WeightsManifest, path: Path, bytes_max: int = 64 * MIB, base: Path | None = None
) -> bytes:
    made = await fetch_weights(peers, list(peers.conduct), manifest, path, 60.0, bytes_max, base)
    content = made.read_bytes()
    assert hashlib.sha256(content).hexdigest() == manifest.whole.digest
    return content


async def test_it_comes_from_several_peers_at_once(tmp_path: Path, shelf: OfferedWeights) -> None:
    manifest = manifest_of(shelf, offer(shelf, VALUES, 1))
    peers = Peers(shelf, a="good", b="good", c="good")
    assert (await take(peers, manifest, tmp_path / "got")).endswith(VALUES)
    assert set(peers.gave) == {"a", "b", "c"} and peers.gave.total() == len(manifest.whole)


@pytest.mark.parametrize("bad", ["gone", "lies", "truncates", "stops"])
async def test_one_good_peer_is_enough(tmp_path: Path, shelf: OfferedWeights, bad: str) -> None:
    manifest = manifest_of(shelf, offer(shelf, VALUES, 1))
    peers = Peers(shelf, bad=bad, worse=bad, good="good")
    await take(peers, manifest, tmp_path / "got")
    assert peers.gave["good"] >= len(manifest.whole) - 2
    assert peers.asked["bad"] <= 2 * subject.FAILURES_MAX + 1


@pytest.mark.parametrize("slow", ["hangs", "dawdles"])
async def test_a_peer_that_hangs_or_gives_garbage_slowly_holds_up_nothing(
    tmp_path: Path, shelf: OfferedWeights, slow: str
) -> None:
    manifest = manifest_of(shelf, offer(shelf, VALUES, 1))
    peers = Peers(shelf, slow=slow, good="good")
    with anyio.fail_after(60):
        await take(peers, manifest, tmp_path / "got")
    assert peers.gave["good"] == len(manifest.whole)


async def test_a_liar_is_asked_no_more(tmp_path: Path, shelf: OfferedWeights) -> None:
    manifest = manifest_of(shelf, offer(shelf, VALUES, 1))
    peers = Peers(shelf, liar="lies")
    with pytest.raises(WeightsUnavailable):
        await take(peers, manifest, tmp_path / "got")
    assert peers.asked["liar"] <= subject.LANES and not (tmp_path / "got").exists()


async def test_a_peer_that_stops_half_way_is_gone_on_from(tmp_path: Path, shelf: OfferedWeights) -> None:
    manifest = manifest_of(shelf, offer(shelf, VALUES, 1))
    with pytest.raises(WeightsUnavailable, match="kept"):
        await take(Peers(shelf, a="stops"), manifest, tmp_path / "got")
    assert not (tmp_path / "got").exists()
    came = len(manifest.whole) - len(PartialFile(tmp_path / "got", manifest.whole).missing)
    later = Peers(shelf, a="good")
    await take(later, manifest, tmp_path / "got")
    assert came >= 1 and later.gave["a"] == len(manifest.whole) - came


async def test_more_than_is_wanted_is_not_fetched(tmp_path: Path, shelf: OfferedWeights) -> None:
    manifest = manifest_of(shelf, offer(shelf, VALUES, 1))
    peers = Peers(shelf, a="good")
    with pytest.raises(WeightsUnavailable, match="no more than"):
        await take(peers, manifest, tmp_path / "got", bytes_max=MIB)
    assert not peers.asked and names_in(tmp_path) == {"shelf"}


@pytest.mark.parametrize("claim", [{"architecture": b"x" * 32}, {"tokenizer": b"x" * 32}, {"round": 9}])
async def test_a_manifest_that_says_otherwise_than_its_offer_is_refused(
    shelf: OfferedWeights, claim: dict[str, object]
) -> None:
    offered: WeightsOffer = msgspec.structs.replace(offer(shelf, VALUES, 1), **claim)
    with pytest.raises(WeightsUnavailable, match="another architecture"):
        await fetch_manifest(Peers(shelf, a="good"), ["a"], offered)


OFFERED = bfloat16(3 * CHUNK_BYTES, 0)


class Asking:
    """Asks the victim of an outsider by hand, see `swarmd.dht.ports.Chunks`."""

    def __init__(self, outsider: Outsider) -> None:
        self._life = cast(Any, SimpleNamespace(p2p=outsider.p2p))

    async def fetch(
        self, peer: str, digest: str, size_bytes: int, timeout_s: float, bounds: StreamBounds = WEIGHTS
    ) -> bytes:
        body, others = await asyncio.wait_for(_fetch(self._life, peer, digest, size_bytes, bounds), timeout_s)
        assert others == [] or bounds is not WEIGHTS, "a stranger is no holder"
        if body is None:
            raise NetworkDown(f"{peer} gives no {digest[:12]}")
        return body


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Driver]:
    driver = Driver(tmp_path / "node")
    offer(OfferedWeights(driver.paths.weights), OFFERED, 1)
    await driver.start()
    await driver.expect(LinkUp)
    await driver.do(Register("register"))
    await driver.expect(Registered)
    yield driver
    await driver.clean()


async def told(outsider: Outsider, peer: str, round: int) -> WeightsOffer:
    """The offer in the node's membership, as soon as it is of that round."""
    while True:
        records = await outsider.find(names.members(SWARM))
        content = _decoder.decode(records[peer][0][:-64])
        assert isinstance(content, Membership)
        if content.weights and decode_offer(content.weights).round == round:
            return decode_offer(content.weights)
        await asyncio.sleep(0.2)


async def test_what_is_offered_is_told_and_given_and_so_is_what_comes_later(node: Driver, tmp_path: Path) -> None:
    outsider = await Outsider(tmp_path / "o").open(await node.address())
    source, shelf = Asking(outsider), OfferedWeights(node.paths.weights)
    try:
        for round in (1, 2):
            if round == 2:
                offer(shelf, OFFERED[::-1], round)
            offered = await told(outsider, node.peer_id, round)
            manifest = await fetch_manifest(source, [node.peer_id], offered)
            assert manifest == manifest_of(shelf, offered)
            path = await fetch_weights(source, [node.peer_id], manifest, tmp_path / "got", 60.0, 2**30)
            assert path.read_bytes().endswith(OFFERED[::-1] if round == 2 else OFFERED)
        with pytest.raises(NetworkDown):
            await source.fetch(node.peer_id, "0" * 64, 5, 5.0)
        with pytest.raises(NetworkDown):  # the streams do not give each other's
            await source.fetch(node.peer_id, manifest.whole.chunk_digest(0), CHUNK_BYTES, 5.0, BODIES)
    finally:
        await outsider.close()


async def test_who_hangs_on_the_stream_of_weights_holds_up_nobody(node: Driver, tmp_path: Path) -> None:
    outsider = await Outsider(tmp_path / "o").open(await node.address())
    try:
        hanging = [
            await outsider.p2p.call_binary_stream_handler(PeerID.from_base58(node.peer_id), WEIGHTS.protocol)
            for _ in range(3)
        ]
        offered = await told(outsider, node.peer_id, 1)
        assert (await fetch_manifest(Asking(outsider), [node.peer_id], offered)).round == 1
        for _, _, writer in hanging:
            writer.close()
    finally:
        await outsider.close()


async def test_an_offer_that_cannot_be_read_offers_nothing_and_its_member_counts(node: Driver, tmp_path: Path) -> None:
    outsider = await Outsider(tmp_path / "o").open(await node.address())
    try:
        membership = Membership(SWARM, "later", "nonce", 1.0, weights=b"of a later format")
        assert await outsider.store_signed(membership.key, signed_by(ALICE, membership)) is True
        assert (await node.expect(MemberSeen, peer=ALICE.peer_id)).name == "later"
        assert (await node.expect(RecordsRejected, peer=ALICE.peer_id)).reason == "malformed"
        long = Membership(SWARM, "long", "nonce", 1.0, weights=bytes(161))
        assert await outsider.store_signed(long.key, signed_by(ALICE, long)) is False
    finally:
        await outsider.close()
