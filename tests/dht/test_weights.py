"""Weights are fetched in chunks from several peers, and offered to others."""

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

from swarmd.config import Config, StorageConfig, SwarmConfig, TrainingConfig
from swarmd.core.commands import FetchWeights
from swarmd.core.events import Event, LinkUp, MemberSeen, RecordsRejected, WeightsFetched, WeightsRefused
from swarmd.dht import weights
from swarmd.dht.p2p.body_streams import BODIES, WEIGHTS, StreamBounds, _request_body
from swarmd.dht.p2p.hivemind_api import PeerID
from swarmd.dht.weights import (
    HOLDERS_MAX,
    MEAN_OFFERS,
    SPENT,
    FetchProgress,
    WeightsFetcher,
    fetch_manifest,
    fetch_weights,
    holders_of,
)
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Membership, _decoder
from swarmd.errors import NetworkDown, NotFoundError, RecordRejected, WeightsUnavailable
from swarmd.paths import NodeDirectory
from swarmd.weights.manifest import CHUNK_BYTES, Delta, WeightsManifest, WeightsOffer, decode_offer
from swarmd.weights.offered import OFFER, PARTIAL, FetchedWeights, OfferedWeights, PartialFile, chunk_file
from swarmd.weights.tensors import write_delta
from tests.dht.driver import SWARM, Driver, until
from tests.dht.making import ALICE, signed_by
from tests.dht.network import Network, take_anybody
from tests.dht.outsider import Outsider
from tests.dht.test_worker import Swarm as Nodes
from tests.weights.making import bfloat16
from tests.weights.test_offered import manifest_of, offer
from tests.weights.test_tensors import moved

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]

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

    async def __call__(self, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        self.asked[peer] += 1
        conduct = self.conduct[peer]
        if conduct == "gone" or (conduct == "stops" and self.gave[peer]):
            raise NetworkDown(f"{peer} is not there")
        if conduct == "hangs":
            await anyio.sleep_forever()
        if conduct == "dawdles":
            await anyio.sleep(3 * weights.SLOW_S)
        self.gave[peer] += 1
        if conduct in ("lies", "dawdles"):
            return bytes(size_bytes)
        if conduct == "truncates":
            return self._shelf.get(digest)[:-1]
        try:
            return self._shelf.get(digest)
        except NotFoundError as error:
            raise NetworkDown(str(error)) from error


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OfferedWeights:
    monkeypatch.setattr(weights, "SLOW_S", 0.05)
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
    assert peers.asked["bad"] <= 2 * weights.FAILURES_MAX + 1


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
    assert peers.asked["liar"] <= weights.LANES and not (tmp_path / "got").exists()


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
    """Asks the victim of an outsider by hand, see `swarmd.dht.ports.ChunkFetch`."""

    def __init__(self, outsider: Outsider) -> None:
        self._run = cast(Any, SimpleNamespace(p2p=outsider.p2p))

    async def __call__(
        self, peer: str, digest: str, size_bytes: int, timeout_s: float, bounds: StreamBounds = WEIGHTS
    ) -> bytes:
        body, others = await asyncio.wait_for(_request_body(self._run, peer, digest, size_bytes, bounds), timeout_s)
        assert others == [] or bounds is not WEIGHTS, "a stranger is no holder"
        if body is None:
            raise NetworkDown(f"{peer} gives no {digest[:12]}")
        return body


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Driver]:
    driver = Driver(tmp_path / "node")
    offer(OfferedWeights(driver.paths.weights), OFFERED, 1)
    yield await driver.join()
    await driver.clean()


async def told(outsider: Outsider, peer: str, round: int) -> WeightsOffer:
    """The offer in the node's membership, as soon as it is of that round."""
    while True:
        records = await outsider.find(names.members_key(SWARM))
        content = _decoder.decode(records[peer][0][:-64])
        assert isinstance(content, Membership)
        if content.weights and decode_offer(content.weights).round == round:
            return decode_offer(content.weights)
        await asyncio.sleep(0.2)


