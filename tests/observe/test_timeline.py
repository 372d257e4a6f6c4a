"""The logs of several nodes in causal order."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarmd.core import events
from swarmd.observe.node_log import _KEEP, NOWHERE, LoggedEvent, NodeLog, RoundRange, StageOpened
from swarmd.observe.timeline import Timeline, read_parts
from swarmd.observe.timeline_words import describe_clock_gaps, describe_moment, list_arrows
from swarmd.sim.world import World
from tests.eventlog.making import structs_of
from tests.golden.play import play
from tests.observe.scripted import ROUND_S, ScriptedSwarm, peer_of, write_segment

SKEWS = (0.0, 300.0, -300.0)


@pytest.fixture
def swarm(tmp_path: Path) -> ScriptedSwarm:
    return ScriptedSwarm(tmp_path, SKEWS)


def check_order(timeline: Timeline, merged: list[LoggedEvent]) -> int:
    """Check that all moments of each log stand in their order, and after their causes. Returns the pairs of those."""
    places = {(each.node, each.index): place for place, each in enumerate(merged)}
    for moments in timeline.moments:
        order = [places[each.node, each.index] for each in moments]
        assert order == sorted(order)
    pairs = [(cause, effect) for effect in merged for cause in timeline.causes_of(effect)]
    assert all(places[cause.node, cause.index] < places[effect.node, effect.index] for cause, effect in pairs)
    return len(pairs)


def test_five_minutes_of_skew_do_not_change_the_order(swarm: ScriptedSwarm, tmp_path: Path) -> None:
    right = ScriptedSwarm(tmp_path / "right", (0.0, 0.0, 0.0))
    for each in (swarm, right):
        for round_ in range(6):
            each.play(round_)
    found = [[(each.node, each.seq) for each in made.timeline().merge()] for made in (swarm, right)]
    assert found[0] == found[1]


def test_clocks_are_compared_by_what_one_did_because_of_another(swarm: ScriptedSwarm) -> None:
    for round_ in range(4):
        swarm.play(round_)
    timeline = swarm.timeline()
    assert [round(each) for each in timeline.clocks.corrections] == [0, -300, 300]
    assert describe_clock_gaps(timeline)[0].startswith("node-1's clock is 300.0 s (± 0.1 s) ahead of node-0's")


def test_a_stage_opens_where_the_coordinator_decided_it(swarm: ScriptedSwarm) -> None:
    for round_ in range(3):
        swarm.play(round_)
    timeline = swarm.timeline()
    opened = timeline.find_event(0, StageOpened, (2, 0))
    assert (
        opened is not None and describe_moment(timeline, opened) == f"opened round 2 stage 0, for up to {ROUND_S:.0f} s"
    )
    arrows = list_arrows(timeline, opened)
    assert [(each.kind, each.node) for each in arrows] == [("clock", "node-1"), ("clock", "node-2")]
    assert all(0.0 <= (each.after_s or 0.0) < 0.2 for each in arrows)


def test_a_trained_stage_has_an_arrow_to_every_node(swarm: ScriptedSwarm) -> None:
    for round_ in range(3):
        swarm.play(round_, gathered={2: [0]} if round_ == 2 else None)
    timeline = swarm.timeline()
    trained = timeline.find_event(1, events.StageTrained, (1, 0))
    assert trained is not None
    arrows = {(each.kind, each.node): each for each in list_arrows(timeline, trained)}
    assert arrows.keys() == {("report", "node-0"), ("rollouts", "node-0"), ("rollouts", "node-2")}
    assert arrows["rollouts", "node-0"].verdict == "used" and arrows["rollouts", "node-0"].seq is not None
    assert arrows["rollouts", "node-2"].seq is None and arrows["rollouts", "node-2"].after_s is None


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_clock_that_was_set_and_noticed_later_does_not_move_what_came_before(
    swarm: ScriptedSwarm, step_s: float
) -> None:
    swarm.play(0)
    swarm.skews = (0.0, 300.0 + step_s, -300.0)
    swarm.play(1)
    swarm.log(1, events.ClockSet(step_s), after_s=-20.0)
    for round_ in range(2, 5):
        swarm.play(round_)
    timeline = swarm.timeline()
    assert timeline.clocks.slack_s == 0.0 and round(timeline.clocks.corrections[1]) == -300
    check_order(timeline, list(timeline.merge()))


def test_a_clock_that_was_set_while_the_node_was_down_counts_as_another(swarm: ScriptedSwarm) -> None:
    swarm.play(0)
    swarm.play(1, without=[1])
    swarm.skews = (0.0, 7500.0, -300.0)
    swarm.start(1)
    for round_ in range(2, 5):
        swarm.play(round_)
    timeline = swarm.timeline()
    assert timeline.clocks.slack_s == 0.0
    assert [round(timeline.clocks.corrections[timeline.last_clock(node)]) for node in range(3)] == [0, -7500, 300]
    assert describe_clock_gaps(timeline)[0].startswith("node-1's clock is 7500.0 s")
    merged = list(timeline.merge())
    assert [timeline.estimate_time(each) for each in merged] == sorted(timeline.estimate_time(each) for each in merged)


def test_all_rounds_of_long_logs_come_in_parts_and_none_twice(
    swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.observe.timeline.PART_ROUNDS_MIN", 4)
    monkeypatch.setattr("swarmd.observe.timeline.PART_PLACES", 0)
    for round_ in range(30):
        swarm.play(round_, without=[2] if 9 <= round_ < 24 else [])
    whole = [(each.node, each.seq) for each in swarm.timeline().merge()]
    held = 0
    found: list[tuple[int, int]] = []
    logs = swarm.logs(RoundRange(0))
    for part in read_parts(logs, RoundRange(0)):
        found += [(each.node, each.seq) for each in part.moments]
        held = max(held, sum(map(len, part.timeline.moments)))
    assert sorted(found) == sorted(whole) and len(set(found)) == len(found)
    assert held < len(whole) * 0.8


def test_the_newest_rounds_alone_are_kept_where_none_is_asked_for(swarm: ScriptedSwarm) -> None:
    for round_ in range(40):
        swarm.play(round_)
    logs = swarm.logs(RoundRange())
    for log in logs:
        log.read()
        assert min(each.near for each in log.moments) == 31 and log.trained == log.reached == 39
    assert Timeline(logs).find_event(1, events.StageTrained, (39, 0)) is not None


def test_a_log_is_read_on_from_where_it_ended(swarm: ScriptedSwarm) -> None:
    swarm.play(0)
    logs = swarm.logs(RoundRange())
    for log in logs:
        log.read()
    swarm.play(1)
    swarm.write()
    for log in logs:
        log.read()
    assert [log.trained for log in logs] == [1, 1, 1]


# --- simulated swarms, with faults ---


def read_world(world: World, directory: Path) -> Timeline:
    """The logs of a simulated swarm."""
    logs = []
    for node in world.nodes:
        write_segment(directory / node.peer, node.peer, node.disk.log.commits)
        logs.append(NodeLog(node.index, directory / node.peer, RoundRange(0)))
        logs[-1].read()
        logs[-1].close()
    return Timeline(logs)


@pytest.mark.parametrize(("seed", "jumps"), [(3, 0.0), (7, 0.0), (11, 6.0)])
def test_simulated_swarms_with_faults_and_wrong_clocks_come_in_causal_order(
    seed: int, jumps: float, tmp_path: Path
) -> None:
    world = play(
        seed, nodes=4, hours=0.25, calm_s=60.0, faults=40.0, skew_s=300.0, chain=False, hostile="none", jumps=jumps
    )
    timeline = read_world(world, tmp_path)
    assert check_order(timeline, list(timeline.merge())) > 50
    for node in world.nodes[1:]:
        if timeline.logs[node.index].trained > NOWHERE:
            correction_s = timeline.clocks.corrections[timeline.last_clock(node.index)]
            apart_s = node.skew_s - world.nodes[0].skew_s + correction_s
            assert jumps or abs(apart_s) < 5.0  # clocks are stepped by a second now and then


def test_peers_without_a_log_have_a_name(swarm: ScriptedSwarm) -> None:
    swarm.play(0)
    timeline = swarm.timeline()
    assert timeline.name_of(peer_of(1)) == "node-1" and timeline.name_of(peer_of(9)).count(" ") == 2


@given(st.one_of(*(structs_of(kind) for kind in _KEEP)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_kept_of_a_log_has_words(tmp_path: Path, event: Any) -> None:
    swarm = ScriptedSwarm(tmp_path, (0.0,))
    timeline = swarm.timeline()
    for kept in _KEEP[type(event)](timeline.logs[0], event):
        assert describe_moment(timeline, LoggedEvent(0, 9, 0.0, 0, kept))
