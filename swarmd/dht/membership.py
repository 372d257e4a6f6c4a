"""Memberships: this node's own, other peers', and a second node under the same identity. Does not import hivemind.

- `MemberPresences` holds the known members, and limits how many arrivals and departures are emitted.
- `MemberLookups` looks up the memberships of single peers, in a swarm too large to read all of them.
- `MembershipWatcher` watches the keys that memberships are stored under.
- `Members` publishes this node's membership, and emits the others'.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from cachetools import FIFOCache

from swarmd.bounds import RateLimiter
from swarmd.core.commands import AdmitPeers, Register
from swarmd.core.coordination import IDLE_MEMBERS_MAX
from swarmd.core.events import MemberLeft, MemberSeen, Registered
from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.ports import OwnNode, RecordsSink
from swarmd.dht.publisher import RENEWALS, Publisher
from swarmd.dht.record_store import KeyWatch, RecordStore
from swarmd.dht.rounds import find_member_sharding
from swarmd.dht.store.seniority import Rank, pick_by_rank
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.addresses import LENGTH_MAX, is_loopback
from swarmd.dht.wire.invitations import invitation_chain
from swarmd.dht.wire.names import MemberSharding, member_shard_of
from swarmd.dht.wire.records import ADDRESSES_MAX, NAME_LENGTH_MAX, PAST_S, PROTOCOL, TTL_MAX_S, Membership, Record
from swarmd.errors import IdentityInUse, NetworkDown, RecordRejected
from swarmd.logger import get_logger
from swarmd.worker.runtime import TimeSource
from swarmd.worker.tasks import run_within

NEWCOMERS_BURST, NEWCOMERS_PER_S = 256.0, 2.0  # arrivals of peers with proof of work but no credit
IDLE_BURST, IDLE_PER_S = 64.0, 0.2  # arrivals of peers without proof of work
RETURNS_BURST, RETURNS_PER_S = 4.0, 1 / 30  # of one peer: leaving and coming back costs it nothing


class Presence(NamedTuple):
    """Whether a member is present, and until when its record counts."""

    here: bool  # whether it is present; False: it has left
    until: float  # expiration of its latest record; a present member publishes another before then


class MemberPresences:
    """The members that a node knows, by their records."""

    def __init__(self, now: TimeSource) -> None:
        self.known: dict[str, Presence] = {}
        self.here = 0  # number of `known` members that are present
        self._earliest = math.inf  # no known record expires before this
        self._without_work: set[str] = set()  # members that had no proof of work when they came
        self._newcomers = RateLimiter(NEWCOMERS_BURST, NEWCOMERS_PER_S, now)
        self._idle = RateLimiter(IDLE_BURST, IDLE_PER_S, now)
        self._returns = RateLimiter(RETURNS_BURST, RETURNS_PER_S, now, MEMBERS_MAX)

    @property
    def proof_of_work_count(self) -> int:
        """Number of present members with proof of work, or with credit. An attacker can have any number of others."""
        return self.here - sum([self.known[peer].here for peer in self._without_work])

    def choose_arrivals(self, ranks: Mapping[str, Rank]) -> list[str]:
        """Choose which unknown peers to accept now, by rank and within the rate limits."""
        return pick_by_rank(ranks, self._charge_arrival)

    def _charge_arrival(self, rank: Rank) -> bool:
        """Charge an arrival to the rate limit of its kind. Returns whether the limit allowed it."""
        return rank.is_credited or (self._newcomers if rank.has_proof_of_work else self._idle).try_charge()

    def record_presence(self, peer: str, here: bool, until: float, rank: Callable[[], Rank]) -> bool | None:
        """Note a member's record. Returns True to emit an arrival, False a departure, None for neither: nothing has
        changed, or the member comes back too often, and its arrival is emitted later."""
        before = self.known.get(peer)
        if before is None and not (here and self._make_room(rank())):
            return None
        if before is None and rank().no_proof_of_work:
            self._without_work.add(peer)
        returns = here and before is not None and not before.here
        if returns and not (self._returns.try_charge(peer) and self._charge_arrival(rank())):
            self._set_presence(peer, Presence(False, until))
            return None
        self._set_presence(peer, Presence(here, until))
        return None if (before is not None and before.here) == here else here

    def _set_presence(self, peer: str, presence: Presence) -> None:
        before = self.known.get(peer)
        self.here += presence.here - (before is not None and before.here)
        self._earliest = min(self._earliest, presence.until)
        self.known[peer] = presence

    def _make_room(self, rank: Rank) -> bool:
        """Forget members that have left if one more needs a slot. Returns whether there is one. Members without proof
        of work have few slots."""
        if len(self.known) >= MEMBERS_MAX:
            self.forget([peer for peer, known in self.known.items() if not known.here])
        if not rank.no_proof_of_work:
            return len(self.known) < MEMBERS_MAX
        if len(self._without_work) >= IDLE_MEMBERS_MAX:
            self.forget([peer for peer in self._without_work if not self.known[peer].here])
        return len(self.known) < MEMBERS_MAX and len(self._without_work) < IDLE_MEMBERS_MAX

    def forget_expired(self, now: float) -> list[str]:
        """Forget members whose records have expired at `now`. Returns those whose departure must be emitted."""
        if self._earliest >= now - PAST_S:
            return []  # the usual case: this is called after each read, even of a single member
        gone = self.forget([peer for peer, known in self.known.items() if known.until < now - PAST_S])
        self._earliest = min((known.until for known in self.known.values()), default=math.inf)
        return gone

    def forget(self, peers: Iterable[str]) -> list[str]:
        """Forget members. Returns those that were present, whose departure must be emitted."""
        gone = list(peers)
        self._without_work.difference_update(gone)
        told = [peer for peer in gone if self.known.pop(peer).here]
        self.here -= len(told)
        return told


KEPT_MAX = 4096  # members that are remembered; the one looked up longest ago is dropped first


class MemberLookups:
    """Remembers which peers' memberships this node has seen, and looks up others."""

    def __init__(self, view: SwarmView, store: RecordStore, seen: RecordsSink) -> None:
        self._view = view
        self._store = store
        self._seen = seen
        self._until: FIFOCache[str, float] = FIFOCache(KEPT_MAX)  # member → expiration of its record

    def remember_members(self, records: Mapping[str, Record]) -> None:
        """Remember the memberships that were read, so that they need not be looked up until they expire."""
        for peer, record in records.items():
            self._until.pop(peer, None)
            if isinstance(record.content, Membership) and not record.content.leaving:
                self._until[peer] = record.expiration

    async def require_member(self, peer: str) -> None:
        """Return if the peer is a member; unchecked without shards. Raises NetworkDown: no membership was found."""
        view = self._view
        if not view.shards.members.shards or self._until.get(peer, 0.0) > view.policy.now():
            return
        self._until.pop(peer, None)
        for place in dict.fromkeys((view.shards.members, view.shards.members_before)):
            record = await self._find_membership(peer, place)
            if record is not None:
                self._seen({peer: record})
                break
        if peer not in self._until:
            raise NetworkDown(f"no membership of {peer} was found")

    async def _find_membership(self, peer: str, place: MemberSharding) -> Record | None:
        view, store = self._view, self._store
        name = names.members_key(view.swarm, *place, member_shard_of(view.swarm, peer, place))
        return (await store.find_record_by_owner(name, peer)).records.get(peer)


