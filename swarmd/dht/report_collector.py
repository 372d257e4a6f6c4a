"""Collects the reports of the open stage: those that peers store with this node, and those read from the DHT.

Does not import hivemind.
"""

from collections.abc import Mapping
from functools import partial

from swarmd.core.commands import CollectReports
from swarmd.core.events import ReportSeen
from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.gossip import Gossip
from swarmd.dht.membership import MemberPresences
from swarmd.dht.record_store import KeyWatch, RecordStore
from swarmd.dht.rounds import find_shard_count
from swarmd.dht.store.seniority import PeerSlots, pick_by_rank
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.names import shard_of
from swarmd.dht.wire.records import Record, ReportRecord
from swarmd.errors import RecordRejected
from swarmd.worker.runtime import Stopper, TimeSource

NEWCOMERS_MAX = 256  # peers without credit whose reports count in a stage; those with most proof of work come first
IDLE_MAX = 16  # of these, peers without proof of work
CHANGES_MAX = 4  # changes of one peer's report of a stage; an honest one never changes, see `swarmd.dht.wire.evidence`
CHANGES_APART_S = 10.0
READ_AT_ONCE = 8  # shards to read per poll, of those in which a member's report is missing
EARLY_POLLS = 4  # polls between two reads while most reports are missing: most members are still training
TOGETHER_S = 0.05  # stored reports that arrive within this time are handled together


class ReportChangeLimiter:
    """Limits how often one peer's report of one stage may change."""

    def __init__(self, changes_max: int, apart_s: float, now: TimeSource) -> None:
        self._changes_max = changes_max
        self._apart_s = apart_s
        self._now = now
        self._taken: dict[str, tuple[object, int, float]] = {}  # peer → (latest, changes, time of the latest)
        self._waiting: dict[str, object] = {}  # peer → value seen too early; accepted if it is still there later

    def try_accept(self, peer: str, content: object) -> bool:
        """Record a value and return whether it is new; False if it is unchanged, or changes too early. Raises
        RecordRejected("flood") once for each value that is not accepted or was replaced too early."""
        now = self._now()
        if peer not in self._taken:
            self._taken[peer] = (content, 0, now)
            return True
        latest, changes, at = self._taken[peer]
        if content == latest:
            return False
        if changes < self._changes_max and now - at >= self._apart_s:
            self._taken[peer] = (content, changes + 1, now)
            self._waiting.pop(peer, None)
            return True
        before = self._waiting.get(peer)
        self._waiting[peer] = content
        if before != content and (before is not None or changes >= self._changes_max):
            raise RecordRejected("flood", f"{peer} changes its report of one stage too often")
        return False


class ReportEmitter:
    """Emits each report of one stage once, for a bounded number of peers. `peers`: those whose reports were accepted,
    credited ones and a bounded number of newcomers."""

    def __init__(self, view: SwarmView, gossip: Gossip, round: int, stage: int) -> None:
        self.peers: set[str] = set()
        self._view = view
        self._evidence = gossip.evidence
        self._key = names.key_id(names.reports_key(view.swarm, round, stage))  # breaks ties between newcomers
        self._with_work: set[str] = set()  # those of `peers` with credit or proof of work
        self._slots = PeerSlots(MEMBERS_MAX, NEWCOMERS_MAX, IDLE_MAX)
        self._changes = ReportChangeLimiter(CHANGES_MAX, CHANGES_APART_S, view.runtime.now)

    def emit_new(self, records: Mapping[str, Record]) -> None:
        """Emit those of these records (by owner) that were not emitted before."""
        self._choose_peers({peer: record for peer, record in records.items() if peer not in self.peers})
        for peer, record in records.items():
            content = record.content
            if peer in self.peers and isinstance(content, ReportRecord) and self._try_accept(peer, content):
                place = (peer, content.round, content.stage, content.reward, content.digest)
                self._view.emit(ReportSeen(*place, record=record.encode(), worked=peer in self._with_work))

    def _choose_peers(self, fresh: Mapping[str, Record]) -> None:
        ranks = self._view.seniority.ranks_of(fresh, self._key)
        chosen = pick_by_rank(ranks, self._slots.try_occupy)
        self.peers.update(chosen)
        self._with_work.update(peer for peer in chosen if not ranks[peer].no_proof_of_work)

    def _try_accept(self, peer: str, content: ReportRecord) -> bool:
        try:
            return not self._evidence.is_banned(peer, content.round) and self._changes.try_accept(peer, content)
        except RecordRejected as error:
            self._view.rejections.count(peer, error.reason, error.message)
            return False


