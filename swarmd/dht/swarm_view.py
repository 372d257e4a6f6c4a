"""What a node knows of its swarm. No hivemind in it.

- `SwarmView`: all of it: members, credit, clock, and what this node is in the swarm.
- `AnnouncedShards`: the numbers of shards, those that the clock announces, by round, or that the manifest of a swarm on
  a chain gives.
- `CoordinatorContact`: whether it hears its coordinator. It may be connected to many peers, and all of them keep it in
  the dark.
- `MembersOffers`: the weights that members offer, as their memberships say.
- `Patience`: for whose rollouts a stage's gathering waits, and for how long. Whoever gave its rollouts the last time is
  waited for. The others that have worked may be any number, for the work is little: how long all of them together are
  waited for goes by what came of it the last times. Two peers that give by turns would have every gathering last to its
  end. So gatherings that waited in vain for somebody who gave the last time are remembered, and while there are
  several, only those are waited for that gave the last 2, 4, 8 ... times.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random

from cachetools import FIFOCache

from swarmd.config import Config
from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.p2p.limits import PeerCheck, RefusalCounter, Rejections
from swarmd.dht.store.seniority import ALWAYS, Rank, Seniority
from swarmd.dht.wire.invitations import (
    Admission,
    HostWithdrawals,
    Withdrawals,
    must_be_invited,
    read_invitation,
)
from swarmd.dht.wire.names import EPOCH_ROUNDS, MembersPlace, epoch_of
from swarmd.dht.wire.records import ClockRecord, Membership, RecordPolicy
from swarmd.errors import RecordRejected
from swarmd.weights.manifest import WeightsOffer, decode_offer
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import Runtime, TimeSource

CHANGES_KEPT = 16  # of the number, beyond what an honest coordinator makes within the rounds whose records count

SILENT_S = 30.0  # without a word of the coordinator, and a stage that should be over, before it is said
MISSED_MIN = 3  # answers that are missing before it is said of a coordinator that used to answer

SLOW_MAX = 1024  # peers that are noted for it

UNTRIED_S = 3600.0  # while no stranger has failed: as long as for anybody
FAILED_S = 1.0  # at most, once one has
LEAST_S = 0.1  # the next step down is not to wait
VAIN_ALLOWED = 1  # gatherings in vain that change nothing
VAIN_MAX = 12.0
FORGOTTEN_AFTER = 64  # gatherings that waited for nobody in vain, until one that did is forgotten


class AnnouncedShards:
    """What is known of the stages' shards.

    Attributes:
        members: where memberships lie, as far as is known.
        members_before: where they lay before that, also before this node was there; a member that has not heard of the
            change yet is still found there.
        fixed: the number that the manifest of a swarm on a chain gives all stages, and the memberships, which then stay
            where they are: the contract announces none. 0: there are none, or as many as the clock says.

    Args:
        sharded: whether the swarm's clock may announce any: the rounds are no contract's.
        members_sharded: whether memberships lie in as many.
        fixed: as the attribute.
    """

    def __init__(self, sharded: bool, members_sharded: bool = False, fixed: int = 0) -> None:
        self.members = self.members_before = MembersPlace(fixed)
        self.fixed = fixed
        self._moved: Callable[[], None] = lambda: None
        self._sharded = sharded
        self._members_sharded = sharded and members_sharded
        self._round = -1  # of the latest clock record
        self._counts: dict[int, int] = {}  # first round → number from there on

    @classmethod
    def of_swarm(cls, fixed: int | None, admission: str = "open") -> AnnouncedShards:
        """As a swarm's manifest has it.

        What a host withdraws stands in its membership and is for all: those of a swarm by invitation lie under one key.

        Args:
            fixed: as the attribute; None where there is no chain.
        """
        if fixed is not None:
            return cls(False, fixed=fixed)
        return cls(True, admission != "invitation")

    @property
    def awaits_place(self) -> bool:
        """Whether the clock says where memberships lie, and was not heard yet."""
        return self._members_sharded and self._round < 0

    def watch_members(self, moved: Callable[[], None]) -> None:
        """Have it called when memberships lie elsewhere."""
        self._moved = moved

    def note(self, clock: ClockRecord) -> None:
        """Take over what a clock record says."""
        if clock.round < self._round:
            return
        self._round = clock.round
        for since in [since for since in self._counts if since >= clock.sharded_since]:
            del self._counts[since]
        if clock.sharded_since > 0 and not self._counts:
            self._counts[0] = clock.shards_before
        self._counts[clock.sharded_since] = clock.shards
        for since in list(self._counts)[:-CHANGES_KEPT]:
            del self._counts[since]
        if self._members_sharded:
            self._place_members()

    def _place_members(self) -> None:
        place = self._place_in(self._round)
        if place != self.members:
            self.members, self.members_before = place, self._place_in(self._moved_in(self._round) - 1)
            self._moved()

    def _place_in(self, round: int) -> MembersPlace:
        shards = self.latest_of(round)
        return MembersPlace(shards, epoch_of(round)) if shards else MembersPlace()

    def _moved_in(self, round: int) -> int:
        """The round that memberships lie since where they lie in this one: the epoch's first, or a later one that
        changed the number of shards."""
        return max([epoch_of(round) * EPOCH_ROUNDS, *(since for since in self._counts if since <= round)])

    @property
    def is_large(self) -> bool:
        """Whether stages lie in shards now: the swarm has too many members for all to ask the coordinator for all."""
        return self.fixed > 0 or self.latest_of(self._round) > 0

    def of(self, round: int) -> int | None:
        """Number of shards of a round's stages; None where the clock was not heard in that round or a later one."""
        if not self._sharded:
            return self.fixed
        return self.latest_of(round) if round <= self._round else None

    def latest_of(self, round: int) -> int:
        """The same, by what is known so far."""
        if not self._sharded:
            return self.fixed
        return next((self._counts[since] for since in reversed(self._counts) if since <= round), 0)


