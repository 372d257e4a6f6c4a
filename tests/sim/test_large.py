"""Large swarms in the simulator, in small: they grow, lose nodes and parts, and say what a round cost."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from swarmd.core.commands import Announce
from swarmd.core.events import ReportPublished, RolloutsGathered, RoundAnnounced
from swarmd.core.values import RolloutsRef
from swarmd.dht.gossip import Gossip
from swarmd.dht.ports import Record
from swarmd.dht.wire.records import Membership, ReportRecord
from swarmd.sim.network import SimHintGossip
from swarmd.sim.profile import LARGE
from swarmd.sim.simulation import BEGIN
from swarmd.sim.world import FOUNDERS, MetricsCollector, World, quantile, run_simulation

SMALL: dict[str, Any] = {"nodes": 24, "hours": 0.2, "shard_members": 4, "gather_peers": 3, "min_peers": 16}


def test_a_large_swarm_gathers_all_that_it_wants_and_follows_at_once() -> None:
    told: list[float] = []
    summary = run_simulation(0, replace(LARGE, **SMALL), told.append)
    figures = summary.figures
    assert figures.stages >= 4 and figures.full == 1.0 and figures.reported > 0.95
    assert 0.0 < figures.announced_s[1] < 2.0
    assert figures.asked["body"] < 2 * 3, "it reads a sample"
    assert told == sorted(told) and told[0] == 0.0 and told[-1] > 0.99
    assert summary.trace == run_simulation(0, replace(LARGE, **SMALL)).trace, "who watches changes nothing"


def test_followers_go_away_and_come_back() -> None:
    calm, churned = (run_simulation(0, replace(LARGE, **SMALL, churn=churn)) for churn in (0.0, 3.0))
    assert calm.crashes == 0 < churned.crashes
    assert churned.figures.stages >= 3 and churned.figures.full > 0.9


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_part_of_the_swarm_is_cut_off_once_and_comes_back(share: float) -> None:
    world = World(0, replace(LARGE, **SMALL, partition=share))
    sides: list[int] = []
    part = world.dht.split_network

    def noted(share: float = 0.0) -> None:
        part(share)
        sides.append(world.dht.on_side[1])
        assert world.dht.on_side[1] == sum(worker.partition_side for worker in world.dht.workers)

    world.dht.split_network = noted  # type: ignore[method-assign]
    world.run_and_check()
    assert world.counts["partitions"] == 1 and 0 < sides[0] < 24
    assert not world.dht.split and world.dht.on_side[1] == 0


def test_lossy_links_slow_a_swarm_and_do_not_stop_it() -> None:
    assert run_simulation(0, replace(LARGE, **SMALL, loss=0.1, failure=0.1)).figures.stages >= 3


def test_a_swarm_grows_until_all_are_there() -> None:
    world = World(0, replace(LARGE, nodes=2 * FOUNDERS + 1, doubles_s=90.0))
    assert [world._join_delay_s(index) for index in (0, FOUNDERS, 2 * FOUNDERS)] == [0.0, 0.0, 90.0]


def ref(peer: int) -> RolloutsRef:
    return RolloutsRef(f"peer-{peer:03d}", 0, 0, "", 1, 1)


def test_what_a_round_cost_is_counted() -> None:
    counted = MetricsCollector(nodes=3, wanted=2)
    counted.on_announce(Announce("a", 0, 0, 0.0, 9.0), 10.0)
    counted.on_event(1, RoundAnnounced(0, 0, 0.0, 9.0), 50.0)  # it came late, and heard of no stage before
    for node, at in ((0, 55.0), (1, 60.0)):
        counted.on_record_stored(ReportRecord("sim", 0, 0, 0.5), at)
        counted.on_event(node, ReportPublished("p", 0, 0), at + 1.0)
    counted.on_announce(Announce("b", 1, 0, 0.0, 9.0), 61.5)
    counted.on_announce(Announce("b2", 1, 0, 0.0, 99.0), 70.0)  # the same with another deadline
    counted.on_event(1, RoundAnnounced(1, 0, 0.0, 9.0), 62.0)
    counted.on_event(1, RoundAnnounced(1, 0, 0.0, 99.0), 71.0)
    counted.on_event(1, RolloutsGathered("g", 1, 0, (ref(0),)), 72.0)  # all that there is
    counted.on_event(2, RolloutsGathered("g", 1, 0, (ref(0),)), 72.0)  # one of two
    figures = counted.compute_metrics(Counter(store=1))
    assert (figures.stages, figures.announced_s, figures.closed_s) == (1, (0.5, 0.5), (1.5, 1.5))
    assert (figures.full, figures.reported, figures.asked) == (0.5, 2 / 3, {"store": 1 / 6})


def test_of_followers_that_were_there_for_the_stage_before_those_are_counted_that_reported() -> None:
    counted = MetricsCollector(nodes=4, wanted=2)
    counted.on_announce(Announce("a", 0, 0, 0.0, 9.0), 10.0)
    for node in (0, 1, 2):
        counted.on_event(node, RoundAnnounced(0, 0, 0.0, 9.0), 11.0)
    counted.on_announce(Announce("b", 1, 0, 0.0, 9.0), 20.0)
    for node in (0, 1, 3):  # the coordinator, a follower that stayed, and one that has come; another is gone
        counted.on_event(node, ReportPublished("p", 1, 0), 25.0)
    counted.on_announce(Announce("c", 2, 0, 0.0, 9.0), 30.0)
    assert counted.compute_metrics(Counter()).stayed == 1 / 2


def test_quantiles() -> None:
    assert [quantile([3.0, 1.0, 2.0, 4.0], share) for share in (0.0, 0.5, 1.0)] == [1.0, 3.0, 4.0]
    assert quantile([], 0.5) == 0.0


def test_a_membership_that_is_renewed_is_hinted_at_only_where_its_node_was_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under one key each hint has all members look for it: N look-ups of each of N nodes in a third of its life."""
    hinted: list[str] = []
    publish, renewed = SimHintGossip.publish, list[str]()

    def note(gossip: SimHintGossip, record: Record) -> None:
        if isinstance(record.content, Membership):
            hinted.append(record.owner)
        publish(gossip, record)

    def note_renewed(gossip: Gossip, record: Record) -> None:
        if isinstance(record.content, Membership):
            renewed.append(record.owner)
        renew(gossip, record)

    renew = Gossip.announce_renewed
    monkeypatch.setattr(SimHintGossip, "publish", note)
    monkeypatch.setattr(Gossip, "announce_renewed", note_renewed)
    world = World(0, replace(LARGE, **{**SMALL, "hours": 0.3, "shard_members": 0, "doubles_s": 0.0}))
    world.call_at(BEGIN + 400.0, lambda: world.dht.workers[5].lose_link())
    world.run_and_check()
    gone, times = world.dht.workers[5].node.peer, Counter(hinted)
    assert len(renewed) >= 2 * len(world.nodes)
    assert times.pop(gone) > 1
    assert times == dict.fromkeys((node.peer for node in world.nodes if node.peer != gone), 1)
