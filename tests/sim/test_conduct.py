"""No honest coordinator is accused, whatever becomes of its machine; one that breaks its rules is, by its followers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from swarmd.core.peers.conduct import verdict_of
from swarmd.dht.rounds.report_collector import SeenReports
from swarmd.dht.wire.records import ReportRecord
from swarmd.sim.invariants.checks import InvariantBroken
from swarmd.sim.profile import draw_profile
from swarmd.sim.world import World, run

SPAN: dict[str, Any] = {"hours": 0.7, "calm_s": 600.0, "chain": False}
CALM: dict[str, Any] = {
    "faults": 0.0,
    "loss": 0.0,
    "duplicate": 0.0,
    "stale": 0.0,
    "failure": 0.0,
    "late_share": 0.0,
    "jumps": 0.0,
}
QUIET = SPAN | CALM | {"nodes": 4, "stages": 1, "quorum": 1.0, "stage_s": 120.0, "rounds_max": 0, "train_max_s": 90.0}


def test_an_honest_coordinator_is_never_accused_however_ill_it_fares(seeds: range) -> None:
    """`swarmd.sim.invariants.checks` ends a run at the first accusation; "slow" is none."""
    runs = [run(seed, **SPAN | {"faults": 120.0, "nodes": 5}) for seed in seeds]
    assert sum(summary.crashes for summary in runs) > 20


def test_one_that_is_killed_all_the_time_is_slow_at_most() -> None:
    world = World(3, draw_profile(3, **SPAN | {"faults": 300.0, "nodes": 4, "restart_mean_s": 60.0, "stages": 1}))
    world.play()
    assert {verdict_of(node.state) for node in world.nodes} <= {"", "slow"}


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The coordinator's network worker does not tell of one peer's reports."""
    is_news = SeenReports._admit

    def without(self: SeenReports, peer: str, content: ReportRecord) -> bool:
        return peer != "peer-002" and is_news(self, peer, content)

    monkeypatch.setattr(SeenReports, "_admit", without)
    yield


@pytest.mark.usefixtures("deaf")
def test_one_that_leaves_out_a_peers_reports_is_found_out() -> None:
    world = World(5, draw_profile(5, **QUIET))
    for node in world.nodes:
        node.pace_s = 5.0 if node.index == 2 else 55.0
    with pytest.raises(InvariantBroken, match="leaves out"):
        world.play()


def test_one_whose_stages_are_not_as_long_as_promised_is_found_out() -> None:
    world = World(5, draw_profile(5, **QUIET))
    node = world.nodes[0]
    assert node.settings.coordination is not None
    node.settings = replace(node.settings, coordination=replace(node.settings.coordination, stage_s=8.0))
    with pytest.raises(InvariantBroken, match="does not keep its deadlines"):
        world.play()
