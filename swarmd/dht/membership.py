"""Who takes part: this node's own membership, the others', and a duplicate under the same identity. No hivemind in it.

- `Presences` holds who is known to be here: bounded news of comings, returns and leavings.
- `MemberLookups` looks for the memberships of single peers, in a swarm too large to read all of them.
- `MemberKeys` watches the keys that memberships lie under.
- `Members` publishes this node's own, and tells the daemon of the others'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from cachetools import FIFOCache

from swarmd.bounds import RateLimiter
from swarmd.core.commands import AdmitPeers, Register
from swarmd.core.coordinator.coordination import IDLE_MEMBERS_MAX
from swarmd.core.events import MemberLeft, MemberSeen, Registered
from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.ports import OwnNode, RecordsSink
from swarmd.dht.publisher import RENEWALS, Publisher
from swarmd.dht.record_store import KeyWatch, RecordStore
from swarmd.dht.rounds import find_members_place
from swarmd.dht.store.seniority import Rank, pick
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.addresses import LENGTH_MAX, is_loopback
from swarmd.dht.wire.invitations import chain_of
from swarmd.dht.wire.names import MembersPlace, member_shard_of
from swarmd.dht.wire.records import ADDRESSES_MAX, NAME_LENGTH_MAX, PAST_S, PROTOCOL, TTL_MAX_S, Membership, Record
from swarmd.errors import IdentityInUse, NetworkDown, RecordRejected
from swarmd.logger import get_logger
from swarmd.worker.runtime import TimeSource
from swarmd.worker.tasks import within

NEWCOMERS_BURST, NEWCOMERS_PER_S = 256.0, 2.0  # peers without credit whose coming or return is told
IDLE_BURST, IDLE_PER_S = 64.0, 0.2  # of those that have not worked
RETURNS_BURST, RETURNS_PER_S = 4.0, 1 / 30  # of one peer: leaving and coming back costs it nothing


class Presence(NamedTuple):
    """What is known of a member."""

    here: bool  # False: it has left
    until: float  # expiration of its latest record: whoever is here writes another before


class Presences:
    """The members that a node knows, by their records."""

    def __init__(self, now: TimeSource) -> None:
        self.known: dict[str, Presence] = {}
        self.here = 0  # of them, those that are present
        self._earliest = math.inf  # none of their records expires before
        self._unworked: set[str] = set()  # of them, who had not done the work that every node does when they came
        self._newcomers = RateLimiter(NEWCOMERS_BURST, NEWCOMERS_PER_S, now)
        self._idle = RateLimiter(IDLE_BURST, IDLE_PER_S, now)
        self._returns = RateLimiter(RETURNS_BURST, RETURNS_PER_S, now, MEMBERS_MAX)

    @property
    def workers(self) -> int:
        """Members that are present and have done the work that every node does, or need not: of others there may be any
        number, and nothing is to depend on that."""
        return self.here - sum([self.known[peer].here for peer in self._unworked])

    def choose(self, ranks: Mapping[str, Rank]) -> list[str]:
        """Of peers that are not known yet, those that may come now: who comes first, and no more than so many."""
        return pick(ranks, self._charge_coming)

    def _charge_coming(self, rank: Rank) -> bool:
        """Charge the coming of somebody unknown to the quota of its kind. Returns whether that had any left."""
        return rank.is_credited or (self._newcomers if rank.has_proof_of_work else self._idle).try_charge()

    def note(self, peer: str, here: bool, until: float, rank: Callable[[], Rank]) -> bool | None:
        """Take note of a member's record.

        Args:
            until: the record's expiration.
            rank: gives the record's rank, which a return is asked for.

        Returns:
            True to be told as a coming, False as a leaving, None not at all: it is known, or comes back too often;
            then it is told when there is time for it and the record is still there.
        """
        before = self.known.get(peer)
        if before is None and not (here and self._make_room(rank())):
            return None
        if before is None and rank().no_proof_of_work:
            self._unworked.add(peer)
        returns = here and before is not None and not before.here
        if returns and not (self._returns.try_charge(peer) and self._charge_coming(rank())):
            self._set(peer, Presence(False, until))
            return None
        self._set(peer, Presence(here, until))
        return None if (before is not None and before.here) == here else here

    def _set(self, peer: str, presence: Presence) -> None:
        before = self.known.get(peer)
        self.here += presence.here - (before is not None and before.here)
        self._earliest = min(self._earliest, presence.until)
        self.known[peer] = presence

    def _make_room(self, rank: Rank) -> bool:
        """Let those who have left make room for one more; those that have not worked have few places.

        Returns whether there is room.
        """
        if len(self.known) >= MEMBERS_MAX:
            self.forget([peer for peer, known in self.known.items() if not known.here])
        if rank.no_proof_of_work and len(self._unworked) >= IDLE_MEMBERS_MAX:
            self.forget([peer for peer in self._unworked if not self.known[peer].here])
        return len(self.known) < MEMBERS_MAX and (not rank.no_proof_of_work or len(self._unworked) < IDLE_MEMBERS_MAX)

    def forget_gone(self, now: float) -> list[str]:
        """Forget whose record has expired at `now` (POSIX seconds): it would have written another long before.

        Returns:
            Those who were here, which is to be told.
        """
        if self._earliest >= now - PAST_S:
            return []  # asked after each read, of a single member too
        gone = self.forget([peer for peer, known in self.known.items() if known.until < now - PAST_S])
        self._earliest = min((known.until for known in self.known.values()), default=math.inf)
        return gone

    def forget(self, peers: Iterable[str]) -> list[str]:
        """Forget members. Returns those who were here, which is to be told."""
        gone = list(peers)
        self._unworked.difference_update(gone)
        told = [peer for peer in gone if self.known.pop(peer).here]
        self.here -= len(told)
        return told


KEPT_MAX = 4096  # members that are remembered; the one that was looked for longest ago is forgotten


class MemberLookups:
    """Whose membership this node has seen, and looking for those of others.

    Args:
        seen: called with each membership that was looked for.
    """

    def __init__(self, view: SwarmView, store: RecordStore, seen: RecordsSink) -> None:
        self._view = view
        self._store = store
        self._seen = seen
        self._until: FIFOCache[str, float] = FIFOCache(KEPT_MAX)  # member → expiration of its record

    def note(self, records: Mapping[str, Record]) -> None:
        """Remember whose memberships were read: they need not be looked for while they live."""
        for peer, record in records.items():
            self._until.pop(peer, None)
            if isinstance(record.content, Membership) and not record.content.leaving:
                self._until[peer] = record.expiration

    async def must_be_member(self, peer: str) -> None:
        """Return when the peer has shown to be a member; if all memberships lie under one key, none is asked for.

        Raises:
            NetworkDown: no membership of it is to be had.
        """
        view = self._view
        if not view.shards.members.shards or self._until.get(peer, 0.0) > view.policy.now():
            return
        self._until.pop(peer, None)
        for place in dict.fromkeys((view.shards.members, view.shards.members_before)):
            record = await self._find(peer, place)
            if record is not None:
                self._seen({peer: record})
                break
        if peer not in self._until:
            raise NetworkDown(f"no membership of {peer} is to be had")

    async def _find(self, peer: str, place: MembersPlace) -> Record | None:
        view, store = self._view, self._store
        name = names.members(view.swarm, *place, member_shard_of(view.swarm, peer, place))
        return (await store.find_of(name, peer)).records.get(peer)


WATCHED_SLOWLY = 6  # polls left out between two reads of what only the coordinator needs promptly
AT_ONCE = 8  # shards that the coordinator reads in each `dht.poll_s` when they are new to it


class MemberKeys:
    """The keys of memberships that are watched, wherever they lie at the time.

    A follower of a large swarm watches its own shard, where a duplicate of itself would write. The coordinator watches
    all shards. After memberships have moved, it reads each shard at once and then at ever longer intervals, for members
    follow only when they hear of the move, until one interval is as long as that of a watched key. Memberships are also
    stored with the coordinator, which is as good as a hint.

    Args:
        seen: called with owner → record after each read of a key.
    """

    def __init__(self, view: SwarmView, store: RecordStore, seen: RecordsSink) -> None:
        self._view = view
        self._store = store
        self._seen = seen
        self._place = MembersPlace()
        self._watches: dict[int, KeyWatch] = {}  # by shard
        self._counted: dict[int, int] = {}  # members that were found in each
        self._due: dict[int, int] = {}  # poll in which each is to be read next, of those that have moved lately
        self._waits: dict[int, int] = {}  # polls that it was waited for that
        self._poll = 0  # how many there were

    def watch(self) -> None:
        """Watch for the rest of the session; from now on all go where the clock says that memberships lie."""
        self._view.shards.watch_members(self._move)
        self._move()
        if self._view.coordinating:
            self._view.runtime.start(self._read_moved())

    async def _read_moved(self) -> None:
        """See that shards are read that are due: few at once, and again where nobody answered."""
        while True:
            await self._view.runtime.sleep(self._view.config.dht.poll_s)
            self._poll += 1
            for shard in [shard for shard, poll in self._due.items() if poll <= self._poll][:AT_ONCE]:
                self._watches[shard].look()

    def _wait_longer(self, shard: int) -> None:
        """A shard was read: it is due after twice the time, until it is watched often enough."""
        if self._due.get(shard, self._poll + 1) > self._poll:
            return
        del self._due[shard]  # the next time behind the others
        self._waits[shard] = 2 * self._waits.get(shard, 0) or 1
        if self._waits[shard] < self._polls():
            self._due[shard] = self._poll + self._waits[shard]

    def look(self) -> None:
        """Read the key of this node's own membership now."""
        watch = self._watches.get(self._own_shard())
        if watch is not None:
            watch.look()

    async def own_place(self) -> tuple[MembersPlace, int]:
        """Where this node's membership belongs, and in which shard. Raises NetworkDown."""
        place = await find_members_place(self._view, self._store)
        return place, member_shard_of(self._view.swarm, self._view.peer_id, place)

    def members_about(self, known: int) -> int:
        """Number of members of the swarm, of whom this node knows so many: as many in each shard as in its own."""
        if not self._place.shards or self._view.coordinating:
            return known
        return max(known, self._place.shards * self._counted.get(self._own_shard(), 0))

    def _own_shard(self) -> int:
        return member_shard_of(self._view.swarm, self._view.peer_id, self._place)

    def _move(self) -> None:
        view, store = self._view, self._store
        for watch in self._watches.values():
            store.unwatch(watch.name)
        self._place = view.shards.members
        self._watches, self._counted, self._due, self._waits = {}, {}, {}, {}
        shards = max(1, self._place.shards)
        for shard in range(shards) if view.coordinating else (self._own_shard(),):
            self._begin(shard)

    def _begin(self, shard: int) -> None:
        view, store, (shards, epoch) = self._view, self._store, self._place
        name = names.members(view.swarm, shards, epoch, shard)

        def seen(records: Mapping[str, Record]) -> None:
            self._counted[shard] = len(records)
            self._wait_longer(shard)
            self._seen(records)

        self._watches[shard] = store.watch(name, seen, self._polls(), later=shards > AT_ONCE)
        if view.coordinating and shards:
            self._due[shard] = self._poll

    def _polls(self) -> float:
        """Polls between two reads of a key."""
        dht = self._view.config.dht
        if not self._view.coordinating:
            return WATCHED_SLOWLY
        return max(1.0, dht.record_s / RENEWALS / dht.poll_s) if self._place.shards else 1


