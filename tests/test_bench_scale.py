"""The benchmark of a growing swarm: its model of the DHT goes by hivemind's rules, and its counts add up."""

from __future__ import annotations

import numpy as np
from hivemind.dht.routing import RoutingTable
from hivemind.p2p import PeerID

from bench.scale_lookup import BUCKET, DEPTH_MODULO, Network
from bench.scale_model import Settings, simulate
from bench.scale_rows import Outcome, goal_rows, rows_of

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


def test_a_call_counts_for_who_makes_it_and_for_who_answers_it_and_bodies_apart() -> None:
    outcome = Outcome()
    coordinator = {"in find clock": 2, "bytes in find clock": 4000}
    one = {"out find clock": 1, "bytes out find clock": 2000, "out body": 1, "bytes out body": 9000}
    two = {"out find clock": 1, "bytes out find clock": 2000, "in body": 1, "bytes in body": 9000}
    outcome.add_counts([coordinator, one, two])
    rows = {row.what: row.ours.median for row in rows_of("N = 3", outcome, "", Outcome())}
    assert rows["N = 3: DHT operations of its own"] == 1.0
    assert rows["N = 3: bytes in + out, bodies apart"] == 2.0
    assert rows["N = 3: bytes of bodies in + out"] == 9.0
    assert rows["N = 3: the largest follower's share of all bytes"] == 100 * 11 / 26
    assert rows["N = 3: the coordinator's share of all bytes, bodies apart"] == 50.0


def test_what_grows_too_much_or_takes_too_long_misses_its_goal() -> None:
    small, large = Outcome(), Outcome()
    for outcome, operations, kb, closed in ((small, 380, 1400, 0.2), (large, 590, 1900, 2.5)):
        outcome.add("operations", operations)
        outcome.add("KB", kb)
        outcome.add("closed", closed)
        outcome.add("announced", 0.9)
        outcome.add("full", 98.0)
    judged = {row.what.split(": ")[1]: row.met for row in goal_rows(1000, large, small, churns=False)}
    assert judged == {
        "from the announcement to the node's new state, p99": True,
        "from the last needed report to the close": False,
        "nodes that gathered all they wanted": False,
        "DHT operations of its own": False,
        "bytes in + out, bodies apart": True,
    }
    assert all(row.met for row in goal_rows(100, small, small, churns=True)), "with churn 97 % are enough"
