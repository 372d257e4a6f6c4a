"""What is read of a peer's answer before anything is made of it."""

from __future__ import annotations

from swarmd.dht.hive import DHTID, PeerID, dht_pb2
from swarmd.dht.validator import NEARBY_MAX, read_nearby
from tests.dht.making import ALICE


def test_a_peer_that_names_thousands_of_others_is_heard_out_for_a_few() -> None:
    peer = PeerID.from_base58(ALICE.peer_id).to_bytes()
    ids = [DHTID.generate() for _ in range(5 * NEARBY_MAX)]
    answer = dht_pb2.FindResult(
        nearest_node_ids=[node_id.to_bytes() for node_id in ids], nearest_peer_ids=[peer] * len(ids)
    )
    assert list(read_nearby(answer)) == ids[:NEARBY_MAX]
