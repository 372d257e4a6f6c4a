"""p2pd as a child process: what it says is read whatever it says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import anyio
import pytest

from swarmd.dht.p2p.p2pd import P2pDaemon

pytestmark = pytest.mark.anyio


async def test_a_line_without_an_end_does_not_keep_p2pds_words_from_being_read() -> None:
    said = asyncio.StreamReader(limit=1024)
    daemon, ready = P2pDaemon(), asyncio.get_running_loop().create_future()
    daemon._child, daemon._client_listen_maddr = SimpleNamespace(stdout=said, returncode=0), None
    reading = asyncio.ensure_future(daemon._read_outputs(ready))
    for part in (b"x" * 4096, b"x" * 4096, b"x\nPeer ID: me\nan error\n"):
        said.feed_data(part)
        await anyio.wait_all_tasks_blocked()
    said.feed_eof()
    await reading
    assert ready.done() and daemon.last_words() == "an error"
