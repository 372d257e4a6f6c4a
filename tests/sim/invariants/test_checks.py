"""The checks on their own: what they let pass and what they do not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from swarmd.core.applied import Applied
from swarmd.core.commands import Announce, PublishReport, Train
from swarmd.core.events import Envelope, RoundsSkipped, StopRequested
from swarmd.core.state import Clock, Deadline, State, Trainer, WorkerState
from swarmd.core.values import RolloutsRef
from swarmd.sim.invariants.checks import InvariantBroken
from swarmd.sim.invariants.waits import HUNG, find_stall
from swarmd.sim.profile import SimProfile
from swarmd.sim.world import World

RUNNING = State(chart="waiting", network=WorkerState(pid=1), training=WorkerState(pid=2))
CLOCK = Deadline("clock", 9.0)
TRAIN = Deadline("train", 9.0)


@pytest.mark.parametrize(
    ("state", "stall"),
    [
        (replace(RUNNING, deadlines=(CLOCK,)), ""),
        (RUNNING, "nothing ends waiting: armed are []"),
        (replace(RUNNING, clock=Clock(3, 0, 0.0, 0.0, final=True)), ""),
        (
            replace(RUNNING, clock=Clock(3, 0, 0.0, 0.0), deadlines=(CLOCK,)),
            "nothing ends waiting: armed are ['clock']",
        ),
        (replace(RUNNING, clock=Clock(3, 0, 0.0, 0.0), done=(3, 0), deadlines=(CLOCK,)), ""),
        (
            replace(RUNNING, network=WorkerState(), deadlines=(CLOCK,)),
            "there is no network worker and none will be started",
        ),
        (replace(RUNNING, network=WorkerState(), deadlines=(CLOCK, Deadline("restart/network", 1.0))), ""),
        (replace(RUNNING, trainer=Trainer(chart="busy"), deadlines=(CLOCK,)), HUNG),
        (
            replace(RUNNING, chart="round.training", deadlines=(TRAIN,)),
            "nothing ends round.training: armed are ['train']",
        ),
        (
            replace(
                RUNNING,
                chart="round.training",
                trainer=Trainer(chart="idle"),
                pending=(Train("train/0/0", 0, 0),),
                deadlines=(TRAIN, Deadline("retry/train/0/0", 1.0)),
            ),
            "",
        ),
        (replace(RUNNING, chart="draining"), ""),
    ],
)
def test_a_state_that_nothing_ends_is_a_stall(state: State, stall: str) -> None:
    assert find_stall(state) == stall


@pytest.fixture
def world() -> World:
    return World(1, SimProfile(nodes=2))


def test_a_command_without_a_durable_cause_is_refused(world: World) -> None:
    with pytest.raises(InvariantBroken, match="without a durable commit"):
        world.checks.on_dispatch(world.nodes[0], Train("train/0/0", 0, 0))


def test_an_id_never_changes_its_content(world: World) -> None:
    node = world.nodes[1]
    ordered = Applied(Envelope(0, 0.0, StopRequested("now")), State(), State(), (Train("train/0/0", 0, 0),))
    world.checks.ledgers[node.index].apply(ordered)
    world.checks.on_dispatch(node, Train("train/0/0", 0, 0))
    with pytest.raises(InvariantBroken, match="another content"):
        world.checks.on_dispatch(node, Train("train/0/0", 0, 1))


def test_the_same_rounds_are_not_skipped_twice(world: World) -> None:
    ledger, before, skipped = world.checks.ledgers[1], State(), RoundsSkipped(0, 2, "late")
    after = replace(before, skipped_to=2, rounds_skipped=3)
    ledger.apply(Applied(Envelope(0, 0.0, skipped), before, after, ()))
    with pytest.raises(InvariantBroken, match="rounds 0 to 2 are skipped"):
        ledger.apply(Applied(Envelope(1, 0.0, skipped), after, replace(after, skipped_to=3), ()))


def test_a_chart_state_that_is_not_listed_is_refused(world: World) -> None:
    moved = Applied(Envelope(0, 0.0, StopRequested("now")), State(), replace(State(), chart="round.training"), ())
    with pytest.raises(InvariantBroken, match="no chart leads"):
        world.checks.ledgers[1].apply(moved)


def test_two_records_of_one_place_that_differ_are_refused_and_honest_ones_are_not(world: World) -> None:
    boss, node = world.nodes
    signed, ref = world.checks.signed, RolloutsRef(node.peer, 0, 0, "d", 9, 1)
    for opening, deadline_at in ((1, 9.0), (1, 9.0), (2, 12.0), (3, 4.0)):
        signed.on_dispatch(boss, Announce(f"announce/0/0/{opening}", 0, 0, 1.0, deadline_at))
    for stage, reward in ((0, 0.5), (1, 0.7), (0, 0.5)):
        signed.on_dispatch(node, PublishReport(f"report/0/{stage}", 0, stage, reward, ref))
    with pytest.raises(InvariantBroken, match="two different records"):
        signed.on_dispatch(node, PublishReport("report/0/1", 0, 1, 0.5, ref))
    with pytest.raises(InvariantBroken, match="two different records"):
        signed.on_dispatch(boss, Announce("announce/0/0/3", 0, 0, 1.0, 5.0))
