"""Gathers peers' rollouts of a stage into the blob store, until all are there or the time is over.

- `WaitPolicy` decides whose rollouts a gathering waits for, and how long. It waits for peers whose rollouts came last
  time. Other peers with proof of work ("strangers") share one time limit, which shrinks when their rollouts do not come
  and grows when they do: an attacker may have any number of such identities. Two peers that deliver in turns could make
  every gathering last to its end. Gatherings that waited in vain for a peer that had delivered last time are therefore
  counted, and while there are several, only peers that delivered in each of the last 2, 4, 8 ... gatherings are waited
  for.
- `SampledShards` chooses which shards of a large swarm's stage are read, `Sources` which peers rollouts are taken from.
- `Gathering` carries out one `Gather` command: it reads reports and rollouts, fetches the bodies that did not come with
  their records, and looks again until all that it waits for are there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress

from cachetools import FIFOCache

from swarmd.core.commands import Gather
from swarmd.core.events import RolloutsGathered
from swarmd.core.state import MEMBERS_MAX
from swarmd.core.values import RolloutsRef
from swarmd.dht.gossip import Gossip
from swarmd.dht.ports import Bodies, Findings, MemberCheck
from swarmd.dht.record_store import RecordStore
from swarmd.dht.rounds import Shard, find_shards
from swarmd.dht.store.seniority import ALWAYS, Rank, Sample, Slots, pick
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Record, ReportRecord, RolloutsRecord
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError
from swarmd.logger import get_logger
from swarmd.worker.tasks import Limiter, TaskGroup, within

PEERS_MAX = 256  # credited peers that rollouts of an unsharded stage are taken from, chosen at random
NEWCOMERS_MAX = 64  # newcomers that they are taken from; those with most proof of work come first
IDLE_MAX = 16  # of these, peers without proof of work

READ_MAX = 8  # shards of one stage that are read if the first ones hold too few peers
SPARE = 4  # one peer more than needed is asked for every `SPARE` peers, so that single slow ones do not matter
NEWCOMERS = 4  # one newcomer is asked for every `NEWCOMERS` credited peers
SAMPLED_IDLE_MAX = 4  # peers without proof of work, in a sampled stage

LOOK_AGAIN_S = 0.3
ANSWER_S = 0.5  # the answer comes this long before the command's time is over
YOUNG_S = 30.0  # this long after this worker's start, peers may have been restarted too and still be publishing
SETTLE_S = 2.0  # time that they get for that
LEAST_S = 0.5  # time for a command that comes too late, for instance after a restart
LAST_FETCH_S = 0.5  # a fetch that would have less time than this is not begun
TOTAL_BYTES_MAX = 64 * 1024 * 1024
NEWCOMERS_BYTES_MAX = TOTAL_BYTES_MAX // 4  # for all peers without credit together
FETCHES_AT_ONCE = 16  # from peers that are waited for
OTHERS_AT_ONCE = 4  # from other peers
LINGER_S = 1.0  # extra time for other peers when all that is waited for is there
ROLLOUTS_BYTES_MAX = 1024 * 1024  # as in `swarmd.swarms.rollouts`: a larger body would be refused unread
FETCH_S = 10.0  # timeout for one body
SLOW = "slow"
WHOLE_MAX = 8  # with more missing peers than this, each one's record is read by itself instead of the whole key
FAILURES_MAX = 2  # failed fetches of one peer's body before a sampled stage replaces the peer

UNTRIED_S = 3600.0  # time limit for strangers while none has failed: longer than any gathering
FAILED_S = 1.0  # longest time limit once one has failed
STRANGERS_LEAST_S = 0.1  # a time limit below this becomes 0
TIMED_OUT_ALLOWED = 1  # gatherings that waited in vain without any consequence
TIMED_OUT_MAX = 12.0
FORGOTTEN_AFTER = 64  # successful gatherings until one that waited in vain is forgotten

log = get_logger(__name__)


class WaitPolicy:
    """Decides whose rollouts are waited for, from which peers delivered in earlier gatherings."""

    def __init__(self) -> None:
        self.strangers_s = UNTRIED_S
        self._rows: FIFOCache[str, int] = FIFOCache(MEMBERS_MAX)  # peer → latest gatherings in a row it delivered to
        self._gatherings = 0
        self._timed_out = 0.0  # of them, those that waited in vain and are not forgotten

    def awaited(self, announced: Mapping[str, Rank], waited_s: float) -> set[str]:
        """Of the peers that announced rollouts, those to wait for after having waited this long."""
        strangers = self._strangers(announced) if waited_s < self.strangers_s else set()
        return strangers | {peer for peer, rank in announced.items() if self._is_trusted(peer, rank)}

    def judge(self, announced: Mapping[str, Rank], got: Collection[str], refused: Collection[str]) -> None:
        """Learn from a finished gathering.

        Args:
            announced: peers that announced rollouts.
            got: of them, those whose rollouts came.
            refused: peers whose bodies were invalid.
        """
        strangers = self._strangers(announced)
        if strangers.difference(got, refused):
            self.strangers_s = min(self.strangers_s / 2, FAILED_S) if self.strangers_s > STRANGERS_LEAST_S else 0.0
        elif strangers.intersection(got):
            self.strangers_s = max(self.strangers_s, min(max(2 * self.strangers_s, STRANGERS_LEAST_S), FAILED_S))
        proven = {peer for peer, rank in announced.items() if rank.rounds < ALWAYS and self._is_proven(peer)}
        if proven.difference(got, refused):
            self._timed_out = min(self._timed_out + 1, TIMED_OUT_MAX)
        else:
            self._timed_out = max(self._timed_out - 1 / FORGOTTEN_AFTER, 0.0)
        self._gatherings += 1
        given = {peer: self._rows.pop(peer, 0) for peer in announced}
        self._rows.update({peer: rows + 1 for peer, rows in given.items() if peer in got})

    def _is_trusted(self, peer: str, rank: Rank) -> bool:
        return rank.rounds >= ALWAYS or self._is_proven(peer)

    def _is_proven(self, peer: str) -> bool:
        return self._rows.get(peer, 0) >= self._row_min

    @property
    def _row_min(self) -> int:
        """Gatherings in a row that a peer must have delivered to; having delivered to all of them is enough."""
        doublings = max(math.ceil(self._timed_out) - TIMED_OUT_ALLOWED, 0)
        return max(1, min(1 << doublings, self._gatherings))

    def _strangers(self, announced: Mapping[str, Rank]) -> set[str]:
        return {
            peer for peer, rank in announced.items() if not rank.no_proof_of_work and not self._is_trusted(peer, rank)
        }


class Sources:
    """The peers that one stage's rollouts are taken from. Others are neither fetched from nor waited for.

    Args:
        sample: as `random.sample`.
        known_max: most credited peers.
        newcomers_max, idle_max: most newcomers with, and without, proof of work.
        fill: whether newcomers with proof of work may take places that credited peers leave free.
    """

    def __init__(
        self,
        sample: Sample,
        known_max: int = PEERS_MAX,
        newcomers_max: int = NEWCOMERS_MAX,
        idle_max: int = IDLE_MAX,
        fill: bool = False,
    ) -> None:
        self.peers: dict[str, None] = {}  # in the order in which they were chosen
        self._sample = sample
        self._room = known_max
        self._fill = fill
        self._slots = Slots(0, newcomers_max, idle_max)

    def choose(self, ranks: Mapping[str, Rank]) -> None:
        """Choose among peers not yet chosen: credited ones at random, and the newcomers that rank first."""
        fresh = {peer: rank for peer, rank in ranks.items() if peer not in self.peers}
        known = [peer for peer, rank in fresh.items() if rank.is_credited]
        chosen = self._sample(known, min(len(known), self._room))
        self._room -= len(chosen)
        chosen += pick({peer: rank for peer, rank in fresh.items() if not rank.is_credited}, self._try_newcomer)
        self.peers |= dict.fromkeys(chosen)

    def _try_newcomer(self, rank: Rank) -> bool:
        if self._slots.try_occupy(rank):
            return True
        fills = self._fill and rank.has_proof_of_work and self._room > 0
        self._room -= fills
        return fills

    def replace(self) -> None:
        """Give the place of one credited peer to another."""
        self._room += 1


class SampledShards:
    """The shards of a stage that are read: a random one, and more while too few peers are found.

    Each node draws its own, so that nobody can predict where it will look. A stage without shards is read whole.

    Args:
        shards: number of shards of the stage, 0 for none.
        wanted: number of peers to gather from if there are shards.
        sample: as `random.sample`.
    """

    def __init__(self, shards: int, wanted: int, sample: Sample) -> None:
        numbers = sample([str(shard) for shard in range(shards)], min(shards, READ_MAX))
        self._unread = [Shard(shards, int(number)) for number in numbers] or [Shard(0, 0)]
        self._wanted = wanted
        self.is_sample = shards > 0
        self.read: list[Shard] = []  # so far
        most = wanted + wanted // SPARE
        few = Sources(sample, most, wanted // NEWCOMERS, SAMPLED_IDLE_MAX, fill=True)
        self.sources = few if self.is_sample else Sources(sample)  # the peers to gather from

    def next(self) -> Shard | None:
        """One more shard to read, or None if there is none left."""
        if not self._unread:
            return None
        self.read.append(self._unread.pop())
        return self.read[-1]

    def lacks(self, useless: int) -> bool:
        """Whether too few peers were found, not counting `useless` of them."""
        return self.is_sample and len(self.sources.peers) - useless < self._wanted

    def is_exhausted(self, useless: int) -> bool:
        """Whether too few were found, not counting `useless` of them, and no shard is left to read."""
        return self.lacks(useless) and not self._unread

    def is_full(self, gathered: int) -> bool:
        """Whether the rollouts of this many peers are enough."""
        return self.is_sample and gathered >= self._wanted


class BodyBytes:
    """Counts bytes of a stage's bodies; peers without credit may use a part of the room."""

    def __init__(self) -> None:
        self._newcomers = self._total = 0

    def reserve(self, credited: bool, size_bytes: int) -> None:
        """Count a body that is about to be fetched. Raises RecordRejected("oversized") if there is no room."""
        over = not credited and self._newcomers + size_bytes > NEWCOMERS_BYTES_MAX
        if over or self._total + size_bytes > TOTAL_BYTES_MAX:
            raise RecordRejected("oversized", "the rollouts of this stage are too large together")
        self.give_back(credited, -size_bytes)

    def give_back(self, credited: bool, size_bytes: int) -> None:
        """Give back the room of a body that was not fetched."""
        self._total -= size_bytes
        self._newcomers -= 0 if credited else size_bytes


