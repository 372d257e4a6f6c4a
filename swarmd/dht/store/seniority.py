"""Which peers come first if there is not room for all: those with more credited rounds, then those with more work.

Among peers without credit a tie-breaker decides last, which each node draws for itself and for each key: no one can
choose identities that win it everywhere, and none loses it for ever.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from swarmd.core.state import MEMBERS_MAX
from swarmd.core.values import Standing
from swarmd.dht.identity.proof_of_work import WORK_BITS, work_bits
from swarmd.dht.p2p.limits import PeerCheck
from swarmd.dht.wire.records import Membership, Record, ReportRecord, RolloutsRecord

ELDERS = 16  # long credited peers that a node may ask, besides those that are nearest to a key
ELDEST_SHARE = 10  # they are drawn from the tenth that was credited longest
KNOWN_MAX = MEMBERS_MAX  # peers whose rounds are remembered, the longest credited ones
ALWAYS = 1 << 40  # rounds that the coordinator, this node and listed members count as having
SMALL_BYTES = 1024  # a larger record of a peer without credit waits behind all smaller ones
WORK_KEPT = MEMBERS_MAX  # identities whose work is not hashed again at each read of a key that a crowd fills

_work_bits = lru_cache(WORK_KEPT)(work_bits)  # for genuine records only: a forger must not choose what it keeps

TRUSTED_PEERS = 3  # peers asked in each search besides those nearest to the key


class Rank(NamedTuple):
    """Where a peer or its record stands; the higher comes first."""

    rounds: int  # credited
    work: int  # bits
    small: bool
    tie_breaker: bytes

    @property
    def is_credited(self) -> bool:
        """Has the swarm credited the owner, who has worked too? Credit alone costs nothing."""
        return self.rounds > 0 and not self.no_proof_of_work

    @property
    def has_proof_of_work(self) -> bool:
        """Has the owner done the work that every node does?"""
        return self.work >= WORK_BITS

    @property
    def no_proof_of_work(self) -> bool:
        """Has the owner not worked, although it has to? Such identities cost nothing."""
        return not self.has_proof_of_work and self.rounds < ALWAYS


class Seniority:
    """How many rounds each peer was credited for, and the rank that follows.

    Attributes:
        elders: peers of the longest credited tenth that this node may ask, drawn for itself: otherwise all nodes would
            ask the same few.
        version: grows with each leaderboard.

    Args:
        always: whether a peer needs no rounds: the coordinator, this node, listed members.
        secret: draws the tie-breakers; random if empty.
    """

    def __init__(self, always: PeerCheck = lambda peer: False, secret: bytes = b"") -> None:
        self._always = always
        self._rounds: Mapping[str, int] = {}
        self.elders: list[str] = []
        self._secret = secret or secrets.token_bytes(16)
        self.version = 0

    def update_standings(self, standings: Iterable[Standing]) -> None:
        """Take over the latest standings."""
        self._rounds = self.compute_credited_rounds(standings)
        self.elders = self._draw_longest_credited()
        self.version += 1

    def compute_credited_rounds(self, standings: Iterable[Standing]) -> Mapping[str, int]:
        return credited_rounds(standings)

    def rounds_of(self, peer: str) -> int:
        """Rounds that a peer was credited for; 0 for a newcomer."""
        return ALWAYS if self._always(peer) else self._rounds.get(peer, 0)

    def _draw_longest_credited(self) -> list[str]:
        eldest = list(self._rounds)[: max(ELDERS, len(self._rounds) // ELDEST_SHARE)]
        drawn = sorted(eldest, key=lambda peer: self._tie_breaker(b"elders", peer))[:ELDERS]
        return [peer for peer in eldest if peer in drawn]

    def _tie_breaker(self, key: bytes, owner: str) -> bytes:
        return hashlib.blake2b(key + owner.encode(), key=self._secret, digest_size=8).digest()

    def rank_of(self, record: Record, key: bytes) -> Rank:
        return self.make_rank(record.owner, key, claimed_work(record, _work_bits), record.size_bytes)

    def make_rank(self, owner: str, key: bytes, work: int, size_bytes: int) -> Rank:
        return Rank(self.rounds_of(owner), work, size_bytes <= SMALL_BYTES, self._tie_breaker(key, owner))

    def ranks_of(self, records: Mapping[str, Record], key: bytes) -> dict[str, Rank]:
        return {owner: self.rank_of(record, key) for owner, record in records.items()}


def claimed_work(record: Record, bits_of: Callable[[str, str, int], int] = work_bits) -> int:
    """Bits of work of the number in a record; by default they are not remembered, for the record may be forged."""
    content = record.content
    if not isinstance(content, Membership | ReportRecord | RolloutsRecord):
        return 0
    return bits_of(content.swarm, record.owner, content.work)


def credited_rounds(standings: Iterable[Standing]) -> dict[str, int]:
    """Peers that standings credit → rounds, the longest credited first, a bounded number of them."""
    credited = sorted((row for row in standings if row.rounds > 0), key=lambda row: -row.rounds)
    return {row.peer: row.rounds for row in credited[:KNOWN_MAX]}


def pick_by_rank(ranks: Mapping[str, Rank], take: Callable[[Rank], bool]) -> list[str]:
    """The owners for which `take` returns true; it is called in the order of their ranks."""
    ranked = sorted(((rank, owner) for owner, rank in ranks.items()), reverse=True)
    return [owner for rank, owner in ranked if take(rank)]


class PeerSlots:
    """How many peers of each kind may still take part in something. Peers that have not worked have few slots of their
    own: however many and however early they come, they leave the slots of the others free."""

    def __init__(self, known: int, newcomers: int, idle: int) -> None:
        self._left = {"known": known, "newcomer": newcomers, "idle": idle}

    def try_occupy(self, rank: Rank) -> bool:
        """Take a slot. False if there is none."""
        sort = "known" if rank.is_credited else "newcomer" if rank.has_proof_of_work else "idle"
        if not self._left[sort]:
            return False
        self._left[sort] -= 1
        return True


Sample = Callable[[Sequence[str], int], list[str]]


def choose_trusted_peers(
    own: str, coordinator: str, bootstrap: Sequence[str], elders: Sequence[str], sample: Sample
) -> list[str]:
    """The peers to ask in each search: the coordinator, and random ones of the bootstrap peers and of the elders.
    `own`: this node's peer id, which is never chosen."""
    others = [peer for peer in (*bootstrap, *elders) if peer not in (own, coordinator)]
    chosen = sample(others, min(len(others), TRUSTED_PEERS - 1))
    return chosen if coordinator in ("", own) else [coordinator, *chosen]
