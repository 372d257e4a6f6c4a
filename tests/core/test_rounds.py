"""A follower's way through rounds, told event by event."""

import pytest

from swarmd.core.commands import Announce, Command, Gather, Train
from swarmd.core.events import (
    CommandFailed,
    Event,
    LinkDown,
    LinkUp,
    NodeStopped,
    NoRoundYet,
    Registered,
    ReportPublished,
    RoundAnnounced,
    RoundsSkipped,
    StopRequested,
    TimerFired,
    TrainerReady,
    TrainingCancelled,
    WorkerExited,
    WorkerStarted,
)
from swarmd.core.values import RolloutsRef, SkipCause
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


@pytest.fixture
def node() -> Story:
    return Story.joined(settings())


def test_first_round_needs_no_gathering(node: Story) -> None:
    assert node.state.chart == "syncing"
    node.tell(NoRoundYet())
    assert node.chart() == "waiting"
    assert ids(node.tell(announced(0))) == ["train/0/0"]
    assert node.chart() == "round.training"


def test_a_stage_from_announcement_to_settling(node: Story) -> None:
    peer = RolloutsRef("other", 3, 0, "a" * 64, 10, 2)
    assert ids(node.tell(announced(4))) == ["gather/4/0"]
    (train,) = node.tell(gathered(4, rollouts=(peer,)))
    assert isinstance(train, Train)
    assert train.rollouts == (peer,)
    assert ids(node.tell(trained(4, reward=0.25))) == ["report/4/0"]
    assert node.state.chart == "round.publishing"
    node.tell(ReportPublished("report/4/0", 4, 0))
    assert node.chart() == "round.settling"
    assert node.state.pending == ()
    assert node.state.reward_total == 0.25


def test_gathering_ends_at_its_deadline(node: Story) -> None:
    node.tell(announced(4))
    assert ids(node.wait("gather")) == ["train/4/0"]
    assert node.tell(gathered(4)) == ()


@pytest.mark.parametrize(
    ("known", "late"),
    [([announced(4)], announced(3)), ([announced(4), gathered(4)], TimerFired("gather", 5.0))],
    ids=["an older announcement", "a timer that no longer stands"],
)
def test_what_comes_too_late_changes_nothing(node: Story, known: list[Event], late: Event) -> None:
    node.tell(*known)
    before = node.state
    assert node.tell(late) == ()
    assert node.state == before


def test_a_later_deadline_for_the_same_stage_is_noted(node: Story) -> None:
    node.tell(announced(4, deadline_at=100))
    node.tell(announced(4, deadline_at=150))
    assert node.state.clock is not None
    assert node.state.clock.deadline_at == 150
    assert node.state.chart == "round.gathering"


def test_the_same_announcement_again_puts_the_next_look_behind_the_stage(node: Story) -> None:
    """After a start the clock is asked for, and the answer is the announcement that the log holds already."""
    node.tell(announced(4, deadline_at=500.0))
    node.join()
    node.tell(announced(4, deadline_at=500.0))
    clock = next(wait for wait in node.state.deadlines if wait.name == "clock")
    assert clock.due_at == 500.0 + node.node.clock_s


def test_a_late_joiner_records_what_it_missed(node: Story) -> None:
    node.tell(announced(6))
    assert node.recorded[-2] == RoundsSkipped(0, 5, "late")
    assert node.state.rounds_skipped == 6
    assert node.state.rounds_joined == 1


def test_a_slow_node_finishes_its_stage_and_skips(node: Story) -> None:
    node.tell(announced(0))
    assert node.tell(announced(1), announced(2), announced(3)) == ()
    assert ids(node.tell(trained(0))) == ["report/0/0"]
    assert ids(node.tell(ReportPublished("report/0/0", 0, 0))) == ["gather/3/0"]
    skips = [event for event in node.recorded if isinstance(event, RoundsSkipped)]
    assert skips == [RoundsSkipped(1, 2, "slow")]


def test_a_node_that_abandons_joins_the_newer_stage() -> None:
    node = Story.joined(settings(behind="abandon"))
    node.tell(announced(0))
    assert ids(node.tell(announced(2))) == ["cancel/0/0"]
    assert node.state.chart == "skipping"
    assert ids(node.tell(TrainingCancelled("train/0/0", 0, 0))) == ["gather/2/0"]
    assert node.recorded[-2] == RoundsSkipped(0, 1, "slow")


def test_a_trainer_that_ignores_cancelling_is_killed() -> None:
    node = Story.joined(settings(behind="abandon"))
    node.tell(announced(0), announced(1))
    assert ids(node.wait("cancel")) == ["kill/trainer/run1/1"]
    assert ids(node.tell(WorkerExited("trainer", "killed", signal=9))) == ["gather/1/0"]


