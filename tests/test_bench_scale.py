"""The benchmark of a growing swarm: its model of the DHT goes by hivemind's rules, and its counts add up."""

from __future__ import annotations

import numpy as np
from hivemind.dht.routing import RoutingTable
from hivemind.p2p import PeerID

from bench.scale_lookup import BUCKET, DEPTH_MODULO, Network
from bench.scale_model import Settings, simulate

LINK_S = (0.05, 0.2)


def network(size: int, seed: int = 1) -> Network:
    return Network(size, np.random.default_rng(seed), LINK_S, dead=0.0)


def test_a_simulated_table_has_as_many_peers_in_each_part_as_hiveminds() -> None:
    """Which of a full bucket's peers are kept depends on who came first; how many, on the ids alone."""
    simulated, node = network(1000), 123
    ids = simulated._dht_ids
    table = RoutingTable(ids[node], BUCKET, DEPTH_MODULO)
    for number, node_id in enumerate(ids):
        if number != node:
            table.add_or_update_node(node_id, PeerID(number.to_bytes(4, "big")))
    ours = {int(peer) for peer in simulated.table(node)}
    parts = [(bucket.lower, bucket.upper) for bucket in table.buckets]
    kept = [len(bucket.nodes_to_peer_id) for bucket in table.buckets]
    assert [sum(low <= ids[peer] < high for peer in ours) for low, high in parts] == kept


def test_a_simulated_look_up_finds_the_nearest_of_all_though_the_asker_does_not_know_them() -> None:
    simulated = network(2000)
    name = "swarmd/model/reports/1/0/16/3"
    looked = simulated.look_up(7, name, guides=(1, 2))
    key = int(simulated._found(7, name).key) >> 96
    order = np.argsort(simulated.ids ^ np.uint64(key))
    nearest = {int(peer) for peer in order[:8] if peer != 7}
    assert looked.asked[:2] == (1, 2)
    assert len(nearest & {*looked.nearest}) >= 4
    assert {*looked.nearest} != {*looked.known}


def test_the_same_seed_gives_the_same_rounds_and_another_does_not() -> None:
    settings = Settings(shard_members=8, gather_peers=4)
    first, again, other = (simulate(24, 2, settings, seed) for seed in (1, 1, 2))
    assert first.figures == again.figures
    assert first.figures != other.figures
