"""Gathering peers' rollouts of a stage into the blob store, until all are there or the time is over."""

from __future__ import annotations

import logging
import random
import time

import anyio

from swarmd.core.commands import Gather
from swarmd.core.events import RolloutsGathered
from swarmd.core.values import RolloutsRef
from swarmd.dht import names
from swarmd.dht.bodies import check_body, inflate
from swarmd.dht.fetch import fetch_body
from swarmd.dht.lookup import lookup
from swarmd.dht.records import ReportRecord, RolloutsRecord, Signed
from swarmd.dht.seniority import Places
from swarmd.dht.session import Session
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError

LOOK_AGAIN_S = 0.3
ANSWER_S = 0.5  # the answer is there so long before the time is over, when training begins without it
YOUNG_S = 30.0  # after this worker's start its peers may have been restarted too, and still publish again
SETTLE_S = 2.0  # what they get for that
LEAST_S = 0.5  # for a command that comes too late: after a restart, for instance
LAST_FETCH_S = 0.5  # a body whose fetch would have less time than this is not fetched
PEERS_MAX = 256  # gathered from at most so many peers that the swarm knows, at random
NEWCOMERS_MAX = 64  # and of newcomers from so many: those that worked most, then by lot
IDLE_MAX = 16  # of those that have not worked
ROLLOUTS_BYTES_MAX = 1024 * 1024  # as in `swarmd.swarms.rollouts`, where a larger body is refused unread
TOTAL_BYTES_MAX = 64 * 1024 * 1024
FETCHES_AT_ONCE = 4
PATIENCE_S, BYTES_PER_S_MIN = 4.0, 128.0 * 1024  # a peer that is slower than this gives up its place to others

log = logging.getLogger(__name__)


