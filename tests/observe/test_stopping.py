"""Which moments a stop costs no round, by what the node and its swarm are at."""

import pytest
from msgspec.structs import replace

from swarmd.core.state import ChainState, Deadline, NetworkLink, StageResult, StageWork, State, Submission, Trainer
from swarmd.core.values import RolloutsRef, Settings
from swarmd.observe.stopping import find_safe_moment
from tests.observe.test_status import COORDINATION, LIVE, NOW, STATE

TRAINED = StageWork(5, 0, NOW - 50, True, result=StageResult(0.5, RolloutsRef("peer-me", 5, 0, "0" * 64, 1, 1), 20.0))
PUBLISHED = replace(TRAINED, published=True)
COORDINATOR = replace(
    STATE,
    chart="round.settling",
    work=PUBLISHED,
    trainer=Trainer("idle"),
    coordination=replace(COORDINATION, reported=1),
)
MEMBER = replace(COORDINATOR, settings=Settings("peer-me", "test", "follower", "b"), coordination=None)
SHARED = replace(COORDINATION, expected=2, reported=1)
REWARD = Submission("reward/5/0", "reward", "sent")
LONE = replace(COORDINATION, members=COORDINATION.members.without_peer("b"))

SAFE = [
    (MEMBER, "round 5 is done, and the next stage is not announced yet"),
    (replace(MEMBER, chart="waiting"), "at no stage"),
    (replace(MEMBER, chart="paused"), "at no stage"),
    (replace(MEMBER, chart="draining"), "stopping"),
    (replace(MEMBER, chart="syncing"), "at no stage"),
    (replace(COORDINATOR, coordination=SHARED), "the open stage still waits for 1 member, 1m 40s at most"),
    (replace(COORDINATOR, coordination=replace(COORDINATION, chart="mustering")), "no round is open yet"),
    (replace(STATE, coordination=LONE), "no other member is there"),
    (replace(MEMBER, chain=ChainState(), submissions=(replace(REWARD, chart="confirmed"),)), "round 5 is done"),
]
UNSAFE = [
    (replace(MEMBER, chart="round.gathering", work=StageWork(5, 0, NOW)), "round 5 is about to be trained"),
    (replace(MEMBER, chart="round.publishing", work=TRAINED), "the report of round 5 is not published yet"),
    (replace(MEMBER, chart="syncing", work=TRAINED), "the report of round 5 is not published yet"),
    (replace(MEMBER, chain=ChainState(), submissions=(REWARD,)), "reward/5/0 is on its way to the chain"),
    (STATE, "round 5 is being trained, and would be trained again; a restart has 1 other member wait"),
    (COORDINATOR, "this is the coordinator: 1 other member would wait for it to open the next stage"),
    (replace(COORDINATOR, coordination=SHARED, deadlines=()), "this is the coordinator"),
]


@pytest.mark.parametrize(("state", "why"), SAFE, ids=[why for _, why in SAFE])
def test_a_stop_costs_no_round(state: State, why: str) -> None:
    moment = find_safe_moment(state, NOW, LIVE)
    assert moment.now and moment.in_s == 0 and why in moment.why
    assert moment.why == find_safe_moment(replace(state, link=NetworkLink()), NOW, LIVE).why, "whatever the link is"


@pytest.mark.parametrize(("state", "why"), UNSAFE, ids=[why for _, why in UNSAFE])
def test_a_stop_costs_something(state: State, why: str) -> None:
    moment = find_safe_moment(state, NOW, LIVE)
    assert not moment.now and why in moment.why


def test_the_trainer_says_how_long_it_takes_still() -> None:
    assert find_safe_moment(STATE, NOW, LIVE).in_s == 31


def test_how_long_a_restart_may_take() -> None:
    """The next stage may open at once, and waits twice the 20 s that this node took, and a fiftieth of 150 s."""
    assert find_safe_moment(MEMBER, NOW, LIVE).back_within_s == 23
    waiting = replace(COORDINATOR, coordination=SHARED, deadlines=(Deadline("stage", NOW + 7),))
    assert find_safe_moment(waiting, NOW, LIVE).back_within_s == 7, "then the stage would close"


def test_a_checkpoint_that_is_written_is_waited_for() -> None:
    writing = replace(LIVE, writes_checkpoint=True)
    assert find_safe_moment(MEMBER, NOW, writing).why == "the checkpoint of the last stage is being written"
    killed = replace(MEMBER, trainer=Trainer("loading"))  # what the killed trainer left is removed when it is ready
    assert find_safe_moment(killed, NOW, writing).now