async def test_what_is_offered_is_told_and_given_and_so_is_what_comes_later(node: Driver, tmp_path: Path) -> None:
    async with await Outsider(tmp_path / "o").open(await node.address()) as outsider:
        source, shelf = Asking(outsider), OfferedWeights(node.paths.weights)
        for round in (1, 2):
            if round == 2:
                offer(shelf, OFFERED[::-1], round)
            offered = await told(outsider, node.peer_id, round)
            manifest = await fetch_manifest(source, [node.peer_id], offered)
            assert manifest == manifest_of(shelf, offered)
            path = await fetch_weights(source, [node.peer_id], manifest, tmp_path / "got", 60.0, 2**30)
            assert path.read_bytes().endswith(OFFERED[::-1] if round == 2 else OFFERED)
        with pytest.raises(NetworkDown):
            await source(node.peer_id, "0" * 64, 5, 5.0)
        with pytest.raises(NetworkDown):  # the streams do not give each other's
            await source(node.peer_id, manifest.whole.chunk_digest(0), CHUNK_BYTES, 5.0, BODIES)


async def test_who_hangs_on_the_stream_of_weights_holds_up_nobody(node: Driver, tmp_path: Path) -> None:
    async with await Outsider(tmp_path / "o").open(await node.address()) as outsider:
        hanging = [
            await outsider.p2p.call_binary_stream_handler(PeerID.from_base58(node.peer_id), WEIGHTS.protocol)
            for _ in range(3)
        ]
        offered = await told(outsider, node.peer_id, 1)
        assert (await fetch_manifest(Asking(outsider), [node.peer_id], offered)).round == 1
        for _, _, writer in hanging:
            writer.close()


async def test_an_offer_that_cannot_be_read_offers_nothing_and_its_member_counts(node: Driver, tmp_path: Path) -> None:
    async with await Outsider(tmp_path / "o").open(await node.address()) as outsider:
        membership = Membership(SWARM, "later", "nonce", 1.0, weights=b"of a later format")
        assert await outsider.store_signed(membership.key, signed_by(ALICE, membership)) is True
        assert (await node.expect(MemberSeen, peer=ALICE.peer_id)).name == "later"
        assert (await node.expect(RecordsRejected, peer=ALICE.peer_id)).reason == "malformed"
        long = Membership(SWARM, "long", "nonce", 1.0, weights=bytes(161))
        assert await outsider.store_signed(long.key, signed_by(ALICE, long)) is False


SMALL = bfloat16(100_000, 0)
COMMAND = FetchWeights("weights/8", "a" * 64, "b" * 64, 64 * 2**20, 1e12)