POLLS_BETWEEN_READS = 6  # for followers; the coordinator alone needs memberships promptly
AT_ONCE = 8  # shards that the coordinator reads on each poll after memberships have moved


class MembershipWatcher:
    """Watches the keys of memberships, and follows when memberships move to other keys.

    A follower of a large swarm watches its own shard, where a duplicate of itself would publish. The coordinator
    watches all shards. Members move to new shards only when they learn of them, so after a move the coordinator reads
    each shard immediately and then at intervals that double up to those of an ordinary watch. Members also store their
    memberships with the coordinator, which acts like a hint.
    """

    def __init__(self, view: SwarmView, store: RecordStore, seen: RecordsSink) -> None:
        self._view = view
        self._store = store
        self._seen = seen
        self._place = MemberSharding()
        self._watches: dict[int, KeyWatch] = {}  # by shard
        self._counted: dict[int, int] = {}  # shard → members that were found in it
        self._due: dict[int, int] = {}  # shard → poll on which to read it next, after a move
        self._waits: dict[int, int] = {}  # shard → its current interval in polls
        self._poll = 0  # number of polls so far

    def watch(self) -> None:
        """Watch for the rest of the session, at the keys that the clock names."""
        self._view.shards.set_members_moved_listener(self._watch_new_shards)
        self._watch_new_shards()
        if self._view.coordinating:
            self._view.runtime.start(self._read_due_shards())

    async def _read_due_shards(self) -> None:
        """Read the shards that are due, `AT_ONCE` on each poll; a shard that no peer answered for stays due."""
        while True:
            await self._view.runtime.sleep(self._view.config.dht.poll_s)
            self._poll += 1
            for shard in [shard for shard, poll in self._due.items() if poll <= self._poll][:AT_ONCE]:
                self._watches[shard].read_now()

    def _double_interval(self, shard: int) -> None:
        """Double a shard's interval after a read, until the interval of its watch is short enough."""
        if self._due.get(shard, self._poll + 1) > self._poll:
            return
        del self._due[shard]  # queue it behind the others
        self._waits[shard] = 2 * self._waits.get(shard, 0) or 1
        if self._waits[shard] < self._polls_between_reads():
            self._due[shard] = self._poll + self._waits[shard]

    def read_own_shard_now(self) -> None:
        watch = self._watches.get(self._own_shard())
        if watch is not None:
            watch.read_now()

    async def locate_own_membership(self) -> tuple[MemberSharding, int]:
        """Return the current sharding of memberships and this node's own shard. Raises NetworkDown."""
        place = await find_member_sharding(self._view, self._store)
        return place, member_shard_of(self._view.swarm, self._view.peer_id, place)

    def estimate_members(self, known: int) -> int:
        """Estimate the number of members: `known` ones, or, with shards, the own shard's count times the shards."""
        if not self._place.shards or self._view.coordinating:
            return known
        return max(known, self._place.shards * self._counted.get(self._own_shard(), 0))

    def _own_shard(self) -> int:
        return member_shard_of(self._view.swarm, self._view.peer_id, self._place)

    def _watch_new_shards(self) -> None:
        view, store = self._view, self._store
        for watch in self._watches.values():
            store.unwatch(watch.name)
        self._place = view.shards.members
        self._watches, self._counted, self._due, self._waits = {}, {}, {}, {}
        shards = max(1, self._place.shards)
        for shard in range(shards) if view.coordinating else (self._own_shard(),):
            self._watch_shard(shard)

    def _watch_shard(self, shard: int) -> None:
        view, store, (shards, epoch) = self._view, self._store, self._place
        name = names.members_key(view.swarm, shards, epoch, shard)

        def handle_records(records: Mapping[str, Record]) -> None:
            self._counted[shard] = len(records)
            self._double_interval(shard)
            self._seen(records)

        self._watches[shard] = store.watch(name, handle_records, self._polls_between_reads(), later=shards > AT_ONCE)
        if view.coordinating and shards:
            self._due[shard] = self._poll

    def _polls_between_reads(self) -> float:
        dht = self._view.config.dht
        if not self._view.coordinating:
            return POLLS_BETWEEN_READS
        return max(1.0, dht.record_s / RENEWALS / dht.poll_s) if self._place.shards else 1


