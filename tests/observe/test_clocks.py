"""How far clocks are apart, from messages."""

import math

from hypothesis import given
from hypothesis import strategies as st

from swarmd.observe.clocks import Message, fit_clocks

SKEWS = st.lists(st.floats(-300.0, 300.0), min_size=2, max_size=5)
MESSAGES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.floats(0.0, 9e3), st.floats(0.01, 30.0)))


@given(SKEWS, MESSAGES)
def test_no_message_arrives_before_it_was_sent(skews: list[float], drawn: list[tuple[int, int, float, float]]) -> None:
    nodes = len(skews)
    messages = [
        Message(a % nodes, sent_at + skews[a % nodes], b % nodes, sent_at + took_s + skews[b % nodes])
        for a, b, sent_at, took_s in drawn
    ]
    clocks = fit_clocks(nodes, messages)
    assert clocks.slack_s == 0.0
    for a, sent_at, b, received_at in messages:
        gap_s = received_at + clocks.corrections[b] - sent_at - clocks.corrections[a]
        assert gap_s >= -1e-6
        least_s, most_s = clocks.gap_s(a, sent_at, b, received_at)
        assert least_s - 1e-6 <= gap_s <= most_s + 1e-6


def test_a_skew_of_five_minutes_is_found_as_closely_as_messages_were_quick() -> None:
    there, back = Message(0, 1000.0, 1, 1300.1), Message(1, 1310.0, 0, 1010.1)
    clocks = fit_clocks(2, [there, back])
    assert abs(clocks.corrections[1] + 300.0) < 0.05 and abs(clocks.doubt_s(1) - 0.1) < 1e-6


def test_clocks_that_may_be_right_are_left_alone() -> None:
    clocks = fit_clocks(3, [Message(0, 1.0, 1, 3.0), Message(1, 5.0, 0, 5.5)])
    assert clocks.corrections == [0.0, 0.0, 0.0] and math.isinf(clocks.doubt_s(2))


def test_a_clock_that_is_bounded_on_one_side_is_moved_only_as_far_as_it_must() -> None:
    assert fit_clocks(2, [Message(0, 100.0, 1, 40.0)]).corrections == [0.0, 60.0]


def test_a_clock_that_was_set_in_between_loosens_all_bounds_and_is_told() -> None:
    messages = [Message(0, 100.0, 1, 100.1), Message(1, 101.0, 0, 101.1), Message(0, 200.0, 1, 195.0)]
    clocks = fit_clocks(2, messages)
    assert 2.4 <= clocks.slack_s <= 7.0
