"""A node whose disk is nearly full: it begins nothing, says why, and joins again by itself."""

import pytest

from swarmd.core.commands import Announce
from swarmd.core.events import (
    ClockSet,
    CommandFailed,
    Event,
    LinkDown,
    LinkUp,
    MemberSeen,
    NodeStopped,
    NoRoundYet,
    ReportPublished,
    ReportSeen,
    RoundPublished,
    RoundsSkipped,
    SpaceFreed,
    SpaceLow,
    StopRequested,
    TrainerReady,
    TrainingCancelled,
    WorkerExited,
    WorkerStarted,
)
from swarmd.core.state import LowSpace
from tests.core.story import (
    Story,
    announced,
    chain_settings,
    chain_up,
    coordinator_settings,
    gathered,
    ids,
    settings,
    trained,
)

LOW = SpaceLow(5, 40)
FREED = SpaceFreed(100)


@pytest.fixture
def node() -> Story:
    return Story.joined(settings())


def test_an_idle_node_pauses_and_begins_no_stage(node: Story) -> None:
    node.tell(NoRoundYet(), LOW)
    assert node.state.chart == "paused"
    assert node.state.low_space == LowSpace(5, 40, 0.0)
    assert node.tell(announced(0), announced(1)) == ()
    assert node.state.chart == "paused"
    assert "clock" in node.waits


def test_it_joins_at_the_present_round_when_there_is_room(node: Story) -> None:
    node.tell(announced(0))
    node.finish(0)
    node.tell(LOW, announced(1), announced(4))
    assert ids(node.tell(FREED)) == ["gather/4/0"]
    assert node.recorded[-2:] == [RoundsSkipped(1, 3, "fault"), FREED]
    assert node.state.low_space is None


def test_gathering_stops_and_goes_on(node: Story) -> None:
    node.tell(announced(3))
    node.tell(LOW)
    assert node.state.chart == "paused" and "gather" not in node.waits
    assert node.tell(gathered(3)) == ()
    assert ids(node.tell(FREED)) == ["train/3/0"]


def test_a_stage_at_the_trainer_is_finished_and_reported_but_no_other_begun(node: Story) -> None:
    node.tell(announced(0))
    assert node.tell(LOW, announced(1)) == ()
    assert node.state.chart == "round.training"
    assert ids(node.tell(trained(0))) == ["report/0/0"]
    assert node.tell(ReportPublished("report/0/0", 0, 0)) == ()
    assert node.chart() == "paused"
    node.tell(announced(2))
    assert ids(node.tell(FREED)) == ["gather/2/0"]
    assert RoundsSkipped(1, 1, "fault") in node.recorded


def test_a_trainer_that_was_told_to_stop_is_not_told_again_when_the_pause_is_over() -> None:
    node = Story.joined(settings(behind="abandon"))
    node.tell(announced(0))
    assert ids(node.tell(LOW)) == ["cancel/0/0"]
    assert node.tell(FREED, announced(1)) == ()
    assert node.state.chart == "paused" and "cancel" in node.waits
    assert ids(node.tell(TrainingCancelled("cancel/0/0", 0, 0))) == ["gather/1/0"]


@pytest.mark.parametrize("room_first", [False, True])
def test_a_stage_is_left_where_the_policy_says_so_and_begun_again_with_room_and_an_idle_trainer(
    room_first: bool,
) -> None:
    node = Story.joined(settings(behind="abandon"))
    node.tell(announced(0))
    assert ids(node.tell(LOW)) == ["cancel/0/0"]
    assert node.state.chart == "paused" and "cancel" in node.waits
    freed_and_idle: list[Event] = [FREED, TrainingCancelled("train/0/0", 0, 0)]
    first, second = freed_and_idle if room_first else freed_and_idle[::-1]
    assert node.tell(first) == ()
    assert node.chart() == "paused"
    assert ids(node.tell(second)) == ["train/0/0"]


