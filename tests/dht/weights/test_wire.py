"""A real network worker tells of the weights that its node offers, and gives them to who asks, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.core.commands import Register
from swarmd.core.events import LinkUp, MemberSeen, RecordsRejected, Registered
from swarmd.dht.p2p.hivemind_api import PeerID
from swarmd.dht.rounds.fetch import BODIES, WEIGHTS, StreamBounds, _fetch
from swarmd.dht.weights.fetching import fetch_manifest, fetch_weights
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Membership, _decoder
from swarmd.errors import NetworkDown
from swarmd.weights.manifest import CHUNK_BYTES, WeightsOffer, decode_offer
from swarmd.weights.offered import OfferedWeights
from tests.dht.driver import SWARM, Driver
from tests.dht.making import ALICE, signed_by
from tests.dht.outsider import Outsider
from tests.weights.making import bfloat16
from tests.weights.test_offered import manifest_of, offer

pytestmark = pytest.mark.anyio
VALUES = bfloat16(3 * CHUNK_BYTES, 0)


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
    offer(OfferedWeights(driver.paths.weights), VALUES, 1)
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
                offer(shelf, VALUES[::-1], round)
            offered = await told(outsider, node.peer_id, round)
            manifest = await fetch_manifest(source, [node.peer_id], offered)
            assert manifest == manifest_of(shelf, offered)
            path = await fetch_weights(source, [node.peer_id], manifest, tmp_path / "got", 60.0, 2**30)
            assert path.read_bytes().endswith(VALUES[::-1] if round == 2 else VALUES)
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
