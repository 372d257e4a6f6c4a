"""Gathering peers' rollouts of a stage into the blob store, until all are there or the time is over.

- `WaitPolicy` says for whose rollouts a gathering waits, and for how long. A peer that gave its rollouts last time is
  waited for. Any number of identities may have done the little work that a newcomer needs: how long all of these are
  waited for together depends on what came of it in the last gatherings. Two peers that give in turns could make every
  gathering last to its end, so gatherings that waited in vain for a peer that gave last time are counted, and while
  there are several, only peers that gave in the last 2, 4, 8 ... gatherings are waited for.
- `SampledShards` says which shards of a large swarm's stage are read, `Sources` from which peers rollouts are taken.
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

PEERS_MAX = 256  # gathered from at most so many peers that the swarm knows, at random, where a stage has no shards
NEWCOMERS_MAX = 64  # and of newcomers from so many: those that worked most, then by lot
IDLE_MAX = 16  # of those that have not worked

READ_MAX = 8  # shards of one stage, where the first ones hold too few peers
SPARE = 4  # of so many peers one more is asked than is needed, so that nobody waits for single ones
NEWCOMERS = 4  # beside so many peers that the swarm knows, there is a place for a newcomer
SAMPLED_IDLE_MAX = 4  # peers that have not worked

LOOK_AGAIN_S = 0.3
ANSWER_S = 0.5  # the answer is there so long before the time is over, when training begins without it
YOUNG_S = 30.0  # after this worker's start its peers may have been restarted too, and still publish again
SETTLE_S = 2.0  # what they get for that
LEAST_S = 0.5  # for a command that comes too late: after a restart, for instance
LAST_FETCH_S = 0.5  # a body whose fetch would have less time than this is not fetched
TOTAL_BYTES_MAX = 64 * 1024 * 1024
NEWCOMERS_BYTES_MAX = TOTAL_BYTES_MAX // 4  # of all together that the swarm has not credited
FETCHES_AT_ONCE = 16  # of peers that are waited for
OTHERS_AT_ONCE = 4  # of those that nobody waits for
LINGER_S = 1.0  # what the latter get when everything else is there, unless strangers have failed lately
ROLLOUTS_BYTES_MAX = 1024 * 1024  # as in `swarmd.swarms.rollouts`: a larger body would be refused unread
FETCH_S = 10.0  # longest for one body, so that one that trickles does not keep others waiting
SLOW = "slow"
WHOLE_MAX = 8  # peers whose rollouts are read with all that lie under their key; of more, each from one who keeps it
FAILURES_MAX = 2  # fetches of one peer's body, in a stage of which a sample is gathered

UNTRIED_S = 3600.0  # while no stranger has failed: as long as for anybody
FAILED_S = 1.0  # at most, once one has
STRANGERS_LEAST_S = 0.1  # the next step down is not to wait
TIMED_OUT_ALLOWED = 1  # gatherings in vain that change nothing
TIMED_OUT_MAX = 12.0
FORGOTTEN_AFTER = 64  # gatherings that waited for nobody in vain, until one that did is forgotten

log = get_logger(__name__)


class WaitPolicy:
    """What a node knows of who gives what it announces."""

    def __init__(self) -> None:
        self.strangers_s = UNTRIED_S
        self._rows: FIFOCache[str, int] = FIFOCache(MEMBERS_MAX)  # peer → latest gatherings in a row that it gave to
        self._gatherings = 0
        self._timed_out = 0.0  # of them, those that waited in vain and are not forgotten

    def awaited(self, announced: Mapping[str, Rank], waited_s: float) -> set[str]:
        """Of peers that have announced rollouts, those worth waiting for after so long."""
        strangers = self._strangers(announced) if waited_s < self.strangers_s else set()
        return strangers | {peer for peer, rank in announced.items() if self._is_trusted(peer, rank)}

    def judge(self, announced: Mapping[str, Rank], got: Collection[str], refused: Collection[str]) -> None:
        """A gathering is over: whose rollouts came, of those that had announced some; and whose were no rollouts."""
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
        """Gatherings in a row that who is waited for has given to; who gave to all that there were always is."""
        doublings = max(math.ceil(self._timed_out) - TIMED_OUT_ALLOWED, 0)
        return max(1, min(1 << doublings, self._gatherings))

    def _strangers(self, announced: Mapping[str, Rank]) -> set[str]:
        return {
            peer for peer, rank in announced.items() if not rank.no_proof_of_work and not self._is_trusted(peer, rank)
        }


class Sources:
    """The peers that one stage is gathered from: whoever is not among them is neither fetched from nor waited for.

    Args:
        sample: as `random.sample`.
        known_max: of peers that the swarm knows.
        newcomers_max, idle_max: of those that have worked, and of those that have not.
        fill: whether newcomers that have worked may also have what those that the swarm knows leave free.
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
        """Of peers not yet among them: at random of those known, and of newcomers those who come first."""
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
        """One of them gave nothing that counts: another may take its place."""
        self._room += 1