class Swarm(Network):
    """A node among members that offer weights from shelves of their own."""

    def __init__(self, directory: Path, *trusted: str, free_bytes_min: int = 0) -> None:
        self.runtime = SimpleNamespace(now=lambda: 0.0, time=lambda: 0.0, sleep=self._sleep)
        self.credit: dict[str, int] = {}
        config = Config(
            SwarmConfig(id="s", coordinator="boss"),
            role="follower",
            training=TrainingConfig(weights_from=trusted or ("coordinator",)),
            storage=StorageConfig(free_bytes_min=free_bytes_min),
        )
        known = SimpleNamespace(rounds_of=lambda peer: self.credit.get(peer, 0))
        super().__init__(config, cast(Any, self.runtime), lambda always: known)
        self.view.policy.set_round(8)
        self._directory = directory
        self.shelves: dict[str, OfferedWeights] = {}
        self.asked: list[str] = []
        self.progress: list[FetchProgress] = []
        self.told: dict[str, WeightsOffer] = {}
        self.peer_weights = directory / "taken"
        self.fetched_weights = FetchedWeights(self.peer_weights, self.view.offers.has_manifest)

    async def _sleep(self, seconds: float) -> None:
        """No time passes."""

    def taking(self) -> WeightsFetcher:
        """What fetches; members offer what they say now."""
        for peer, made in self.told.items():
            content = Membership("s", peer, "n", 1.0, weights=made.encode())
            self.store.keep(SimpleNamespace(owner=peer, content=content))
        parts = (self.view, self.store, self.gossip, lambda *asked: self.fetch(*asked), self.fetched_weights)
        return WeightsFetcher(*parts, take_anybody, self.progress.append)

    async def fetch(self, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        self.asked.append(peer)
        try:
            content = self.shelves[peer].get(digest)
        except NotFoundError as error:
            raise NetworkDown(str(error)) from error
        if len(content) != size_bytes:
            raise RecordRejected("oversized", f"{len(content)} bytes instead of {size_bytes}")
        return content

    def gives(self, peer: str, values: bytes, round: int = 7, accuracy: float | None = None) -> None:
        """A member offers weights, of which it claims what it likes."""
        shelf = self.shelves.setdefault(peer, OfferedWeights(self._directory / peer))
        self.told[peer] = msgspec.structs.replace(offer(shelf, values, round), accuracy=accuracy)

    async def take(self, command: FetchWeights = COMMAND) -> Event:
        self.asked.clear()
        await self.taking().handle_command(command)
        return self.events[-1]

    async def fetched(self, command: FetchWeights = COMMAND) -> WeightsFetched:
        event = await self.take(command)
        assert isinstance(event, WeightsFetched), event
        path = self.peer_weights / f"{event.weights.digest}.safetensors"
        assert path.stat().st_size == event.weights.size_bytes
        left = Counter(each.suffix for each in self.peer_weights.iterdir())
        offers = len(event.weights.offers)
        assert left == {".manifest": offers, ".safetensors": offers}, "nothing else is left"
        assert all((self.peer_weights / f"{each.digest}.safetensors").exists() for each in event.weights.offers)
        return event

    async def refused(self, command: FetchWeights = COMMAND) -> WeightsRefused:
        event = await self.take(command)
        assert isinstance(event, WeightsRefused), event
        return event


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    """One whose coordinator offers a small model."""
    swarm = Swarm(tmp_path)
    swarm.gives("boss", SMALL)
    return swarm


async def test_the_coordinators_are_taken_and_no_strangers(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    swarm.gives("stranger", SMALL[::-1], round=99, accuracy=1.0)
    assert (await swarm.refused()).cause == "none-offered" and not swarm.asked
    swarm.gives("boss", SMALL, accuracy=0.5)
    weights = (await swarm.fetched()).weights
    assert (weights.peer, weights.round, weights.accuracy) == ("boss", 7, 0.5)
    assert set(swarm.asked) == {"boss"}


async def test_of_peers_with_credit_the_longest_credited_is_taken_whatever_others_claim(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, "credited")
    for peer, credit, accuracy in (("anna", 5, 0.1), ("otto", 2, 1.0), ("new", 0, 1.0)):
        swarm.credit[peer] = credit
        swarm.gives(peer, moved(SMALL, 0.01 * (credit + 1)), accuracy=accuracy)
    assert (await swarm.fetched()).weights.peer == "anna"
    swarm.shelves["anna"] = OfferedWeights(tmp_path / "nothing")
    for path in swarm.peer_weights.iterdir():
        path.unlink()
    assert (await swarm.fetched()).weights.peer == "otto", "the next, where the first gives nothing"


@pytest.mark.parametrize("average", [False, True])
async def test_of_whoever_has_signed_two_reports_none_are_taken(tmp_path: Path, average: bool) -> None:
    swarm = Swarm(tmp_path, "credited", "coordinator")
    swarm.credit["liar"] = 9
    swarm.gives("liar", SMALL)
    swarm.barred.add(("liar", 8))
    command = msgspec.structs.replace(COMMAND, average=average)
    assert (await swarm.refused(command)).cause == "none-offered" and not swarm.asked
    swarm.gives("boss", moved(SMALL, 0.01))
    assert (await swarm.fetched(command)).weights.peer == "boss"
    swarm.view.policy.set_round(80)
    assert (await swarm.fetched(COMMAND)).weights.peer == "liar", "once it counts again"


async def test_a_list_of_peers_counts_in_its_order(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, "otto", "coordinator")
    swarm.gives("boss", SMALL, round=8)
    swarm.gives("otto", SMALL[::-1], round=1)
    assert (await swarm.fetched()).weights.peer == "otto"


AVERAGE = msgspec.structs.replace(COMMAND, average=True)


def gives_several(swarm: Swarm, **credit: int) -> None:
    swarm.credit |= credit
    for place, peer in enumerate(credit):
        swarm.gives(peer, moved(SMALL, 0.01 * (place + 1)))


async def test_to_average_with_the_trusted_peers_are_drawn(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, "coordinator", "credited")
    gives_several(swarm, boss=9, anna=5, otto=1, new=0)
    taken = (await swarm.fetched(AVERAGE)).weights
    assert taken.averaged and {each.peer for each in taken.offers} == {"boss", "anna", "otto"}
    for each in taken.offers:
        assert swarm.fetched_weights.has(swarm.told[each.peer].manifest.hex()), "all are given on"


async def test_of_many_some_are_drawn_anew_each_time_and_whoever_gives_nothing_is_made_up_for(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, "credited")
    gives_several(swarm, **dict.fromkeys("abcdefgh", 1))
    drawn = [frozenset(each.peer for each in (await swarm.fetched(AVERAGE)).weights.offers) for _ in range(8)]
    assert {len(each) for each in drawn} == {MEAN_OFFERS} and len(set(drawn)) > 1
    for peer in "abcd":
        del swarm.shelves[peer]
        swarm.shelves[peer] = OfferedWeights(tmp_path / "empty")
    taken = (await swarm.fetched(AVERAGE)).weights
    assert {each.peer for each in taken.offers} == set("efgh")


async def test_a_peer_that_hangs_does_not_make_what_others_gave_too_late(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, "credited")
    gives_several(swarm, a=1, b=1, c=1)
    fetch, until_s, begun_at = swarm.fetch, 4.0, anyio.current_time()
    swarm.runtime.time = lambda: anyio.current_time() - begun_at

    async def hang(peer: str, *rest: Any) -> bytes:
        if peer == "b":
            await anyio.sleep_forever()
        return await fetch(peer, *rest)

    swarm.fetch = hang  # type: ignore[method-assign]
    taken = (await swarm.fetched(msgspec.structs.replace(AVERAGE, until_at=until_s))).weights
    assert swarm.runtime.time() < until_s
    assert {each.peer for each in taken.offers} == {"a", "c"}


async def test_what_several_offer_alike_counts_once_in_a_mean(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, "credited")
    gives_several(swarm, a=1, b=1)
    for peer, round in (("c", 6), ("d", 5)):  # other claims, the same file
        swarm.credit[peer] = 1
        swarm.gives(peer, moved(SMALL, 0.01), round=round)
    assert len((await swarm.fetched(AVERAGE)).weights.offers) == 2


async def test_what_was_averaged_with_is_not_fetched_again_by_whatever_name_nor_what_is_old(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, "anna", "otto")
    swarm.gives("anna", SMALL, round=7)
    command = msgspec.structs.replace(COMMAND, average=True)
    taken = (await swarm.fetched(command)).weights
    command = msgspec.structs.replace(command, averaged=taken.offers, oldest_round=5)
    refused = await swarm.refused(command)
    assert (refused.cause, refused.reason, swarm.asked) == ("none-offered", SPENT, [])
    swarm.gives("otto", SMALL, round=9)
    assert "averaged with before" in (await swarm.refused(command)).reason
    assert len(swarm.asked) == 1, "no more than the manifest"
    swarm.gives("otto", moved(SMALL, 0.01), round=4)
    assert (await swarm.refused(command)).reason == SPENT
    swarm.gives("anna", moved(SMALL, 0.02), round=8)
    assert (await swarm.fetched(command)).weights.peer == "anna"


async def test_a_later_command_has_the_directory_for_itself_and_the_earlier_is_not_answered(tmp_path: Path) -> None:
    swarm, hangs = Swarm(tmp_path), anyio.Event()
    swarm.gives("boss", SMALL)
    fetch = swarm.fetch

    async def hang(*args: Any) -> bytes:
        hangs.set()
        await anyio.sleep_forever()
        raise AssertionError("never here")

    taking = swarm.taking()
    later = msgspec.structs.replace(COMMAND, id="weights/12")
    async with anyio.create_task_group() as group:
        swarm.fetch = hang  # type: ignore[method-assign]
        group.start_soon(taking.handle_command, msgspec.structs.replace(COMMAND, average=True))
        await hangs.wait()
        swarm.fetch = fetch  # type: ignore[method-assign]
        await taking.handle_command(later)
    assert [type(event) for event in swarm.events] == [WeightsFetched]
    assert isinstance(swarm.events[0], WeightsFetched) and swarm.events[0].command == "weights/12"


async def test_who_offers_the_same_helps_trusted_or_not(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    for peer, accuracy in (("boss", 0.5), ("helper", 0.1)):
        swarm.gives(peer, bfloat16(2**21, 0), accuracy=accuracy)  # of several chunks
    assert swarm.told["boss"].manifest == swarm.told["helper"].manifest
    size_bytes = (await swarm.fetched()).weights.size_bytes
    assert set(swarm.asked) == {"boss", "helper"}
    chunks = -(-size_bytes // 2**20)
    assert [each.chunks for each in swarm.progress] == list(range(1, chunks + 1))
    assert swarm.progress[-1] == FetchProgress(size_bytes, size_bytes, chunks, chunks, 2)


@pytest.mark.parametrize("other", [{"architecture": "1" * 64}, {"tokenizer": "1" * 64}])
async def test_another_model_is_not_even_asked_for(swarm: Swarm, other: dict[str, Any]) -> None:
    refused = await swarm.refused(msgspec.structs.replace(COMMAND, **other))
    assert refused.cause == "none-offered" and "or adapters" in refused.reason and not swarm.asked


async def test_an_owner_that_has_no_time_for_a_chunk_is_asked_again_after_the_next_look(tmp_path: Path) -> None:
    """Of twenty newcomers that come to one owner at once some get nothing within its patience, while others do."""
    swarm, looked = Swarm(tmp_path), list[float]()
    swarm.gives("boss", SMALL)
    manifest, fetch = swarm.told["boss"].manifest.hex(), swarm.fetch

    async def look_again(seconds: float) -> None:
        looked.append(seconds)

    async def refuse(peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        if digest != manifest and not looked:
            raise NetworkDown("eight others are given chunks")
        return await fetch(peer, digest, size_bytes, timeout_s)

    swarm.runtime.sleep = look_again
    swarm.fetch = refuse  # type: ignore[method-assign]
    assert (await swarm.fetched()).weights.peer == "boss" and len(looked) == 1


async def test_an_owner_that_does_not_even_give_its_manifest_is_not_asked_after_the_next_look(
    swarm: Swarm, tmp_path: Path
) -> None:
    swarm.shelves["boss"] = OfferedWeights(tmp_path / "nothing")
    assert (await swarm.refused()).cause == "unavailable" and len(swarm.asked) == weights.MANIFEST_ATTEMPTS


async def test_offers_of_one_manifest_that_claim_otherwise_are_each_taken_by_themselves(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, "credited")
    for peer in ("anna", "liar", "otto"):
        swarm.credit[peer] = 2
        swarm.gives(peer, SMALL)
    manifest_bytes = swarm.told["anna"].manifest_bytes
    for peer, claims in (("liar", {"manifest_bytes": manifest_bytes + 1}), ("otto", {"round": 99})):
        swarm.told[peer] = msgspec.structs.replace(swarm.told[peer], **claims)
    swarm.credit |= {"liar": 5, "otto": 4}
    weights = (await swarm.fetched()).weights
    assert (weights.peer, weights.round) == ("anna", 7)


async def test_a_file_of_the_same_digest_and_another_size_is_refused_and_what_is_here_stays(
    swarm: Swarm, tmp_path: Path
) -> None:
    event = await swarm.fetched()
    manifest = manifest_of(swarm.shelves["boss"], swarm.told["boss"])
    whole = msgspec.structs.replace(manifest.whole, size_bytes=manifest.whole.size_bytes - 1)
    lying = msgspec.structs.replace(manifest, whole=whole).encode()
    digest = hashlib.sha256(lying)
    (tmp_path / "boss" / f"{digest.hexdigest()}.manifest").write_bytes(lying)
    told = swarm.told["boss"]
    swarm.told["boss"] = msgspec.structs.replace(told, manifest=digest.digest(), manifest_bytes=len(lying))
    (tmp_path / "boss" / OFFER).write_bytes(swarm.told["boss"].encode())
    refused = await swarm.refused()
    assert refused.cause == "damaged" and "of this digest" in refused.reason
    path = swarm.peer_weights / f"{event.weights.digest}.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == event.weights.digest


def test_of_many_that_say_they_offer_the_same_few_are_asked_and_its_owner_first(swarm: Swarm) -> None:
    offers = {f"stranger {number}": swarm.told["boss"] for number in range(100)} | swarm.told
    holders = holders_of("boss", offers)
    assert holders[0] == "boss" and len(set(holders)) == len(holders) == HOLDERS_MAX


async def test_a_disk_that_is_nearly_full_stays_so(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path, free_bytes_min=2**60)
    swarm.gives("boss", SMALL)
    assert (await swarm.refused()).cause == "no-room"
    assert not list(swarm.peer_weights.iterdir())


async def test_the_next_time_a_delta_is_enough_and_leftovers_go(swarm: Swarm) -> None:
    whole = await swarm.fetched()
    (swarm.peer_weights / f"{'0' * 64}.safetensors{PARTIAL}").write_bytes(b"of an offer that is gone")
    swarm.gives("boss", moved(SMALL, 0.01), round=8)
    later = await swarm.fetched()
    assert later.weights.round == 8 and later.received_bytes < whole.received_bytes / 5


async def test_what_was_fetched_stays_while_an_offer_comes_to_nothing(tmp_path: Path) -> None:
    """It need not be fetched again, and the next delta has its base."""
    swarm = Swarm(tmp_path, "anna", "coordinator")
    swarm.gives("boss", SMALL)
    first = await swarm.fetched()
    swarm.gives("anna", SMALL[::-1])
    damage(next((tmp_path / "anna").glob("*.safetensors")))
    again = await swarm.fetched()
    assert "anna" in swarm.asked and again.weights == first.weights
    swarm.gives("boss", moved(SMALL, 0.01), round=8)
    later = await swarm.fetched()
    assert (later.weights.peer, later.weights.round) == ("boss", 8)
    assert max(again.received_bytes, later.received_bytes) < first.received_bytes / 5


async def test_where_there_is_no_room_for_a_delta_beside_the_file_all_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = Swarm(tmp_path, free_bytes_min=1000)
    swarm.gives("boss", SMALL)
    first = await swarm.fetched()
    free = first.weights.size_bytes + 1000  # for the file, and nothing beside it
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    swarm.gives("boss", moved(SMALL, 0.01), round=8)
    second = await swarm.fetched()
    assert second.weights.round == 8 and second.received_bytes > second.weights.size_bytes


def damage(path: Path) -> None:
    """A disk that has lost some of a file: its size is right, and its name."""
    with path.open("r+b") as file:
        file.seek(-1000, 2)
        file.write(b"damaged" * 100)


async def test_a_damaged_base_goes_and_all_is_fetched(swarm: Swarm) -> None:
    first = await swarm.fetched()
    damage(swarm.peer_weights / f"{first.weights.digest}.safetensors")
    swarm.gives("boss", moved(SMALL, 0.01), round=8)
    second = await swarm.fetched()
    assert second.damaged == "base" and second.received_bytes > second.weights.size_bytes
    swarm.gives("boss", moved(SMALL, 0.02), round=9)
    third = await swarm.fetched()
    assert third.damaged == "" and third.received_bytes < third.weights.size_bytes / 5, "deltas are enough again"


@pytest.mark.parametrize("size_bytes", [None, 5])
async def test_a_damaged_file_is_fetched_anew(swarm: Swarm, size_bytes: int | None) -> None:
    first = await swarm.fetched()
    path = swarm.peer_weights / f"{first.weights.digest}.safetensors"
    if size_bytes is None:
        damage(path)
    else:
        path.write_bytes(b"x" * size_bytes)
    again = await swarm.fetched()
    assert again.damaged == "file" and hashlib.sha256(path.read_bytes()).hexdigest() == first.weights.digest


async def test_a_delta_that_makes_another_file_has_all_fetched(swarm: Swarm, tmp_path: Path) -> None:
    first = await swarm.fetched()
    swarm.gives("boss", moved(SMALL, 0.01), round=8)
    wrong = tmp_path / "wrong.delta"
    of_other = tmp_path / "other"
    of_other.write_bytes(moved((tmp_path / "boss" / f"{first.weights.digest}.safetensors").read_bytes(), 0.1))
    shelf = swarm.shelves["boss"]
    manifest = manifest_of(shelf, swarm.told["boss"])
    write_delta(of_other, tmp_path / "boss" / f"{manifest.whole.digest}.safetensors", wrong)
    wrong.replace(tmp_path / "boss" / f"{first.weights.digest}.delta")
    delta = Delta(first.weights.digest, chunk_file(tmp_path / "boss" / f"{first.weights.digest}.delta"))
    told = msgspec.structs.replace(manifest, deltas=(delta,)).encode()
    digest = hashlib.sha256(told)
    (tmp_path / "boss" / f"{digest.hexdigest()}.manifest").write_bytes(told)
    swarm.shelves["boss"] = OfferedWeights(tmp_path / "boss")
    swarm.told["boss"] = msgspec.structs.replace(swarm.told["boss"], manifest=digest.digest(), manifest_bytes=len(told))
    event = await swarm.fetched()
    assert event.damaged == "delta" and event.weights.digest == manifest.whole.digest


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Real workers, cleaned up after the test."""
    nodes = Nodes(tmp_path)
    yield nodes
    for node in nodes.nodes:
        await node.clean()


async def offering(nodes: Nodes, values: bytes) -> tuple[Driver, Driver]:
    """A coordinator that offers these, and a node that has just come and asks for them."""
    offer(OfferedWeights(NodeDirectory(nodes.root / "coordinator").weights), values, 7)
    boss = await nodes.coordinator()
    late = await nodes.add(Driver(nodes.root / "late", boss.peer_id, (await boss.address(),))).start()
    await late.expect(LinkUp)
    await late.do(COMMAND)
    return boss, late


def file_of(node: Driver, event: WeightsFetched) -> bytes:
    return (node.paths.peer_weights / f"{event.weights.digest}.safetensors").read_bytes()


async def test_weights_go_from_one_real_worker_to_another(nodes: Nodes, tmp_path: Path) -> None:
    boss, late = await offering(nodes, SMALL)
    event = await late.expect(WeightsFetched)
    assert event.weights.peer == boss.peer_id and event.received_bytes > len(SMALL)
    assert file_of(late, event).endswith(SMALL)
    made = OfferedWeights(boss.paths.weights).current()
    assert made is not None
    async with await Outsider(tmp_path / "outsider").open(await late.address()) as outsider:
        given_on = await fetch_manifest(Asking(outsider), [late.peer_id], made)
        assert given_on.whole.digest == event.weights.digest


async def test_a_worker_that_is_killed_amid_a_fetch_goes_on_with_what_it_had(nodes: Nodes) -> None:
    values = bfloat16(12 * 2**20, 0)
    _, late = await offering(nodes, values)
    await until(lambda: begun(late.paths.peer_weights))
    await late.kill()
    late.events.clear()
    await late.start()
    await late.expect(LinkUp)
    await late.do(COMMAND)
    event = await late.expect(WeightsFetched)
    assert event.received_bytes < event.weights.size_bytes
    assert file_of(late, event).endswith(values)


def begun(directory: Path) -> bool:
    """Has a chunk come, of which no byte but few are zero?"""
    for path in directory.glob("*"):
        with path.open("rb") as file:
            while block := file.read(2**20):
                if block.count(0) < len(block) // 2:
                    return True
    return False
