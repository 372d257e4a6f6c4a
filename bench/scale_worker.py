"""The network worker with what passes between it and its p2pd counted: `python -m bench.scale_worker`.

At each `Gather`, with which a round begins for a node, and at its end it appends what was counted so far to
`counts.jsonl` in the network's part of its data directory.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec

from swarmd.core.commands import Command, Gather
from swarmd.dht import worker
from swarmd.dht.agent import NetworkAgent
from swarmd.dht.p2p import body_streams
from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.p2p.p2pd import P2pDaemon
from swarmd.dht.p2p.p2pd_control import BoundedControl
from swarmd.dht.wire import names
from swarmd.paths import NodeDirectory
from swarmd.worker.child import Inbox, Outbox, run_worker
from swarmd.worker.messages import StartMessage

COUNTS_FILE = "counts.jsonl"
CALLS = {"rpc_find": dht_pb2.FindRequest, "rpc_store": dht_pb2.StoreRequest}
counts: Counter[str] = Counter()
kinds: dict[bytes, str] = {}  # of the keys that this process has named


class Counts(msgspec.Struct, frozen=True):
    """What was counted when a round began; the last one has no round. Names are those of `count_call`."""

    round: int
    counts: dict[str, int]


def read_counts(network: Path) -> dict[int, Counter[str]]:
    """What a node counted in each round that it has begun and ended."""
    lines = [msgspec.json.decode(line, type=Counts) for line in (network / COUNTS_FILE).read_bytes().splitlines()]
    return {one.round: Counter(other.counts) - Counter(one.counts) for one, other in pairwise(lines)}


def count_call(way: str, proto: str, data: bytes, answer_bytes: int) -> None:
    """Count an operation (`out find reports`) and its bytes (`bytes out find reports`): `out` are own, `in` others'."""
    call = proto.rpartition(".")[2]
    message = CALLS[call].FromString(data) if call in CALLS else None
    key = message.keys[0] if message is not None and message.keys else b""
    name = f"{way} {call.removeprefix('rpc_')} {kinds.get(key, 'places')}"
    counts[name] += 1
    counts[f"bytes {name}"] += len(data) + answer_bytes


def count_calls() -> None:
    """Count what this node asks others, and what others ask it."""
    call, add = BoundedControl.call_unary_handler, BoundedControl.add_unary_handler

    async def call_counted(self: Any, peer: Any, proto: str, data: bytes) -> bytes:
        came = b""
        try:
            came = await call(self, peer, proto, data)
            return bytes(came)
        finally:
            count_call("out", proto, data, len(came))

    def counted(proto: str, handler: Any) -> Any:
        async def handle(data: bytes, peer: Any) -> bytes:
            answered: bytes = await handler(data, peer)
            count_call("in", proto, data, len(answered))
            return answered

        return handle

    async def add_counted(self: Any, proto: str, handler: Any, *args: Any, **kwargs: Any) -> None:
        await add(self, proto, counted(proto, handler), *args, **kwargs)

    BoundedControl.call_unary_handler = call_counted  # type: ignore[assignment, method-assign]
    BoundedControl.add_unary_handler = add_counted


def count_gossip() -> None:
    """Count messages on topics, own ones once as they leave and once as they come back."""
    publish, subscribe = P2pDaemon.publish, P2pDaemon.subscribe

    async def publish_counted(self: P2pDaemon, topic: str, message: bytes) -> None:
        counts["out gossip"] += 1
        counts["bytes out gossip"] += len(message)
        await publish(self, topic, message)

    async def subscribe_counted(self: P2pDaemon, topic: str) -> Any:
        async for sender, message in subscribe(self, topic):
            counts["in gossip"] += 1
            counts["bytes in gossip"] += len(message)
            yield sender, message

    P2pDaemon.publish, P2pDaemon.subscribe = publish_counted, subscribe_counted  # type: ignore[method-assign]


def count_bodies() -> None:
    """Count bodies of rollouts and of leaderboards, fetched and given."""
    receive, send = body_streams._receive_body, body_streams.BodyServer._send_body

    async def receive_counted(reader: Any, size_bytes: int) -> bytes:
        body = await receive(reader, size_bytes)
        counts["out body"] += 1
        counts["bytes out body"] += len(body)
        return body

    async def send_counted(self: Any, caller: Any, digest: str, writer: Any) -> None:
        body = await self._read_body(digest)
        await send(self, caller, digest, writer)
        counts["in body"] += 1
        counts["bytes in body"] += len(body or b"")

    body_streams._receive_body, body_streams.BodyServer._send_body = receive_counted, send_counted  # type: ignore[assignment, method-assign]


def note_keys() -> None:
    """Remember what each key is for."""
    key_id = names.key_id

    def noted(name: str) -> bytes:
        key = key_id(name)
        if name.startswith("swarmd/"):
            kinds[key] = name.split("/")[2]
        return key

    names.key_id = noted  # type: ignore[assignment]


def count_rounds(network: Path) -> None:
    """Have the counts written at the begin of each round."""
    take = NetworkAgent.start_command

    def take_counted(self: Any, command: Command) -> None:
        if isinstance(command, Gather):
            append_counts(network, command.round)
        take(self, command)

    NetworkAgent.start_command = take_counted  # type: ignore[method-assign]


def append_counts(network: Path, round: int) -> None:
    with (network / COUNTS_FILE).open("ab") as file:
        file.write(msgspec.json.encode(Counts(round, dict(counts))) + b"\n")


async def main(start: StartMessage, outbox: Outbox, inbox: Inbox) -> None:
    """The network worker, counted."""
    network = NodeDirectory(Path(start.data_dir)).network
    for part in (note_keys, count_calls, count_gossip, count_bodies, lambda: count_rounds(network)):
        part()
    try:
        await worker.main(start, outbox, inbox)
    finally:
        append_counts(network, -1)


if __name__ == "__main__":
    anyio.run(run_worker, main, worker.confine_process)