def test_a_stage_trained_although_cancelled_is_kept() -> None:
    node = Story.joined(settings(behind="abandon"))
    node.tell(announced(0), announced(1))
    assert ids(node.tell(trained(0))) == ["report/0/0", "gather/1/0"]
    assert node.state.done == (0, 0)
    assert not [event for event in node.recorded if isinstance(event, RoundsSkipped)]


def test_a_restarted_trainer_gets_the_same_command(node: Story) -> None:
    (before,) = node.tell(announced(0))
    node.tell(WorkerExited("trainer", "killed", signal=9))
    node.wait("restart/trainer")
    node.tell(WorkerStarted("trainer", 13, 2))
    assert node.tell(TrainerReady("cpu", "tiny", 1)) == (before,)


def test_a_restarted_node_trains_the_same_stage(node: Story) -> None:
    node.tell(announced(2))
    (before,) = node.tell(gathered(2))
    node.join()
    assert node.state.chart == "syncing"
    assert node.tell(announced(2)) == (before,)


def test_a_restarted_node_does_not_train_twice(node: Story) -> None:
    node.tell(announced(0), trained(0))
    again = node.join()
    assert "report/0/0" in ids(again)
    assert node.tell(announced(0)) == ()
    assert node.state.chart == "round.publishing"
    node.tell(ReportPublished("report/0/0", 0, 0))
    assert node.tell(trained(0)) == ()
    assert node.state.reward_total == 0.5


def test_a_settled_stage_stays_settled_after_a_restart(node: Story) -> None:
    node.tell(announced(0))
    node.finish(0)
    node.join()
    assert node.tell(announced(0)) == ()
    assert node.state.chart == "round.settling"


def test_a_stage_half_trained_when_the_node_stopped_is_taken_up_again(node: Story) -> None:
    node.tell(announced(0))
    assert ids(node.tell(StopRequested("signal 15"))) == ["stop/run1"]
    node.tell(TrainingCancelled("train/0/0", 0, 0), NodeStopped("signal 15"))
    assert node.state.chart == "stopped"
    node.join()
    assert ids(node.tell(announced(0))) == ["train/0/0"]


def test_a_lost_link_sends_the_report_again(node: Story) -> None:
    node.tell(announced(0), LinkDown("p2pd died"))
    assert node.tell(trained(0)) == ()
    assert "report/0/0" in ids(node.tell(LinkUp(1)))


def test_an_unanswered_report_is_sent_again(node: Story) -> None:
    node.tell(announced(0), trained(0))
    assert ids(node.wait("publish")) == ["report/0/0"]
    assert "publish" in node.waits


def test_a_failed_command_is_sent_again(node: Story) -> None:
    node.tell(announced(3))
    assert node.tell(CommandFailed("gather/3/0", "timed out")) == ()
    assert ids(node.wait("retry/gather/3/0")) == ["gather/3/0"]


def test_a_stage_that_keeps_failing_is_given_up(node: Story) -> None:
    node.tell(announced(0))
    for _ in range(2):
        node.tell(CommandFailed("train/0/0", "out of memory"))
        assert ids(node.wait("retry/train/0/0")) == ["train/0/0"]
    node.tell(CommandFailed("train/0/0", "out of memory"))
    assert node.state.chart == "round.settling"
    node.tell(announced(1))
    assert node.recorded[-2] == RoundsSkipped(0, 0, "fault")


def test_training_ends_at_its_deadline(node: Story) -> None:
    node.tell(announced(0))
    assert ids(node.wait("train")) == ["cancel/0/0"]
    assert node.state.chart == "round.settling"


def test_a_stage_given_up_that_comes_to_its_end_is_trained_and_not_skipped(node: Story) -> None:
    node.tell(announced(0))
    node.wait("train")
    assert node.tell(announced(2)) == (), "the trainer is still at the stage, so nothing else is begun"
    assert ids(node.tell(trained(0))) == ["report/0/0", "gather/2/0"]
    assert [event for event in node.recorded if isinstance(event, RoundsSkipped)] == [RoundsSkipped(1, 1, "fault")]
    assert node.state.done == (0, 0) and node.state.rounds_joined == 2


@pytest.mark.parametrize(
    "end",
    [
        TrainingCancelled("train/0/0", 0, 0),
        CommandFailed("train/0/0", "out of memory"),
        WorkerExited("trainer", "killed", signal=9),
    ],
)
def test_a_stage_given_up_is_skipped_once_the_trainer_is_through_with_it(node: Story, end: Event) -> None:
    node.tell(announced(0))
    node.wait("train")
    node.tell(announced(1))
    assert "gather/1/0" in ids(node.tell(end))
    assert node.recorded[-2:] == [RoundsSkipped(0, 0, "fault"), end]


