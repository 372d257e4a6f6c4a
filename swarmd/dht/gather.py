"""Gathers peers' rollouts of a stage into the blob store, until all are there or the time is over.

- `WaitPolicy` decides which peers a gathering waits for, and how long. It waits for peers that delivered last time.
  Other peers with proof of work ("strangers") share one time limit, which shrinks when their rollouts do not come and
  grows when they do: an attacker may have any number of such identities. Two peers that deliver in turns could make
  every gathering last to its end. Gatherings that timed out waiting for a peer that had delivered last time are
  therefore counted, and while there are several, only peers that delivered in each of the last 2, 4, 8 ... gatherings
  are waited for.
- `SampledShards` chooses which shards of a large swarm's stage are read, `RolloutSources` the peers to fetch from.
- `Gathering` carries out one `Gather` command: it reads reports and rollouts, fetches bodies that are not inline in
  their records, and polls until everything that it waits for has arrived.
"""

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
from swarmd.dht.ports import Bodies, LookupResult, MemberCheck
from swarmd.dht.record_store import RecordStore
from swarmd.dht.rounds import StageShard, find_shard_count
from swarmd.dht.store.seniority import ALWAYS, PeerSlots, Rank, Sample, pick_by_rank
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Record, ReportRecord, RolloutsRecord
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError
from swarmd.logger import get_logger
from swarmd.worker.tasks import ConcurrencyLimiter, TaskGroup, run_within

PEERS_MAX = 256  # credited peers to fetch from in an unsharded stage, chosen at random
NEWCOMERS_MAX = 64  # newcomers to fetch from; those with most proof of work come first
IDLE_MAX = 16  # of these newcomers, peers without proof of work

READ_MAX = 8  # shards of one stage to read if the first ones hold too few peers
SPARE = 4  # ask one peer more than needed per `SPARE` peers, so that a few slow ones do not matter
NEWCOMERS = 4  # ask one newcomer per `NEWCOMERS` credited peers
SAMPLED_IDLE_MAX = 4  # peers without proof of work, in a sampled stage

LOOK_AGAIN_S = 0.3
ANSWER_S = 0.5  # the result is sent this long before the command's deadline
YOUNG_S = 30.0  # this long after this worker's start, peers may have been restarted too and still be publishing
SETTLE_S = 2.0  # time to wait for such peers
LEAST_S = 0.5  # minimum time for a command that comes too late, for instance after a restart
LAST_FETCH_S = 0.5  # no fetch starts with less time left than this
TOTAL_BYTES_MAX = 64 * 1024 * 1024
NEWCOMERS_BYTES_MAX = TOTAL_BYTES_MAX // 4  # for all peers without credit together
FETCHES_AT_ONCE = 16  # from peers that are waited for
OTHERS_AT_ONCE = 4  # from other peers
LINGER_S = 1.0  # extra time for other peers once everything waited for has arrived
ROLLOUTS_BYTES_MAX = 1024 * 1024  # as in `swarmd.swarms.rollouts`: a larger body would be refused unread
FETCH_S = 10.0  # timeout for one body
SLOW = "slow"
WHOLE_MAX = 8  # with more missing peers than this, read their records one by one instead of the whole key
FAILURES_MAX = 2  # failed fetches of one peer's body before a sampled stage replaces the peer

UNTRIED_S = 3600.0  # time limit for strangers while none has failed: longer than any gathering
FAILED_S = 1.0  # longest time limit once one has failed
STRANGERS_LEAST_S = 0.1  # a time limit below this becomes 0
TIMED_OUT_ALLOWED = 1  # gatherings that may time out without any consequence
TIMED_OUT_MAX = 12.0
FORGOTTEN_AFTER = 64  # successful gatherings until one timeout is forgotten

log = get_logger(__name__)


