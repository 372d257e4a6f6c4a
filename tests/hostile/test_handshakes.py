"""Connections whose handshake nobody goes on with."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.dht.driver import until
from tests.hostile.attack import besieged, files_of

pytestmark = pytest.mark.anyio

FILES_MAX = 192


async def test_half_open_connections_at_the_limit_of_files_leave_p2pd_as_it_is(tmp_path: Path) -> None:
    async with besieged(tmp_path, files_max=FILES_MAX) as siege:
        p2pd, quiet = siege.victim.p2pd(), files_of(siege.victim.p2pd())
        port = int((await siege.victim.address()).split("/")[4])
        with ExitStack() as opened:
            for _ in range(FILES_MAX + 50):
                half = opened.enter_context(closing(socket.socket()))
                half.setblocking(False)
                half.connect_ex(("127.0.0.1", port))
            await until(lambda: b"little room is left" in siege.victim.errors)
            assert siege.victim.process.returncode is None
        await until(lambda: files_of(p2pd) <= quiet + 8)
        assert siege.victim.p2pd() == p2pd
        await siege.is_unharmed()