class Gathering:
    """Carries out one `Gather` command.

    Args:
        wait_policy: shared by all gatherings of this node.
        must_be_member: raises NetworkDown if a peer has no membership.
        command: which stage, and until when.
    """

    def __init__(
        self,
        view: SwarmView,
        store: RecordStore,
        gossip: Gossip,
        bodies: Bodies,
        wait_policy: WaitPolicy,
        must_be_member: MemberCheck,
        command: Gather,
    ) -> None:
        self._view = view
        self._store = store
        self._evidence = gossip.evidence
        self._bodies = bodies
        self._wait_policy = wait_policy
        self._must_be_member = must_be_member
        self._command = command
        self._place = (view.swarm, command.source_round, command.source_stage)
        self._got: dict[str, RolloutsRef] = {}
        self._refused: set[tuple[str, str]] = set()  # (peer, digest) of invalid bodies
        self._bytes = BodyBytes()
        self._runtime = view.runtime
        self._sample: SampledShards | None = None  # once the stage's shards are known
        self._failures: Counter[str] = Counter()  # failed fetches, by peer
        self._replaced = 0  # number of useless peers when others were chosen last
        self._announced: dict[str, Rank] = {}  # owners of reports that name rollouts
        self._ranks: dict[str, Rank] = {}  # of them, those whose rollouts are looked for
        self._ranked: dict[str, tuple[Record, Rank]] = {}  # owner → its report that was ranked last
        self._awaited: set[str] = set()  # of `_ranks`, peers that are waited for
        self._limiter = Limiter(view.runtime, FETCHES_AT_ONCE)
        self._others_limiter = Limiter(view.runtime, OTHERS_AT_ONCE)
        self._fetches = TaskGroup(view.runtime)
        self._fetching: set[str] = set()  # peers whose bodies are being fetched, or are queued
        self._complete_at: float | None = None  # when all that is waited for was there
        self._began_at = view.runtime.time()
        self._looked = False  # whether any peer has answered

    async def run(self) -> None:
        """Gather, and emit `RolloutsGathered` shortly before the time is over. Raises NetworkDown if none answered."""
        command = self._command
        if command.source_round >= 0:
            with suppress(TimeoutError):
                await within(self._runtime, max(self._remaining_s(), LEAST_S), self._gather)
            if not self._looked:
                raise NetworkDown("nobody answered when rollouts were looked for")
            self._wait_policy.judge(self._ranks, self._got, {peer for peer, _ in self._refused})
        rollouts = tuple(self._got[peer] for peer in sorted(self._got))
        missing = len((self._ranks.keys() | {peer for peer, _ in self._refused}) - self._got.keys())
        place = (command.id, command.round, command.stage)
        self._view.emit(RolloutsGathered(*place, rollouts, missing))

    async def _gather(self) -> None:
        """Look and fetch repeatedly until everything that is waited for is there or was refused.

        Unfinished fetches from other peers then get a little more time, and are cancelled.
        """
        try:
            while True:
                try:
                    await self._look()
                    await self._fetches.wait_idle(LOOK_AGAIN_S)  # look again even while slow fetches go on
                    if self._looked and self._is_complete() and self._end_lingering():
                        return
                except NetworkDown as error:
                    log.info("gathering goes on: %s", error)
                await self._runtime.sleep(LOOK_AGAIN_S)
        finally:
            self._fetches.stop()

    async def _look(self) -> None:
        """Read who has announced rollouts, and begin to fetch those that are there. Raises NetworkDown."""
        if self._sample is None:
            view = self._view
            shards = await find_shards(view, self._store, self._place[1])
            self._sample = SampledShards(shards, view.config.dht.gather_peers, view.random.sample)
        self._replaced = len(self._useless())
        for shard in self._sample.read:
            await self._look_at(shard)
        while not self._sample.read or self._sample.lacks(len(self._useless())):
            fresh = self._sample.next()
            if fresh is None:
                break
            await self._look_at(fresh)

    async def _look_at(self, shard: Shard) -> None:
        """Read one shard of the stage, or all of it if it has no shards. Raises NetworkDown."""
        await self._see_reports(names.reports(*self._place, *shard))
        name = names.rollouts(*self._place, *shard)
        found = await self._find_rollouts(name)
        self._looked = self._looked or found.answered or self._view.coordinating
        await self._begin_fetches(name, found.records)

    async def _find_rollouts(self, name: str) -> Findings:
        """Read the records of rollouts, which may contain bodies. With many peers, only those still missing."""
        sampled = self._sample is not None and self._sample.is_sample
        if sampled or len(self._ranks) <= WHOLE_MAX:
            return await self._store.find(name)
        done = self._got.keys() | self._fetching | {peer for peer, _ in self._refused}
        missing = [peer for peer in self._ranks if peer not in done]
        return await self._store.find_each(name, missing, [peer for peer in missing if peer in self._awaited])

    def _useless(self) -> set[str]:
        """Peers whose bodies were refused; also those whose fetches failed often, if others can replace them."""
        refused = {peer for peer, _ in self._refused}
        gone = {peer for peer, failed in self._failures.items() if failed >= FAILURES_MAX} - self._got.keys()
        replaceable = self._sample is not None and not self._sample.is_exhausted(len(refused | gone))
        return refused | gone if replaceable else refused

    def _end_lingering(self) -> bool:
        """Note when all that is waited for was there.

        Returns whether to end: no fetch goes on any more, or the extra time for it is over.
        """
        assert self._sample is not None, "it was looked"
        if self._sample.is_full(len(self._got)):
            return True
        if self._complete_at is None:
            self._complete_at = self._runtime.now()
        lingered_s = min(LINGER_S, self._wait_policy.strangers_s)
        return not self._fetching or self._runtime.now() > self._complete_at + lingered_s

    def _is_complete(self) -> bool:
        """Whether all awaited rollouts are here or refused, or enough of a sampled stage are here.

        Shortly after this worker's start, peers get some time first, even while none of them is known yet.
        """
        if self._sample is not None and self._sample.is_full(len(self._got)):
            return True
        useless = self._useless()
        if self._fetching & self._awaited or self._awaited - self._got.keys() - useless:
            return False
        if self._sample is not None and self._sample.is_sample and len(useless) > self._replaced:
            return False  # others may take their places
        now, view = self._runtime.time(), self._view
        settled = now > self._began_at + SETTLE_S or now > view.started_at + YOUNG_S
        return settled or 1 < view.members <= len(self._ranks) + 1

    def _remaining_s(self) -> float:
        return self._command.until_at - ANSWER_S - self._runtime.time()

    async def _see_reports(self, name: str) -> None:
        """Read which peers' reports under a key name rollouts, and choose which peers to gather from and wait for.

        A peer whose last body was too slow is not waited for.
        """
        found = await self._store.find(name)
        self._looked = self._looked or found.answered  # peers may not be asked for rollouts if all are here already
        announced = {
            peer: record
            for peer, record in found.records.items()
            if peer != self._view.peer_id and _names_rollouts(record) and not self._is_barred(peer)
        }
        self._announced |= self._rank(announced, names.key_id(name))
        self._announced = {peer: rank for peer, rank in self._announced.items() if not self._is_barred(peer)}
        self._choose_awaited()

    def _rank(self, announced: dict[str, Record], key: bytes) -> dict[str, Rank]:
        """Rank the reports' owners; an unchanged report keeps its rank."""
        known = self._ranked
        fresh = {peer: record for peer, record in announced.items() if peer not in known or known[peer][0] != record}
        for peer, rank in self._view.seniority.ranks_of(fresh, key).items():
            known[peer] = (announced[peer], rank)
        return {peer: known[peer][1] for peer in announced}

    def _choose_awaited(self) -> None:
        assert self._sample is not None, "the stage's shards are known"
        self._sample.sources.choose(self._announced)
        chosen = self._sample.sources.peers
        self._ranks = {peer: rank for peer, rank in self._announced.items() if peer in chosen}
        awaited = self._wait_policy.awaited(self._ranks, self._runtime.time() - self._began_at)
        self._awaited = {peer for peer in awaited if not self._view.slow[peer]}

    async def _begin_fetches(self, name: str, records: Mapping[str, Record]) -> None:
        """Take the bodies that came with their records, and begin to fetch the others.

        Peers that were fast before come first, and among them those that the node knows.
        """
        chosen = self._chosen(name, records)
        wanted = [(peer, content) for peer in chosen if (content := self._wanted(records[peer])) is not None]
        looks_for_members = self._view.shards.members.shards > 0  # which takes as long as a fetch
        for peer, content in wanted:
            if content.body and not looks_for_members:
                await self._try(peer, content)
        slow, knows = self._view.slow, self._view.knows
        for peer, content in sorted(wanted, key=lambda each: (slow[each[0]], not knows(each[0]))):
            if (not content.body or looks_for_members) and peer not in self._fetching:
                self._fetching.add(peer)
                self._fetches.start(self._fetch_within, peer, content)

    def _chosen(self, name: str, records: Mapping[str, Record]) -> list[str]:
        """Of the owners of these records, the peers that rollouts are taken from."""
        assert self._sample is not None, "the stage's shards are known"
        own = self._view.peer_id
        fresh = {peer: record for peer, record in records.items() if peer != own and not self._is_barred(peer)}
        sources = self._sample.sources
        sources.choose(self._view.seniority.ranks_of(fresh, names.key_id(name)))
        done = self._got.keys() | (self._useless() if self._sample.is_sample else set())
        return [peer for peer in sources.peers if peer in records and peer not in done]

    def _is_barred(self, peer: str) -> bool:
        return self._evidence.bans(peer, self._command.source_round)

    def _wanted(self, record: Record) -> RolloutsRecord | None:
        content = record.content
        if not isinstance(content, RolloutsRecord) or (record.owner, content.digest) in self._refused:
            return None
        return content

    async def _fetch_within(self, peer: str, content: RolloutsRecord) -> None:
        try:
            async with self._limiter if peer in self._awaited else self._others_limiter:
                await self._try(peer, content)
        finally:
            self._fetching.discard(peer)

    async def _try(self, peer: str, content: RolloutsRecord) -> None:
        try:
            await self._fetch(peer, content)
            self._view.slow.pop(peer, None)
        except RecordRejected as error:
            self._refused.add((peer, content.digest))
            self._replace(peer)
            self._view.rejections.count(peer, error.reason, error.message)
            if error.reason == SLOW:
                self._view.note_slow(peer)
        except SwarmdError as error:
            log.info("cannot get the rollouts of %s: %s", peer, error)
            self._note_failure(peer)

    def _note_failure(self, peer: str) -> None:
        """In a sampled stage, replace a peer whose fetches failed several times."""
        assert self._sample is not None, "it was looked"
        self._failures[peer] += self._sample.is_sample
        if self._failures[peer] == FAILURES_MAX:
            self._replace(peer)

    def _replace(self, peer: str) -> None:
        rank = self._ranks.get(peer)
        if self._sample is not None and self._sample.is_sample and rank is not None and rank.is_credited:
            self._sample.sources.replace()

    async def _fetch(self, peer: str, content: RolloutsRecord) -> None:
        if content.size_bytes > ROLLOUTS_BYTES_MAX:
            raise RecordRejected("oversized", f"rollouts of {content.size_bytes} bytes")
        credited = self._view.seniority.rounds_of(peer) > 0
        self._bytes.reserve(credited, content.size_bytes)
        bodies = self._bodies
        try:
            await self._must_be_member(peer)
            if not bodies.has(content.digest):
                body = await self._body(peer, content)
                await bodies.check(body, content.digest, content.size_bytes)
                await bodies.put(body)
        except BaseException:
            self._bytes.give_back(credited, content.size_bytes)
            raise
        place = (content.round, content.stage, content.digest, content.size_bytes, content.groups)
        self._got[peer] = RolloutsRef(peer, *place)

    async def _body(self, peer: str, content: RolloutsRecord) -> bytes:
        bodies = self._bodies
        if content.body:
            return await bodies.inflate(content.body, content.size_bytes)
        timeout_s = self._remaining_s()
        if timeout_s < LAST_FETCH_S:
            raise NetworkDown("no time is left to fetch them")
        wanted = (peer, content.digest, content.size_bytes, timeout_s)
        try:
            return await within(self._runtime, FETCH_S, bodies.fetch, *wanted)
        except TimeoutError:
            raise RecordRejected(SLOW, f"no body within {FETCH_S:g} s") from None


def _names_rollouts(record: Record) -> bool:
    return isinstance(record.content, ReportRecord) and record.content.groups > 0
