"""What the network worker's decisions ask of the network: records found and kept, bodies, gossip. No hivemind in it.

`swarmd.dht.adapters` answers by hivemind and p2pd, the simulator by a DHT of its own, where records need no signatures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from swarmd.dht.wire.bodies import LeaderboardBody
from swarmd.dht.wire.evidence import Evidence
from swarmd.dht.wire.records import Payload, Record

T = TypeVar("T")


MemberCheck = Callable[[str], Awaitable[None]]  # raises NetworkDown if a peer has shown no membership
# Fetches a chunk or a manifest of weights: peer, digest, size in bytes, timeout in seconds. Raises NetworkDown if the
# peer is not there, does not have it or is too slow, RecordRejected if it sends another size or digest, or stops.
ChunkFetch = Callable[[str, str, int, float], Awaitable[bytes]]
RecordSink = Callable[[Record], None]  # takes an own record, or a gossiped one: RecordRejected if it does not count
RecordsSink = Callable[[Mapping[str, Record]], None]  # takes owner → record after every read of a key, changed or not
EvidenceSink = Callable[[Evidence], None]  # takes two records that contradict each other, once or more often
ReportCheck = Callable[[bytes, str], bool]  # whether a report under a key id is wanted of an owner, room or not


class Findings(Protocol):
    """What a look-up has brought."""

    @property
    def records(self) -> Mapping[str, Record]:
        """owner → latest record."""

    @property
    def answered(self) -> bool:
        """Whether any other peer has answered."""

    def has(self, wanted: Mapping[str, float]) -> bool:
        """Is there a record at least as late as wanted, of every owner in `wanted`? False when nothing is wanted."""


class Bodies(Protocol):
    """Bodies of rollouts and leaderboards, by their digest."""

    def has(self, digest: str) -> bool:
        """Is it here?"""

    async def get(self, digest: str) -> bytes:
        """A body that is here. Raises an error where it is not."""

    async def put(self, body: bytes) -> str:
        """Keep a body; returns its digest."""

    async def fetch(self, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        """Fetch a body from its owner.

        Raises:
            NetworkDown: the peer is not there, has no such body, or is too slow.
            RecordRejected: what it sends is another body, or stops coming.
        """

    async def inflate(self, packed: bytes, size_bytes: int) -> bytes:
        """The body out of a record. Raises RecordRejected("malformed")."""

    async def deflate(self, body: bytes, members: int, to_fetch: bool = True) -> bytes:
        """The body for inside a record that shares its key with so many; nothing where it is too large for that, which
        it is sooner if peers can fetch it."""

    async def check(self, body: bytes, digest: str, size_bytes: int) -> None:
        """Is this the body that was announced? Raises RecordRejected."""

    def open_board(self, body: bytes) -> LeaderboardBody:
        """A leaderboard of its body. Raises RecordRejected("malformed")."""


class OwnNode(Protocol):
    """What this node says of itself to others, and what it keeps of the swarm for its next life."""

    async def addresses(self) -> tuple[str, ...]:
        """Where others can reach this node."""

    async def work(self) -> int:
        """The number that says what this identity has cost, for its records; found once."""

    async def withdrawn(self) -> bytes:
        """The invitations that this node's operator has withdrawn, as they travel."""

    async def weights_offer(self) -> bytes:
        """The offer of this node's weights, as it travels; empty if it offers none."""

    def remember_addresses(self, peer: str, addresses: Sequence[str], credited: bool) -> None:
        """Remember where a member can be reached."""

    def keep_withdrawn(self) -> None:
        """All records are judged anew, for invitations are withdrawn; which are, is kept for the next life."""

    async def keep_standings(self, board: LeaderboardBody) -> None:
        """Keep a leaderboard's standings for the next life."""


class Keepers(Protocol):
    """Peers that may keep this node's records, as long as one life of p2pd goes on."""

    def admit(self, name: str, record: Record) -> None:
        """Keep an own record here. Raises RecordRejected where it is in the way of none but a later one."""

    def held(self, name: str, owner: str) -> Record | None:
        """The record of an owner that this node itself holds."""

    def near(self, name: str) -> list[Hashable]:
        """The known peers nearest to a key, that should keep what lies under it."""

    def trusted_peers(self, name: str) -> list[Hashable]:
        """Peers that this node trusts most."""

    async def spread(self, name: str, record: Record, peers: Sequence[Hashable]) -> list[Hashable]:
        """Store a record at peers. Returns those that have taken it, without waiting for all of them."""

    async def shows(self, peer: Hashable, name: str, record: Record) -> tuple[bool, Record | None]:
        """Read a record back from a peer: (is it there, the later one of its owner that is there instead)."""

    async def prove_link(self) -> None:
        """Return when p2pd answers: with a dead one a record is kept here only."""

    def settle(self, name: str, record: Record, stored: Collection[Hashable]) -> None:
        """In the background, store a record at the peers truly nearest to its key, beyond those that have it."""


class Network(Protocol):
    """Where own records are published."""

    async def call(self, operation: Callable[[Keepers], Coroutine[Any, Any, T]]) -> T:
        """Do something with the replicas. Raises NetworkDown: it is down, dies meanwhile, or is too slow."""

    async def wait_up(self) -> None:
        """Return when there is a network."""

    async def disturbed(self, within_s: float, lonely: bool) -> None:
        """Wait for what makes it worth publishing again; longest for so long.

        That is: p2pd is gone; a node without peers (as it counts when `lonely`) has some; this machine's clock was set.
        """

    def sign(self, content: Payload, expiration: float) -> Record:
        """An own record, which lives until then. Raises RecordRejected("oversized")."""


class Topic(Protocol):
    """A gossip topic."""

    def listen(self, take: Callable[[str, bytes], None]) -> None:
        """Have each message of others taken, with its sender, who is authenticated; own ones may come back too."""

    def publish(self, message: bytes) -> None:
        """Send a message in the background; one that is lost costs time, nothing else."""

    async def send(self, message: bytes) -> None:
        """Send a message, if the network is up."""
