"""The clock's record by gossip: strangers may carry it, and cannot drown it."""

from __future__ import annotations

import time
from random import Random

import pytest
from msgspec.structs import replace

from swarmd.dht.ports import Record
from swarmd.dht.pubsub.clock_gossip import ALL, ClockGossip
from swarmd.dht.wire.records import sign
from swarmd.errors import RecordRejected
from swarmd.worker.runtime import LoopRuntime
from tests.dht.making import ALICE, CLOCK, COORDINATOR
from tests.dht.pubsub.topic import Topic

pytestmark = pytest.mark.anyio


class Listener:
    """A follower that has credited the coordinator, and Alice."""

    def __init__(self) -> None:
        self.topic, self.heard, self.refused = Topic(), list[Record](), list[tuple[str, str]]()
        known = {COORDINATOR.peer_id, ALICE.peer_id}
        ClockGossip(
            self.topic,  # type: ignore[arg-type]
            self._hear,
            lambda sender, error: self.refused.append((sender, error.reason)),
            known.__contains__,
            LoopRuntime(),
            Random(1),
        )

    def _hear(self, record: Record) -> None:
        if record.owner != COORDINATOR.peer_id:
            raise RecordRejected("not-the-coordinator", record.owner)
        self.heard.append(record)


def clock(stage: int = 0) -> bytes:
    return sign(COORDINATOR, replace(CLOCK, stage=stage), time.time() + 60 + stage).encode()


async def test_a_crowd_that_talks_without_end_does_not_drown_the_coordinator_or_members() -> None:
    listener = Listener()
    noise = sign(ALICE, CLOCK, time.time() + 60).encode()
    for number in range(2 * int(ALL.burst)):
        listener.topic.take(f"stranger-{number}", noise)
    listener.topic.take(COORDINATOR.peer_id, clock(0))
    listener.topic.take(ALICE.peer_id, clock(1))
    assert len(listener.heard) == 2
    assert {reason for _, reason in listener.refused} == {"not-the-coordinator", "quota"}