class SampledShards:
    """A stage's shards that are read: one drawn by chance, and another as long as peers are missing.

    By this node's own chance, so that nobody knows where it will look. A stage without shards is read whole.

    Args:
        shards: of the stage, 0 for none.
        wanted: number of peers to gather from, of a stage with shards.
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
        """One more shard to read; None where there is none, or enough were read."""
        if not self._unread:
            return None
        self.read.append(self._unread.pop())
        return self.read[-1]

    def lacks(self, useless: int) -> bool:
        """Whether too few peers were found yet, of whom so many gave nothing."""
        return self.is_sample and len(self.sources.peers) - useless < self._wanted

    def is_exhausted(self, useless: int) -> bool:
        """Whether too few were found, of whom so many gave nothing, and there is no shard left to read."""
        return self.lacks(useless) and not self._unread

    def is_full(self, gathered: int) -> bool:
        """Whether so many peers' rollouts are all that is wanted."""
        return self.is_sample and gathered >= self._wanted


class BodyBytes:
    """Bytes of a stage's bodies; newcomers leave most of the room to peers that were credited."""

    def __init__(self) -> None:
        self._newcomers = self._total = 0

    def reserve(self, credited: bool, size_bytes: int) -> None:
        """Count a body that is about to be fetched. Raises RecordRejected("oversized") without room."""
        over = not credited and self._newcomers + size_bytes > NEWCOMERS_BYTES_MAX
        if over or self._total + size_bytes > TOTAL_BYTES_MAX:
            raise RecordRejected("oversized", "the rollouts of this stage are too large together")
        self.give_back(credited, -size_bytes)

    def give_back(self, credited: bool, size_bytes: int) -> None:
        """A body did not come."""
        self._total -= size_bytes
        self._newcomers -= 0 if credited else size_bytes