class CoordinatorContact:
    """What was heard, and when.

    Args:
        follows: has the node a coordinator, other than itself?
        wall: the clock that deadlines are in, POSIX seconds.
        steady: one that nobody sets, seconds.
    """

    def __init__(self, follows: bool, wall: TimeSource = time.time, steady: TimeSource = time.monotonic) -> None:
        self._follows = follows
        self._wall = wall
        self._steady = steady
        self._heard_at = steady()
        self._deadline_at = 0.0  # of the stage that was announced last
        self._final = False
        self._reached = False  # has the coordinator itself ever answered?
        self._silent_s = SILENT_S
        self._unanswered = 0  # stages of this coordinator that nobody else reported in, one after another

    def asked_every(self, s: float) -> None:
        """So many seconds lie between two questions to the coordinator: a single missing answer says nothing."""
        self._silent_s = max(SILENT_S, MISSED_MIN * s)

    def answered(self) -> None:
        """The coordinator itself answered; it is asked now and then."""
        self._heard_at = self._steady()
        self._reached = True

    def announced(self, deadline_at: float, final: bool) -> None:
        """A newer announcement came, by whatever way: its signature says whose it is."""
        self._heard_at = self._steady()
        self._deadline_at, self._final = deadline_at, final

    def closed(self, others_reported: bool, others: int) -> None:
        """A stage of this coordinator is over, in a swarm with so many other members."""
        self._unanswered = 0 if others_reported or not others else self._unanswered + 1

    def isolation(self, peers: int) -> str:
        """Why this node counts as cut off although it is connected; empty when it does not.

        Of a coordinator that used to answer when it was asked, silence alone says so. Where it never did, this node may
        hear it through others only, and then nothing is amiss before a stage should be over.
        """
        if not peers:
            return ""
        if self._unanswered:
            return (
                f"connected to {peers} peer{'s' * (peers != 1)}, and no member's report came in the last "
                f"{f'{self._unanswered} stages' if self._unanswered > 1 else 'stage'}: "
                "the members are away, or this node is cut off from them"
            )
        silent_s = self._steady() - self._heard_at
        waits = self._final or not self._follows or silent_s < self._silent_s
        if waits or (not self._reached and self._wall() < self._deadline_at + SILENT_S / 2):
            return ""
        return (
            f"connected to {peers} peers, but nothing was heard of the coordinator for {silent_s:.0f} s, neither from "
            "it nor through others: it is away, or this node is cut off from it"
        )


