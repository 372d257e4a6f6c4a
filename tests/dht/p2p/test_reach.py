"""What calls to absent or slow peers cost, over a real p2pd."""

import asyncio
import time
from pathlib import Path

import pytest

from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.hivemind_api import P2PDaemonError, PeerID
from swarmd.dht.store.lookup import PATIENCE_S, look_up_key
from swarmd.dht.store.parts import LATE_MAX
from swarmd.dht.wire import names
from tests.dht.making import SWARM
from tests.dht.outsider import Outsider
from tests.dht.p2p.conftest import Single, Start, pair

pytestmark = pytest.mark.anyio

PING = "DHTProtocol.rpc_ping"
SLOW_S = 2.0


async def call(node: Single, peer: str) -> str:
    """What p2pd, or who stands before it, says of a call to a peer that does not answer it."""
    with pytest.raises(P2PDaemonError) as failed:
        await node.run.p2p.control.call_unary_handler(PeerID.from_base58(peer), PING, b"")
    return str(failed.value)


async def test_whoever_was_not_there_is_not_searched_for_again_at_once(start: Start) -> None:
    one, _ = await pair(start)
    nobody = generate_identity().peer_id
    assert "lately" not in await call(one, nobody)
    assert "lately" in await call(one, nobody)


async def test_who_answers_slowly_time_after_time_keeps_no_read_waiting(start: Start, tmp_path: Path) -> None:
    one, _ = await pair(start)
    stranger = await Outsider(tmp_path / "o").open(await one.address())
    await stranger.pose_as_node()
    stranger.answers_after_s = SLOW_S
    took_s = []
    for number in range(LATE_MAX + 2):
        asked, began = stranger.asked, time.monotonic()
        found = await look_up_key(one.run, names.reports_key(SWARM, number, 0))
        took_s.append(time.monotonic() - began)
        assert found.answered and stranger.asked > asked, "it is asked like everybody"
        await asyncio.sleep(SLOW_S)
    await stranger.close()
    print("\nreads beside a slow peer: " + ", ".join(f"{each * 1e3:.0f} ms" for each in took_s))
    assert min(took_s[:LATE_MAX]) >= PATIENCE_S > took_s[-1]
