"""Hints and clocks that peers gossip, and crowds that talk without end."""

from __future__ import annotations

import time
from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from swarmd.dht.gossip import ALL, HINT_BYTES_MAX, ClockGossip, Hint, HintGossip
from swarmd.dht.limits import HINTS, REFUSALS_MAX, RequestLimits
from swarmd.dht.ports import Record
from swarmd.dht.wire.records import sign
from swarmd.errors import RecordRejected
from swarmd.worker.runtime import LoopRuntime
from tests.dht.making import ALICE, CLOCK, COORDINATOR
from tests.dht.pubsub.topic import Topic

pytestmark = pytest.mark.anyio

SENT = 4 * (REFUSALS_MAX + int(HINTS.burst))

HINT = msgspec.msgpack.encode(Hint("report", "key", 60.0, "alice"))


class HintListener:
    """A node that hears hints."""

    def __init__(self) -> None:
        self.topic, self.refused, self.hints = Topic(), list[str](), list[str]()
        self.door = RequestLimits(lambda peer, reason, detail: self.refused.append(reason))
        everybody = lambda peer: True  # noqa: E731
        hinted = lambda key, owner, expiration: self.hints.append(owner)  # noqa: E731
        HintGossip(self.topic, self.door, "me", everybody, everybody, hinted)  # type: ignore[arg-type]

    def hear(self, message: bytes, times: int) -> None:
        for _ in range(times):
            self.topic.take("alice", message)


def test_a_peer_whose_hints_somebody_repeats_is_not_disconnected_for_it() -> None:
    listener = HintListener()
    listener.door.leave_call(listener.door.caller("alice"), 0, 0.0)
    listener.hear(HINT, SENT)
    assert len(listener.hints) < 2 * HINTS.burst and set(listener.refused) == {"hints"}
    assert not listener.door.unwanted and listener.door.is_served("alice")


def test_whoever_writes_what_is_no_hint_is_disconnected() -> None:
    listener = HintListener()
    listener.hear(b"x" * (HINT_BYTES_MAX + 1), REFUSALS_MAX)
    assert listener.refused == ["oversized"] * REFUSALS_MAX and not listener.hints
    assert listener.door.unwanted == {"alice"}


class ClockListener:
    """A follower that has credited the coordinator, and Alice."""

    def __init__(self) -> None:
        self.topic, self.heard, self.refused = Topic(), list[Record](), list[tuple[str, str]]()
        known = {COORDINATOR.peer_id, ALICE.peer_id}
        ClockGossip(
            self.topic,  # type: ignore[arg-type]
            self._hear,
            lambda sender, reason, detail: self.refused.append((sender, reason)),
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
    listener = ClockListener()
    noise = sign(ALICE, CLOCK, time.time() + 60).encode()
    for number in range(2 * int(ALL.burst)):
        listener.topic.take(f"stranger-{number}", noise)
    listener.topic.take(COORDINATOR.peer_id, clock(0))
    listener.topic.take(ALICE.peer_id, clock(1))
    assert len(listener.heard) == 2
    assert {reason for _, reason in listener.refused} == {"not-the-coordinator", "quota"}