def test_a_stage_that_ends_after_a_pause_is_trained_and_not_skipped() -> None:
    node = Story.joined(settings(behind="abandon"))
    node.tell(announced(0), LOW, announced(2), FREED)
    assert ids(node.tell(trained(0))) == ["report/0/0"]
    assert node.state.chart == "round.publishing"
    assert ids(node.tell(ReportPublished("report/0/0", 0, 0))) == ["gather/2/0"]
    assert [event for event in node.recorded if isinstance(event, RoundsSkipped)] == [RoundsSkipped(1, 1, "slow")]


def test_a_trainer_that_is_stopping_is_not_told_again() -> None:
    node = Story.joined(settings(behind="abandon"))
    node.tell(announced(0), LOW, FREED)
    assert node.tell(LOW) == ()
    assert node.state.chart == "paused" and "cancel" in node.waits


def test_a_stage_trained_although_cancelled_is_reported() -> None:
    node = Story.joined(settings(behind="abandon"))
    node.tell(announced(0), LOW)
    assert ids(node.tell(trained(0))) == ["report/0/0"]
    assert node.state.chart == "round.publishing"
    node.tell(ReportPublished("report/0/0", 0, 0))
    assert node.chart() == "paused"
    assert node.tell(FREED) == ()
    assert node.chart() == "round.settling"


def test_a_stage_that_failed_for_want_of_space_is_not_tried_until_there_is_some(node: Story) -> None:
    node.tell(announced(0), LOW)
    node.tell(CommandFailed("train/0/0", "no space left"))
    assert node.state.chart == "paused"
    assert not [name for name in node.waits if name.startswith(("retry", "train"))]
    assert ids(node.tell(FREED)) == ["train/0/0"]


def test_a_trainer_that_comes_back_is_given_nothing(node: Story) -> None:
    node.tell(announced(0), WorkerExited("trainer", "killed", signal=9), LOW)
    assert node.state.chart == "paused"
    node.wait("restart/trainer")
    assert node.tell(WorkerStarted("trainer", 13, 2), TrainerReady("cpu", "tiny", 1)) == ()
    assert ids(node.tell(FREED)) == ["train/0/0"]


def test_a_pause_that_goes_on_keeps_its_beginning(node: Story) -> None:
    node.tell(NoRoundYet(), LOW)
    node.at = 9.0
    node.tell(SpaceLow(3, 40))
    assert node.state.low_space == LowSpace(3, 40, 0.0)


def test_a_paused_node_stops_in_order_and_a_new_life_looks_anew(node: Story) -> None:
    node.tell(announced(0), LOW)
    node.finish(0)
    assert ids(node.tell(StopRequested("signal 15"))) == ["stop/run1"]
    node.tell(NodeStopped("signal 15"))
    assert node.state.chart == "stopped"
    node.join()
    assert node.state.low_space is None
    assert ids(node.tell(announced(1))) == ["gather/1/0"]


def test_a_node_that_is_low_from_the_start_pauses_before_it_begins_anything() -> None:
    node = Story(settings())
    node.start()
    node.tell(LOW)
    assert node.state.chart == "starting"
    node.workers_run()
    node.join_as_started()
    assert node.chart() == "paused"
    assert node.tell(announced(0)) == ()
    assert ids(node.tell(FREED)) == ["train/0/0"]


def test_on_a_chain_the_pause_lasts_while_the_contract_goes_on() -> None:
    node = Story.on_chain(chain_settings(behind="abandon"))
    node.tell(LOW, TrainingCancelled("train/0/0", 0, 0))
    assert node.tell(chain_up(round=2, head=2)) == ()
    assert node.state.chart == "paused"
    assert "gather/2/0" in ids(node.tell(FREED))


def test_room_where_there_was_room_all_along_changes_nothing(node: Story) -> None:
    node.tell(announced(0))
    before = node.state
    assert node.tell(FREED) == ()
    assert node.state == before


def test_an_answer_to_a_cancelling_that_the_stage_failed_before_changes_nothing(node: Story) -> None:
    node.join()
    node.tell(announced(0), LOW)
    node.wait("train")
    node.tell(CommandFailed("train/0/0", "no space left"))
    assert ids(node.tell(FREED)) == ["train/0/0"]
    assert node.tell(TrainingCancelled("cancel/0/0", 0, 0)) == ()
    assert node.state.trainer.chart == "busy"


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
    node = Story.joined(settings())
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
    node.start_workers()
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
