"""Dials nodes as a passing client, in a process of its own: `python -m swarmd.doctor.network.dial` < addresses >
outcomes.

A p2pd of its own with a throw-away identity, that listens nowhere: nothing is registered, no record is written, and the
node's own identity is not touched. What it asks is hivemind's ping, whose answer tells the peer's clock.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from swarmd.dht.addresses import split_address
from swarmd.dht.p2p.multiaddrs import tcp_place

CONNECT_S = 4.0  # TCP
DIAL_S = 8.0  # libp2p's handshake and the ping, together
PINGS = 3  # the quickest is the most exact
ADDRESSES_MAX = 16
REASON_LENGTH_MAX = 300


class DialResult(msgspec.Struct, frozen=True):
    """What came of dialling one address. Seconds.

    Attributes:
        tcp: somebody accepts connections there; None where it is not plain TCP.
        peer: the peer with that id answered.
        skew_s: its clock minus ours, None where it did not say; known to within half the round trip.
    """

    address: str
    tcp: bool | None = None
    peer: bool = False
    rtt_s: float = 0.0
    skew_s: float | None = None
    reason: str = ""


def main() -> int:
    """Answer on standard output, whatever the libraries print there."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    addresses = msgspec.json.decode(sys.stdin.buffer.read(), type=list[str])
    with out:
        out.write(msgspec.json.encode(asyncio.run(dial_all(addresses[:ADDRESSES_MAX]))))
    return 0


async def dial_all(addresses: list[str]) -> list[DialResult]:
    """Dial each: TCP first, which tells more when it fails, then as a peer."""
    reached = await asyncio.gather(*(_try_tcp(address) for address in addresses))
    if all(each.reason for each in reached):
        return list(reached)
    with tempfile.TemporaryDirectory(prefix="swarmd-doctor-") as place:
        return await _dial_peers(list(reached), Path(place))


async def _try_tcp(address: str) -> DialResult:
    place = tcp_place(split_address(address)[0])
    if place is None:
        return DialResult(address)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(*place)
    except TimeoutError:
        return DialResult(
            address, tcp=False, reason=f"no answer from {place[0]} port {place[1]} within {CONNECT_S:g} s"
        )
    except OSError as error:
        return DialResult(address, tcp=False, reason=_word_for(error))
    except UnicodeError:
        return DialResult(address, tcp=False, reason="no host can have such a name")
    writer.close()
    return DialResult(address, tcp=True)


async def _dial_peers(reached: list[DialResult], place: Path) -> list[DialResult]:
    from swarmd.dht.p2p.p2pd import START_S, SocketDirectory

    sockets = SocketDirectory(place)
    sockets.open()
    kind = sockets.daemon_class()
    p2p = await kind.create(
        host_maddrs=[], dht_mode="client", no_listen=True, check_if_identity_free=False, startup_timeout=START_S
    )
    try:
        return list(await asyncio.gather(*(_meet(p2p, each) for each in reached)))
    finally:
        await p2p.shutdown()
        sockets.close()


async def _meet(p2p: Any, reached: DialResult) -> DialResult:
    """Connect as a peer and ask for its time."""
    from swarmd.dht.p2p.hivemind_api import Multiaddr, P2PDaemonError, PeerID

    if reached.reason:
        return reached
    place, peer = split_address(reached.address)
    try:
        async with asyncio.timeout(DIAL_S):
            await p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(place)])
            rtt_s, skew_s = await _ask_time(p2p, PeerID.from_base58(peer))
    except TimeoutError:
        return msgspec.structs.replace(reached, reason=f"it does not answer as a peer within {DIAL_S:g} s")
    except (P2PDaemonError, OSError, EOFError, ValueError) as error:
        return msgspec.structs.replace(reached, reason=str(error)[:REASON_LENGTH_MAX] or type(error).__name__)
    return msgspec.structs.replace(reached, peer=True, rtt_s=rtt_s, skew_s=skew_s)


async def _ask_time(p2p: Any, peer: Any) -> tuple[float, float | None]:
    """(round trip, peer's clock minus ours) of the quickest of some pings; no clock where it does not ping back."""
    from swarmd.dht.p2p.hivemind_api import P2PDaemonError, P2PHandlerError, dht_pb2, protocol_module

    best: tuple[float, float | None] = (float("inf"), None)
    kind = protocol_module.DHTProtocol
    for _ in range(PINGS):
        asked_at = time.time()
        try:
            stub = super(kind, kind).get_stub(p2p, peer)  # its own needs a whole node
            answer = await stub.rpc_ping(dht_pb2.PingRequest(peer=dht_pb2.NodeInfo()), timeout=DIAL_S)
        except (P2PDaemonError, P2PHandlerError):
            return (0.0, None) if best[1] is None else best
        rtt_s = time.time() - asked_at
        if rtt_s < best[0]:
            best = (rtt_s, answer.dht_time - (asked_at + rtt_s / 2) if answer.dht_time else None)
    return best


def _word_for(error: OSError) -> str:
    return error.strerror or str(error)[:REASON_LENGTH_MAX]


if __name__ == "__main__":
    sys.exit(main())
