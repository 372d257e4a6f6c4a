"""Three depths of health, each broken in its own way."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from swarmd.core.state import Clock, Link, State, Trainer
from swarmd.observe.health import STALE_S, NodeProgress, live, productive, ready
from swarmd.observe.live import Live
from swarmd.observe.status import status_of
from tests.observe.test_status import LIVE, LOG, NEW, NOW, STATE, STUCK

WELL = status_of(STATE, NOW, LOG, LIVE)
STARTING = replace(STATE, chart="joining", link=Link("connecting"), trainer=Trainer("loading"), clock=None, work=None)
BUSY = NodeProgress(started_at=NOW - 5000, stage_s=150, trained_at=NOW - 60)


def test_a_node_at_work_is_well_to_every_depth() -> None:
    assert live(WELL, NOW).ok and ready(WELL, NOW).ok and productive(WELL, BUSY, NOW).ok


def test_a_starting_node_lives_and_is_not_ready() -> None:
    status = status_of(STARTING, NOW, LOG, Live(pid=10, rss_bytes=1, network=NEW, trainer=NEW))
    assert live(status, NOW).ok
    verdict = ready(status, NOW)
    assert not verdict.ok
    assert [reason.partition(":")[0] for reason in verdict.reasons] == ["network", "training", "round"]
    assert productive(status, NodeProgress(started_at=NOW - 10), NOW).ok, "it has had no time yet"


@pytest.mark.parametrize(
    ("fields", "live_fields", "layer"),
    [
        ({"link": Link("degraded", NOW - 9, "no peer answers")}, {}, "network"),
        ({}, {"network": STUCK}, "network"),
        ({"trainer": Trainer("down")}, {"trainer": None}, "training"),
        ({}, {"trainer": STUCK}, "training"),
        ({"clock": Clock(5, 0, NOW - 900, NOW - 600)}, {}, "round"),
        ({"chart": "draining", "stop_reason": "enough"}, {}, "process"),
    ],
)
def test_each_layer_broken_makes_it_unready_with_a_reason(
    fields: dict[str, Any], live_fields: dict[str, Any], layer: str
) -> None:
    status = status_of(replace(STATE, **fields), NOW, LOG, replace(LIVE, **live_fields))
    verdict = ready(status, NOW)
    assert live(status, NOW).ok
    assert not verdict.ok
    named = {name: words for name, _, words in (reason.partition(": ") for reason in verdict.reasons)}
    assert named[layer], "and says why"


@pytest.mark.parametrize(
    "status",
    [
        None,
        status_of(STATE, NOW, LOG),
        status_of(STATE, NOW, LOG, mute="it does not answer"),
        status_of(State(), NOW, LOG),
    ],
)
def test_a_daemon_that_does_not_answer_is_well_to_no_depth(status: Any) -> None:
    verdicts = [live(status, NOW), ready(status, NOW), productive(status, BUSY, NOW)]
    assert [verdict.ok for verdict in verdicts] == [False] * 3
    assert all(verdict.reasons[0] for verdict in verdicts)


def test_an_old_answer_is_none() -> None:
    assert live(WELL, NOW + STALE_S - 1).ok
    verdict = live(WELL, NOW + STALE_S + 10)
    assert not verdict.ok and "40 s ago" in verdict.reasons[0]


def test_a_node_that_trains_nothing_is_ready_and_not_productive() -> None:
    idle = replace(BUSY, trained_at=NOW - 451)
    assert ready(WELL, NOW).ok
    verdict = productive(WELL, idle, NOW)
    assert not verdict.ok and verdict.reasons == ("nothing was trained for 451 s",)
    assert productive(WELL, replace(idle, trained_at=NOW - 449), NOW).ok
    assert productive(WELL, idle, NOW, deadlines=4).ok
    never = productive(WELL, replace(BUSY, trained_at=0.0), NOW)
    assert never.reasons == ("nothing was trained since the daemon started",)


def test_on_a_chain_a_reward_must_have_been_confirmed_too() -> None:
    chained = replace(BUSY, submits=True, confirmed_at={"register": NOW - 10})
    assert not productive(WELL, chained, NOW).ok
    assert productive(WELL, replace(chained, confirmed_at={"reward": NOW - 10}), NOW).ok
    late = productive(WELL, replace(chained, confirmed_at={"reward": NOW - 500}), NOW)
    assert late.reasons == ("nothing was confirmed on the chain for 500 s",)


def test_a_swarm_that_has_run_its_rounds_asks_for_nothing() -> None:
    assert productive(WELL, replace(BUSY, trained_at=0.0, finished=True), NOW).ok


def test_a_short_stage_leaves_time_for_a_restart() -> None:
    assert productive(WELL, replace(BUSY, stage_s=1.0, trained_at=NOW - 59), NOW).ok
    assert not productive(WELL, replace(BUSY, stage_s=1.0, trained_at=NOW - 61), NOW).ok
