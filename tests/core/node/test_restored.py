"""A node that was brought back from a backup, and one that was stopped: what they take part in and record."""

from __future__ import annotations

import pytest

from swarmd.core.commands import Announce, Command, Gather, Train
from swarmd.core.events import (
    LinkUp,
    NodeStarted,
    NodeStopped,
    NoRoundYet,
    Registered,
    ReportPublished,
    RoundsSkipped,
    StopRequested,
    TrainerReady,
    WorkerExited,
    WorkerStarted,
)
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


def old_log(round: int = 2) -> Story:
    """A node that was at training a round when the backup was made."""
    node = Story(settings())
    node.join()
    node.tell(announced(round), gathered(round))
    return node


def restore(node: Story, from_round: int = 0) -> None:
    node.lives += 1
    node.tell(NodeStarted(node.node, f"run{node.lives}", restored=True, from_round=from_round))
    node.workers_run()
    node.join_as_started()


def test_the_round_after_the_first_that_opened_is_trained() -> None:
    node = old_log()
    restore(node)
    assert node.tell(announced(2)) == (), "it may have reported this round after the backup"
    assert node.state.chart == "waiting"
    assert node.tell(announced(3)) == (), "this one too: what it heard first may have been old"
    assert ids(node.tell(announced(4))) == ["gather/4/0"]
    assert RoundsSkipped(2, 3, "fault") in node.recorded


def test_a_later_stage_of_the_same_round_is_no_round_that_opened() -> None:
    node = old_log()
    restore(node)
    node.tell(announced(2), announced(2, stage=1))
    assert node.state.restored and node.state.floor == 3


def test_what_it_was_told_to_train_before_is_forgotten() -> None:
    node = old_log()
    assert any(isinstance(command, Train) for command in node.state.pending)
    restore(node)
    assert not any(isinstance(command, Train | Gather) for command in node.state.pending)


def test_a_swarm_that_went_on_is_joined_where_it_is() -> None:
    node = old_log()
    restore(node)
    assert node.tell(announced(50), announced(51)) == ()
    assert ids(node.tell(announced(52))) == ["gather/52/0"]
    assert RoundsSkipped(2, 51, "fault") in node.recorded


def test_the_contract_is_believed_at_once() -> None:
    node = Story(chain_settings())
    node.join_chain()
    node.lives += 1
    node.tell(NodeStarted(node.node, f"run{node.lives}", restored=True))
    node.workers_run()
    node.join_as_started()
    node.tell(WorkerStarted("chain", 13, 1), chain_up(round=5, head=2))
    assert node.state.chart == "waiting" and node.state.floor == 6 and not node.state.restored
    assert "gather/6/0" in ids(node.tell(chain_up(round=6, head=3)))


def test_an_announcement_whose_time_has_passed_settles_nothing() -> None:
    node = old_log()
    node.at = 500.0
    restore(node)
    node.tell(announced(40, deadline_at=400.0, opened_at=300.0))
    assert node.state.restored
    assert node.tell(announced(50, deadline_at=600.0, opened_at=495.0)) == ()
    assert (node.state.restored, node.state.floor) == (True, 51)
    assert node.tell(announced(51, deadline_at=700.0, opened_at=500.0)) == ()
    assert (node.state.restored, node.state.floor) == (False, 52)


STAGE_S = 25.0


def hear(node: Story, round: int, opened_at: float, ahead_s: float, after_s: float = 0.0) -> tuple[Command, ...]:
    """A round opened at a time of the coordinator's clock; this node's is ahead, and it hears of it later."""
    node.at = opened_at + ahead_s + after_s
    return node.tell(announced(round, deadline_at=opened_at + STAGE_S, opened_at=opened_at))


@pytest.mark.parametrize("ahead_s", [-900.0, -40.0, 0.0, 26.0, 40.0, 2700.0])
def test_a_node_takes_part_again_however_wrong_its_clock_is(ahead_s: float) -> None:
    node = old_log()
    node.at = 5000.0 + ahead_s
    restore(node)
    assert hear(node, 7, 5000.0, ahead_s, after_s=12.0) == (), "as it was found, half over"
    rounds = [hear(node, 8 + number, 5015.0 + 15.0 * number, ahead_s, after_s=0.1) for number in range(4)]
    assert not rounds[0], "this one may have been there when it came"
    assert rounds[-1] and ids(rounds[-1]) == ["gather/11/0"]
    assert not node.state.restored


def test_with_its_clock_ahead_no_heap_of_old_records_is_taken_for_rounds_that_open() -> None:
    node = old_log()
    node.at = 5040.0
    restore(node)
    for round in range(3, 9):
        node.at += 0.1
        opened_at = 4830.0 + 20.0 * round
        node.tell(announced(round, deadline_at=opened_at + STAGE_S, opened_at=opened_at))
    assert node.state.restored, "each was newer, and so came sooner after its opening, than the one before"
    assert node.state.floor == 9
    hear(node, 9, 5060.0, ahead_s=40.0)
    assert node.state.restored
    hear(node, 10, 5080.0, ahead_s=40.0, after_s=3.0)
    assert (node.state.restored, node.state.floor) == (False, 11)