class MembersOffers:
    """What members offer now.

    Args:
        refused: counts offers that cannot be read.
    """

    def __init__(self, refused: RefusalCounter) -> None:
        self._refused = refused
        self._unread: dict[str, bytes] = {}  # of members, offers that cannot be read
        self.by_member: dict[str, WeightsOffer] = {}

    def hear(self, peer: str, content: Membership) -> None:
        """Take note of what a member offers; what cannot be read is counted and offers nothing."""
        self.by_member.pop(peer, None)
        if content.leaving or not content.weights:
            return
        try:
            self.by_member[peer] = decode_offer(content.weights)
        except RecordRejected as error:
            if self._unread.get(peer) != content.weights:  # once each, for memberships are read again and again
                self._refused(peer, error.reason, error.message)
            self._unread[peer] = content.weights

    def names(self, manifest: str) -> bool:
        """Whether a member offers the manifest of this digest now."""
        return any(offer.manifest.hex() == manifest for offer in self.by_member.values())

    def keep(self, members: Collection[str]) -> None:
        """Forget those of all others."""
        self._unread = {peer: packed for peer, packed in self._unread.items() if peer in members}
        self.by_member = {peer: offer for peer, offer in self.by_member.items() if peer in members}


class Patience:
    """What a node knows of who gives what it announces."""

    def __init__(self) -> None:
        self.strangers_s = UNTRIED_S
        self._rows: FIFOCache[str, int] = FIFOCache(MEMBERS_MAX)  # peer → latest gatherings in a row that it gave to
        self._gatherings = 0
        self._vain = 0.0  # of them, those that waited in vain and are not forgotten

    def awaited(self, announced: Mapping[str, Rank], waited_s: float) -> set[str]:
        """Of peers that have announced rollouts, those worth waiting for after so long."""
        strangers = self._strangers(announced) if waited_s < self.strangers_s else set()
        return strangers | {peer for peer, rank in announced.items() if self._is_trusted(peer, rank)}

    def judge(self, announced: Mapping[str, Rank], got: Collection[str], refused: Collection[str]) -> None:
        """A gathering is over: whose rollouts came, of those that had announced some; and whose were no rollouts."""
        strangers = self._strangers(announced)
        if strangers.difference(got, refused):
            self.strangers_s = min(self.strangers_s / 2, FAILED_S) if self.strangers_s > LEAST_S else 0.0
        elif strangers.intersection(got):
            self.strangers_s = max(self.strangers_s, min(max(2 * self.strangers_s, LEAST_S), FAILED_S))
        proven = {peer for peer, rank in announced.items() if rank.rounds < ALWAYS and self._is_proven(peer)}
        if proven.difference(got, refused):
            self._vain = min(self._vain + 1, VAIN_MAX)
        else:
            self._vain = max(self._vain - 1 / FORGOTTEN_AFTER, 0.0)
        self._gatherings += 1
        given = {peer: self._rows.pop(peer, 0) for peer in announced}
        self._rows.update({peer: rows + 1 for peer, rows in given.items() if peer in got})

    def _is_trusted(self, peer: str, rank: Rank) -> bool:
        return rank.rounds >= ALWAYS or self._is_proven(peer)

    def _is_proven(self, peer: str) -> bool:
        return self._rows.get(peer, 0) >= self._row_min

    @property
    def _row_min(self) -> int:
        """Gatherings in a row that who is waited for has given to; who gave to all that there were always is."""
        doublings = max(math.ceil(self._vain) - VAIN_ALLOWED, 0)
        return max(1, min(1 << doublings, self._gatherings))

    def _strangers(self, announced: Mapping[str, Rank]) -> set[str]:
        return {peer for peer, rank in announced.items() if rank.awaited and not self._is_trusted(peer, rank)}


