"""Who takes part: this node's own membership, the others', and a twin that runs under the same identity."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import anyio

from swarmd.core.commands import Register
from swarmd.core.events import MemberLeft, MemberSeen, Registered
from swarmd.core.state import MEMBERS_MAX
from swarmd.dht import names
from swarmd.dht.p2pd import is_loopback
from swarmd.dht.records import ADDRESSES_MAX, Membership, Signed
from swarmd.dht.session import WATCHED_SLOWLY, Session
from swarmd.dht.watch import Watch
from swarmd.errors import IdentityInUse, NetworkDown, RecordRejected

LEAVE_S = 1.5  # longest announcement of the leaving

log = logging.getLogger(__name__)


class Members:
    """Membership of this node and of the others.

    Args:
        session: where all this happens.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._present: dict[str, bool] = {}  # peer → is it here? False: it has left
        self._published = 0.0  # expiration of the latest own record
        self._watched = False
        self._twin: IdentityInUse | None = None
        self._twin_seen = anyio.Event()

    async def register(self, command: Register) -> None:
        """Publish the membership and begin to watch the others. Raises NetworkDown."""
        await self._publish(leaving=False)
        if not self._watched:
            self._watched = True
            self._watch()
        self._session.emit(Registered(command.id))

    async def _publish(self, leaving: bool) -> None:
        session = self._session
        content = Membership(
            swarm=session.swarm,
            name=session.config.name[:64],
            nonce=session.nonce,
            joined_at=session.started_at,
            leaving=leaving,
            addresses=_useful(await session.node.addresses()),
        )
        signed = await session.publisher.publish(content)
        self._published = signed.expiration

    def _watch(self) -> None:
        session = self._session
        polls = 1 if session.coordinating else WATCHED_SLOWLY
        session.watch(Watch(session.node, names.members(session.swarm), session.config.dht.poll_s * polls, self._see))

    async def leave(self) -> None:
        """Announce the leaving, if there is time; who registered only."""
        if not self._watched or self._twin is not None:
            return
        try:
            with anyio.move_on_after(LEAVE_S):
                await self._publish(leaving=True)
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
        for peer, signed in records.items():
            content = signed.content
            if not isinstance(content, Membership):
                continue
            if peer == self._session.peer_id:
                self._look_for_twin(content, signed.expiration)
            else:
                self._session.book.meet(peer, content.addresses)
            self._note(peer, content)
        self._session.members = max(1, sum(self._present.values()))

    def _note(self, peer: str, content: Membership) -> None:
        """Tell of newcomers, of those who return and of those who leave, once each."""
        present = not content.leaving
        if self._present.get(peer, False) == present:
            return
        if peer not in self._present and len(self._present) >= MEMBERS_MAX:
            return
        self._present[peer] = present
        self._session.emit(MemberSeen(peer, content.name) if present else MemberLeft(peer))

    def _look_for_twin(self, content: Membership, expiration: float) -> None:
        """Another life's record over our own was written after ours: by a twin, for a predecessor writes no more.

        The younger of two keeps the identity: so both agree which one ends, and a node moved to another host wins.
        """
        session = self._session
        if content.nonce == session.nonce or expiration <= self._published:
            return
        if (content.joined_at, content.nonce) > (session.started_at, session.nonce):
            where = ", ".join(content.addresses) or "an unknown place"
            fix = "Stop one of them; two nodes with one identity harm each other's records"
            self._twin = IdentityInUse(f"the identity {session.peer_id} also runs at {where}", fix)
            self._twin_seen.set()
        else:
            session.start(self._insist)

    async def _insist(self) -> None:
        """An older twin has written over our record: write ours again, so that it notices."""
        try:
            await self._publish(leaving=False)
        except (NetworkDown, RecordRejected) as error:
            log.debug("the membership was not written again: %s", error)


def _useful(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Addresses worth telling: those of this host alone only when there are no others."""
    public = tuple(address for address in addresses if not is_loopback(address))
    return (public or addresses)[:ADDRESSES_MAX]
