"""Limits on what peers may ask of this node. Does not import hivemind.

- `PeerLimits` checks every call and stream of a peer before the node does any work for it. A request that exceeds a
  bound is refused at little cost and counted under the bound's name. A peer that continues regardless is disconnected,
  which frees what p2pd holds for it.
- A peer id costs nothing and an address costs a little. So each bound has three levels: per peer, per address prefix,
  and in total. One prefix gets at most half of the total, and a quarter of the total is reserved for peers that this
  node knows. `ConcurrencyBudget` bounds what is held at once, `RateBudget` what is used over time.
- `GossipLimits` bounds the messages of a topic that are checked, each of which costs signature checks.
- `RejectionCounter` counts refusals and reports them at a bounded rate: a flood of bad records is not a flood of
  events.
- `UnreachablePeers` backs off from peers that could not be reached: p2pd searches for a peer that it is not connected
  to for as long as the caller waits.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cachetools import FIFOCache

from swarmd.bounds import RateLimiter
from swarmd.core.events import RecordsRejected
from swarmd.core.state import MEMBERS_MAX
from swarmd.errors import RecordRejected
from swarmd.logger import get_logger
from swarmd.worker.runtime import TimeSource

PeerCheck = Callable[[str], bool]  # a test of a peer id, such as: is it credited, is it admitted
RefusalCounter = Callable[[str, str, str], None]  # counts a refusal: peer, reason (the bound's name), detail

RESERVE = 0.25  # share of the total that only known peers may use
ALL = ""

REFUSALS_S = 10.0
REFUSALS_MAX = 64  # refusals of one peer within `REFUSALS_S` before it is disconnected
PLACES_MAX = 4096  # peers whose address prefix is remembered
KNOWN_MAX = MEMBERS_MAX
OUT_MAX = 4096  # disconnected peers that may not connect again yet

COUNTERS_MAX = 256  # distinct (peer, reason) pairs; the rest is counted without a peer
REPEAT_S = 60.0  # between two events with the same peer and reason
NAMED_BURST, NAMED_PER_S = 32.0, 0.5  # events that name a peer: ids cost nothing, and the log keeps every event

REST = 10.0  # back-off in multiples of a failed call's duration: unreachable peers take a tenth of the time at most
REST_MIN_S, REST_MAX_S = 5.0, 300.0
PEERS_MAX = 4096  # peers remembered; the least recently updated is dropped first

log = get_logger(__name__)


class RemotePeer(NamedTuple):
    """A peer that sends a request: its peer id, the address prefix it connects from, and whether this node knows it."""

    peer: str
    prefix: str = ALL
    known: bool = False


class PeerBounds(NamedTuple):
    """Bounds on one resource: per peer, per address prefix, in total."""

    peer: float
    prefix: float
    all: float

    def bounds_for(self, caller: RemotePeer) -> tuple[float, float, float]:
        return (self.peer, self.prefix, self.all if caller.known else self.all * (1 - RESERVE))


class ConcurrencyBudget:
    """Bounds a resource in use: open streams, running calls, bytes in memory."""

    def __init__(self, bounds: PeerBounds) -> None:
        self.bounds = bounds
        self._peers: Counter[str] = Counter()
        self._prefixes: Counter[str] = Counter()
        self.total = 0

    def try_acquire(self, caller: RemotePeer, amount: int = 1) -> bool:
        """Acquire an amount for a caller. Returns False, without acquiring anything, if that exceeds a bound."""
        peer, prefix, everything = self.bounds.bounds_for(caller)
        if (
            self._peers[caller.peer] + amount > peer
            or self._prefixes[caller.prefix] + amount > prefix
            or self.total + amount > everything
        ):
            self._drop_zero_counts(caller)
            return False
        self._add_amount(caller, amount)
        return True

    def release(self, caller: RemotePeer, amount: int = 1) -> None:
        """Release an amount that `try_acquire` acquired."""
        self._add_amount(caller, -amount)
        self._drop_zero_counts(caller)

    def _add_amount(self, caller: RemotePeer, amount: int) -> None:
        self._peers[caller.peer] += amount
        self._prefixes[caller.prefix] += amount
        self.total += amount

    def _drop_zero_counts(self, caller: RemotePeer) -> None:
        if not self._peers[caller.peer]:
            del self._peers[caller.peer]
        if not self._prefixes[caller.prefix]:
            del self._prefixes[caller.prefix]


class RateBudget:
    """Bounds use over time: calls, bytes, seconds of processor time. `burst_s` is how many seconds' worth may be used
    at once."""

    def __init__(self, per_s: PeerBounds, burst_s: float, now: TimeSource = time.monotonic) -> None:
        self._peers, self._prefixes, self._all = (RateLimiter(rate * burst_s, rate, now) for rate in per_s)

    def try_charge(self, caller: RemotePeer, amount: float = 1.0) -> bool:
        """Charge a caller. Returns False, without charging, if that exceeds its remaining budget."""
        if not self.has_left(caller, amount):
            return False
        self.charge(caller, amount)
        return True

    def has_left(self, caller: RemotePeer, amount: float = 0.0) -> bool:
        return (
            self._peers.has(caller.peer, amount)
            and self._prefixes.has(caller.prefix, amount)
            and self._all.has(ALL, amount, 0.0 if caller.known else RESERVE)
        )

    def charge(self, caller: RemotePeer, amount: float) -> None:
        """Charge a caller for what it has used, even beyond its remaining budget."""
        self._peers.charge(caller.peer, amount)
        self._prefixes.charge(caller.prefix, amount)
        self._all.charge(ALL, amount)


MIB = 1 << 20
REQUEST_BYTES_MAX = {  # by hivemind's RPC; honest requests have some 40 bytes, and a key is 20
    "DHTProtocol.rpc_ping": 1024,
    "DHTProtocol.rpc_find": 16 * 1024,
    "DHTProtocol.rpc_store": 4 * MIB,
}
ANSWER_BYTES_MAX = 3 * MIB + MIB // 2  # p2pd's frame has 4 MiB
CALLS = PeerBounds(64, 128, 256)  # concurrent calls
REQUESTS = PeerBounds(8 * MIB, 16 * MIB, 24 * MIB)  # bytes of calls being answered
ANSWERS = PeerBounds(8 * MIB, 12 * MIB, 16 * MIB)  # bytes of answers that p2pd has not read yet
STREAMS = PeerBounds(4, 32, 64)  # open streams
CALLS_PER_S = PeerBounds(128, 1024, 2048)
BYTES_IN_PER_S = PeerBounds(MIB, 4 * MIB, 8 * MIB)
BYTES_OUT_PER_S = PeerBounds(2 * MIB, 8 * MIB, 16 * MIB)
PROCESSOR_PER_S = PeerBounds(0.1, 0.25, 0.5)  # seconds of one core
BURST_S = 8.0
STREAMS_PER_S = PeerBounds(8, 64, 128)


class PeerLimits:
    """Enforces the bounds on all peers.

    Attributes:
    - unwanted: peers to disconnect.
    - connected: peers that were connected at the last check.
    - out: peer → until when it may not connect, in seconds of the event loop's clock.

    Args:
    - known: peers known from the configuration: the members list, the coordinator, the bootstrap peers.
    - is_credited: whether the swarm has credited a peer; a credited peer is known, however many others were met since.
    """

    def __init__(
        self,
        count: RefusalCounter = lambda peer, reason, detail: None,
        known: Iterable[str] = (),
        is_credited: PeerCheck = lambda peer: False,
    ) -> None:
        self._count = count
        self._listed = frozenset(known)
        self._is_credited = is_credited
        self._met: FIFOCache[str, None] = FIFOCache(KNOWN_MAX)
        self._places: FIFOCache[str, str] = FIFOCache(PLACES_MAX)  # peer → address prefix
        self._refusals: Counter[str] = Counter()
        self._refusals_since = time.monotonic()
        self._served: FIFOCache[str, None] = FIFOCache(PLACES_MAX)  # peers whose latest call was answered
        self.unwanted: set[str] = set()
        self.on_unwanted: Callable[[], object] = lambda: None  # called when a peer is added to `unwanted`
        self.connected: frozenset[str] = frozenset()
        self.out: FIFOCache[str, float] = FIFOCache(OUT_MAX)
        self.calls, self.requests, self.answers, self.streams = map(
            ConcurrencyBudget, (CALLS, REQUESTS, ANSWERS, STREAMS)
        )
        self.call_flow, self.stream_flow, self.bytes_in, self.bytes_out, self.processor = (
            RateBudget(bounds, BURST_S)
            for bounds in (CALLS_PER_S, STREAMS_PER_S, BYTES_IN_PER_S, BYTES_OUT_PER_S, PROCESSOR_PER_S)
        )

    def remote_peer_of(self, peer: str, prefix: str = "") -> RemotePeer:
        """Return the peer as a caller. Without `prefix`, newly connected peers share one."""
        known = peer in self._listed or peer in self._met or self._is_credited(peer)
        return RemotePeer(peer, prefix or self._places.get(peer, ""), known)

    def is_served(self, peer: str) -> bool:
        """Return whether a call of this peer was answered, and none was refused since."""
        return peer in self._served

    def is_configured(self, peer: str) -> bool:
        return peer in self._listed

    def mark_known(self, peer: str) -> None:
        """Mark a peer as known: it has proved that it is a member."""
        self._met[peer] = None

    def note_connections(self, places: Iterable[tuple[str, str]]) -> None:
        """Remember which peers are connected now, and from where: (peer, address prefix) of each connection."""
        self._places.update(places)
        self.connected = frozenset(peer for peer, _ in places)

    def acquire_call_slot(self, caller: RemotePeer, proto: str, size_bytes: int) -> None:
        """Admit a call; `release_call_slot` must end it. Raises RecordRejected with the bound's name as the reason."""
        self._check_not_kept_out(caller)
        if size_bytes > REQUEST_BYTES_MAX.get(proto, ANSWER_BYTES_MAX):
            raise self.count_refusal(caller.peer, "oversized", f"a call of {size_bytes} bytes to {proto}")
        if not self.call_flow.try_charge(caller):
            raise self.count_refusal(caller.peer, "calls", "too many calls a second")
        if not self.processor.has_left(caller):
            raise self.count_refusal(caller.peer, "processor", "its calls have used too much processor time")
        if not self.bytes_in.try_charge(caller, size_bytes):
            raise self.count_refusal(caller.peer, "bytes-in", "too many bytes a second")
        if not self.calls.try_acquire(caller):
            raise self.count_refusal(caller.peer, "calls", "too many calls at once")
        if not self.requests.try_acquire(caller, size_bytes):
            self.calls.release(caller)
            raise self.count_refusal(caller.peer, "bytes-in", "too many bytes in calls at once")

    def _check_not_kept_out(self, caller: RemotePeer) -> None:
        if caller.peer in self.out:
            raise self.count_refusal(caller.peer, "out", "it was disconnected for what it did", weight=REFUSALS_MAX)

    def release_call_slot(self, caller: RemotePeer, size_bytes: int, processor_s: float) -> None:
        """End a call and charge its processor time."""
        self.calls.release(caller)
        self.requests.release(caller, size_bytes)
        self.processor.charge(caller, processor_s)
        self._served[caller.peer] = None

    def check_answer_allowed(self, peer: str, size_bytes: int) -> None:
        """Raise RecordRejected unless the peer may have an answer of about this size, before it is made."""
        caller = self.remote_peer_of(peer)
        if size_bytes > ANSWER_BYTES_MAX:
            raise self.count_refusal(peer, "oversized", f"an answer would have {size_bytes} bytes; ask for fewer keys")
        if not self.bytes_out.has_left(caller, size_bytes) or self.answers.total + size_bytes > ANSWERS.all:
            raise self.count_refusal(peer, "bytes-out", "too many bytes of answers a second")

    def acquire_answer_bytes(self, caller: RemotePeer, size_bytes: int) -> None:
        """Hold an answer that waits for p2pd, until it is released from `answers`. Raises RecordRejected."""
        if not self.answers.try_acquire(caller, size_bytes):
            raise self.count_refusal(caller.peer, "bytes-out", "too many bytes of answers wait for p2pd")
        self.bytes_out.charge(caller, size_bytes)

    def acquire_stream_slot(self, caller: RemotePeer) -> None:
        """Open a stream, until it is released from `streams`. Raises RecordRejected."""
        self._check_not_kept_out(caller)
        if not self.stream_flow.try_charge(caller):
            raise self.count_refusal(caller.peer, "streams", "too many streams a second")
        if not self.streams.try_acquire(caller):
            raise self.count_refusal(caller.peer, "streams", "too many open streams")

    def count_refusal(self, peer: str, reason: str, detail: str, weight: int = 1) -> RecordRejected:
        """Count a refusal and return the error to answer with. A peer that is refused too often is disconnected.
        `weight` is what the refusal counts for; 0 if another peer may be at fault."""
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


