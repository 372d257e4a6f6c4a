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
from swarmd.dht.session import Session
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError

LOOK_AGAIN_S = 0.3
ANSWER_S = 0.5  # the answer is there so long before the time is over, when training begins without it
YOUNG_S = 30.0  # after this worker's start its peers may have been restarted too, and still publish again
SETTLE_S = 2.0  # what they get for that
LEAST_S = 0.5  # for a command that comes too late: after a restart, for instance
LAST_FETCH_S = 0.5  # a body whose fetch would have less time than this is not fetched
PEERS_MAX = 256  # gathered from at most so many peers, at random
TOTAL_BYTES_MAX = 64 * 1024 * 1024
FETCHES_AT_ONCE = 4

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
        self._expected: set[str] = set()  # peers whose reports name rollouts
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
        if self._expected - self._got.keys() - {peer for peer, _ in self._refused}:
            return False
        now, session = time.time(), self._session
        settled = now > self._began_at + SETTLE_S or now > session.started_at + YOUNG_S
        return settled or len(self._expected) >= session.members - 1

    def _remaining_s(self) -> float:
        return self._command.until_at - ANSWER_S - time.time()

    async def _announced(self) -> set[str]:
        """Peers whose report of the stage names rollouts."""
        found = await self._session.node.call(lambda life: lookup(life, names.reports(*self._place)))
        return {
            peer
            for peer, signed in found.records.items()
            if isinstance(report := signed.content, ReportRecord) and report.groups and peer != self._session.peer_id
        }

    async def _fetch_all(self, records: dict[str, Signed]) -> None:
        peers = [peer for peer in records if peer != self._session.peer_id and peer not in self._got]
        limiter = anyio.CapacityLimiter(FETCHES_AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for peer in random.sample(peers, min(len(peers), PEERS_MAX - len(self._got))):
                tasks.start_soon(self._fetch_bounded, limiter, records[peer])

    async def _fetch_bounded(self, limiter: anyio.CapacityLimiter, signed: Signed) -> None:
        content = signed.content
        if not isinstance(content, RolloutsRecord) or (signed.owner, content.digest) in self._refused:
            return
        async with limiter:
            try:
                await self._fetch(signed.owner, content)
            except RecordRejected as error:
                self._refused.add((signed.owner, content.digest))
                self._session.rejections.count(signed.owner, error.reason, error.message)
            except SwarmdError as error:
                log.info("rollouts of %s are not to be had: %s", signed.owner, error)

    async def _fetch(self, peer: str, content: RolloutsRecord) -> None:
        if self._bytes + content.size_bytes > TOTAL_BYTES_MAX:
            raise RecordRejected("oversized", "the rollouts of this stage are too large together")
        self._bytes += content.size_bytes
        blobs = self._session.blobs
        if not blobs.has(content.digest):
            try:
                body = await self._body(peer, content)
            except NetworkDown:
                self._bytes -= content.size_bytes
                raise
            await anyio.to_thread.run_sync(check_body, body, content.digest, content.size_bytes)
            await anyio.to_thread.run_sync(blobs.put, body)
        place = (content.round, content.stage, content.digest, content.size_bytes, content.groups)
        self._got[peer] = RolloutsRef(peer, *place)

    async def _body(self, peer: str, content: RolloutsRecord) -> bytes:
        if content.body:
            return inflate(content.body, content.size_bytes)
        timeout_s = self._remaining_s()
        if timeout_s < LAST_FETCH_S:
            raise NetworkDown("no time is left to fetch them")
        return await fetch_body(self._session.node, peer, content.digest, content.size_bytes, timeout_s)


async def gather(session: Session, command: Gather) -> None:
    """Do a `Gather` command. Raises NetworkDown."""
    await Gathering(session, command).run()
