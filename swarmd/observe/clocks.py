"""Estimate the offsets between several machines' clocks from the messages between them. Pure.

- A message arrives after it was sent. With `o` the correction of a clock (true time = its time + o), a message from `a`
  to `b` says `o[a] - o[b] <= received - sent`. Such bounds form a graph, in which the shortest path between two clocks
  is the tightest bound that all messages together imply.
- Some corrections satisfy all bounds unless the graph has a negative cycle, which means that a clock was set between
  two messages. Then all bounds are loosened by the same `slack_s`.
- A correction is 0 if the bounds allow it, else the middle of its bounds, or the only bound if there is just one.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

SLACK_FIRST_S = 0.1  # doubled until the bounds can be satisfied
ROUNDING_S = 1e-6  # tolerance for rounding in sums of times


class Message(NamedTuple):
    """An event at the sender that caused one at the receiver; times in POSIX seconds, each by its own node's clock."""

    sender: int
    sent_at: float
    receiver: int
    received_at: float


class Clocks(NamedTuple):
    """Corrections of clocks.

    Attributes:
        corrections: seconds to add to each clock's time; the first is 0.
        bounds: `bounds[a][b]` is the most that the correction of `a` can exceed that of `b`, in seconds.
        slack_s: by how much the bounds were loosened because steady clocks could not satisfy them; 0 if they could.
    """

    corrections: list[float]
    bounds: list[list[float]]
    slack_s: float

    def doubt_s(self, clock: int) -> float:
        """Half the width of the interval that the messages leave for a clock's correction, in seconds; infinite if
        one-sided."""
        return (self.bounds[clock][0] + self.bounds[0][clock]) / 2

    def gap_s(self, first: int, first_at: float, second: int, second_at: float) -> tuple[float, float]:
        """The least and the longest time that may lie between an event by clock `first` and one by clock `second`, in
        seconds."""
        apart_s = second_at - first_at
        return apart_s - self.bounds[first][second], apart_s + self.bounds[second][first]


def fit_clocks(clocks: int, messages: Iterable[Message]) -> Clocks:
    """Fit corrections of `clocks` clocks so that no message arrives before it was sent."""
    least = [[0.0 if a == b else math.inf for b in range(clocks)] for a in range(clocks)]
    for sender, sent_at, receiver, received_at in messages:
        if sender != receiver:
            least[sender][receiver] = min(least[sender][receiver], received_at - sent_at)
    slack_s = 0.0
    while (bounds := _shortest([[each + slack_s for each in row] for row in least])) is None:
        slack_s = max(2 * slack_s, SLACK_FIRST_S)
    corrections = [0.0] * clocks
    chosen = [list(row) for row in bounds]
    for clock in range(1, clocks):
        corrections[clock] = _choose(-chosen[0][clock], chosen[clock][0])
        _pin(chosen, clock, corrections[clock])
    return Clocks(corrections, bounds, slack_s)


def _shortest(bounds: list[list[float]]) -> list[list[float]] | None:
    """Shortest paths between all nodes (Floyd and Warshall); None if a cycle is negative."""
    nodes = range(len(bounds))
    for node in nodes:
        bounds[node][node] = 0.0
    for via in nodes:
        for a in nodes:
            to_via = bounds[a][via]
            if to_via < math.inf:
                bounds[a] = [min(each, to_via + rest) for each, rest in zip(bounds[a], bounds[via], strict=True)]
        if any(bounds[node][node] < -ROUNDING_S for node in nodes):
            return None
    return bounds


def _choose(lowest: float, highest: float) -> float:
    if lowest <= 0.0 <= highest:
        return 0.0
    if math.isinf(lowest) or math.isinf(highest):
        return lowest if math.isinf(highest) else highest
    return (lowest + highest) / 2


def _pin(bounds: list[list[float]], node: int, correction: float) -> None:
    """Fix the correction of a node against the first's, and tighten all other bounds accordingly."""
    for a, b, length in ((node, 0, correction), (0, node, -correction)):
        for row in bounds:
            to_edge = row[a] + length
            if to_edge < math.inf:
                row[:] = [min(each, to_edge + rest) for each, rest in zip(row, bounds[b], strict=True)]