class Rate(NamedTuple):
    """A token bucket: its capacity and its refill per second."""

    burst: float
    per_s: float


HINTS, ALL_HINTS = Rate(20.0, 5.0), Rate(4096.0, 256.0)  # for one sender, and for all together


class GossipLimits:
    """Limits on the messages of a gossip topic."""

    def __init__(self, sender: Rate, everybody: Rate, now: TimeSource = time.monotonic) -> None:
        self._senders = RateLimiter(*sender, now)
        self._all = RateLimiter(*everybody, now)

    def charge(self, sender: str, known: bool) -> None:
        """Charge a message to its sender and to the total. Raises RecordRejected("quota") if a limit is exceeded."""
        if not self.try_charge_sender(sender):
            raise RecordRejected("quota", "too many messages of one peer")
        if not self.try_charge_all(known):
            raise RecordRejected("quota", "too many messages of all peers together")

    def try_charge_sender(self, sender: str, count: float = 1.0) -> bool:
        """Charge a sender. Returns False if it sends too much."""
        return self._senders.try_charge(sender, count)

    def try_charge_all(self, known: bool, count: float = 1.0) -> bool:
        """Charge the total of all senders. Returns False if it is exceeded; a reserve is kept for known senders."""
        return self._all.try_charge("", count, reserve=0.0 if known else RESERVE)