class Gathering:
    """One `Gather` command being done.

    Args:
        session: where all this happens.
        command: what to gather.
    """

    def __init__(self, session: Session, command: Gather) -> None:
        self._session = session
        self._command = command
        self._place = (session.swarm, command.source_round, command.source_stage)
        self._got: dict[str, RolloutsRef] = {}
        self._refused: set[tuple[str, str]] = set()  # (peer, digest) of bodies that were not what was announced
        self._bytes = 0
        self._tried: dict[str, None] = {}  # peers that were chosen to be gathered from
        self._known = 0  # of them, known ones
        self._places = Places(0, NEWCOMERS_MAX, IDLE_MAX)
        self._expected: set[str] = set()  # peers whose reports name rollouts
        self._awaited: set[str] = set()  # of them, those that gathering waits for
        self._began_at = time.time()
        self._looked = False  # has any peer answered?

    async def run(self) -> None:
        """Gather and tell, shortly before the time is over. Raises NetworkDown when nothing could be looked for."""
        command = self._command
        if command.source_round >= 0:
            with anyio.move_on_after(max(self._remaining_s(), LEAST_S)):
                await self._gather()
            if not self._looked:
                raise NetworkDown("nobody answered when rollouts were looked for")
        rollouts = tuple(self._got[peer] for peer in sorted(self._got))
        missing = len((self._expected | {peer for peer, _ in self._refused}) - self._got.keys())
        self._session.emit(RolloutsGathered(command.id, command.round, command.stage, rollouts, missing))

    async def _gather(self) -> None:
        """Look, fetch, look again, until everything announced is there or has shown to be false."""
        while True:
            try:
                self._expected = await self._announced()
                found = await self._session.node.call(lambda life: lookup(life, names.rollouts(*self._place)))
                self._looked = self._looked or found.answered or self._session.coordinating
                await self._fetch_all(found.records)
                if self._looked and self._is_complete():
                    return
            except NetworkDown as error:
                log.info("gathering goes on: %s", error)
            await anyio.sleep(LOOK_AGAIN_S)

    def _is_complete(self) -> bool:
        """All announced rollouts are here or refused. In a swarm that was just restarted, peers get a moment first."""
        if self._awaited - self._got.keys() - {peer for peer, _ in self._refused}:
            return False
        now, session = time.time(), self._session
        settled = now > self._began_at + SETTLE_S or now > session.started_at + YOUNG_S
        return settled or len(self._expected) >= session.members - 1

    def _remaining_s(self) -> float:
        return self._command.until_at - ANSWER_S - time.time()

    async def _announced(self) -> set[str]:
        """Peers whose report of the stage names rollouts; it is worth waiting for those that are known or worked."""
        name = names.reports(*self._place)
        found = await self._session.node.call(lambda life: lookup(life, name))
        announced = {
            peer: signed
            for peer, signed in found.records.items()
            if isinstance(report := signed.content, ReportRecord) and report.groups and peer != self._session.peer_id
        }
        choose, key = self._session.seniority.choose, names.key_id(name)
        self._awaited = set(choose(announced, key, Places(PEERS_MAX, NEWCOMERS_MAX, 0).take))
        return set(choose(announced, key, Places(PEERS_MAX, NEWCOMERS_MAX, IDLE_MAX).take))

    async def _fetch_all(self, records: dict[str, Signed]) -> None:
        """Bodies that came along first: they wait for nobody. Of the others, those of peers that are known."""
        slots = anyio.CapacityLimiter(FETCHES_AT_ONCE)
        fetched = []
        for peer in self._chosen(records):
            content = records[peer].content
            if isinstance(content, RolloutsRecord) and (peer, content.digest) not in self._refused:
                if content.body:
                    await self._attempt(peer, content)
                else:
                    fetched.append((peer, content))
        async with anyio.create_task_group() as tasks:
            for peer, content in fetched:
                tasks.start_soon(self._attempt_in_turn, slots, peer, content)

    def _chosen(self, records: dict[str, Signed]) -> list[str]:
        """Peers to gather from: at random of those known, and of newcomers those who come first; at most so many."""
        seniority, own = self._session.seniority, self._session.peer_id
        fresh = {peer: signed for peer, signed in records.items() if peer != own and peer not in self._tried}
        known = [peer for peer in fresh if seniority.rounds_of(peer)]
        chosen = random.sample(known, min(len(known), PEERS_MAX - self._known))
        self._known += len(chosen)
        others = {peer: signed for peer, signed in fresh.items() if not seniority.rounds_of(peer)}
        chosen += seniority.choose(others, names.key_id(names.rollouts(*self._place)), self._places.take)
        self._tried |= dict.fromkeys(chosen)
        return [peer for peer in self._tried if peer in records and peer not in self._got]

    async def _attempt_in_turn(self, slots: anyio.CapacityLimiter, peer: str, content: RolloutsRecord) -> None:
        async with slots:
            await self._attempt(peer, content)

    async def _attempt(self, peer: str, content: RolloutsRecord) -> None:
        try:
            await self._fetch(peer, content)
        except RecordRejected as error:
            self._refused.add((peer, content.digest))
            self._session.rejections.count(peer, error.reason, error.message)
        except SwarmdError as error:
            log.info("rollouts of %s are not to be had: %s", peer, error)

    async def _fetch(self, peer: str, content: RolloutsRecord) -> None:
        if content.size_bytes > ROLLOUTS_BYTES_MAX:
            raise RecordRejected("oversized", f"rollouts of {content.size_bytes} bytes, nobody reads so many")
        if self._bytes + content.size_bytes > TOTAL_BYTES_MAX:
            raise RecordRejected("oversized", "the rollouts of this stage are too large together")
        self._bytes += content.size_bytes
        blobs = self._session.blobs
        if not blobs.has(content.digest):
            try:
                body = await self._body(peer, content)
                await anyio.to_thread.run_sync(check_body, body, content.digest, content.size_bytes)
            except SwarmdError:
                self._bytes -= content.size_bytes  # what does not come takes nobody's room
                raise
            await anyio.to_thread.run_sync(blobs.put, body)
        place = (content.round, content.stage, content.digest, content.size_bytes, content.groups)
        self._got[peer] = RolloutsRef(peer, *place)

    async def _body(self, peer: str, content: RolloutsRecord) -> bytes:
        if content.body:
            return inflate(content.body, content.size_bytes)
        timeout_s = self._remaining_s()
        if timeout_s < LAST_FETCH_S:
            raise NetworkDown("no time is left to fetch them")
        patience_s = PATIENCE_S + content.size_bytes / BYTES_PER_S_MIN
        began_at = time.monotonic()
        try:
            return await fetch_body(
                self._session.node, peer, content.digest, content.size_bytes, min(timeout_s, patience_s)
            )
        except NetworkDown as error:
            if time.monotonic() - began_at > patience_s - LEAST_S:
                raise RecordRejected("slow", f"its body did not come within {patience_s:.1f} s") from error
            raise


async def gather(session: Session, command: Gather) -> None:
    """Do a `Gather` command. Raises NetworkDown."""
    await Gathering(session, command).run()
