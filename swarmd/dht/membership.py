"""Who takes part: this node's own membership, the others', and a twin that runs under the same identity."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import NamedTuple

import anyio

from swarmd.core.commands import AdmitPeers, Register
from swarmd.core.events import MemberLeft, MemberSeen, Registered
from swarmd.core.state import MEMBERS_MAX
from swarmd.dht import names
from swarmd.dht.places import is_loopback
from swarmd.dht.quota import Quota
from swarmd.dht.records import ADDRESSES_MAX, PAST_S, PROTOCOL, Membership, Signed
from swarmd.dht.seniority import Rank
from swarmd.dht.session import WATCHED_SLOWLY, Session
from swarmd.dht.watch import Watch
from swarmd.errors import IdentityInUse, NetworkDown, RecordRejected

NEWCOMERS_BURST, NEWCOMERS_PER_S = 256.0, 2.0  # peers without credit whose coming is told
IDLE_BURST, IDLE_PER_S = 64.0, 0.2  # of those that have not worked
LEAVE_S = 1.5  # longest announcement of the leaving
ALERT_S = 60.0  # after registering, and after a twin has shown itself, the memberships are read often

log = logging.getLogger(__name__)


class Presence(NamedTuple):
    """What is known of a member."""

    here: bool  # False: it has left
    until: float  # expiration of its latest record: whoever is here writes another before


class Members:
    """Membership of this node and of the others.

    Args:
        session: where all this happens.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[str, Presence] = {}
        self._newcomers = Quota(NEWCOMERS_BURST, NEWCOMERS_PER_S, time.monotonic)
        self._idle = Quota(IDLE_BURST, IDLE_PER_S, time.monotonic)
        self._published = 0.0  # expiration of the latest own record
        self._watch: Watch | None = None
        self._alert_until = 0.0
        self._elder = ""  # nonce of an elder twin's record that ours was written over
        self._insisting = False
        self._twin: IdentityInUse | None = None
        self._twin_seen = anyio.Event()
        self._left = anyio.Event()

    async def register(self, command: Register) -> None:
        """Publish the membership and begin to watch the others. Raises NetworkDown."""
        await self._publish(leaving=False)
        if self._watch is None:
            self._watch = self._begin_watch()
            self._session.start(self._keep_alert, self._watch)
        self._session.emit(Registered(command.id))

    def follow(self) -> None:
        """Watch the others without taking part."""
        self._watch = self._begin_watch()

    async def _publish(self, leaving: bool) -> None:
        session = self._session
        content = Membership(
            swarm=session.swarm,
            name=session.config.name[:64],
            nonce=session.nonce,
            joined_at=session.started_at,
            leaving=leaving,
            addresses=_useful(await session.node.addresses()),
            work=await session.work(),
            invitation=session.invitation,
            protocol=PROTOCOL,
        )
        signed = await session.publisher.publish(content)
        self._published = signed.expiration

    def _begin_watch(self) -> Watch:
        session = self._session
        polls = 1 if session.coordinating else WATCHED_SLOWLY
        watch = Watch(session.node, names.members(session.swarm), session.config.dht.poll_s * polls, self._see)
        session.watch(watch)
        return watch

    async def _keep_alert(self, watch: Watch) -> None:
        """Read often while a twin may be about, so that of two the wrong one does not work for long."""
        self._alert_until = anyio.current_time() + ALERT_S
        while True:
            await anyio.sleep(self._session.config.dht.poll_s)
            if anyio.current_time() < self._alert_until:
                watch.look()

    async def admit(self, command: AdmitPeers) -> None:
        """Take records of the listed peers only, or of whom the configuration admits. Raises RecordRejected."""
        if command.open:
            self._session.policy.admit_configured()
        else:
            self._session.policy.admit(command.peers)

    async def leave(self) -> None:
        """Announce the leaving and see it announced, as others do, if there is time; who registered only."""
        if self._watch is None or self._twin is not None:
            return
        try:
            with anyio.move_on_after(LEAVE_S):
                await self._publish(leaving=True)
                await self._left.wait()  # else this process may be gone before its hints are out
        except (NetworkDown, RecordRejected) as error:
            log.info("the leaving was not announced: %s", error)

    async def watch_for_twin(self) -> None:
        """Wait for ever.

        Raises:
            IdentityInUse: another process runs under this node's identity.
        """
        await self._twin_seen.wait()
        assert self._twin is not None
        raise self._twin

    def _see(self, records: Mapping[str, Signed]) -> None:
        for peer in self._chosen(records):
            signed = records[peer]
            content = signed.content
            if not isinstance(content, Membership):
                continue
            if peer == self._session.peer_id:
                self._look_for_twin(content, signed.expiration)
            else:
                self._session.book.meet(peer, content.addresses, self._session.seniority.rounds_of(peer) > 0)
            self._note(peer, content, signed.expiration)
        self._forget_gone()
        self._session.members = max(1, sum(known.here for known in self._known.values()))

    def _chosen(self, records: Mapping[str, Signed]) -> list[str]:
        """Members that are known, and of others those who come first, no more than so many in a time."""
        fresh = {peer: signed for peer, signed in records.items() if peer not in self._known}
        key = names.key_id(names.members(self._session.swarm))
        chosen = self._session.seniority.choose(fresh, key, self._may_come)
        return [*(self._known.keys() & records.keys()), *chosen]

    def _may_come(self, rank: Rank) -> bool:
        return rank.known or (self._newcomers if rank.worked else self._idle).take("")

    def _note(self, peer: str, content: Membership, until: float) -> None:
        """Tell of newcomers, of those who return and of those who leave, once each."""
        here, before = not content.leaving, self._known.get(peer)
        if before is None and (not here or not self._has_room()):
            return
        self._known[peer] = Presence(here, until)
        if peer == self._session.peer_id and not here:
            self._left.set()
        if (before is not None and before.here) != here:
            self._session.emit(MemberSeen(peer, content.name) if here else MemberLeft(peer))

    def _has_room(self) -> bool:
        """Is there room for one more, where those who have left make it?"""
        if len(self._known) >= MEMBERS_MAX:
            self._known = {peer: known for peer, known in self._known.items() if known.here}
        return len(self._known) < MEMBERS_MAX

    def _forget_gone(self) -> None:
        """Whose record has expired is gone without a word: it would have written another long before."""
        gone = self._session.policy.now() - PAST_S
        for peer in [peer for peer, known in self._known.items() if known.until < gone]:
            if self._known.pop(peer).here:
                self._session.emit(MemberLeft(peer))

    def _look_for_twin(self, content: Membership, expiration: float) -> None:
        """Another life's record over our own was written after ours: by a twin, for a predecessor writes no more.

        The elder of two keeps the identity, and both agree which one that is. It writes its record again; the younger,
        which sees it come back after having written over it, ends.
        """
        session = self._session
        if content.nonce == session.nonce or expiration <= self._published or self._insisting:
            return
        self._alert_until = anyio.current_time() + ALERT_S
        elder = (content.joined_at, content.nonce) < (session.started_at, session.nonce) and not content.leaving
        if elder and content.nonce == self._elder:
            where = ", ".join(content.addresses) or "an unknown place"
            fix = "Stop one of them; two nodes with one identity harm each other's records"
            self._twin = IdentityInUse(f"the identity {session.peer_id} also runs at {where}, since longer", fix)
            self._twin_seen.set()
        else:
            self._insisting = True
            session.start(self._insist, content.nonce if elder else "")

    async def _insist(self, elder: str) -> None:
        """Write our record over a twin's: a younger one is to notice, and an elder one to show that it is alive.

        A record of a predecessor can look like an elder's, when it had a longer life; but it does not come back.
        """
        try:
            await self._publish(leaving=False)
            self._elder = elder
        except (NetworkDown, RecordRejected) as error:
            log.debug("the membership was not written again: %s", error)
        finally:
            self._insisting = False


def _useful(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Addresses worth telling: those of this host alone only when there are no others."""
    public = tuple(address for address in addresses if not is_loopback(address))
    return (public or addresses)[:ADDRESSES_MAX]
