"""Interfaces between the network worker's logic and the network: look-ups, publishing, bodies, gossip.

`swarmd.dht.adapters` implements them with hivemind and p2pd, the simulator with its own DHT, without signatures.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from swarmd.dht.wire.bodies import LeaderboardBody
from swarmd.dht.wire.evidence import Evidence
from swarmd.dht.wire.records import Payload, Record

T = TypeVar("T")


MemberCheck = Callable[[str], Awaitable[None]]  # raises NetworkDown if no membership of a peer is found
# Fetches a chunk or a manifest of weights: peer, digest, size in bytes, timeout in seconds. Raises NetworkDown if the
# peer is unreachable, too slow or does not have it, RecordRejected if it sends another size or digest, or stops
# sending.
ChunkFetch = Callable[[str, str, int, float], Awaitable[bytes]]
RecordSink = Callable[[Record], None]  # gets an own or gossiped record; raises RecordRejected if it does not count
RecordsSink = Callable[[Mapping[str, Record]], None]  # gets owner → record after every read of a key, changed or not
EvidenceSink = Callable[[Evidence], None]  # gets two contradicting records, possibly several times
ReportCheck = Callable[[bytes, str], bool]  # (key id, owner) → whether this report is wanted


class LookupResult(Protocol):
    """The result of a look-up."""

    @property
    def records(self) -> Mapping[str, Record]:
        """Owner → latest record."""

    @property
    def answered(self) -> bool:
        """Whether any other peer has answered."""

    def has_all(self, wanted: Mapping[str, float]) -> bool:
        """Return whether each wanted owner has a record of this expiration or later; False if none is wanted."""


class Bodies(Protocol):
    """Bodies of rollouts and leaderboards, by digest."""

    def has(self, digest: str) -> bool:
        """Return whether the body is stored here."""

    async def get(self, digest: str) -> bytes:
        """Return a body that is stored here. Raises an error if it is not."""

    async def put(self, body: bytes) -> str:
        """Store a body. Returns its digest."""

    async def fetch(self, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        """Fetch a body from its owner. Raises NetworkDown: the peer is not there, does not have the body, or is too
        slow; RecordRejected: it sends another body, or stops sending."""

    async def inflate(self, packed: bytes, size_bytes: int) -> bytes:
        """Decompress the body in a record. Raises RecordRejected("malformed")."""

    async def deflate(self, body: bytes, members: int, to_fetch: bool = True) -> bytes:
        """Return the compressed body to put inline into a record; empty if it is too large. See `bodies.deflate`."""

    async def check(self, body: bytes, digest: str, size_bytes: int) -> None:
        """Check that this is the announced body. Raises RecordRejected."""

    def decode_leaderboard(self, body: bytes) -> LeaderboardBody:
        """Decode a leaderboard's body. Raises RecordRejected("malformed")."""


class OwnNode(Protocol):
    """What this node publishes about itself, and what it saves for its next start."""

    async def addresses(self) -> tuple[str, ...]:
        """Where others can reach this node."""

    async def proof_of_work(self) -> int:
        """Return the number that proves the work of this identity; computed once."""

    async def withdrawn_invitations(self) -> bytes:
        """Return the invitations that this node's operator has withdrawn, encoded for the wire."""

    async def weights_offer(self) -> bytes:
        """The offer of this node's weights, encoded for the wire; empty if it offers none."""

    def remember_addresses(self, peer: str, addresses: Sequence[str], credited: bool) -> None:
        """Remember where a member can be reached."""

    def save_withdrawals(self) -> None:
        """Validate all records again, and save which invitations are withdrawn."""

    async def save_standings(self, board: LeaderboardBody) -> None:
        """Save a leaderboard's standings for the next start."""


class Replicas(Protocol):
    """Peers that may keep this node's records, during one run of p2pd."""

    def store_locally(self, name: str, record: Record) -> None:
        """Store an own record here. Raises RecordRejected if a later one is held, or there is no room."""

    def get_local_record(self, name: str, owner: str) -> Record | None:
        """Return an owner's record that this node itself holds."""

    def nearest_peers(self, name: str) -> list[Hashable]:
        """Return the known peers nearest to a key, which should hold its records."""

    def trusted_peers(self, name: str) -> list[Hashable]:
        """Return the peers that this node trusts most."""

    async def store_at_peers(self, name: str, record: Record, peers: Sequence[Hashable]) -> list[Hashable]:
        """Store a record at peers. Returns those that accepted it, without waiting for all of them."""

    async def read_back(self, peer: Hashable, name: str, record: Record) -> tuple[bool, Record | None]:
        """Read a record back. Returns whether the peer has it, and the owner's later record if it has that."""

    async def check_network_link(self) -> None:
        """Return when p2pd answers; with a dead p2pd, a record would be stored on this node only."""

    def replicate_in_background(self, name: str, record: Record, stored: Collection[Hashable]) -> None:
        """Search for the peers nearest to the key and store the record there too, in the background."""


class Network(Protocol):
    """The network on which own records are published."""

    async def call(self, operation: Callable[[Replicas], Coroutine[Any, Any, T]]) -> T:
        """Run an operation on the replicas. Raises NetworkDown: the network is down, fails, or is too slow."""

    async def wait_until_up(self) -> None:
        """Return when the network is up."""

    async def wait_for_disturbance(self, within_s: float, lonely: bool) -> None:
        """Wait until records must be published again, at most `within_s`.

        That is the case if p2pd has ended, if a node without peers has some again, or if this machine's clock was set.
        `lonely`: whether the node starts as one without peers.
        """

    def sign(self, content: Payload, expiration: float) -> Record:
        """Sign an own record that expires at `expiration`. Raises RecordRejected("oversized")."""


class Topic(Protocol):
    """A gossip topic."""

    def listen(self, take: Callable[[str, bytes], None]) -> None:
        """Call `take` with (authenticated sender, message) for each message, possibly including this node's own."""

    def publish(self, message: bytes) -> None:
        """Send a message in the background; it may be lost."""
