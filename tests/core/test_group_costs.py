"""How many groups come from peers follows from what groups cost, as the log has it."""

import pytest
from msgspec.structs import replace

from swarmd.core.commands import Command, Train
from swarmd.core.group_costs import MEASURED_MIN, choose_peer_questions, group_prices
from swarmd.core.state import GroupCosts
from swarmd.core.values import PeerSlots, TrainerTimes
from swarmd.observe.times import times_status
from tests.core.story import Story, announced, gathered, settings, trained
from tests.core.test_stage_times import reported

SLOTS = PeerSlots(questions=16, usual=4, at_most=14)
# of 16 groups each: drawing one takes 2.5 s, a peer's .5 s with 2 s of waiting for all, a pass .5 s
TIMES = TrainerTimes((("judge", 6.0), ("decode", 38.0), ("score", 2.0), ("forward", 6.0), ("backward", 10.0)))
COUNTED = replace(TIMES, own_groups=16, peer_groups=16, trained_groups=32)


def costs(own_s: float, peer_s: float, pass_s: float = 0.5) -> GroupCosts:
    """Ten groups of each kind, at these seconds each."""
    return GroupCosts(10.0, 10 * own_s, 10.0, 10 * peer_s, 20.0, 20 * pass_s)


@pytest.mark.parametrize(
    ("known", "chosen"),
    [
        (costs(2.5, 0.7), 10),  # at .4 of the price, 60 %
        (costs(2.5, 2.5), 1),  # at the same price just so many that it stays known
        (costs(2.5, 9.0), 1),
        (costs(90.0, 0.0), 14),  # never all
        (costs(0.0, 0.0, 0.0), 4),
        (replace(costs(2.5, 0.7), peer_groups=MEASURED_MIN - 1), 4),  # too little is known
        (GroupCosts(), 4),
    ],
)
def test_the_cheaper_peers_groups_are_the_more_of_them_are_taken(known: GroupCosts, chosen: int) -> None:
    assert choose_peer_questions(SLOTS, known) == chosen


def live(node: Story, round: int) -> Train:
    """A round whose rollouts come after 2 s; returns what the trainer was asked for."""
    node.tell(announced(round))
    node.at += 2.0
    (asked,) = (each for each in node.tell(gathered(round)) if isinstance(each, Train))
    node.at += 70.0
    node.tell(replace(trained(round), times=COUNTED), reported(round))
    return asked


def test_a_node_measures_chooses_and_says_so_and_a_replay_chooses_the_same() -> None:
    node = Story.joined(settings(peer_slots=SLOTS))
    orders = [live(node, round) for round in (1, 2, 3)]
    assert [each.peer_questions for each in orders] == [4, 11, 11]
    assert group_prices(node.state.group_costs) == (3.0, 1.0)
    node.tell(announced(4))
    told = times_status(node.state)
    assert told is not None
    assert told.peer_groups == (
        "A peer's group costs 0.33 of one drawn here (1 against 3 s), "
        "so 69% come from peers (11 of 16 groups of a step)"
    )
    again = Story(node.node)
    caused: list[Command] = []
    for applied in node.heard:
        again.at = applied.envelope.at
        caused += again.tell(applied.envelope.event)
    assert again.state == node.state
    assert [each.peer_questions for each in caused if isinstance(each, Train)] == [4, 11, 11]


def test_a_number_that_is_configured_stays() -> None:
    node = Story.joined(settings())
    assert [live(node, round).peer_questions for round in (1, 2)] == [0, 0]
    node.tell(announced(3))
    told = times_status(node.state)
    assert told is not None and not told.peer_groups


def test_a_stage_that_ends_late_counts_nothing() -> None:
    node = Story.joined(settings(peer_slots=SLOTS))
    live(node, 1)
    before = node.state.group_costs
    node.tell(announced(2), gathered(2))
    node.tell(replace(trained(1), times=COUNTED))
    assert node.state.group_costs == before
