"""The door of the network worker: who may have what of it, before it does anything for anybody.

Every call and stream of a peer passes here. What is over a bound is refused at little cost and counted under the name
of the bound; whoever goes on regardless is disconnected, which frees what p2pd holds for it.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.limits.budget import ConcurrencyBudget, Flow, PeerBounds, RemotePeer
from swarmd.dht.ports import PeerCheck, RefusalCounter
from swarmd.errors import RecordRejected

MIB = 1 << 20
REQUEST_BYTES_MAX = {  # of each call of hivemind's; honest ones have some 40 bytes, and a key is 20
    "DHTProtocol.rpc_ping": 1024,
    "DHTProtocol.rpc_find": 16 * 1024,
    "DHTProtocol.rpc_store": 4 * MIB,
}
ANSWER_BYTES_MAX = 3 * MIB + MIB // 2  # p2pd's frame has 4 MiB
CALLS = PeerBounds(64, 128, 256)  # at once
REQUESTS = PeerBounds(8 * MIB, 16 * MIB, 24 * MIB)  # bytes of calls that are being answered
ANSWERS = PeerBounds(8 * MIB, 12 * MIB, 16 * MIB)  # bytes of answers that p2pd has not taken yet
STREAMS = PeerBounds(4, 32, 64)  # open at once
CALLS_PER_S = PeerBounds(128, 1024, 2048)
BYTES_IN_PER_S = PeerBounds(MIB, 4 * MIB, 8 * MIB)
BYTES_OUT_PER_S = PeerBounds(2 * MIB, 8 * MIB, 16 * MIB)
PROCESSOR_PER_S = PeerBounds(0.1, 0.25, 0.5)  # seconds of one core
BURST_S = 8.0
STREAMS_PER_S = PeerBounds(8, 64, 128)

REFUSALS_S = 10.0
REFUSALS_MAX = 64  # of one peer within so many seconds; then it is disconnected
PLACES_MAX = 4096  # peers of whom the door remembers where they connect from
KNOWN_MAX = MEMBERS_MAX


class RequestLimits:
    """The bounds, and what is left of them.

    Args:
        count: told of every refusal: (peer, reason, detail).
        known: peers that the node knows beforehand: its members list, its coordinator, its bootstrap peers.

    Attributes:
        is_credited: has the swarm credited this peer? Then it is known, however many others were met since.
    """

    def __init__(self, count: RefusalCounter, known: Iterable[str] = ()) -> None:
        self._count = count
        self._listed = frozenset(known)
        self.is_credited: PeerCheck = lambda peer: False
        self._met: OrderedDict[str, None] = OrderedDict()
        self._places: OrderedDict[str, str] = OrderedDict()  # peer → address prefix
        self._refusals: Counter[str] = Counter()
        self._refusals_since = time.monotonic()
        self._served: OrderedDict[str, None] = OrderedDict()  # whose latest call was answered
        self.unwanted: set[str] = set()  # to be disconnected
        self.on_unwanted: Callable[[], object] = lambda: None  # called when there is one more
        self.connected: frozenset[str] = frozenset()  # when they were looked over last
        self.out: OrderedDict[str, float] = OrderedDict()  # until when a peer that was is kept out
        self.calls, self.requests, self.answers, self.streams = map(
            ConcurrencyBudget, (CALLS, REQUESTS, ANSWERS, STREAMS)
        )
        self.call_flow, self.stream_flow, self.bytes_in, self.bytes_out, self.processor = (
            Flow(bounds, BURST_S)
            for bounds in (CALLS_PER_S, STREAMS_PER_S, BYTES_IN_PER_S, BYTES_OUT_PER_S, PROCESSOR_PER_S)
        )

    def caller(self, peer: str, prefix: str = "") -> RemotePeer:
        """Who that is. Without `prefix`, whoever connected since the last look shares one with all such."""
        known = peer in self._listed or peer in self._met or self.is_credited(peer)
        return RemotePeer(peer, prefix or self._places.get(peer, ""), known)

    def is_served(self, peer: str) -> bool:
        """Does a peer call, and nothing of it was refused lately?"""
        return peer in self._served

    def lists(self, peer: str) -> bool:
        """Does the configuration name this peer?"""
        return peer in self._listed

    def meet(self, peer: str) -> None:
        """A peer has shown that it is one of the swarm."""
        self._met.pop(peer, None)
        self._met[peer] = None
        while len(self._met) > KNOWN_MAX:
            self._met.popitem(last=False)

    def place(self, peer: str, prefix: str) -> None:
        """Note where a peer connects from."""
        self._places.pop(peer, None)
        self._places[peer] = prefix
        while len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    def enter_call(self, caller: RemotePeer, proto: str, size_bytes: int) -> None:
        """A call begins; `leave_call` ends it. Raises RecordRejected, with the bound's name as the reason."""
        self._check_out(caller)
        if size_bytes > REQUEST_BYTES_MAX.get(proto, ANSWER_BYTES_MAX):
            raise self.refusal(caller.peer, "oversized", f"a call of {size_bytes} bytes to {proto}")
        if not self.call_flow.try_charge(caller):
            raise self.refusal(caller.peer, "calls", "too many calls a second")
        if not self.processor.has(caller):
            raise self.refusal(caller.peer, "processor", "its calls have used too much processor time")
        if not self.bytes_in.try_charge(caller, size_bytes):
            raise self.refusal(caller.peer, "bytes-in", "too many bytes a second")
        if not self.calls.try_acquire(caller):
            raise self.refusal(caller.peer, "calls", "too many calls at once")
        if not self.requests.try_acquire(caller, size_bytes):
            self.calls.give_back(caller)
            raise self.refusal(caller.peer, "bytes-in", "too many bytes in calls at once")

    def _check_out(self, caller: RemotePeer) -> None:
        if caller.peer in self.out:
            raise self.refusal(caller.peer, "out", "it was disconnected for what it did", weight=REFUSALS_MAX)

    def leave_call(self, caller: RemotePeer, size_bytes: int, processor_s: float) -> None:
        """A call ended, after so much processor time."""
        self.calls.give_back(caller)
        self.requests.give_back(caller, size_bytes)
        self.processor.charge(caller, processor_s)
        self._served[caller.peer] = None
        while len(self._served) > PLACES_MAX:
            self._served.popitem(last=False)

    def allow_answer(self, peer: str, size_bytes: int) -> None:
        """An answer of about so many bytes is about to be made. Raises RecordRejected."""
        caller = self.caller(peer)
        if size_bytes > ANSWER_BYTES_MAX:
            raise self.refusal(peer, "oversized", f"an answer would have {size_bytes} bytes; ask for fewer keys")
        if not self.bytes_out.has(caller, size_bytes) or self.answers.total + size_bytes > ANSWERS.all:
            raise self.refusal(peer, "bytes-out", "too many bytes of answers a second")

    def enter_answer(self, caller: RemotePeer, size_bytes: int) -> None:
        """An answer was made and waits for p2pd; `leave_answer` ends it. Raises RecordRejected."""
        if not self.answers.try_acquire(caller, size_bytes):
            raise self.refusal(caller.peer, "bytes-out", "too many bytes of answers wait for p2pd")
        self.bytes_out.charge(caller, size_bytes)

    def leave_answer(self, caller: RemotePeer, size_bytes: int) -> None:
        """Release an answer's share of the budget: p2pd has taken it."""
        self.answers.give_back(caller, size_bytes)

    def enter_stream(self, caller: RemotePeer) -> None:
        """A stream was opened; `leave_stream` ends it. Raises RecordRejected."""
        self._check_out(caller)
        if not self.stream_flow.try_charge(caller):
            raise self.refusal(caller.peer, "streams", "too many streams a second")
        if not self.streams.try_acquire(caller):
            raise self.refusal(caller.peer, "streams", "too many open streams")

    def leave_stream(self, caller: RemotePeer) -> None:
        """Release a closed stream's share of the budget."""
        self.streams.give_back(caller)

    def refusal(self, peer: str, reason: str, detail: str, weight: int = 1) -> RecordRejected:
        """Count a refusal; the error to answer it with. A peer that is refused again and again is not wanted.

        With a weight of 0 it is counted and no more: somebody else may be at fault.
        """
        self._count(peer, reason, detail)
        if not weight:
            return RecordRejected(reason, detail)
        self._served.pop(peer, None)
        now = time.monotonic()
        if now - self._refusals_since > REFUSALS_S or len(self._refusals) > PLACES_MAX:
            self._refusals_since = now
            self._refusals.clear()
        self._refusals[peer] += weight
        if self._refusals[peer] >= REFUSALS_MAX:
            del self._refusals[peer]
            self.unwanted.add(peer)
            self.on_unwanted()
        return RecordRejected(reason, detail)
