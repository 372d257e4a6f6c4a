"""What a node knows about its swarm. Does not import hivemind.

- `SwarmView` holds all of it: members, credit, valid records, and this node's role.
- `CoordinatorContact` detects that the coordinator is out of reach: the node may be connected to many peers that all
  withhold the coordinator's records.
- `WeightsOffers` holds the weights that members offer in their memberships.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from random import Random

from swarmd.config import Config
from swarmd.dht.p2p.limits import PeerCheck, RefusalCounter, RejectionCounter
from swarmd.dht.store.seniority import Seniority
from swarmd.dht.wire import invitations
from swarmd.dht.wire.records import AnnouncedShards, Membership, RecordPolicy
from swarmd.errors import RecordRejected
from swarmd.weights.manifest import WeightsOffer, decode_offer
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import Runtime, TimeSource

SILENT_S = 30.0  # time without a sign of the coordinator before the node counts as isolated
MISSED_MIN = 3  # unanswered calls before it does, if the coordinator used to answer

SLOW_MAX = 1024  # slow peers that are remembered


class CoordinatorContact:
    """Tracks signs of life: on followers the coordinator's, on the coordinator the members' reports. `wall`: the clock
    of deadlines, POSIX seconds. `steady`: a monotonic clock, seconds."""

    def __init__(self, follows: bool, wall: TimeSource = time.time, steady: TimeSource = time.monotonic) -> None:
        self._follows = follows
        self._wall = wall
        self._steady = steady
        self._heard_at = steady()
        self._deadline_at = 0.0  # of the stage announced last
        self._final = False
        self._reached = False  # whether the coordinator itself ever answered
        self._silent_s = SILENT_S
        self._unanswered = 0  # number of the coordinator's latest stages in a row without a member's report

    def set_call_interval(self, s: float) -> None:
        """Set the seconds between two calls to the coordinator; isolation takes several unanswered calls."""
        self._silent_s = max(SILENT_S, MISSED_MIN * s)

    def record_answer(self) -> None:
        """Record that the coordinator itself answered a call."""
        self._heard_at = self._steady()
        self._reached = True

    def record_announcement(self, deadline_at: float, final: bool) -> None:
        """Record a newer announcement, whichever peer sent it: it is signed."""
        self._heard_at = self._steady()
        self._deadline_at, self._final = deadline_at, final

    def record_stage_end(self, others_reported: bool, others: int) -> None:
        self._unanswered = 0 if others_reported or not others else self._unanswered + 1

    def isolation_reason(self, peers: int) -> str:
        """Return why this node counts as cut off although it is connected; empty if it does not.

        If the coordinator used to answer calls, its silence is enough. If it never did, the node may be reaching it
        only through other peers; then nothing is wrong until a stage is overdue.
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


class WeightsOffers:
    """The weights that members currently offer."""

    def __init__(self, refused: RefusalCounter) -> None:
        self._refused = refused
        self._unread: dict[str, bytes] = {}  # member → offer that could not be decoded
        self.by_member: dict[str, WeightsOffer] = {}

    def update_offer(self, peer: str, content: Membership) -> None:
        """Record what a member offers; an offer that cannot be decoded is counted and dropped."""
        self.by_member.pop(peer, None)
        if content.leaving or not content.weights:
            return
        try:
            self.by_member[peer] = decode_offer(content.weights)
        except RecordRejected as error:
            if self._unread.get(peer) != content.weights:  # counted once, because memberships are read repeatedly
                self._refused(peer, error.reason, error.message)
            self._unread[peer] = content.weights

    def has_manifest(self, manifest: str) -> bool:
        """Return whether a member currently offers the manifest with this digest."""
        return any(offer.manifest.hex() == manifest for offer in self.by_member.values())

    def keep_only(self, members: Collection[str]) -> None:
        """Drop the offers of all other peers."""
        self._unread = {peer: packed for peer, packed in self._unread.items() if peer in members}
        self.by_member = {peer: offer for peer, offer in self.by_member.items() if peer in members}


class SwarmView:
    """What one run of the network worker knows about its swarm.

    Attributes:
        members: number of members present, including this node, without those that lack proof of work; a follower of a
            large swarm estimates it from one shard. It decides how much of a body goes into a record, how long nodes
            wait before they gossip what many know, and whether all rollouts of a newly started swarm are there.
        slow: peers whose bodies stopped coming → how often in a row.

    Args:
        knows: whether this node has met a peer as a member, or its configuration names it; by default, whether it is
            credited.
        seniority: makes the `Seniority`, given which peers need no credit.
    """

    def __init__(
        self,
        config: Config,
        peer_id: str,
        nonce: str,
        runtime: Runtime,
        random: Random,
        emit: EventSink,
        withdrawn: Iterable[invitations.HostWithdrawals] = (),
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
        self.rejections = RejectionCounter(runtime.now)
        self.offers = WeightsOffers(self.rejections.count)
        follows = bool(self.coordinator) and not self.coordinating
        self.contact = CoordinatorContact(follows, runtime.time, runtime.now)
        self.shards = AnnouncedShards(None if config.chain is None else config.chain.shards, dht.admission)
        self.withdrawals = invitations.Withdrawals(self.coordinator, withdrawn, runtime.now)
        admission = invitations.AdmissionRule(
            dht.admission, self.swarm, self.coordinator, dht.work_bits, self.withdrawals.is_withdrawn
        )
        self.policy = RecordPolicy(
            self.swarm, self.coordinator, dht.members, peer_id, runtime.time, admission, self.shards
        )
        self.seniority = seniority(self.policy.is_listed)
        self.knows = knows or self.is_credited
        self.invitation = invitations.invitation_from_text(dht.invitation)

    def require_own_invitation(self) -> None:
        """Raise ConfigError if the swarm requires an invitation, and this node has no valid one."""
        dht = self.config.dht
        if dht.admission == "invitation" and not self.coordinating and self.peer_id not in dht.members:
            parts = (self.invitation, self.swarm, self.coordinator, self.peer_id, self.withdrawals.is_withdrawn)
            invitations.require_invitation(*parts)

    def is_credited(self, peer: str) -> bool:
        return self.seniority.rounds_of(peer) > 0

    def set_member_count(self, count: int) -> None:
        """Set the known or estimated number of members present."""
        self.members = max(1, count)

    def mark_slow(self, peer: str) -> None:
        """Remember that a body of this peer stopped coming, so that it is not waited for next time. Above `SLOW_MAX`,
        an unknown peer is dropped first: a crowd has other identities anyway."""
        self.slow[peer] += 1
        if len(self.slow) > SLOW_MAX:
            strangers = (each for each in self.slow if not self.knows(each))
            del self.slow[next(strangers, next(iter(self.slow)))]
