"""Who takes part: this node's own membership, the others', and a twin that runs under the same identity."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from swarmd.core.commands import AdmitPeers, Register
from swarmd.core.events import MemberLeft, MemberSeen, Registered
from swarmd.dht.addresses import LENGTH_MAX
from swarmd.dht.members.admission import chain_of
from swarmd.dht.members.member_keys import MemberKeys
from swarmd.dht.members.member_lookups import MemberLookups
from swarmd.dht.members.presence import Presences
from swarmd.dht.network_session import NetworkSession
from swarmd.dht.p2p.multiaddrs import is_loopback
from swarmd.dht.ports import Record
from swarmd.dht.wire import names
from swarmd.dht.wire.records import ADDRESSES_MAX, NAME_LENGTH_MAX, PROTOCOL, Membership
from swarmd.errors import IdentityInUse, NetworkDown, RecordRejected
from swarmd.logger import get_logger
from swarmd.worker.tasks import within

LEAVE_S = 1.5  # longest announcement of the leaving
ALERT_S = 60.0  # after registering, and after a twin has shown itself, the memberships are read often

log = get_logger(__name__)


class Members:
    """Membership of this node and of the others.

    Attributes:
        presences: who is known to be here, or to have left.
        place: where the latest membership of this node lies.

    Args:
        session: where all this happens.
    """

    def __init__(self, session: NetworkSession) -> None:
        self._session = session
        self._key = names.key_id(names.members(session.swarm))  # under which newcomers draw their lots
        self.presences = Presences(session.runtime.now)
        self._invitations: dict[str, bytes] = {}  # of members, where the swarm asks for them
        self._published = 0.0  # expiration of the latest own record
        self._withdrawn: bytes | None = b""  # in it
        self._offer: bytes | None = b""  # in it
        self._keys = MemberKeys(session, self._see)
        self._lookups = MemberLookups(session, self._see)
        self.place = session.shards.members
        self._watching = False
        self._alert_until = 0.0
        self._elder = ("", 0.0)  # nonce and expiration of an elder twin's record that ours was written over
        self._insisting = False
        self._twin: IdentityInUse | None = None
        self._twin_seen = session.runtime.signal()
        self._left = session.runtime.signal()

    async def register(self, command: Register) -> None:
        """Publish the membership and begin to watch the others. Raises NetworkDown."""
        await self._publish(leaving=False)
        if not self._watching:
            self.follow()
            self._session.start(self._keep_alert)
            self._session.start(self._tell_changes)
        self._session.emit(Registered(command.id))

    def follow(self) -> None:
        """Watch the others without taking part."""
        self._watching = True
        self._session.must_be_member = self._lookups.must_be_member
        self._keys.watch()

    async def _publish(self, leaving: bool) -> None:
        session = self._session
        withdrawn = self._withdrawn = await self._read_withdrawn()
        offer = self._offer = await session.weights_offer()
        place, shard = await self._keys.own_place()
        content = Membership(
            swarm=session.swarm,
            name=_printable(session.config.name),
            nonce=session.nonce,
            joined_at=session.started_at,
            leaving=leaving,
            addresses=_useful(await session.addresses()),
            work=await session.work(),
            invitation=session.invitation,
            protocol=PROTOCOL,
            withdrawn=withdrawn,
            weights=offer,
            shards=place.shards,
            epoch=place.epoch,
            shard=shard,
        )
        record = await session.publisher.publish(content)
        self._published, self.place = record.expiration, place

    async def _read_withdrawn(self) -> bytes:
        """The invitations that this node's operator has withdrawn, as they travel."""
        if self._session.config.dht.admission != "invitation":
            return b""
        return await self._session.withdrawn()

    async def _tell_changes(self) -> None:
        """Write the membership anew when the operator withdraws an invitation, the trainer offers weights, or all lie
        elsewhere."""
        while True:
            await self._session.runtime.sleep(self._session.config.dht.poll_s)
            now = (await self._read_withdrawn(), await self._session.weights_offer())
            if now != (self._withdrawn, self._offer) or self.place != self._session.shards.members:
                try:
                    await self._publish(leaving=False)
                except (NetworkDown, RecordRejected) as error:
                    self._withdrawn = self._offer = None  # not told yet: once more
                    log.info("what was withdrawn or is offered is not told yet: %s", error)

    async def _keep_alert(self) -> None:
        """Read often while a twin may be about, so that of two the wrong one does not work for long."""
        self._alert_until = self._session.runtime.now() + ALERT_S
        while True:
            await self._session.runtime.sleep(self._session.config.dht.poll_s)
            if self._session.runtime.now() < self._alert_until:
                self._keys.look()

    async def admit(self, command: AdmitPeers) -> None:
        """Take records of the listed peers only, or of whom the configuration admits. Raises RecordRejected."""
        if command.open:
            self._session.policy.admit_configured()
        else:
            self._session.policy.admit(command.peers)

    async def leave(self) -> None:
        """Announce the leaving and see it announced, as others do, if there is time; who registered only."""
        if not self._watching or self._twin is not None:
            return
        try:
            await within(self._session.runtime, LEAVE_S, self._announce_leaving)
        except (NetworkDown, RecordRejected, TimeoutError) as error:
            log.info("the leaving was not announced: %s", error)

    async def _announce_leaving(self) -> None:
        await self._publish(leaving=True)
        await self._left.wait()  # else this process may be gone before its hints are out

    async def watch_for_twin(self) -> None:
        """Watch for another node with the same identity; never returns.

        Raises:
            IdentityInUse: another process runs under this node's identity.
        """
        await self._twin_seen.wait()
        assert self._twin is not None
        raise self._twin

    def _see(self, records: Mapping[str, Record]) -> None:
        heard = False
        self._lookups.note(records)
        for peer in self._chosen(records):
            record = records[peer]
            content = record.content
            if not isinstance(content, Membership):
                continue
            if peer == self._session.peer_id:
                self._look_for_twin(content, record.expiration)
            else:
                self._session.remember_addresses(peer, content.addresses, self._session.is_credited(peer))
            self._note(peer, content, record)
            self._session.offers.hear(peer, content)
            heard |= self._hear_withdrawn(peer, content, record.expiration)
        gone = self.presences.forget_gone(self._session.policy.now())
        for peer in (*gone, *(self.presences.forget(self._void()) if heard else ())):
            self._session.emit(MemberLeft(peer))
        known = self.presences.known
        self._session.offers.keep(known)
        self._invitations = {peer: own for peer, own in self._invitations.items() if peer in known}
        self._session.members = max(1, self._keys.members_about(self.presences.workers))

    def _chosen(self, records: Mapping[str, Record]) -> list[str]:
        """Members that are known, and of others those who come first, no more than so many in a time."""
        known = self.presences.known
        fresh = {peer: record for peer, record in records.items() if peer not in known}
        ranks = self._session.seniority.ranks_of(fresh, self._key)
        return [*(peer for peer in records if peer in known), *self.presences.choose(ranks)]

    def _note(self, peer: str, content: Membership, record: Record) -> None:
        """Tell of newcomers, of those who return and of those who leave, once each and within bounds."""
        session, here, known = self._session, not content.leaving, peer in self.presences.known
        if peer != session.peer_id and self.presences.known.get(peer) == (here, record.expiration):
            return  # as it was when it was read before: a key of a thousand members is read again and again
        rank = partial(session.seniority.rank_of, record, self._key)
        told = self.presences.note(peer, here, record.expiration, rank)
        if peer == session.peer_id and not here and known:
            self._left.set()
        if told is not None:
            session.emit(MemberSeen(peer, content.name, rank().awaited) if told else MemberLeft(peer))

    def _hear_withdrawn(self, peer: str, content: Membership, expiration: float) -> bool:
        """Take a host's word on what it has withdrawn. True where that is news."""
        session = self._session
        if session.config.dht.admission != "invitation":
            return False
        self._invitations[peer] = content.invitation
        return self._may_host(peer) and session.learn_withdrawn(peer, content.withdrawn, expiration)

    def _may_host(self, peer: str) -> bool:
        """Whether this peer may have made invitations: the creator, and whom it has invited itself."""
        session = self._session
        if peer == session.coordinator or session.policy.lists(peer):
            return peer == session.coordinator
        invitations = chain_of(self._invitations[peer])  # none of one that was on a list when its record was taken
        return bool(invitations) and invitations[0].host == session.coordinator

    def _void(self) -> list[str]:
        """Members whose invitation does not hold any more: their records are refused from now on."""
        session, known = self._session, self.presences.known
        invited = {peer: own for peer, own in self._invitations.items() if not session.policy.lists(peer)}
        void = [peer for peer, own in invited.items() if any(map(session.withdrawals.has, chain_of(own)))]
        return [peer for peer in void if peer in known]

    def _look_for_twin(self, content: Membership, expiration: float) -> None:
        """Another life's record over our own was written after ours: by a twin, for a predecessor writes no more.

        The elder of two keeps the identity, and both agree which one that is. It writes its record again; the younger,
        which sees it come back after having written over it, ends.
        """
        session = self._session
        if content.nonce == session.nonce or expiration <= self._published or self._insisting:
            return
        self._alert_until = self._session.runtime.now() + ALERT_S
        elder = (content.joined_at, content.nonce) < (session.started_at, session.nonce) and not content.leaving
        nonce, expired_at = self._elder
        if elder and content.nonce == nonce:
            if expiration <= expired_at:
                return  # nobody has written it again: peers keep a predecessor's, whose clock was ahead
            where = ", ".join(content.addresses) or "an unknown place"
            fix = "Stop one of them; two nodes with one identity harm each other's records"
            self._twin = IdentityInUse(f"the identity {session.peer_id} also runs at {where}, since longer", fix)
            self._twin_seen.set()
        else:
            self._insisting = True
            session.start(self._insist, content.nonce if elder else "", expiration)

    async def _insist(self, elder: str, expiration: float) -> None:
        """Write our record over a twin's: a younger one is to notice, and an elder one to show that it is alive.

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
