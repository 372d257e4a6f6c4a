"""The parts of a stage's time lie end to end, from joining it to joining the next."""

import pytest
from msgspec.structs import replace

from swarmd.core.events import LinkDown, LinkUp, ReportPublished, TrainerReady, WorkerExited, WorkerStarted
from swarmd.core.state import StageTimes
from swarmd.core.values import TrainerTimes
from tests.core.story import Story, announced, gathered, settings, trained

TRAINER = TrainerTimes((("decode", 20.0), ("score", 9.0)), processor_s=21.0)


def reported(round: int) -> ReportPublished:
    return ReportPublished(f"report/{round}/0", round, 0)


def at_round_one() -> Story:
    """A node that has just joined round 1, at 100 s, and has trained nothing before."""
    node = Story.joined(settings())
    node.at = 100.0
    node.tell(announced(1))
    return node


def test_the_parts_add_up_to_the_time_from_one_stage_to_the_next() -> None:
    node = at_round_one()
    node.at = 104.0
    node.tell(replace(gathered(1), missing=2))
    node.at = 134.0
    node.tell(replace(trained(1), times=TRAINER))
    node.at = 135.0
    node.tell(reported(1))
    assert node.state.last_times is None, "the stage goes on until the next one opens"
    node.at = 160.0
    node.tell(announced(2))
    parts = (("gather", 4.0), ("train", 30.0), ("publish", 1.0), ("wait", 25.0))
    assert node.state.last_times == StageTimes(1, 0, parts, 2, 104.0, True, TRAINER)
    assert node.state.stage_times == StageTimes(2, 0)


def test_time_without_a_trainer_or_a_connection_is_told_apart() -> None:
    node = at_round_one()
    node.tell(WorkerExited("trainer", "killed", signal=9))
    node.at = 103.0
    node.tell(LinkDown("p2pd ended"))
    node.at = 109.0
    node.tell(LinkUp(1))
    node.at = 110.0
    node.tell(gathered(1))
    node.at = 125.0
    node.tell(WorkerStarted("trainer", 13, 2), TrainerReady("cpu", "tiny", 1))
    node.at = 130.0
    node.tell(trained(1))
    node.at = 131.0
    node.tell(LinkDown("p2pd ended"))
    node.at = 140.0
    node.tell(announced(2))
    assert node.state.last_times is not None
    parts = dict(node.state.last_times.parts)
    assert parts == {"network": 18.0, "gather": 1.0, "load": 15.0, "train": 5.0, "publish": 1.0}
    assert sum(parts.values()) == pytest.approx(40.0)


def test_a_stage_that_was_not_trained_or_not_seen_whole_is_left_out() -> None:
    node = at_round_one()
    node.tell(gathered(1))
    node.at = 120.0
    node.start()
    node.workers_run()
    node.join_as_started()
    node.tell(announced(1), trained(1), reported(1), announced(2))
    assert node.state.last_times is None, "the node was down for a while"
    node.tell(announced(3))
    assert node.state.last_times is None, "nothing was trained"
