"""Ranks peers for limited capacity: by credited rounds, then by proof of work.

Among peers without credit a tie-breaker decides last, which each node draws for each key: nobody can choose identities
that win everywhere, and no identity loses for ever.
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

ELDERS = 16  # long-credited peers that a node may ask, besides those nearest to a key
ELDEST_SHARE = 10  # they are drawn from the tenth that was credited longest
KNOWN_MAX = MEMBERS_MAX  # peers whose rounds are remembered, those with most rounds
ALWAYS = 1 << 40  # rounds that the coordinator, this node and listed members count as having
SMALL_BYTES = 1024  # larger records of peers without credit rank below all smaller ones
WORK_KEPT = MEMBERS_MAX  # identities whose work is cached: not hashed again at each read of a crowded key

_work_bits = lru_cache(WORK_KEPT)(work_bits)  # for verified records only: a forger must not fill the cache

TRUSTED_PEERS = 3  # peers asked in each search besides those nearest to the key


class Rank(NamedTuple):
    """Rank of a peer or its record; the greatest comes first."""

    rounds: int  # credited
    work: int  # bits
    small: bool
    tie_breaker: bytes

    @property
    def is_credited(self) -> bool:
        """Whether the swarm has credited the owner and the owner has proof of work. Credit alone costs nothing."""
        return self.rounds > 0 and not self.no_proof_of_work

    @property
    def has_proof_of_work(self) -> bool:
        """Whether the owner has the proof of work that every node computes."""
        return self.work >= WORK_BITS

    @property
    def no_proof_of_work(self) -> bool:
        """Whether the owner lacks the proof of work that it needs. Such identities cost nothing."""
        return not self.has_proof_of_work and self.rounds < ALWAYS


class Seniority:
    """How many rounds each peer was credited for, and the resulting ranks.

    Attributes:
        elders: peers that this node may ask, a random sample of its own among the tenth credited longest; otherwise all
            nodes would ask the same few.
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
        """Replace the standings by the latest ones."""
        self._rounds = self.compute_credited_rounds(standings)
        self.elders = self._draw_longest_credited()
        self.version += 1

    def compute_credited_rounds(self, standings: Iterable[Standing]) -> Mapping[str, int]:
        return credited_rounds(standings)

    def rounds_of(self, peer: str) -> int:
        """Return the rounds that a peer was credited for; 0 for a newcomer."""
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
    """Return the bits of work of the number in a record. By default not cached, because the record may be forged."""
    content = record.content
    if not isinstance(content, Membership | ReportRecord | RolloutsRecord):
        return 0
    return bits_of(content.swarm, record.owner, content.work)


def credited_rounds(standings: Iterable[Standing]) -> dict[str, int]:
    """Return peer → credited rounds, most rounds first, for a bounded number of peers."""
    credited = sorted((row for row in standings if row.rounds > 0), key=lambda row: -row.rounds)
    return {row.peer: row.rounds for row in credited[:KNOWN_MAX]}


def pick_by_rank(ranks: Mapping[str, Rank], take: Callable[[Rank], bool]) -> list[str]:
    """Return the owners for which `take` returns true; calls it in descending order of rank."""
    ranked = sorted(((rank, owner) for owner, rank in ranks.items()), reverse=True)
    return [owner for rank, owner in ranked if take(rank)]


class PeerSlots:
    """How many peers of each kind may still take part. Peers without proof of work have a few slots of their own:
    however many and however early they come, they do not use up the slots of others."""

    def __init__(self, known: int, newcomers: int, idle: int) -> None:
        self._left = {"known": known, "newcomer": newcomers, "idle": idle}

    def try_occupy(self, rank: Rank) -> bool:
        """Occupy a slot. Returns False if none is free."""
        sort = "known" if rank.is_credited else "newcomer" if rank.has_proof_of_work else "idle"
        if not self._left[sort]:
            return False
        self._left[sort] -= 1
        return True


Sample = Callable[[Sequence[str], int], list[str]]


def choose_trusted_peers(
    own: str, coordinator: str, bootstrap: Sequence[str], elders: Sequence[str], sample: Sample
) -> list[str]:
    """Return the peers to ask in each search: the coordinator, and random ones of the bootstrap peers and the elders,
    never this node itself (`own`)."""
    others = [peer for peer in (*bootstrap, *elders) if peer not in (own, coordinator)]
    chosen = sample(others, min(len(others), TRUSTED_PEERS - 1))
    return chosen if coordinator in ("", own) else [coordinator, *chosen]