class Gathering:
    """One `Gather` command being done.

    Args:
        wait_policy: of this node with whoever announces rollouts, over all gatherings.
        must_be_member: raises NetworkDown if a peer has shown no membership.
        command: says which stage, and until when.
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
        self._refused: set[tuple[str, str]] = set()  # (peer, digest) of bodies that were not what was announced
        self._bytes = BodyBytes()
        self._runtime = view.runtime
        self._sample: SampledShards | None = None  # once the stage's shards are known
        self._failures: Counter[str] = Counter()  # fetches that failed, by peer
        self._replaced = 0  # of those that gave nothing, so many when others were chosen last
        self._expected: set[str] = set()  # peers whose reports name rollouts
        self._announced: dict[str, Rank] = {}  # of the owners of reports that name rollouts
        self._ranks: dict[str, Rank] = {}  # of those whose rollouts are looked for
        self._ranked: dict[str, tuple[Record, Rank]] = {}  # of all reports that were looked at
        self._awaited: set[str] = set()  # of them, those that gathering waits for
        self._limiter = Limiter(view.runtime, FETCHES_AT_ONCE)
        self._others_limiter = Limiter(view.runtime, OTHERS_AT_ONCE)
        self._fetches = TaskGroup(view.runtime)
        self._fetching: set[str] = set()  # peers whose bodies are being fetched, or wait for their turn
        self._complete_at: float | None = None  # when all that is waited for was there
        self._began_at = view.runtime.time()
        self._looked = False  # has any peer answered?

    async def run(self) -> None:
        """Gather and tell, shortly before the time is over. Raises NetworkDown when nothing could be looked for."""
        command = self._command
        if command.source_round >= 0:
            with suppress(TimeoutError):
                await within(self._runtime, max(self._remaining_s(), LEAST_S), self._gather)
            if not self._looked:
                raise NetworkDown("nobody answered when rollouts were looked for")
            self._wait_policy.judge(self._ranks, self._got, {peer for peer, _ in self._refused})
        rollouts = tuple(self._got[peer] for peer in sorted(self._got))
        missing = len((self._expected | {peer for peer, _ in self._refused}) - self._got.keys())
        place = (command.id, command.round, command.stage)
        self._view.emit(RolloutsGathered(*place, rollouts, missing))

    async def _gather(self) -> None:
        """Look, fetch, look again, until everything awaited is there or has shown to be false.

        Fetches of other peers' bodies that go on then get a moment more, and are cancelled.
        """
        try:
            while True:
                try:
                    await self._look()
                    await self._fetches.wait_idle(LOOK_AGAIN_S)  # whoever is slow does not keep this from looking
                    if self._looked and self._is_complete() and self._end_lingering():
                        return
                except NetworkDown as error:
                    log.info("gathering goes on: %s", error)
                await self._runtime.sleep(LOOK_AGAIN_S)
        finally:
            self._fetches.stop()

    async def _look(self) -> None:
        """See who has announced rollouts, and begin to fetch those that are there. Raises NetworkDown."""
        if self._sample is None:
            shards, wanted = (
                await find_shards(self._view, self._store, self._place[1]),
                self._view.config.dht.gather_peers,
            )
            self._sample = SampledShards(shards, wanted, self._view.random.sample)
        self._replaced = len(self._useless())
        for shard in self._sample.read:
            await self._look_at(shard)
        while not self._sample.read or self._sample.lacks(len(self._useless())):
            fresh = self._sample.next()
            if fresh is None:
                break
            await self._look_at(fresh)

    async def _look_at(self, shard: Shard) -> None:
        """Look at a shard of the stage, or at all of it where it has none. Raises NetworkDown."""
        await self._see_reports(names.reports(*self._place, *shard))
        name = names.rollouts(*self._place, *shard)
        found = await self._find_rollouts(name)
        self._looked = self._looked or found.answered or self._view.coordinating
        await self._begin_fetches(name, found.records)

    async def _find_rollouts(self, name: str) -> Findings:
        """The records of rollouts, which may hold bodies; of many peers those alone that are wanted still."""
        sampled = self._sample is not None and self._sample.is_sample
        if sampled or len(self._ranks) <= WHOLE_MAX:
            return await self._store.find(name)
        done = self._got.keys() | self._fetching | {peer for peer, _ in self._refused}
        missing = [peer for peer in self._ranks if peer not in done]
        return await self._store.find_each(name, missing, [peer for peer in missing if peer in self._awaited])

    def _useless(self) -> set[str]:
        """Peers that gave nothing that counts, or, where others may take their places, nothing several times."""
        refused = {peer for peer, _ in self._refused}
        gone = {peer for peer, failed in self._failures.items() if failed >= FAILURES_MAX} - self._got.keys()
        replaceable = self._sample is not None and not self._sample.is_exhausted(len(refused | gone))
        return refused | gone if replaceable else refused

    def _end_lingering(self) -> bool:
        """Note when all that is waited for was there.

        Returns whether to end: nothing is being fetched any more, or what is has had its moment since then.
        """
        assert self._sample is not None, "it was looked"
        if self._sample.is_full(len(self._got)):
            return True
        if self._complete_at is None:
            self._complete_at = self._runtime.now()
        lingered_s = min(LINGER_S, self._wait_policy.strangers_s)
        return not self._fetching or self._runtime.now() > self._complete_at + lingered_s

    def _is_complete(self) -> bool:
        """All awaited rollouts are here or refused, or all that are wanted of a large swarm are here.

        In a swarm that was just restarted, peers get a moment first, also while none of them is known yet.
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
        return settled or 1 < view.members <= len(self._expected) + 1

    def _remaining_s(self) -> float:
        return self._command.until_at - ANSWER_S - self._runtime.time()

    async def _see_reports(self, name: str) -> None:
        """See whose reports under a key name rollouts, and choose whom to gather from.

        It is worth waiting for those who gave theirs before, and for a while for others that worked, unless their last
        body stopped coming.
        """
        found = await self._store.find(name)
        self._looked = self._looked or found.answered  # nobody is asked for rollouts that all lie here already
        announced = {
            peer: record
            for peer, record in found.records.items()
            if peer != self._view.peer_id and _names_rollouts(record) and not self._is_barred(peer)
        }
        self._announced |= self._rank(announced, names.key_id(name))
        self._announced = {peer: rank for peer, rank in self._announced.items() if not self._is_barred(peer)}
        self._choose_awaited()

    def _rank(self, announced: dict[str, Record], key: bytes) -> dict[str, Rank]:
        """Where the reports stand; one that was looked at before keeps its rank."""
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
        self._expected = set(self._ranks)
        awaited = self._wait_policy.awaited(self._ranks, self._runtime.time() - self._began_at)
        self._awaited = {peer for peer in awaited if not self._view.slow[peer]}

    async def _begin_fetches(self, name: str, records: Mapping[str, Record]) -> None:
        """Take the bodies that came with their records, which wait for nobody; begin to fetch the others.

        Those who kept to time before come first, and among them those whom the node knows.
        """
        chosen = self._chosen(name, records)
        wanted = [(peer, content) for peer in chosen if (content := self._wanted(records[peer])) is not None]
        looks_for_members = self._view.shards.members.shards > 0  # which takes its time, as a fetch does
        for peer, content in wanted:
            if content.body and not looks_for_members:
                await self._try(peer, content)
        slow, knows = self._view.slow, self._view.knows
        for peer, content in sorted(wanted, key=lambda each: (slow[each[0]], not knows(each[0]))):
            if not content.body or looks_for_members:
                self._begin_fetch(peer, content)

    def _chosen(self, name: str, records: Mapping[str, Record]) -> list[str]:
        """Peers to gather from: at random of those known, and of newcomers those who come first; at most so many."""
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

    def _begin_fetch(self, peer: str, content: RolloutsRecord) -> None:
        if peer not in self._fetching:
            self._fetching.add(peer)
            self._fetches.start(self._fetch_within, peer, content)

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
            log.info("rollouts of %s are not to be had: %s", peer, error)
            self._note_failure(peer)

    def _note_failure(self, peer: str) -> None:
        """Where any other peer is as good, one that gives nothing is not asked for ever."""
        assert self._sample is not None, "it was looked"
        self._failures[peer] += self._sample.is_sample
        if self._failures[peer] == FAILURES_MAX:
            self._replace(peer)

    def _replace(self, peer: str) -> None:
        if (
            self._sample is not None
            and self._sample.is_sample
            and peer in self._ranks
            and self._ranks[peer].is_credited
        ):
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