LEAVE_S = 1.5  # longest announcement of the leaving
ALERT_S = 60.0  # after registering, and after a duplicate has shown itself, the memberships are read often

log = get_logger(__name__)


class Members:
    """Membership of this node and of the others.

    Attributes:
        presences: who is known to be here, or to have left.
        place: where the latest membership of this node lies.
    """

    def __init__(self, view: SwarmView, store: RecordStore, publisher: Publisher, node: OwnNode) -> None:
        self._view = view
        self._publisher = publisher
        self._node = node
        self._key = names.key_id(names.members(view.swarm))  # under which newcomers draw their lots
        self.presences = Presences(view.runtime.now)
        self._invitations: dict[str, bytes] = {}  # of members, where the swarm asks for them
        self._published = 0.0  # expiration of the latest own record
        self._withdrawn: bytes | None = b""  # in it
        self._offer: bytes | None = b""  # in it
        self._keys = MemberKeys(view, store, self._see)
        self._lookups = MemberLookups(view, store, self._see)
        self.place = view.shards.members
        self._watching = False
        self._alert_until = 0.0
        self._elder = ("", 0.0)  # nonce and expiration of an elder duplicate's record that ours was written over
        self._insisting = False
        self._duplicate: IdentityInUse | None = None
        self._duplicate_seen = view.runtime.signal()
        self._left = view.runtime.signal()

    async def register(self, command: Register) -> None:
        """Publish the membership and begin to watch the others. Raises NetworkDown."""
        await self._publish(leaving=False)
        if not self._watching:
            self.follow()
            self._view.runtime.start(self._keep_alert())
            self._view.runtime.start(self._tell_changes())
        self._view.emit(Registered(command.id))

    def follow(self) -> None:
        """Watch the others without taking part."""
        self._watching = True
        self._keys.watch()

    async def must_be_member(self, peer: str) -> None:
        """Return when a peer has shown to be a member; at once as long as this node does not watch the others.

        Raises:
            NetworkDown: no membership of it is to be had.
        """
        if self._watching:
            await self._lookups.must_be_member(peer)

    async def _publish(self, leaving: bool) -> None:
        view, publisher, node = self._view, self._publisher, self._node
        withdrawn = self._withdrawn = await self._read_withdrawn()
        offer = self._offer = await node.weights_offer()
        place, shard = await self._keys.own_place()
        content = Membership(
            swarm=view.swarm,
            name=_printable(view.config.name),
            nonce=view.nonce,
            joined_at=view.started_at,
            leaving=leaving,
            addresses=_useful(await node.addresses()),
            work=await node.work(),
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

    async def _read_withdrawn(self) -> bytes:
        """The invitations that this node's operator has withdrawn, as they travel."""
        if self._view.config.dht.admission != "invitation":
            return b""
        return await self._node.withdrawn()

    async def _tell_changes(self) -> None:
        """Write the membership anew when the operator withdraws an invitation, the trainer offers weights, or all lie
        elsewhere."""
        while True:
            await self._view.runtime.sleep(self._view.config.dht.poll_s)
            now = (await self._read_withdrawn(), await self._node.weights_offer())
            if now != (self._withdrawn, self._offer) or self.place != self._view.shards.members:
                try:
                    await self._publish(leaving=False)
                except (NetworkDown, RecordRejected) as error:
                    self._withdrawn = self._offer = None  # not told yet: once more
                    log.info("what was withdrawn or is offered is not told yet: %s", error)

    async def _keep_alert(self) -> None:
        """Read often while a duplicate may be about, so that of two the wrong one does not work for long."""
        self._alert_until = self._view.runtime.now() + ALERT_S
        while True:
            await self._view.runtime.sleep(self._view.config.dht.poll_s)
            if self._view.runtime.now() < self._alert_until:
                self._keys.look()

    async def admit(self, command: AdmitPeers) -> None:
        """Take records of the listed peers only, or of whom the configuration admits. Raises RecordRejected."""
        if command.open:
            self._view.policy.admit_configured()
        else:
            self._view.policy.admit(command.peers)

    async def leave(self) -> None:
        """Announce the leaving and see it announced, as others do, if there is time; who registered only."""
        if not self._watching or self._duplicate is not None:
            return
        try:
            await within(self._view.runtime, LEAVE_S, self._announce_leaving)
        except (NetworkDown, RecordRejected, TimeoutError) as error:
            log.info("the leaving was not announced: %s", error)

    async def _announce_leaving(self) -> None:
        await self._publish(leaving=True)
        await self._left.wait()  # else this process may be gone before its hints are out

    async def watch_for_duplicate(self) -> None:
        """Watch for another node with the same identity; never returns.

        Raises:
            IdentityInUse: another process runs under this node's identity.
        """
        await self._duplicate_seen.wait()
        assert self._duplicate is not None
        raise self._duplicate

    def _see(self, records: Mapping[str, Record]) -> None:
        heard = False
        self._lookups.note(records)
        for peer in self._chosen(records):
            record = records[peer]
            content = record.content
            if not isinstance(content, Membership):
                continue
            if peer == self._view.peer_id:
                self._look_for_duplicate(content, record.expiration)
            else:
                self._node.remember_addresses(peer, content.addresses, self._view.is_credited(peer))
            self._note(peer, content, record)
            self._view.offers.hear(peer, content)
            heard |= self._hear_withdrawn(peer, content, record.expiration)
        gone = self.presences.forget_gone(self._view.policy.now())
        for peer in (*gone, *(self.presences.forget(self._void()) if heard else ())):
            self._view.emit(MemberLeft(peer))
        known = self.presences.known
        self._view.offers.keep(known)
        self._invitations = {peer: own for peer, own in self._invitations.items() if peer in known}
        self._view.note_members(self._keys.members_about(self.presences.workers))

    def _chosen(self, records: Mapping[str, Record]) -> list[str]:
        """Members that are known, and of others those who come first, no more than so many in a time."""
        known = self.presences.known
        fresh = {peer: record for peer, record in records.items() if peer not in known}
        ranks = self._view.seniority.ranks_of(fresh, self._key)
        return [*(peer for peer in records if peer in known), *self.presences.choose(ranks)]

    def _note(self, peer: str, content: Membership, record: Record) -> None:
        """Tell of newcomers, of those who return and of those who leave, once each and within bounds."""
        view, here, known = self._view, not content.leaving, peer in self.presences.known
        if peer != view.peer_id and self.presences.known.get(peer) == (here, record.expiration):
            return  # as it was when it was read before: a key of a thousand members is read again and again
        rank = partial(view.seniority.rank_of, record, self._key)
        told = self.presences.note(peer, here, record.expiration, rank)
        if peer == view.peer_id and not here and known:
            self._left.set()
        if told is not None:
            view.emit(MemberSeen(peer, content.name, not rank().no_proof_of_work) if told else MemberLeft(peer))

    def _hear_withdrawn(self, peer: str, content: Membership, expiration: float) -> bool:
        """Take a host's word on what it has withdrawn. True if that is news: all records are judged anew.

        Raises:
            ConfigError: this node's own invitation is withdrawn.
        """
        view = self._view
        if view.config.dht.admission != "invitation":
            return False
        self._invitations[peer] = content.invitation
        latest = view.policy.now() + TTL_MAX_S + PAST_S
        if not self._may_host(peer) or not view.withdrawals.learn(peer, content.withdrawn, expiration, latest):
            return False
        self._node.keep_withdrawn()
        view.must_be_invited()
        return True

    def _may_host(self, peer: str) -> bool:
        """Whether this peer may have made invitations: the creator, and whom it has invited itself."""
        view = self._view
        if peer == view.coordinator or view.policy.lists(peer):
            return peer == view.coordinator
        invitations = chain_of(self._invitations[peer])  # none of one that was on a list when its record was taken
        return bool(invitations) and invitations[0].host == view.coordinator

    def _void(self) -> list[str]:
        """Members whose invitation does not hold any more: their records are refused from now on."""
        view, known = self._view, self.presences.known
        invited = {peer: own for peer, own in self._invitations.items() if not view.policy.lists(peer)}
        void = [peer for peer, own in invited.items() if any(map(view.withdrawals.has, chain_of(own)))]
        return [peer for peer in void if peer in known]

    def _look_for_duplicate(self, content: Membership, expiration: float) -> None:
        """Another life's record over our own was written after ours: by a duplicate, for a predecessor writes no more.

        The elder of two keeps the identity, and both agree which one that is. It writes its record again; the younger,
        which sees it come back after having written over it, ends.
        """
        view = self._view
        if content.nonce == view.nonce or expiration <= self._published or self._insisting:
            return
        self._alert_until = self._view.runtime.now() + ALERT_S
        elder = (content.joined_at, content.nonce) < (view.started_at, view.nonce) and not content.leaving
        nonce, expired_at = self._elder
        if elder and content.nonce == nonce:
            if expiration <= expired_at:
                return  # nobody has written it again: peers keep a predecessor's, whose clock was ahead
            where = ", ".join(content.addresses) or "an unknown place"
            fix = "Stop one of them; two nodes with one identity harm each other's records"
            self._duplicate = IdentityInUse(f"the identity {view.peer_id} also runs at {where}, since longer", fix)
            self._duplicate_seen.set()
        else:
            self._insisting = True
            view.runtime.start(self._insist(content.nonce if elder else "", expiration))

    async def _insist(self, elder: str, expiration: float) -> None:
        """Write our record over a duplicate's: a younger one is to notice, and an elder one to show that it is alive.

        A record of a predecessor can look like an elder's, when it had a longer life; but nobody writes it again.
        """
        try:
            await self._publish(leaving=False)
            self._elder = (elder, expiration)
        except (NetworkDown, RecordRejected) as error:
            log.debug("the membership was not written again: %s", error)
        finally:
            self._insisting = False


def _printable(name: str) -> str:
    """A name as peers take it, with blanks for what cannot be printed: joiners of emoji, marks of direction."""
    return "".join(letter if letter.isprintable() else " " for letter in name)[:NAME_LENGTH_MAX]


def _useful(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Addresses worth telling: those of this host alone only when there are no others, and none that peers refuse."""
    short = tuple(address for address in addresses if len(address) <= LENGTH_MAX)
    public = tuple(address for address in short if not is_loopback(address))
    return (public or short)[:ADDRESSES_MAX]