class RejectionCounter:
    """Counts rejections by peer and reason."""

    def __init__(self, now: TimeSource) -> None:
        self._now = now
        self.waiting: Counter[tuple[str, str]] = Counter()  # counts not reported yet, by (peer, reason)
        self._told_at: dict[tuple[str, str], float] = {}
        self._named = RateLimiter(NAMED_BURST, NAMED_PER_S, now)
        self.total: Counter[str] = Counter()

    def count(self, peer: str, reason: str, detail: str = "") -> None:
        """Count one refused record. `peer` is its sender, empty if unknown."""
        place = (peer, reason)
        if place not in self.waiting and len(self.waiting) >= COUNTERS_MAX:
            place = ("", reason)
        self.waiting[place] += 1
        self.total[reason] += 1
        log.debug("refused a record from %s: %s: %s", peer or "an unknown peer", reason, detail)

    def take_due_events(self) -> list[RecordsRejected]:
        """Return events to report now: each (peer, reason) immediately if new, then once a minute with the count since.
        If too many peers are refused, the rest is reported without a peer."""
        now = self._now()
        self._told_at = {place: at for place, at in self._told_at.items() if now - at < REPEAT_S}
        for place in [place for place in self.waiting if place[0] and place not in self._told_at]:
            if not self._named.try_charge():
                self.waiting["", place[1]] += self.waiting.pop(place)
        ready = [place for place in self.waiting if place not in self._told_at]
        self._told_at.update(dict.fromkeys(ready, now))
        return [RecordsRejected(*place, count=self.waiting.pop(place)) for place in ready]


class UnreachablePeers:
    """Peers that could not be reached, with the time until which they are not called."""

    def __init__(self, now: TimeSource = time.monotonic) -> None:
        self._now = now
        self._rests: FIFOCache[str, tuple[float, float]] = FIFOCache(PEERS_MAX)  # peer → back-off in seconds, its end

    def is_backing_off(self, peer: str) -> bool:
        _, until = self._rests.get(peer, (0.0, -math.inf))
        return self._now() < until

    def record_failure(self, peer: str, took_s: float) -> None:
        """Back off from a peer after a failed call that took `took_s` seconds."""
        now, (rest_s, until) = self._now(), self._rests.get(peer, (0.0, -math.inf))
        if now >= until:  # concurrent calls count as one
            rest_s = min(max(REST * took_s, REST_MIN_S, 2 * rest_s), REST_MAX_S)
            until = now + rest_s
        self._rests[peer] = rest_s, until

    def record_contact(self, peer: str) -> None:
        """End the back-off from a peer that has called or answered."""
        self._rests.pop(peer, None)
