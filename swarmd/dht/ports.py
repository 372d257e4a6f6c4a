"""What the network worker's decisions ask of the network: records found and kept, bodies, gossip. No hivemind in it.

`swarmd.dht.adapters` answers by hivemind and p2pd, the simulator by a DHT of its own, where records need no signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from swarmd.dht.wire.evidence import Evidence
from swarmd.dht.wire.records import Payload, SignedRecord

T = TypeVar("T")


class Record(Protocol):
    """A record that counts: its signature, its key and its owner's rights have been checked."""

    @property
    def owner(self) -> str:
        """Peer id."""

    @property
    def content(self) -> Payload:
        """What it says."""

    @property
    def expiration(self) -> float:
        """POSIX seconds."""

    @property
    def size_bytes(self) -> int:
        """Of payload and signature."""

    def encode(self) -> bytes:
        """The signed record, for leaderboards."""


def as_signed(record: Record) -> SignedRecord:
    """A record of a network in which records are signed."""
    assert isinstance(record, SignedRecord), "only a simulated network has others"
    return record


PeerCheck = Callable[[str], bool]  # whether a peer counts, was credited, may ask: as far as this node knows now
RecordSink = Callable[[Record], None]  # takes an own record, or a gossiped one: RecordRejected if it does not count
RecordsSink = Callable[[Mapping[str, Record]], None]  # takes owner → record after every read of a key, changed or not
SignedRecordSink = Callable[[SignedRecord], None]  # takes records whose signatures have been checked
RefusalCounter = Callable[[str, str, str], None]  # counts what was refused: peer, reason (the bound's name), detail
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


class Records(Protocol):
    """The records of all peers."""

    async def wait_up(self) -> None:
        """Return when the network can be asked."""

    async def find(self, name: str, wanted: Mapping[str, float] | None = None) -> Findings:
        """Look a key up.

        Args:
            wanted: owner → expiration: the search ends when all of these are there; None looks for the latest of all.

        Raises:
            NetworkDown: the network is down, or gave no answer in time.
        """

    async def find_each(self, name: str, owners: Collection[str], wanted: Collection[str] | None = None) -> Findings:
        """Look up the records of these owners alone, each at one of the peers that keep it: they may be large.

        Args:
            wanted: of the owners, those whose records are worth more than a moment; all where None.

        Raises:
            NetworkDown: the network is down, or gave no answer in time.
        """

    async def find_of(self, name: str, owner: str) -> Findings:
        """One owner's record under a key: as the owner itself shows it, else searched for. Raises NetworkDown."""

    def hold(self, name: str, record: Record) -> None:
        """Keep a record that was heard for whoever asks this node, if there is room and no later one."""

    async def answers(self, peer: str) -> bool:
        """Whether a peer answers this node itself. Raises NetworkDown."""

    def spent_s(self) -> float:
        """Processor time that this thread has used."""


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


class Chunks(Protocol):
    """Chunks and manifests of the weights that peers offer, by their digest."""

    async def fetch(self, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        """Fetch one from a peer.

        Raises:
            NetworkDown: the peer is not there, has no such chunk, or is too slow.
            RecordRejected: what it sends has another size or digest, or stops coming.
        """


class Keepers(Protocol):
    """Peers that may keep this node's records, as long as one life of p2pd goes on."""

    def admit(self, name: str, record: Record) -> None:
        """Keep an own record here. Raises RecordRejected where it is in the way of none but a later one."""

    def held(self, name: str, owner: str) -> Record | None:
        """The record of an owner that this node itself holds."""

    def near(self, name: str) -> list[Hashable]:
        """The known peers nearest to a key, that should keep what lies under it."""

    def guides(self, name: str) -> list[Hashable]:
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
        """Do something with the keepers. Raises NetworkDown: it is down, dies meanwhile, or is too slow."""

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
