"""A swarm's settings ask for processor time and memory; a node gives no more than its own bounds say."""

import logging
from typing import Any

import pytest

from swarmd.config import SwarmConfig
from swarmd.sandbox import Limits
from swarmd.swarms.options import OwnLimits
from swarmd.swarms.registry import find_reduced_limits, make_plan

GREEDY = {"wall_s": 3600.0, "cpu_s": 3600, "memory_bytes": 2**40, "scratch_bytes": 2**40}
KINDS = {"code": (1, {"rerun_s": 3600.0}), "proposer-solver": (2, {"own_s": 3600.0, "peer_s": 3600.0})}


def swarm_of(kind: str, **options: Any) -> SwarmConfig:
    return SwarmConfig("s", kind=kind, stages=KINDS[kind][0], options={"sandbox": "none-i-accept-the-risk", **options})


def limits_of(plan: Any, kind: str) -> tuple[Limits, tuple[float, ...]]:
    """What a plan's programs really get: of one run, and seconds of a stage."""
    runner = plan._runner
    return runner._sandbox.limits, (runner._peer_s, *([] if kind == "code" else [runner._own_s]))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_swarm_asks_for_is_cut_to_what_the_node_gives(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    swarm = swarm_of(kind, limits=GREEDY, **KINDS[kind][1])
    limits, stage_s = limits_of(make_plan(swarm), kind)
    own = OwnLimits()
    assert (limits.wall_s, limits.cpu_s, limits.memory_bytes) == (own.wall_s, own.cpu_s, own.memory_bytes)
    assert (limits.files_open, limits.program_bytes) == (Limits().files_open, Limits().program_bytes)
    assert set(stage_s) == {own.stage_s}
    assert "limits.memory_bytes = 1.09951e+12" in caplog.text
    assert len(find_reduced_limits(swarm)) == len(caplog.records) == 4 + len(stage_s)


def test_nodes_of_different_means_understand_each_other() -> None:
    """What a question's digest is made of stays the swarm's, or nodes would refuse each other's groups."""
    plans: list[Any] = [make_plan(swarm_of("proposer-solver", own_limits={"cpu_s": seconds})) for seconds in (1, 9)]
    assert plans[0]._digest == plans[1]._digest