class WaitPolicy:
    """Decides which peers to wait for, from what they delivered in earlier gatherings."""

    def __init__(self) -> None:
        self.strangers_s = UNTRIED_S
        self._rows: FIFOCache[str, int] = FIFOCache(MEMBERS_MAX)  # peer → gatherings in a row delivered to
        self._gatherings = 0
        self._timed_out = 0.0  # timed-out gatherings, each forgotten gradually

    def expected_peers(self, announced: Mapping[str, Rank], waited_s: float) -> set[str]:
        """Return which of the peers that announced rollouts are waited for after `waited_s` seconds."""
        strangers = self._untrusted_peers(announced) if waited_s < self.strangers_s else set()
        return strangers | {peer for peer, rank in announced.items() if self._is_trusted(peer, rank)}

    def record_outcome(self, announced: Mapping[str, Rank], got: Collection[str], refused: Collection[str]) -> None:
        """Update the policy from a finished gathering."""
        strangers = self._untrusted_peers(announced)
        if strangers.difference(got, refused):
            self.strangers_s = min(self.strangers_s / 2, FAILED_S) if self.strangers_s > STRANGERS_LEAST_S else 0.0
        elif strangers.intersection(got):
            self.strangers_s = max(self.strangers_s, min(max(2 * self.strangers_s, STRANGERS_LEAST_S), FAILED_S))
        proven = {peer for peer, rank in announced.items() if rank.rounds < ALWAYS and self._is_reliable(peer)}
        if proven.difference(got, refused):
            self._timed_out = min(self._timed_out + 1, TIMED_OUT_MAX)
        else:
            self._timed_out = max(self._timed_out - 1 / FORGOTTEN_AFTER, 0.0)
        self._gatherings += 1
        given = {peer: self._rows.pop(peer, 0) for peer in announced}
        self._rows.update({peer: rows + 1 for peer, rows in given.items() if peer in got})

    def _is_trusted(self, peer: str, rank: Rank) -> bool:
        return rank.rounds >= ALWAYS or self._is_reliable(peer)

    def _is_reliable(self, peer: str) -> bool:
        return self._rows.get(peer, 0) >= self._streak_min

    @property
    def _streak_min(self) -> int:
        """Gatherings in a row that a peer must have delivered to, capped by the number of gatherings so far."""
        doublings = max(math.ceil(self._timed_out) - TIMED_OUT_ALLOWED, 0)
        return max(1, min(1 << doublings, self._gatherings))

    def _untrusted_peers(self, announced: Mapping[str, Rank]) -> set[str]:
        return {
            peer for peer, rank in announced.items() if not rank.no_proof_of_work and not self._is_trusted(peer, rank)
        }


class RolloutSources:
    """The peers to take one stage's rollouts from. Others are neither fetched from nor waited for. `fill` says if
    newcomers with proof of work may take slots that credited peers leave free."""

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
        self._slots = PeerSlots(0, newcomers_max, idle_max)

    def choose_peers(self, ranks: Mapping[str, Rank]) -> None:
        """Choose among peers not chosen yet: credited ones at random, and the highest-ranked newcomers."""
        fresh = {peer: rank for peer, rank in ranks.items() if peer not in self.peers}
        known = [peer for peer, rank in fresh.items() if rank.is_credited]
        chosen = self._sample(known, min(len(known), self._room))
        self._room -= len(chosen)
        chosen += pick_by_rank(
            {peer: rank for peer, rank in fresh.items() if not rank.is_credited}, self._try_admit_newcomer
        )
        self.peers |= dict.fromkeys(chosen)

    def _try_admit_newcomer(self, rank: Rank) -> bool:
        if self._slots.try_occupy(rank):
            return True
        fills = self._fill and rank.has_proof_of_work and self._room > 0
        self._room -= fills
        return fills

    def free_credited_slot(self) -> None:
        """Free one credited peer's slot for another peer."""
        self._room += 1


