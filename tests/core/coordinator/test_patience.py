"""How often stages last to their deadlines for those who do not report, whoever these are and however many."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.core.commands import Announce
from swarmd.core.coordinator.patience import ALLOWED, FORGOTTEN_AFTER, STEPS_MAX
from swarmd.core.events import MemberLeft, MemberSeen, ReportSeen, RoundPublished
from tests.core.story import Story, coordinator_settings

HONEST = ("me", "a", "b")
STAGES = 300
STAGE_S = 100.0  # longest
TRAINING_S = 50.0
RARELY = round(FORGOTTEN_AFTER * STAGE_S / TRAINING_S)  # after so many others a stage may wait in vain again

Stall = Callable[["Swarm", int], None]


class Swarm:
    """Three honest nodes that report in each stage when they have trained, and whoever else a test names."""

    kind: type[Story] = Story

    def __init__(self, honest: Collection[str] = HONEST, stage_s: float = STAGE_S) -> None:
        self.node = self.kind(coordinator_settings(min_peers=len(honest), stage_s=stage_s))
        self.honest = tuple(honest)
        self.announce = self._announced(
            (*self.node.join(), *self.node.tell(*map(MemberSeen, [peer for peer in honest if peer != "me"])))
        )
        self.credited = 0  # honest reports
        self.overdue: list[int] = []  # rounds that lasted to their deadlines

    def _announced(self, commands: tuple[object, ...]) -> Announce:
        (announce,) = [command for command in commands if isinstance(command, Announce)]
        self.node.tell(RoundPublished(announce.id, announce.round, announce.stage))
        return announce

    def hold(self, *others: str, late: Collection[str] = ()) -> None:
        """One round, in which `others` report in time, and `late` after all honest nodes where it is still open."""
        round = self.announce.round
        self.node.at += TRAINING_S
        closing = self.node.tell(*(_report(peer, round) for peer in (*others, *self.honest)))
        for peer in () if closing else late:
            closing = closing or self.node.tell(_report(peer, round))
        if not closing:
            self.overdue.append(round)
            closing = self.node.wait("stage")
        self.announce = self._announced(closing)

    def rounds_of(self, peer: str) -> int:
        """Rounds that a member was credited for."""
        assert self.node.state.coordination is not None
        member = self.node.state.coordination.members.get(peer)
        return member.rounds if member is not None else 0


def _report(peer: str, round: int) -> ReportSeen:
    return ReportSeen(peer, round, 0, 1.0, record=f"{peer}/{round}".encode())


def bound(stages: int, stage_s: float = STAGE_S) -> float:
    """Stages that may last to their deadlines for one kind of silent peers, beside so many that do not."""
    return ALLOWED + 1 + stages * TRAINING_S / (FORGOTTEN_AFTER * stage_s)


def newcomers_for_each_stage(swarm: Swarm, number: int) -> None:
    swarm.node.tell(MemberSeen(f"new {number}"))
    swarm.hold()


def members_by_turns(swarm: Swarm, number: int) -> None:
    swarm.hold(*(f"member {each}" for each in range(24) if (number + each) % 2))


def members_that_come_and_report_once(swarm: Swarm, number: int) -> None:
    swarm.hold(f"member {number}")


STALLS: tuple[Stall, ...] = (newcomers_for_each_stage, members_by_turns, members_that_come_and_report_once)


@pytest.mark.parametrize("stall", STALLS)
def test_silent_peers_cost_few_stages_their_time_and_honest_ones_no_credit(stall: Stall) -> None:
    swarm = Swarm()
    for number in range(STAGES):
        stall(swarm, number)
    assert ALLOWED < len(swarm.overdue) <= bound(STAGES) + STEPS_MAX
    assert [swarm.rounds_of(peer) for peer in HONEST] == [STAGES] * 3


@pytest.mark.parametrize("stall", STALLS)
@pytest.mark.parametrize("stage_s", [60.0, 300.0, 3600.0])
def test_they_cost_a_small_part_of_the_time_whatever_a_stage_may_take(stall: Stall, stage_s: float) -> None:
    swarm = Swarm(stage_s=stage_s)
    for number in range(STAGES):
        stall(swarm, number)
    since, overdue = swarm.node.at, len(swarm.overdue)
    for number in range(STAGES, 2 * STAGES):
        stall(swarm, number)
    lost_s = (len(swarm.overdue) - overdue) * stage_s
    assert lost_s <= (swarm.node.at - since) / FORGOTTEN_AFTER + (1 + STEPS_MAX / 2) * stage_s


def test_who_behaved_for_long_is_soon_not_waited_for_when_it_begins_to_stall() -> None:
    swarm, sleepers = Swarm(), [f"sleeper {number}" for number in range(24)]
    for _ in range(200):
        swarm.hold(*sleepers)
    assert not swarm.overdue
    for number in range(STAGES):
        swarm.hold(*(each for place, each in enumerate(sleepers) if (number + place) % 2))
    assert len(swarm.overdue) <= bound(STAGES) + STEPS_MAX
    assert swarm.announce.steady_min > 0


def test_nodes_that_fail_now_and_then_are_waited_for_as_ever() -> None:
    swarm = Swarm()
    swarm.hold("slow")
    failing = range(9, 2 * STAGES, RARELY)
    for number in range(1, 2 * STAGES):
        swarm.hold(late=[] if number in failing else ["slow"])
    assert swarm.overdue == list(failing)
    assert swarm.announce.steady_min == 0
    assert swarm.rounds_of("slow") == 2 * STAGES - 2 * len(failing), "it is back in step after the round that it missed"


def test_a_slow_newcomer_gets_in_whatever_others_do() -> None:
    swarm = Swarm()
    for number in range(2 * RARELY):
        swarm.node.tell(MemberSeen(f"new {number}"))
        swarm.hold()
    late = [f"late {number}" for number in range(10)]
    for number in range(RARELY + 2):
        swarm.node.tell(*map(MemberSeen, [f"newer {number}", *late[number : number + 1]]))
        swarm.hold(late=late)
    assert min(map(swarm.rounds_of, late)) >= 1, "one stage lasts as long as they need"
    before = swarm.rounds_of("late 0")
    for number in range(RARELY):
        swarm.node.tell(MemberSeen(f"newest {number}"))
        swarm.hold(late=late)
    assert swarm.rounds_of("late 0") == before + RARELY, "from then on it is a member like others"


def leave_behind(swarm: Swarm, crowd: Collection[str]) -> int:
    """A member that is slower than all others misses one stage, while others have as many as can be remembered.

    Returns for how many rounds it was credited.
    """
    for _ in range(2 * STAGES):
        swarm.hold("slow", *crowd)
    for absent in crowd:
        swarm.hold(*(each for each in crowd if each != absent))
    return swarm.rounds_of("slow")


def test_a_slow_member_that_failed_is_waited_for_again_before_what_others_missed_is_forgotten() -> None:
    swarm, crowd = Swarm(), [f"crowd {number}" for number in range(STEPS_MAX + ALLOWED + 1)]
    before = leave_behind(swarm, crowd)
    for _ in range(2 * RARELY):
        swarm.hold(*crowd, late=["slow"])
    coordination = swarm.node.state.coordination
    assert coordination is not None and coordination.vain_members > coordination.vain_allowed
    assert swarm.rounds_of("slow") - before >= RARELY // 2, "as long as all report, it is one of them"


def test_stages_that_wait_for_all_again_cost_another_64th_of_the_time() -> None:
    swarm, crowd = Swarm(), [f"crowd {number}" for number in range(STEPS_MAX + ALLOWED + 1)]
    leave_behind(swarm, crowd)
    since, overdue = swarm.node.at, len(swarm.overdue)
    for number in range(10 * RARELY):
        swarm.hold(*(each for place, each in enumerate(crowd) if place != number % len(crowd)), late=["slow"])
    assert 5 <= len(swarm.overdue) - overdue <= 2 + 2 * (swarm.node.at - since) / (FORGOTTEN_AFTER * STAGE_S)


def test_a_young_swarm_asks_of_nobody_more_than_half_of_what_it_has_itself() -> None:
    swarm, sleepers = Swarm(), [f"sleeper {number}" for number in range(24)]
    for _ in range(20):
        swarm.hold(*sleepers)
    for number in range(len(sleepers)):
        swarm.hold(*(sleepers[:number] + sleepers[number + 1 :]))
        assert swarm.announce.steady_min <= swarm.rounds_of("me") // 2
    assert swarm.announce.steady_min >= 16, "it asks for as much as that"


def test_what_this_node_misses_itself_is_not_held_against_others() -> None:
    swarm = Swarm(("a", "b"))
    swarm.node.tell(MemberSeen("me"))
    for _ in range(STAGES // 10):
        swarm.hold()
    coordination = swarm.node.state.coordination
    assert swarm.overdue and coordination is not None
    assert (coordination.vain_members, coordination.vain_newcomers) == (0, 0)


def test_who_leaves_was_not_waited_for_in_vain() -> None:
    swarm = Swarm()
    swarm.node.tell(MemberSeen("guest"))
    swarm.hold("guest")
    swarm.node.tell(*(_report(peer, swarm.announce.round) for peer in HONEST))
    swarm.announce = swarm._announced(swarm.node.tell(MemberLeft("guest")))
    coordination = swarm.node.state.coordination
    assert coordination is not None and (coordination.vain_members, coordination.vain_newcomers) == (0, 0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11))), min_size=150, max_size=200))
def test_whatever_they_do_they_cost_no_more(schedule: list[tuple[set[int], set[int]]]) -> None:
    """Each stage some are seen anew and some report, as they like."""
    swarm = Swarm()
    for number, (seen, reporting) in enumerate(schedule):
        swarm.node.tell(*(MemberSeen(f"peer {each} {number // 16}") for each in seen))
        swarm.hold(*(f"peer {each} {number // 16}" for each in reporting))
    assert len(swarm.overdue) <= 2 * bound(len(schedule)) + STEPS_MAX
    assert [swarm.rounds_of(peer) for peer in HONEST] == [len(schedule)] * 3
