"""A network worker that has grown too large makes room for a fresh one, and that is no failure of the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.errors import EXIT_FOR_ROOM
from tests.dht.driver import Driver, processes_naming, until

pytestmark = pytest.mark.anyio


async def test_a_worker_above_its_mark_makes_room_and_leaves_no_p2pd(tmp_path: Path) -> None:
    victim = await Driver(tmp_path / "victim", memory_bytes_max=32 << 20).start()
    try:
        assert await victim.wait() == EXIT_FOR_ROOM
        fault = victim.faults[-1]
        assert not fault.permanent and "makes room" in fault.reason
        await until(lambda: not processes_naming(victim.paths.sockets))
    finally:
        await victim.clean()