class SampledShards:
    """The shards of a stage that are read: a random one, and more while too few peers are found.

    Each node draws its own, so nobody can predict which it reads. A stage without shards is read whole. `shards` is the
    stage's number of shards, 0 for none.
    """

    def __init__(self, shards: int, wanted: int, sample: Sample) -> None:
        numbers = sample([str(shard) for shard in range(shards)], min(shards, READ_MAX))
        self._unread = [StageShard(shards, int(number)) for number in numbers] or [StageShard(0, 0)]
        self._wanted = wanted
        self.is_sample = shards > 0
        self.read: list[StageShard] = []  # shards read so far
        most = wanted + wanted // SPARE
        few = RolloutSources(sample, most, wanted // NEWCOMERS, SAMPLED_IDLE_MAX, fill=True)
        self.sources = few if self.is_sample else RolloutSources(sample)  # the peers to fetch from

    def next_shard(self) -> StageShard | None:
        """Return one more shard to read; None if all have been read."""
        if not self._unread:
            return None
        self.read.append(self._unread.pop())
        return self.read[-1]

    def has_too_few_peers(self, useless: int) -> bool:
        return self.is_sample and len(self.sources.peers) - useless < self._wanted

    def is_exhausted(self, useless: int) -> bool:
        """Return whether too few peers were found, not counting `useless` of them, and no shard is left to read."""
        return self.has_too_few_peers(useless) and not self._unread

    def has_enough_rollouts(self, gathered: int) -> bool:
        return self.is_sample and gathered >= self._wanted


class BodyBytesBudget:
    """Counts bytes of a stage's bodies; peers without credit may use only part of the budget."""

    def __init__(self) -> None:
        self._newcomers = self._total = 0

    def reserve(self, credited: bool, size_bytes: int) -> None:
        """Count a body that is about to be fetched. Raises RecordRejected("oversized") if it exceeds the budget."""
        over = not credited and self._newcomers + size_bytes > NEWCOMERS_BYTES_MAX
        if over or self._total + size_bytes > TOTAL_BYTES_MAX:
            raise RecordRejected("oversized", "the rollouts of this stage are too large together")
        self.release(credited, -size_bytes)

    def release(self, credited: bool, size_bytes: int) -> None:
        """Return the bytes of a body that was not fetched to the budget."""
        self._total -= size_bytes
        self._newcomers -= 0 if credited else size_bytes


class Gathering:
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
        self._bytes = BodyBytesBudget()
        self._runtime = view.runtime
        self._sample: SampledShards | None = None  # set once the stage's number of shards is known
        self._failures: Counter[str] = Counter()  # failed fetches, by peer
        self._replaced = 0  # number of useless peers when replacements were last chosen
        self._announced: dict[str, Rank] = {}  # owners of reports that name rollouts
        self._ranks: dict[str, Rank] = {}  # those of `_announced` whose rollouts are looked for
        self._ranked: dict[str, tuple[Record, Rank]] = {}  # owner → its report that was ranked last
        self._awaited: set[str] = set()  # of `_ranks`, peers that are waited for
        self._limiter = ConcurrencyLimiter(view.runtime, FETCHES_AT_ONCE)
        self._others_limiter = ConcurrencyLimiter(view.runtime, OTHERS_AT_ONCE)
        self._fetches = TaskGroup(view.runtime)
        self._fetching: set[str] = set()  # peers whose bodies are being fetched, or are queued
        self._complete_at: float | None = None  # when everything waited for had arrived
        self._began_at = view.runtime.time()
        self._looked = False  # whether any peer has answered

    async def run(self) -> None:
        """Gather, and emit `RolloutsGathered` shortly before the deadline. Raises NetworkDown if no peer answered."""
        command = self._command
        if command.source_round >= 0:
            with suppress(TimeoutError):
                await run_within(self._runtime, max(self._remaining_s(), LEAST_S), self._gather_until_complete)
            if not self._looked:
                raise NetworkDown("nobody answered when rollouts were looked for")
            self._wait_policy.record_outcome(self._ranks, self._got, {peer for peer, _ in self._refused})
        rollouts = tuple(self._got[peer] for peer in sorted(self._got))
        missing = len((self._ranks.keys() | {peer for peer, _ in self._refused}) - self._got.keys())
        place = (command.id, command.round, command.stage)
        self._view.emit(RolloutsGathered(*place, rollouts, missing))

    async def _gather_until_complete(self) -> None:
        """Read and fetch repeatedly until everything waited for has arrived or was refused. Unfinished fetches from
        other peers then get a little more time before they are cancelled."""
        try:
            while True:
                try:
                    await self._read_shards()
                    await self._fetches.wait_idle(LOOK_AGAIN_S)  # poll again even while slow fetches go on
                    if self._looked and self._is_complete() and self._should_end():
                        return
                except NetworkDown as error:
                    log.info("gathering goes on: %s", error)
                await self._runtime.sleep(LOOK_AGAIN_S)
        finally:
            self._fetches.stop()

    async def _read_shards(self) -> None:
        """Read which peers have announced rollouts, and start to fetch those available. Raises NetworkDown."""
        if self._sample is None:
            view = self._view
            shards = await find_shard_count(view, self._store, self._place[1])
            self._sample = SampledShards(shards, view.config.dht.gather_peers, view.random.sample)
        self._replaced = len(self._useless_peers())
        for shard in self._sample.read:
            await self._read_shard(shard)
        while not self._sample.read or self._sample.has_too_few_peers(len(self._useless_peers())):
            fresh = self._sample.next_shard()
            if fresh is None:
                break
            await self._read_shard(fresh)

    async def _read_shard(self, shard: StageShard) -> None:
        """Read one shard of the stage, or the whole stage if it has no shards. Raises NetworkDown."""
        await self._read_reports(names.reports_key(*self._place, *shard))
        name = names.rollouts_key(*self._place, *shard)
        found = await self._find_rollouts(name)
        self._looked = self._looked or found.answered or self._view.coordinating
        await self._start_fetches(name, found.records)

    async def _find_rollouts(self, name: str) -> LookupResult:
        """Return the rollouts' records, which may contain bodies. With many peers, read only those still missing."""
        sampled = self._sample is not None and self._sample.is_sample
        if sampled or len(self._ranks) <= WHOLE_MAX:
            return await self._store.find_records(name)
        done = self._got.keys() | self._fetching | {peer for peer, _ in self._refused}
        missing = [peer for peer in self._ranks if peer not in done]
        return await self._store.find_records_by_owners(
            name, missing, [peer for peer in missing if peer in self._awaited]
        )

    def _useless_peers(self) -> set[str]:
        """Return peers whose bodies were refused, and those whose fetches failed often if others can replace them."""
        refused = {peer for peer, _ in self._refused}
        gone = {peer for peer, failed in self._failures.items() if failed >= FAILURES_MAX} - self._got.keys()
        replaceable = self._sample is not None and not self._sample.is_exhausted(len(refused | gone))
        return refused | gone if replaceable else refused

    def _should_end(self) -> bool:
        """Return whether no fetch is running, or the extra time for fetches from other peers is over."""
        assert self._sample is not None, "it was looked"
        if self._sample.has_enough_rollouts(len(self._got)):
            return True
        if self._complete_at is None:
            self._complete_at = self._runtime.now()
        lingered_s = min(LINGER_S, self._wait_policy.strangers_s)
        return not self._fetching or self._runtime.now() > self._complete_at + lingered_s

    def _is_complete(self) -> bool:
        """Return whether all expected rollouts are here or refused, or enough of a sampled stage are here. Shortly
        after this worker's start, peers get some time first, even while none of them is known yet."""
        if self._sample is not None and self._sample.has_enough_rollouts(len(self._got)):
            return True
        useless = self._useless_peers()
        if self._fetching & self._awaited or self._awaited - self._got.keys() - useless:
            return False
        if self._sample is not None and self._sample.is_sample and len(useless) > self._replaced:
            return False  # replacements may be found
        now, view = self._runtime.time(), self._view
        settled = now > self._began_at + SETTLE_S or now > view.started_at + YOUNG_S
        return settled or 1 < view.members <= len(self._ranks) + 1

    def _remaining_s(self) -> float:
        return self._command.until_at - ANSWER_S - self._runtime.time()

    async def _read_reports(self, name: str) -> None:
        """Read which peers' reports under a key name rollouts, and choose which peers to fetch from and wait for. A
        peer whose last body was too slow is not waited for."""
        found = await self._store.find_records(name)
        self._looked = self._looked or found.answered  # peers may not be asked for rollouts if all are here already
        announced = {
            peer: record
            for peer, record in found.records.items()
            if peer != self._view.peer_id and _has_rollouts(record) and not self._is_banned(peer)
        }
        self._announced |= self._rank_owners(announced, names.key_id(name))
        self._announced = {peer: rank for peer, rank in self._announced.items() if not self._is_banned(peer)}
        self._choose_expected()

    def _rank_owners(self, announced: dict[str, Record], key: bytes) -> dict[str, Rank]:
        """Rank the reports' owners; an unchanged report keeps its rank."""
        known = self._ranked
        fresh = {peer: record for peer, record in announced.items() if peer not in known or known[peer][0] != record}
        for peer, rank in self._view.seniority.ranks_of(fresh, key).items():
            known[peer] = (announced[peer], rank)
        return {peer: known[peer][1] for peer in announced}

    def _choose_expected(self) -> None:
        assert self._sample is not None, "the stage's shards are known"
        self._sample.sources.choose_peers(self._announced)
        chosen = self._sample.sources.peers
        self._ranks = {peer: rank for peer, rank in self._announced.items() if peer in chosen}
        awaited = self._wait_policy.expected_peers(self._ranks, self._runtime.time() - self._began_at)
        self._awaited = {peer for peer in awaited if not self._view.slow[peer]}

    async def _start_fetches(self, name: str, records: Mapping[str, Record]) -> None:
        """Accept bodies that are inline in their records, and start to fetch the others: from peers that were fast
        before first, and among them from peers that the node knows."""
        chosen = self._choose_peers(name, records)
        wanted = [(peer, content) for peer in chosen if (content := self._wanted_content(records[peer])) is not None]
        looks_for_members = self._view.shards.members.shards > 0  # looking them up takes as long as a fetch
        for peer, content in wanted:
            if content.body and not looks_for_members:
                await self._try_fetch(peer, content)
        slow, knows = self._view.slow, self._view.knows
        for peer, content in sorted(wanted, key=lambda each: (slow[each[0]], not knows(each[0]))):
            if (not content.body or looks_for_members) and peer not in self._fetching:
                self._fetching.add(peer)
                self._fetches.start(self._fetch_with_limit, peer, content)

    def _choose_peers(self, name: str, records: Mapping[str, Record]) -> list[str]:
        """Choose which of these records' owners to take rollouts from."""
        assert self._sample is not None, "the stage's shards are known"
        own = self._view.peer_id
        fresh = {peer: record for peer, record in records.items() if peer != own and not self._is_banned(peer)}
        sources = self._sample.sources
        sources.choose_peers(self._view.seniority.ranks_of(fresh, names.key_id(name)))
        done = self._got.keys() | (self._useless_peers() if self._sample.is_sample else set())
        return [peer for peer in sources.peers if peer in records and peer not in done]

    def _is_banned(self, peer: str) -> bool:
        return self._evidence.is_banned(peer, self._command.source_round)

    def _wanted_content(self, record: Record) -> RolloutsRecord | None:
        content = record.content
        if not isinstance(content, RolloutsRecord) or (record.owner, content.digest) in self._refused:
            return None
        return content

    async def _fetch_with_limit(self, peer: str, content: RolloutsRecord) -> None:
        try:
            async with self._limiter if peer in self._awaited else self._others_limiter:
                await self._try_fetch(peer, content)
        finally:
            self._fetching.discard(peer)

    async def _try_fetch(self, peer: str, content: RolloutsRecord) -> None:
        try:
            await self._fetch_rollouts(peer, content)
            self._view.slow.pop(peer, None)
        except RecordRejected as error:
            self._refused.add((peer, content.digest))
            self._replace_peer(peer)
            self._view.rejections.count(peer, error.reason, error.message)
            if error.reason == SLOW:
                self._view.mark_slow(peer)
        except SwarmdError as error:
            log.info("cannot get the rollouts of %s: %s", peer, error)
            self._count_failure(peer)

    def _count_failure(self, peer: str) -> None:
        """Count a failed fetch; in a sampled stage, replace a peer whose fetches failed `FAILURES_MAX` times."""
        assert self._sample is not None, "it was looked"
        self._failures[peer] += self._sample.is_sample
        if self._failures[peer] == FAILURES_MAX:
            self._replace_peer(peer)

    def _replace_peer(self, peer: str) -> None:
        rank = self._ranks.get(peer)
        if self._sample is not None and self._sample.is_sample and rank is not None and rank.is_credited:
            self._sample.sources.free_credited_slot()

    async def _fetch_rollouts(self, peer: str, content: RolloutsRecord) -> None:
        if content.size_bytes > ROLLOUTS_BYTES_MAX:
            raise RecordRejected("oversized", f"rollouts of {content.size_bytes} bytes")
        credited = self._view.seniority.rounds_of(peer) > 0
        self._bytes.reserve(credited, content.size_bytes)
        bodies = self._bodies
        try:
            await self._must_be_member(peer)
            if not bodies.has(content.digest):
                body = await self._fetch_body(peer, content)
                await bodies.check(body, content.digest, content.size_bytes)
                await bodies.put(body)
        except BaseException:
            self._bytes.release(credited, content.size_bytes)
            raise
        place = (content.round, content.stage, content.digest, content.size_bytes, content.groups)
        self._got[peer] = RolloutsRef(peer, *place)

    async def _fetch_body(self, peer: str, content: RolloutsRecord) -> bytes:
        bodies = self._bodies
        if content.body:
            return await bodies.inflate(content.body, content.size_bytes)
        timeout_s = self._remaining_s()
        if timeout_s < LAST_FETCH_S:
            raise NetworkDown("no time is left to fetch them")
        wanted = (peer, content.digest, content.size_bytes, timeout_s)
        try:
            return await run_within(self._runtime, FETCH_S, bodies.fetch, *wanted)
        except TimeoutError:
            raise RecordRejected(SLOW, f"no body within {FETCH_S:g} s") from None


def _has_rollouts(record: Record) -> bool:
    return isinstance(record.content, ReportRecord) and record.content.groups > 0