class SwarmView:
    """What one life of the network worker knows, and decides by.

    Attributes:
        members: peers that are present, this node included, without those that have not worked; a follower of a large
            swarm goes by the records of a shard, whosever they are. Decides how much of a body goes into a record, how
            long nodes wait before they tell what all know, and whether all rollouts of a swarm that was just started
            are there.
        slow: peers whose bodies stopped coming, how often one after another.

    Args:
        config: the node's configuration.
        peer_id: its own.
        nonce: of this life.
        runtime: the clock.
        random: chance.
        emit: takes the events, for the daemon.
        withdrawn: invitations that earlier lives heard to be withdrawn.
        knows: has this node met a peer as a member, or does its configuration name it? Whom the swarm has credited, if
            not given.
        seniority: makes what is known of credit, of who needs none.
    """

    def __init__(
        self,
        config: Config,
        peer_id: str,
        nonce: str,
        runtime: Runtime,
        random: Random,
        emit: EventSink,
        withdrawn: Iterable[HostWithdrawals] = (),
        knows: PeerCheck | None = None,
        seniority: Callable[[PeerCheck], Seniority] = Seniority,
    ) -> None:
        dht = config.dht
        self.config = config
        self.swarm = config.swarm.id
        self.peer_id = peer_id
        self.coordinating = config.role == "coordinator"
        self.coordinator = peer_id if self.coordinating else config.swarm.coordinator
        self.nonce = nonce
        self.runtime = runtime
        self.random = random
        self.emit = emit
        self.started_at = runtime.time()
        self.members = 1
        self.slow: Counter[str] = Counter()
        self.patience = Patience()  # with those whose rollouts are gathered
        self.rejections = Rejections(runtime.now)
        self.offers = MembersOffers(self.rejections.count)  # of weights
        follows = bool(self.coordinator) and not self.coordinating
        self.contact = CoordinatorContact(follows, runtime.time, runtime.now)
        self.shards = AnnouncedShards.of_swarm(None if config.chain is None else config.chain.shards, dht.admission)
        self.withdrawals = Withdrawals(self.coordinator, withdrawn, runtime.now)
        admission = Admission(dht.admission, self.swarm, self.coordinator, dht.work_bits, self.withdrawals.has)
        self.policy = RecordPolicy(
            self.swarm, self.coordinator, dht.members, peer_id, runtime.time, admission, self.shards
        )
        self.seniority = seniority(self.policy.lists)
        self.knows = knows or self.is_credited
        self.invitation = read_invitation(dht.invitation)

    def must_be_invited(self) -> None:
        """Raises ConfigError if the swarm asks for an invitation, and this node has none that holds."""
        dht = self.config.dht
        if dht.admission == "invitation" and not self.coordinating and self.peer_id not in dht.members:
            parts = (self.invitation, self.swarm, self.coordinator, self.peer_id, self.withdrawals.has)
            must_be_invited(*parts)

    def is_credited(self, peer: str) -> bool:
        """Has the swarm credited this peer?"""
        return self.seniority.rounds_of(peer) > 0

    def note_members(self, count: int) -> None:
        """So many members are present, as far as is known."""
        self.members = max(1, count)

    def note_slow(self, peer: str) -> None:
        """A body stopped coming: its peer is not waited for next time.

        Of too many that are noted a stranger is forgotten first: a crowd has other names anyway.
        """
        self.slow[peer] += 1
        if len(self.slow) > SLOW_MAX:
            strangers = (each for each in self.slow if not self.knows(each))
            del self.slow[next(strangers, next(iter(self.slow)))]
