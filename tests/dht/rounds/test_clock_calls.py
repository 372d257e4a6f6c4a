"""When a follower asks whether its coordinator itself answers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from swarmd.config import DhtConfig
from swarmd.dht.members.coordinator_contact import SILENT_S, CoordinatorContact
from swarmd.dht.network_session import NetworkSession
from swarmd.dht.rounds.clock import CALL_EVERY_S, SwarmClock
from swarmd.dht.store.announced_shards import AnnouncedShards
from swarmd.sim.coroutines import VirtualRuntime

COORDINATOR = "12D3KooWcoordinator"


class AnsweringRecords:
    """A network in which the coordinator answers until it is cut off."""

    def __init__(self, now: Callable[[], float], cut_off_at: float) -> None:
        self._now = now
        self._cut_off_at = cut_off_at
        self.asked_at: list[float] = []

    async def answers(self, peer: str) -> bool:
        assert peer == COORDINATOR
        self.asked_at.append(self._now())
        return self._now() < self._cut_off_at


def test_a_follower_that_is_cut_off_soon_after_its_start_says_so_within_a_short_stage() -> None:
    at, cut_off_at, stage_s = 0.0, 4.0, 60.0
    waiting: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
    runtime = VirtualRuntime(lambda s, act, *args: waiting.append((at + s, act, args)), lambda: at, lambda: at)
    records = AnsweringRecords(lambda: at, cut_off_at)
    hearing = CoordinatorContact(True, runtime.time, runtime.now)
    hearing.announced(deadline_at=cut_off_at + stage_s, final=False)
    session = SimpleNamespace(
        swarm="s", coordinator=COORDINATOR, coordinating=False, runtime=runtime, records=records, hearing=hearing,
        exchange=SimpleNamespace(), members=3, config=SimpleNamespace(dht=DhtConfig()), shards=AnnouncedShards(False),
        watch=lambda *_: SimpleNamespace(poll_s=1.0), start=lambda task: runtime.start(task()),
    )  # fmt: skip
    SwarmClock(cast(NetworkSession, session)).follow()
    while at < cut_off_at + SILENT_S:
        at, act, args = waiting.pop(0)
        act(*args)
    assert min(records.asked_at) < cut_off_at
    assert all(b - a <= CALL_EVERY_S for a, b in zip(records.asked_at, records.asked_at[1:], strict=False))
    assert "nothing was heard of the coordinator" in hearing.isolation(peers=3)
