"""What senders may say on a gossip topic: a crowd leaves room to those that the swarm knows."""

from __future__ import annotations

import pytest

from swarmd.dht.limits.gossip_limits import RESERVE, GossipLimits, Rate
from swarmd.errors import RecordRejected


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def said(limits: GossipLimits, senders: list[str], known: bool = False) -> int:
    """How many of these messages are taken."""
    taken = 0
    for sender in senders:
        try:
            limits.charge(sender, known)
        except RecordRejected as error:
            assert error.reason == "quota"
        else:
            taken += 1
    return taken


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_a_crowd_leaves_a_reserve_to_those_that_are_known(seconds: float) -> None:
    clock = Clock()
    limits = GossipLimits(Rate(4.0, 1.0), Rate(40.0, 2.0), clock)
    crowd = [f"stranger-{number % 100}" for number in range(400)]
    assert said(limits, crowd) == 40 * (1 - RESERVE)
    clock.now += seconds
    said(limits, crowd)
    assert said(limits, ["member"] * 5, known=True) == 4, "one sender's bound holds for members too"
    assert said(limits, crowd) == 0, "what comes back is members' first"
