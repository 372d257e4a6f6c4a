"""A node whose clock was ahead, and was set right, does not wait for what lies an hour away."""

from __future__ import annotations

from swarmd.core.commands import Announce
from swarmd.core.events import ClockSet, CommandFailed, LinkDown, LinkUp, MemberSeen, ReportSeen, RoundPublished
from tests.core.story import Story, announced, chain_settings, chain_up, coordinator_settings, ids, settings

HOUR_S = 3600.0


def due_in_s(node: Story, name: str) -> float:
    return next(deadline.due_at for deadline in node.state.deadlines if deadline.name == name) - node.at


def test_a_coordinators_stage_closes_in_a_stages_time() -> None:
    node = Story(coordinator_settings(min_peers=2, stage_s=100))
    node.at = HOUR_S
    node.join()
    (announce,) = [each for each in node.tell(MemberSeen("a")) if isinstance(each, Announce)]
    node.tell(RoundPublished(announce.id, 0, 0), ReportSeen("me", 0, 0, 1.0))
    node.at -= HOUR_S
    node.tell(ClockSet(-HOUR_S))
    assert due_in_s(node, "stage") == 100
    assert [each.deadline_at for each in node.wait("stage") if isinstance(each, Announce)] == [node.at + 100]


def test_what_failed_is_tried_again_in_time() -> None:
    node = Story(coordinator_settings(min_peers=1, stage_s=100))
    node.at = HOUR_S
    (announce,) = [each for each in node.join() if isinstance(each, Announce)]
    node.tell(CommandFailed(announce.id, "no peer could show it"))
    node.at -= HOUR_S
    node.tell(ClockSet(-HOUR_S))
    assert due_in_s(node, f"retry/{announce.id}") == 2
    assert ids(node.wait(f"retry/{announce.id}")) == [announce.id]


def test_waits_that_are_near_stand() -> None:
    node = Story(settings())
    node.join()
    node.tell(announced(0))
    assert "train" in node.waits
    node.at += 5
    assert node.tell(ClockSet(5.0)) == ()
    assert due_in_s(node, "train") == settings().train_s - 5


def test_a_stage_of_a_life_whose_clock_was_ahead_closes_in_a_stages_time() -> None:
    node = Story(coordinator_settings(min_peers=1, stage_s=100))
    node.at = HOUR_S
    node.join()
    node.at = 0.0
    node.start()
    node.workers_run()
    (announce,) = [each for each in node.tell(LinkUp(1)) if isinstance(each, Announce)]
    assert announce.deadline_at == 100


def test_a_contract_is_moved_on_in_a_stages_time() -> None:
    node = Story(chain_settings(drive="manager", stage_s=60))
    node.at = HOUR_S
    node.join_chain(chain_up())
    assert due_in_s(node, "drive") == 0, "it is long overdue, as far as this node knows"
    node.at = 5.0
    node.tell(ClockSet(-HOUR_S))
    assert due_in_s(node, "drive") == 55


def test_the_end_of_a_swarm_stays_as_it_was_announced() -> None:
    """Two records of one place that differ are what a node is blamed for."""
    node = Story(coordinator_settings(min_peers=1, rounds_max=1))
    node.at = HOUR_S
    (first,) = [each for each in node.join() if isinstance(each, Announce)]
    node.tell(RoundPublished(first.id, 0, 0))
    (end,) = [each for each in node.tell(ReportSeen("me", 0, 0, 1.0)) if isinstance(each, Announce)]
    node.at -= HOUR_S
    node.tell(ClockSet(-HOUR_S), LinkDown("p2pd ended"))
    assert [each for each in node.tell(LinkUp(1)) if isinstance(each, Announce)] == [end]
