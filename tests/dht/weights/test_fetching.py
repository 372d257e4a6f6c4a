"""Weights come together from peers that are gone, stop or lie; or they do not come, and nothing is believed."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from swarmd.bounds import Backoff
from swarmd.dht.weights import fetching as subject
from swarmd.dht.weights.fetching import fetch_manifest, fetch_weights
from swarmd.errors import NetworkDown, NotFoundError, WeightsUnavailable
from swarmd.weights.chunks import PartialFile
from swarmd.weights.manifest import CHUNK_BYTES, WeightsManifest, WeightsOffer
from swarmd.weights.offered import OfferedWeights
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


@pytest.mark.parametrize("patience_s", [60.0, 0.0])
async def test_a_peer_that_has_no_time_for_long_is_given_up_after_a_minute_and_not_before(
    tmp_path: Path, shelf: OfferedWeights, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    monkeypatch.setattr(subject, "PATIENCE_S", patience_s)
    manifest = manifest_of(shelf, offer(shelf, VALUES, 1))
    peers = Peers(shelf, owner="good")
    no, fetch = iter(range(4 * subject.FAILURES_MAX)), peers.fetch

    async def give_later(*asked: Any) -> bytes:
        if next(no, None) is not None:
            raise NetworkDown("it gives as much as it may to others")
        return await fetch(*asked)

    peers.fetch = give_later  # type: ignore[method-assign]
    if patience_s:
        await take(peers, manifest, tmp_path / "got")
    else:
        with pytest.raises(WeightsUnavailable):
            await take(peers, manifest, tmp_path / "got")


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