def test_with_its_clock_ahead_a_record_that_lay_somewhere_is_not_taken_for_a_round_that_opens() -> None:
    node = old_log()
    node.at = 5040.0
    restore(node)
    hear(node, 9, 5060.0, ahead_s=40.0)
    hear(node, 10, 5080.0, ahead_s=40.0, after_s=STAGE_S + 1.0)
    assert node.state.restored and node.state.floor == 11


def test_a_clock_that_is_set_meanwhile_only_delays_a_restored_node() -> None:
    for ahead_s in (-600.0, 40.0, 900.0):
        node = old_log()
        node.at = 5000.0
        restore(node)
        hear(node, 5, 5010.0, ahead_s=30.0)
        rounds = [hear(node, 6 + number, 5030.0 + 20.0 * number, ahead_s) for number in range(4)]
        assert rounds[-1] and ids(rounds[-1]) == ["gather/9/0"], ahead_s


def test_it_holds_for_the_lives_that_follow() -> None:
    node = old_log()
    restore(node)
    node.join()
    assert node.tell(announced(2)) == ()
    node.tell(announced(2), announced(3))
    node.join()
    assert node.tell(announced(3)) == ()
    assert ids(node.tell(announced(4))) == ["gather/4/0"]


def test_whoever_restores_may_know_a_later_round() -> None:
    node = old_log()
    restore(node, from_round=9)
    assert node.tell(announced(5)) == ()
    assert node.tell(announced(8)) == ()
    assert ids(node.tell(announced(9))) == ["gather/9/0"]


def test_a_swarm_that_has_ended_is_waited_for() -> None:
    node = old_log()
    restore(node)
    node.tell(announced(6, final=True))
    assert node.state.chart == "waiting"
    assert node.state.floor == 6


def coordinator() -> Story:
    """One that had opened round 1 when the backup was made."""
    node = Story(coordinator_settings(start_s=60.0))
    node.join()
    opened = [each for each in node.state.pending if isinstance(each, Announce)]
    assert [each.round for each in opened] == [0]
    return node


def announcements(node: Story) -> list[int]:
    return [each.round for each in node.state.pending if isinstance(each, Announce)]


def test_a_restored_coordinator_opens_a_round_behind_the_one_it_finds() -> None:
    node = coordinator()
    restore(node)
    node.tell(announced(7))
    node.wait("muster")
    assert node.state.coordination is not None
    assert node.state.coordination.round == 9, "the clock that it found may be old by one"


def test_a_restored_coordinator_whose_stage_is_over_since_long_opens_none_of_its_old_rounds() -> None:
    node = coordinator()
    node.at = 5000.0
    restore(node)
    node.tell(announced(7, deadline_at=4400.0, opened_at=4300.0))
    node.wait("muster")
    assert node.state.coordination is not None
    assert node.state.coordination.round == 9, "it announced round 7 after the backup, and 8 perhaps"


def test_a_restored_coordinator_that_finds_no_clock_opens_none_of_its_old_rounds() -> None:
    node = coordinator()
    restore(node)
    node.tell(NoRoundYet())
    assert node.state.coordination is not None and node.state.coordination.chart == "mustering"
    node.wait("muster")
    assert node.state.coordination.round == 1
    assert not node.state.restored
    node = coordinator()
    restore(node, from_round=30)
    node.wait("muster")
    assert node.state.coordination is not None and node.state.coordination.round == 30


def finish(node: Story, round: int) -> None:
    node.tell(gathered(round), trained(round), ReportPublished(f"report/{round}/0", round, 0))


def test_rounds_missed_while_stopped_are_no_fault() -> None:
    node = Story(settings())
    node.join()
    node.tell(announced(0))
    finish(node, 0)
    node.tell(StopRequested("signal 15"), WorkerExited("network", "stopped", code=0), NodeStopped("signal 15"))
    node.start()
    node.workers_run()
    node.tell(LinkUp(1), Registered("register"), TrainerReady("cpu", "tiny", 1), announced(5))
    assert node.recorded[-2] == RoundsSkipped(1, 4, "stopped")


def test_a_node_that_stopped_in_mid_stage_was_stopped_too() -> None:
    node = Story(settings())
    node.join()
    node.tell(announced(0), StopRequested("signal 15"), NodeStopped("signal 15"))
    node.join()
    node.tell(announced(2))
    assert node.recorded[-2] == RoundsSkipped(0, 1, "stopped")


def test_a_node_that_stopped_for_a_failure_was_not() -> None:
    node = Story(settings())
    node.join()
    node.tell(announced(0), StopRequested("no space", 73), NodeStopped("no space", 73))
    node.join()
    node.tell(announced(2))
    assert node.recorded[-2] == RoundsSkipped(0, 1, "fault")


def test_a_fault_before_the_stop_stays_the_cause() -> None:
    node = Story(settings())
    node.join()
    node.tell(announced(0), WorkerExited("trainer", "killed", signal=9))
    node.tell(StopRequested("signal 15"), NodeStopped("signal 15"))
    node.join()
    node.tell(announced(2))
    assert node.recorded[-2] == RoundsSkipped(0, 1, "fault")
