"""A DHT node whose clock is set off: late_node.py SECONDS. Prints its address; ends when its stdin does."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from swarmd.dht.p2p.hivemind_api import DHTNode, protocol_module
from swarmd.dht.p2p.p2pd import SocketDirectory

OFFSET_S = float(sys.argv[1])


async def main() -> None:
    protocol_module.get_dht_time = lambda: time.time() + OFFSET_S
    with tempfile.TemporaryDirectory() as place:
        sockets = SocketDirectory(Path(place))
        sockets.open()
        p2p = await sockets.daemon_class().create(
            host_maddrs=["/ip4/127.0.0.1/tcp/0"], check_if_identity_free=False, nat_port_map=False, startup_timeout=60
        )
        node = await DHTNode.create(p2p=p2p)
        print((await p2p.get_visible_maddrs(latest=True))[0], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await node.shutdown()
        await p2p.shutdown()


asyncio.run(main())
