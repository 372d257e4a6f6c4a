"""The checks on their own: what they let pass and what they do not; honest members are credited again after faults."""

from typing import Any

import pytest
from msgspec.structs import replace

from swarmd.core import waiting
from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import PublishReport, Train
from swarmd.core.events import Envelope, Equivocated, RoundsSkipped, StopRequested
from swarmd.core.state import Clock, Deadline, State, Trainer, WorkerState
from swarmd.core.values import RolloutsRef
from swarmd.sim.node import SimNode
from swarmd.sim.node_checks import HUNG, find_stall
from swarmd.sim.profile import CALM, SimProfile
from swarmd.sim.simulation import BEGIN, InvariantBroken
from swarmd.sim.world import World, run_simulation

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
        world.on_dispatch(0, Train("train/0/0", 0, 0))


def test_an_id_never_changes_its_content(world: World) -> None:
    node = world.nodes[1]
    ordered = AppliedEvent(Envelope(0, 0.0, StopRequested("now")), State(), State(), (Train("train/0/0", 0, 0),))
    world.checks.nodes[node.index].check_event(ordered)
    world.on_dispatch(node.index, Train("train/0/0", 0, 0))
    with pytest.raises(InvariantBroken, match="another content"):
        world.on_dispatch(node.index, Train("train/0/0", 0, 1))


def test_the_same_rounds_are_not_skipped_twice(world: World) -> None:
    ledger, before, skipped = world.checks.nodes[1], State(), RoundsSkipped(0, 2, "late")
    after = replace(before, skipped_to=2, rounds_skipped=3)
    ledger.check_event(AppliedEvent(Envelope(0, 0.0, skipped), before, after, ()))
    with pytest.raises(InvariantBroken, match="rounds 0 to 2 are skipped"):
        ledger.check_event(AppliedEvent(Envelope(1, 0.0, skipped), after, replace(after, skipped_to=3), ()))


def test_two_reports_for_one_stage_are_refused(world: World) -> None:
    ref = RolloutsRef("peer-001", 0, 0, "d", 9, 1)
    node = world.nodes[1]
    node.supervisor.running["network"] = world.make_worker(node.supervisor, "network", 1)
    for stage, reward in ((0, 0.5), (1, 0.7), (0, 0.5)):
        world.on_network_command(1, PublishReport(f"report/0/{stage}", 0, stage, reward, ref))
    with pytest.raises(InvariantBroken, match="two reports"):
        world.on_network_command(1, PublishReport("report/0/1", 0, 1, 0.5, ref))


def test_an_honest_node_that_is_accused_is_noticed(world: World) -> None:
    def tell(peer: str) -> None:
        event = Equivocated("report", peer, 0, 0, b"", b"")
        world.on_event(0, AppliedEvent(Envelope(0, 0.0, event), State(), State(), ()))

    tell("mallory")
    with pytest.raises(InvariantBroken, match="is accused"):
        tell("peer-001")


PROFILE = replace(CALM, nodes=3, hours=0.6, calm_s=1000.0, stage_s=60.0, quorum=1.0)
FIRST_S, APART_S, CALM_S = 120.0, 150.0, 900.0  # since the beginning: the first sleep, between two, all awake
SLEEPS = 5
PACE_S, ASLEEP_S = 6.0, 85.0


def sleepy_world(seed: int, times: float = 2.0) -> tuple[World, dict[str, int]]:
    """Followers that train `times` as long as the coordinator, and five times for so long that they miss stages.

    Returns:
        The world, and the rounds of each member when the last sleep was over; the coordinator's number under "".
    """
    world, before = World(seed, PROFILE), dict[str, int]()
    for node in world.nodes:
        node.pace_s = PACE_S if node.coordinates else times * PACE_S
    for number in range(SLEEPS):
        began = BEGIN + FIRST_S + number * APART_S
        for node in world.nodes[1:]:
            world.call_at(began, set_pace, node, ASLEEP_S)
            world.call_at(began + 15.0, set_pace, node, times * PACE_S)

    def note() -> None:
        before.update(rounds_of(world))

    world.call_at(BEGIN + CALM_S, note)
    return world, before


def set_pace(node: SimNode, pace_s: float) -> None:
    node.pace_s = pace_s


def rounds_of(world: World) -> dict[str, int]:
    coordination = world.nodes[0].state.coordination
    assert coordination is not None
    return {member.peer: member.rounds for member in coordination.members} | {"": coordination.round}


@pytest.mark.parametrize("seed", range(3))
def test_slower_followers_that_slept_through_stages_are_credited_in_nearly_all_rounds_of_calm(seed: int) -> None:
    world, before = sleepy_world(seed)
    world.run_and_check()
    after = rounds_of(world)
    held = after[""] - before[""]
    assert held > 40 and before["peer-001"] < before[""] - SLEEPS, "they did miss rounds"
    assert all(after[node.peer] - before[node.peer] >= 0.96 * held for node in world.nodes)


def test_a_healthy_member_that_is_not_waited_for_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for every in ("WIDE_EVERY", "LONG_SILENT_EVERY"):
        monkeypatch.setattr(waiting, every, 10**6)
    with pytest.raises(InvariantBroken, match=r"was not credited in 4 stages of calm|count no more"):
        for seed in range(3):
            sleepy_world(seed, 3.0)[0].run_and_check()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_all_are_back_after_a_storm(seed: int) -> None:
    given: dict[str, Any] = {"nodes": 4, "stages": 1, "stage_s": 25.0, "train_mean_s": 5.0, "train_max_s": 45.0}
    given |= {"quorum": 1.0, "chain": False, "hostile": "none", "rounds_max": 0, "jumps": 0.0}
    assert run_simulation(seed, **given, faults=200.0, restart_mean_s=60.0, hours=0.6, calm_s=900.0).crashes > 10