class ReportCollector:
    """Emits every member's report of the stage that is being collected.

    In a sharded stage the coordinator accepts a report as soon as its owner stores it with the coordinator, whether or
    not there is room to keep it. It reads shards only for reports of known members that have not arrived that way.
    """

    def __init__(self, view: SwarmView, store: RecordStore, gossip: Gossip, presences: MemberPresences) -> None:
        self._view = view
        self._store = store
        self._gossip = gossip
        self._presences = presences
        self._command: CollectReports | None = None
        self._seen = ReportEmitter(view, gossip, -1, -1)
        self._keys: dict[str, KeyWatch] = {}  # name → its watch; in order of shards if there are any
        self._awaited_keys: frozenset[bytes] = frozenset()  # key ids of the shards
        self._shards = 0
        self._unread: set[int] = set()  # shards to read even if no known member's report is missing there
        self._turns: list[int] = []  # shards, least recently read first
        self._stop_reading: Stopper | None = None
        self._stored: dict[str, Record] = {}  # reports stored with this node, by owner, until they are emitted
        store.set_report_handlers(self.is_expected, self.accept_stored_report)

    async def collect(self, command: CollectReports) -> None:
        """Emit every member's report of a stage, including those emitted before. Raises NetworkDown."""
        shards = await find_shard_count(self._view, self._store, command.round)
        self._stop_collecting(command)
        begins = self._command is None  # reports stored with this node before it restarted are only in the shards
        self._command, self._shards = command, shards
        self._seen = ReportEmitter(self._view, self._gossip, command.round, command.stage)
        if shards:
            self._collect_shards(command, begins)
        else:
            name = names.reports_key(self._view.swarm, command.round, command.stage)
            self._keys = {name: self._store.watch(name, self._seen.emit_new)}

    def _stop_collecting(self, next: CollectReports) -> None:
        view, store, before = self._view, self._store, self._command
        for name in self._keys:
            store.unwatch(name)
        if self._stop_reading is not None:
            self._stop_reading()
        self._keys, self._awaited_keys, self._stop_reading = {}, frozenset(), None
        if before is not None and (before.round, before.stage) != (next.round, next.stage):
            self._stored = {}
            view.contact.record_stage_end(bool(self._seen.peers - {view.peer_id}), view.members - 1)

    def _collect_shards(self, command: CollectReports, begins: bool) -> None:
        view, store, dht = self._view, self._store, self._view.config.dht
        stored_here = view.coordinating  # peers store their reports with the coordinator, besides the shards
        polls = dht.record_s / dht.poll_s if stored_here else max(1.0, self._shards / READ_AT_ONCE)
        self._turns = list(range(self._shards))
        self._unread = set(self._turns) if begins else set()
        for shard in self._turns:
            name = names.reports_key(view.swarm, command.round, command.stage, self._shards, shard)
            seen = partial(self._handle_shard_records, shard)
            self._keys[name] = store.watch(name, seen, polls, later=stored_here or self._shards > READ_AT_ONCE)
        if stored_here:
            self._awaited_keys = frozenset(map(names.key_id, self._keys))
            self._stop_reading = view.runtime.start(self._poll_missing_shards())

    # --- reports stored with this node ---

    def is_expected(self, key: bytes, owner: str) -> bool:
        """Return whether this report is wanted: its owner is a member or credited, and has not reported yet."""
        if key not in self._awaited_keys or owner in self._seen.peers or owner in self._stored:
            return False
        member = self._presences.known.get(owner)
        return (member is not None and member.here) or self._view.is_credited(owner)

    def accept_stored_report(self, record: Record) -> bool:
        """Collect a report that was stored with this node. Returns whether its stage is collected from shards."""
        if not self._shards or record.content.key not in self._keys:
            return False
        if not self._stored:
            self._view.runtime.start(self._emit_stored_reports())
        self._stored[record.owner] = record
        return True

    async def _emit_stored_reports(self) -> None:
        await self._view.runtime.sleep(TOGETHER_S)
        stored, self._stored = self._stored, {}
        self._seen.emit_new(stored)

    # --- reports in shards ---

    async def _poll_missing_shards(self) -> None:
        """Read the shards in which reports are missing, until stopped."""
        poll, poll_s = 0, self._view.config.dht.poll_s
        while True:
            missing, late = self._shards_with_missing_reports()
            if late <= len(self._seen.peers) or self._unread or poll % EARLY_POLLS == EARLY_POLLS - 1:
                self._read_shards_in_turn(missing | self._unread)
            poll += 1
            await self._view.runtime.sleep(poll_s)

    def _shards_with_missing_reports(self) -> tuple[set[int], int]:
        """Return the shards in which reports of known members are missing, and the number of these members."""
        command, here = self._command, self._presences.known.items()
        assert command is not None
        late = [peer for peer, known in here if known.here and peer not in self._seen.peers]
        place = (command.round, command.stage, self._shards)
        return {shard_of(self._view.swarm, peer, *place) for peer in late}, len(late)

    def _read_shards_in_turn(self, wanted: set[int]) -> None:
        """Read some of these shards, least recently read first."""
        watches = list(self._keys.values())
        due = [shard for shard in self._turns if shard in wanted][:READ_AT_ONCE]
        self._turns = [*(shard for shard in self._turns if shard not in due), *due]
        for shard in due:
            watches[shard].read_now()

    def _handle_shard_records(self, shard: int, records: Mapping[str, Record]) -> None:
        self._unread.discard(shard)
        self._seen.emit_new(records)