def test_the_swarm_ends_for_a_stage_given_up_when_its_trainer_is_through(node: Story) -> None:
    node.tell(announced(0))
    node.wait("train")
    node.tell(announced(1, final=True))
    assert node.state.chart == "round.settling"
    node.tell(trained(0))
    assert node.chart() == "waiting" and node.state.rounds_skipped == 0


def test_a_silent_clock_is_read_again(node: Story) -> None:
    node.tell(announced(0, deadline_at=50.0))
    commands = node.wait("clock")
    assert [command.id.split("/")[0] for command in commands] == ["clock"]
    assert "clock" in node.waits


def test_the_end_of_the_swarm_is_waited_out_and_may_be_extended(node: Story) -> None:
    node.tell(announced(0))
    node.finish(0)
    node.tell(announced(1, final=True))
    assert node.state.chart == "waiting"
    assert "clock" not in node.waits
    assert ids(node.tell(announced(1))) == ["gather/1/0"]


def test_nothing_happens_before_the_node_has_started() -> None:
    node = Story(settings())
    assert node.tell(announced(0), Registered("register")) == ()
    assert node.state.settings is None


def mine(round: int, stage: int) -> RolloutsRef:
    return RolloutsRef("me", round, stage, "d" * 64, 100, 4)


def test_later_stages_are_told_what_the_earlier_ones_gave() -> None:
    """With its own stage, and what the rollouts of the stage before were made of; down to the preceding round."""
    node = Story.joined(settings(stages=3))
    places = [(round, stage) for round in (4, 5) for stage in range(3)]
    place = {(round, stage): RolloutsRef("other", round, stage, "a" * 64, 10, 2) for round, stage in places}
    trains = []
    for round, stage in places:
        source = place.get((round, stage - 1) if stage else (round - 1, 2))
        node.tell(announced(round, stage))
        (train,) = node.tell(gathered(round, stage, () if source is None else (source,)))
        assert isinstance(train, Train)
        trains.append(train)
        node.tell(trained(round, stage), ReportPublished(f"report/{round}/{stage}", round, stage))
    assert trains[0].context == ()
    assert trains[1].rollouts == (place[4, 0],) and trains[1].context == (mine(4, 0),)
    assert trains[2].context == (mine(4, 0), place[4, 0], mine(4, 1))
    assert trains[3].context == (mine(4, 0), place[4, 0], mine(4, 1), place[4, 1], mine(4, 2))
    assert trains[5].context[-4:] == (place[4, 2], mine(5, 0), place[5, 0], mine(5, 1))


def test_a_swarm_of_one_stage_needs_no_context(node: Story) -> None:
    for round in (4, 5):
        node.tell(announced(round))
        (train,) = node.tell(gathered(round))
        assert isinstance(train, Train) and train.context == ()
        node.tell(trained(round), ReportPublished(f"report/{round}/0", round, 0))


def old_log(round: int = 2) -> Story:
    """A node that was at training a round when the backup was made."""
    node = Story.joined(settings())
    node.tell(announced(round), gathered(round))
    return node


@pytest.mark.parametrize(
    ("from_round", "first", "second", "trained"),
    [(0, 2, 3, 4), (0, 50, 51, 52), (9, 5, 8, 9)],
    ids=["where it was", "where the swarm went on", "whoever restores knows a later round"],
)
def test_the_round_after_the_first_that_opened_is_trained(
    from_round: int, first: int, second: int, trained: int
) -> None:
    node = old_log()
    node.restore(from_round)
    assert node.tell(announced(first)) == (), "it may have reported this round after the backup"
    assert node.state.chart == "waiting"
    assert node.tell(announced(second)) == (), "this one too: what it heard first may have been old"
    assert ids(node.tell(announced(trained))) == [f"gather/{trained}/0"]
    assert RoundsSkipped(2, trained - 1, "fault") in node.recorded


def test_a_later_stage_of_the_same_round_is_no_round_that_opened() -> None:
    node = old_log()
    node.restore()
    node.tell(announced(2), announced(2, stage=1))
    assert node.state.restored and node.state.floor == 3


def test_what_it_was_told_to_train_before_is_forgotten() -> None:
    node = old_log()
    assert any(isinstance(command, Train) for command in node.state.pending)
    node.restore()
    assert not any(isinstance(command, Train | Gather) for command in node.state.pending)


def test_the_contract_is_believed_at_once() -> None:
    node = Story.on_chain(chain_settings())
    node.restore()
    node.tell(WorkerStarted("chain", 13, 1), chain_up(round=5, head=2))
    assert node.state.chart == "waiting" and node.state.floor == 6 and not node.state.restored
    assert "gather/6/0" in ids(node.tell(chain_up(round=6, head=3)))


