"""What the network worker does if it or p2pd uses too much memory, and which peers it disconnects."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

import swarmd.dht.p2p.connections
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.connections import ConnectionLimiter
from swarmd.dht.p2p.limits import REFUSALS_MAX, PeerLimits
from swarmd.dht.p2p.memory_watch import (
    PATIENCE_S,
    MemoryThresholds,
    MemoryWatch,
    ProcessUsage,
)
from swarmd.errors import WorkerLimitExceeded

pytestmark = pytest.mark.anyio

MIB = 1 << 20

MARKS = MemoryThresholds(100 * MIB, 1000, 1000)

QUIET, PRESSED, OVER = (ProcessUsage(size * MIB, 10, 10) for size in (50, 80, 110))

P2PD = ProcessUsage(25 * MIB, 10), ProcessUsage(40 * MIB, 10), ProcessUsage(55 * MIB, 10)  # quiet, pressed, over


class Child:
    """p2pd."""

    pid = os.getpid()

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._child = self

    def kill(self) -> None:
        self.returncode = -9


class Scene:
    """A room, its p2pd, and how often strangers were disconnected."""

    def __init__(self) -> None:
        self.p2pd = Child()
        self.disconnected = 0
        node = SimpleNamespace(p2pd_run=SimpleNamespace(p2p=self.p2pd))
        self.room = MemoryWatch(cast(Any, node), MARKS, self._disconnect)

    async def _disconnect(self, run: Any, all_strangers: bool) -> int:
        self.disconnected += 1
        return 3


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the time that the room sees."""
    now = [0.0]
    monkeypatch.setattr(anyio, "current_time", lambda: now[0])
    return lambda at: now.__setitem__(0, at)


async def test_while_there_is_room_nobody_is_disconnected(scene: Scene) -> None:
    await scene.room.check_usage(QUIET, P2PD[0])
    assert scene.disconnected == 0


@pytest.mark.parametrize(("own", "p2pd"), [(PRESSED, P2PD[0]), (QUIET, P2PD[1])])
async def test_strangers_go_first_and_not_with_every_look(scene: Scene, own: ProcessUsage, p2pd: ProcessUsage) -> None:
    await scene.room.check_usage(own, p2pd)
    await scene.room.check_usage(own, p2pd)
    assert scene.disconnected == 1 and scene.p2pd.returncode is None


CHURN = """
import anyio
from types import SimpleNamespace
from swarmd.dht.p2p import memory_watch

async def main():
    memory_watch.TRIM_S = 0.0
    marks, nothing = memory_watch.MemoryThresholds(1 << 40, 10**6, 10**6), memory_watch.ProcessUsage()
    watch = memory_watch.MemoryWatch(SimpleNamespace(p2pd_run=None), marks, None)
    await watch.check_usage(watch.own_usage(), nothing)
    before = watch.own_usage().memory_bytes
    held = [bytearray(48 * 1024 if number % 2 else 1024) for number in range(2 * 1400)]
    del held[1::2]  # what is left lies between
    freed = watch.own_usage()
    await watch.check_usage(freed, nothing)
    print(before, freed.memory_bytes, watch.own_usage().memory_bytes)

anyio.run(main)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other C libraries give memory back by themselves")
def test_memory_that_was_freed_goes_back_to_the_machine() -> None:
    told = subprocess.run([sys.executable, "-c", CHURN], capture_output=True, text=True, check=True, timeout=60)
    before, freed, after = (int(each) / MIB for each in told.stdout.split())
    assert freed > before + 48, "the C library keeps it"
    assert after < before + 16


async def test_a_p2pd_that_stays_too_large_is_ended(scene: Scene, clock: Any) -> None:
    await scene.room.check_usage(QUIET, P2PD[2])
    assert scene.p2pd.returncode is None
    clock(PATIENCE_S)
    await scene.room.check_usage(QUIET, P2PD[2])
    assert scene.p2pd.returncode == -9


async def test_a_worker_that_stays_too_large_makes_room(scene: Scene, clock: Any) -> None:
    await scene.room.check_usage(OVER, P2PD[0])
    clock(PATIENCE_S)
    with pytest.raises(WorkerLimitExceeded, match="110 MiB"):
        await scene.room.check_usage(OVER, P2PD[0])


@pytest.mark.parametrize("usage", [ProcessUsage(1, 2000, 10), ProcessUsage(1, 10, 2000)])
async def test_files_and_tasks_count_like_memory(scene: Scene, usage: ProcessUsage) -> None:
    with pytest.raises(WorkerLimitExceeded):
        await scene.room.check_usage(usage, P2PD[0])


def connections(known: tuple[str, ...] = (), connections_max: int = 8) -> ConnectionLimiter:
    peer_limits = PeerLimits(known=known)
    return ConnectionLimiter(cast(Any, SimpleNamespace(attendants=[])), peer_limits, connections_max)


def test_connections_of_one_address_get_half() -> None:
    places = [(f"s{number}", "10.0.0.1") for number in range(6)]
    assert len(connections().find_surplus_peers(places)) == 2
    assert connections().find_surplus_peers([(peer, peer) for peer, _ in places]) == []


def test_known_peers_stay_connected() -> None:
    places = [(f"s{number}", "10.0.0.1") for number in range(6)] + [("friend", "10.0.0.1")]
    surplus = connections(("friend",)).find_surplus_peers(places)
    assert len(surplus) == 3 and "friend" not in surplus


async def test_whoever_is_no_longer_wanted_is_disconnected_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarmd.dht.p2p.connections, "LOOK_S", 3600.0)
    peer_limits, peer, gone = PeerLimits(), generate_identity().peer_id, anyio.Event()

    async def places() -> list[tuple[str, str]]:
        return []

    async def disconnect(whom: Any) -> None:
        assert whom.to_base58() == peer
        gone.set()

    control = SimpleNamespace(list_connections=places, disconnect=disconnect)
    watching = ConnectionLimiter(cast(Any, SimpleNamespace(attendants=[])), peer_limits, 8)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watching.watch, cast(Any, SimpleNamespace(p2p=SimpleNamespace(control=control))))
        await anyio.sleep(0.1)
        peer_limits.count_refusal(peer, "calls", "too many", weight=REFUSALS_MAX)
        with anyio.fail_after(30.0):
            await gone.wait()
        assert peer_limits.out.keys() == {peer}
        tasks.cancel_scope.cancel()