LEAVE_S = 1.5  # timeout for announcing the departure
ALERT_S = 60.0  # memberships are read often for this long after registering and after a duplicate was seen

log = get_logger(__name__)


class Members:
    """Publishes this node's membership, stored at `place`, and emits other members' arrivals and departures."""

    def __init__(self, view: SwarmView, store: RecordStore, publisher: Publisher, node: OwnNode) -> None:
        self._view = view
        self._publisher = publisher
        self._node = node
        self._key = names.key_id(names.members_key(view.swarm))  # breaks ties between newcomers
        self.presences = MemberPresences(view.runtime.now)
        self._invitations: dict[str, bytes] = {}  # member → its invitation, in a swarm by invitation
        self._published = 0.0  # expiration of the latest own record
        self._withdrawn: bytes | None = b""  # `withdrawn` of that record; None: publish again
        self._offer: bytes | None = b""  # `weights` of that record; None: publish again
        self._keys = MembershipWatcher(view, store, self._handle_memberships)
        self._lookups = MemberLookups(view, store, self._handle_memberships)
        self.place = view.shards.members
        self._watching = False
        self._alert_until = 0.0
        self._older = ("", 0.0)  # nonce and expiration of an older duplicate's record that this node has replaced
        self._insisting = False
        self._duplicate: IdentityInUse | None = None
        self._duplicate_seen = view.runtime.make_signal()
        self._left = view.runtime.make_signal()

    async def register(self, command: Register) -> None:
        """Publish this node's membership and begin to watch the others'. Raises NetworkDown."""
        await self._publish_membership(leaving=False)
        if not self._watching:
            self.watch_others()
            self._view.runtime.start(self._read_often_while_alert())
            self._view.runtime.start(self._publish_changes())
        self._view.emit(Registered(command.id))

    def watch_others(self) -> None:
        self._watching = True
        self._keys.watch()

    async def require_member(self, peer: str) -> None:
        """Return if a peer is a member; unchecked until memberships are watched. Raises NetworkDown: none found."""
        if self._watching:
            await self._lookups.require_member(peer)

    async def _publish_membership(self, leaving: bool) -> None:
        view, publisher, node = self._view, self._publisher, self._node
        withdrawn = self._withdrawn = await self._read_withdrawn_invitations()
        offer = self._offer = await node.weights_offer()
        place, shard = await self._keys.locate_own_membership()
        content = Membership(
            swarm=view.swarm,
            name=_printable_name(view.config.name),
            nonce=view.nonce,
            joined_at=view.started_at,
            leaving=leaving,
            addresses=_publishable_addresses(await node.addresses()),
            work=await node.proof_of_work(),
            invitation=view.invitation,
            protocol=PROTOCOL,
            withdrawn=withdrawn,
            weights=offer,
            shards=place.shards,
            epoch=place.epoch,
            shard=shard,
        )
        record = await publisher.publish(content)
        self._published, self.place = record.expiration, place

    async def _read_withdrawn_invitations(self) -> bytes:
        """Return the encoded invitations that this node's operator has withdrawn."""
        if self._view.config.dht.admission != "invitation":
            return b""
        return await self._node.withdrawn_invitations()

    async def _publish_changes(self) -> None:
        """Publish the membership again when an invitation is withdrawn, weights are offered, or shards have moved."""
        while True:
            await self._view.runtime.sleep(self._view.config.dht.poll_s)
            now = (await self._read_withdrawn_invitations(), await self._node.weights_offer())
            if now != (self._withdrawn, self._offer) or self.place != self._view.shards.members:
                try:
                    await self._publish_membership(leaving=False)
                except (NetworkDown, RecordRejected) as error:
                    self._withdrawn = self._offer = None
                    log.info("the membership was not published again: %s", error)

    async def _read_often_while_alert(self) -> None:
        """Read memberships often while there may be a duplicate, so that one of the two soon stops."""
        self._alert_until = self._view.runtime.now() + ALERT_S
        while True:
            await self._view.runtime.sleep(self._view.config.dht.poll_s)
            if self._view.runtime.now() < self._alert_until:
                self._keys.read_own_shard_now()

    async def admit_peers(self, command: AdmitPeers) -> None:
        """Accept records of the listed peers only, or of those that the configuration admits. Raises RecordRejected."""
        if command.open:
            self._view.policy.admit_configured()
        else:
            self._view.policy.admit_only(command.peers)

    async def leave(self) -> None:
        """Announce the departure if this node has registered, and wait up to `LEAVE_S` until peers can read it."""
        if not self._watching or self._duplicate is not None:
            return
        try:
            await run_within(self._view.runtime, LEAVE_S, self._announce_leaving)
        except (NetworkDown, RecordRejected, TimeoutError) as error:
            log.info("the departure was not announced: %s", error)

    async def _announce_leaving(self) -> None:
        await self._publish_membership(leaving=True)
        await self._left.wait()  # else this process may end before its hints are sent

    async def watch_for_duplicate(self) -> None:
        """Watch for another node with this identity; never returns. Raises IdentityInUse: there is one."""
        await self._duplicate_seen.wait()
        assert self._duplicate is not None
        raise self._duplicate

    def _handle_memberships(self, records: Mapping[str, Record]) -> None:
        heard = False
        self._lookups.remember_members(records)
        for peer in self._choose_members(records):
            record = records[peer]
            content = record.content
            if not isinstance(content, Membership):
                continue
            if peer == self._view.peer_id:
                self._look_for_duplicate(content, record.expiration)
            else:
                self._node.remember_addresses(peer, content.addresses, self._view.is_credited(peer))
            self._update_presence(peer, content, record)
            self._view.offers.update_offer(peer, content)
            heard |= self._handle_withdrawals(peer, content, record.expiration)
        gone = self.presences.forget_expired(self._view.policy.now())
        for peer in (*gone, *(self.presences.forget(self._uninvited_members()) if heard else ())):
            self._view.emit(MemberLeft(peer))
        known = self.presences.known
        self._view.offers.keep_only(known)
        self._invitations = {peer: own for peer, own in self._invitations.items() if peer in known}
        self._view.set_member_count(self._keys.estimate_members(self.presences.proof_of_work_count))

    def _choose_members(self, records: Mapping[str, Record]) -> list[str]:
        """Return the owners to handle: known members, and the unknown ones that the rate limits accept now."""
        known = self.presences.known
        fresh = {peer: record for peer, record in records.items() if peer not in known}
        ranks = self._view.seniority.ranks_of(fresh, self._key)
        return [*(peer for peer in records if peer in known), *self.presences.choose_arrivals(ranks)]

    def _update_presence(self, peer: str, content: Membership, record: Record) -> None:
        """Emit an arrival, a return or a departure once, within the rate limits."""
        view, here, known = self._view, not content.leaving, peer in self.presences.known
        if peer != view.peer_id and self.presences.known.get(peer) == (here, record.expiration):
            return  # unchanged, the usual case: a key of a thousand members is read often
        rank = partial(view.seniority.rank_of, record, self._key)
        told = self.presences.record_presence(peer, here, record.expiration, rank)
        if peer == view.peer_id and not here and known:
            self._left.set()
        if told is not None:
            view.emit(MemberSeen(peer, content.name, not rank().no_proof_of_work) if told else MemberLeft(peer))

    def _handle_withdrawals(self, peer: str, content: Membership, expiration: float) -> bool:
        """Record the invitations that a host has withdrawn. Returns True if any is new; all records are then checked
        again. Raises ConfigError: this node's own invitation is withdrawn."""
        view = self._view
        if view.config.dht.admission != "invitation":
            return False
        self._invitations[peer] = content.invitation
        latest = view.policy.now() + TTL_MAX_S + PAST_S
        if not self._may_invite(peer) or not view.withdrawals.update_host(peer, content.withdrawn, expiration, latest):
            return False
        self._node.save_withdrawals()
        view.require_own_invitation()
        return True

    def _may_invite(self, peer: str) -> bool:
        """Return whether a peer may invite: the coordinator, and peers that it has invited itself."""
        view = self._view
        if peer == view.coordinator or view.policy.is_listed(peer):
            return peer == view.coordinator
        # empty if the peer was on the members list when its record was accepted
        invitations = invitation_chain(self._invitations[peer])
        return bool(invitations) and invitations[0].host == view.coordinator

    def _uninvited_members(self) -> list[str]:
        """Return members whose invitation was withdrawn; their records are refused from now on."""
        view, known = self._view, self.presences.known
        invited = {peer: own for peer, own in self._invitations.items() if not view.policy.is_listed(peer)}
        void = [peer for peer, own in invited.items() if any(map(view.withdrawals.is_withdrawn, invitation_chain(own)))]
        return [peer for peer in void if peer in known]

    def _look_for_duplicate(self, content: Membership, expiration: float) -> None:
        """Detect a second node under this identity: another run's record was published after this run's.

        The older node keeps the identity: it publishes its record again. The younger one replaces that record once, and
        stops when the older one's record reappears.
        """
        view = self._view
        if content.nonce == view.nonce or expiration <= self._published or self._insisting:
            return
        self._alert_until = self._view.runtime.now() + ALERT_S
        older = (content.joined_at, content.nonce) < (view.started_at, view.nonce) and not content.leaving
        nonce, expired_at = self._older
        if older and content.nonce == nonce:
            if expiration <= expired_at:
                return  # not published again: peers still keep the record of an earlier run whose clock was ahead
            where = ", ".join(content.addresses) or "an unknown place"
            fix = "Stop one of them; two nodes with one identity harm each other's records"
            also = f"the identity {view.peer_id} also runs at {where}, and was started earlier there"
            self._duplicate = IdentityInUse(also, fix)
            self._duplicate_seen.set()
        else:
            self._insisting = True
            view.runtime.start(self._republish_over_duplicate(content.nonce if older else "", expiration))

    async def _republish_over_duplicate(self, older: str, expiration: float) -> None:
        """Replace a duplicate's record, so that a younger duplicate notices and an older one publishes again. A record
        left by an earlier run of this node looks like an older duplicate's, but never reappears."""
        try:
            await self._publish_membership(leaving=False)
            self._older = (older, expiration)
        except (NetworkDown, RecordRejected) as error:
            log.debug("the membership was not published again: %s", error)
        finally:
            self._insisting = False


def _printable_name(name: str) -> str:
    """Return a name that peers accept: unprintable characters, such as emoji joiners, become blanks."""
    return "".join(letter if letter.isprintable() else " " for letter in name)[:NAME_LENGTH_MAX]


def _publishable_addresses(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Return the addresses to publish: loopback ones only if there are no others, and none that peers refuse."""
    short = tuple(address for address in addresses if len(address) <= LENGTH_MAX)
    public = tuple(address for address in short if not is_loopback(address))
    return (public or short)[:ADDRESSES_MAX]