def test_an_announcement_whose_time_has_passed_settles_nothing() -> None:
    node = old_log()
    node.at = 500.0
    node.restore()
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
    node.restore()
    assert hear(node, 7, 5000.0, ahead_s, after_s=12.0) == (), "as it was found, half over"
    rounds = [hear(node, 8 + number, 5015.0 + 15.0 * number, ahead_s, after_s=0.1) for number in range(4)]
    assert not rounds[0], "this one may have been there when it came"
    assert rounds[-1] and ids(rounds[-1]) == ["gather/11/0"]
    assert not node.state.restored


def test_with_its_clock_ahead_no_heap_of_old_records_is_taken_for_rounds_that_open() -> None:
    node = old_log()
    node.at = 5040.0
    node.restore()
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
    node.restore()
    hear(node, 9, 5060.0, ahead_s=40.0)
    hear(node, 10, 5080.0, ahead_s=40.0, after_s=STAGE_S + 1.0)
    assert node.state.restored and node.state.floor == 11


def test_a_clock_that_is_set_meanwhile_only_delays_a_restored_node() -> None:
    for ahead_s in (-600.0, 40.0, 900.0):
        node = old_log()
        node.at = 5000.0
        node.restore()
        hear(node, 5, 5010.0, ahead_s=30.0)
        rounds = [hear(node, 6 + number, 5030.0 + 20.0 * number, ahead_s) for number in range(4)]
        assert rounds[-1] and ids(rounds[-1]) == ["gather/9/0"], ahead_s


def test_it_holds_for_the_lives_that_follow() -> None:
    node = old_log()
    node.restore()
    node.join()
    assert node.tell(announced(2)) == ()
    node.tell(announced(2), announced(3))
    node.join()
    assert node.tell(announced(3)) == ()
    assert ids(node.tell(announced(4))) == ["gather/4/0"]


def test_a_swarm_that_has_ended_is_waited_for() -> None:
    node = old_log()
    node.restore()
    node.tell(announced(6, final=True))
    assert node.state.chart == "waiting"
    assert node.state.floor == 6


def coordinator() -> Story:
    """One that had opened round 1 when the backup was made."""
    node = Story.joined(coordinator_settings(start_s=60.0))
    opened = [each for each in node.state.pending if isinstance(each, Announce)]
    assert [each.round for each in opened] == [0]
    return node


def announcements(node: Story) -> list[int]:
    return [each.round for each in node.state.pending if isinstance(each, Announce)]


@pytest.mark.parametrize(("at", "found"), [(0.0, announced(7)), (5000.0, announced(7, 0, 4400.0, opened_at=4300.0))])
def test_a_restored_coordinator_opens_a_round_behind_the_one_it_finds(at: float, found: RoundAnnounced) -> None:
    """It announced round 7 after the backup, and 8 perhaps: the clock that it found may be old by one."""
    node = coordinator()
    node.at = at
    node.restore()
    node.tell(found)
    node.wait("muster")
    assert node.state.coordination is not None
    assert node.state.coordination.round == 9


def test_a_restored_coordinator_that_finds_no_clock_opens_none_of_its_old_rounds() -> None:
    node = coordinator()
    node.restore()
    node.tell(NoRoundYet())
    assert node.state.coordination is not None and node.state.coordination.chart == "mustering"
    node.wait("muster")
    assert node.state.coordination.round == 1
    assert not node.state.restored
    node = coordinator()
    node.restore(from_round=30)
    node.wait("muster")
    assert node.state.coordination is not None and node.state.coordination.round == 30


STOP, STOPPED = StopRequested("signal 15"), NodeStopped("signal 15")


@pytest.mark.parametrize(
    ("ended", "cause"),
    [
        ([STOP, STOPPED], "stopped"),
        ([STOP, WorkerExited("network", "stopped", code=0), STOPPED], "stopped"),
        ([StopRequested("no space", 73), NodeStopped("no space", 73)], "fault"),
        ([WorkerExited("trainer", "killed", signal=9), STOP, STOPPED], "fault"),
    ],
    ids=["in mid stage", "workers ended with it", "for a failure", "after a fault"],
)
def test_rounds_missed_after_a_stop_have_its_cause(node: Story, ended: list[Event], cause: SkipCause) -> None:
    node.tell(announced(0), *ended)
    node.join()
    node.tell(announced(2))
    assert node.recorded[-2] == RoundsSkipped(0, 1, cause)


@pytest.mark.parametrize(("ended", "cause"), [([], "fault"), ([STOP, STOPPED], "stopped")])
def test_rounds_missed_while_stopped_are_not_a_fault_as_those_while_down_are(
    node: Story, ended: list[Event], cause: SkipCause
) -> None:
    node.tell(announced(0))
    node.finish(0)
    node.tell(*ended)
    node.join()
    node.tell(announced(5))
    assert node.recorded[-2] == RoundsSkipped(1, 4, cause)
