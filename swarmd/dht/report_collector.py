"""Collecting the reports of the stage that is open: as their owners bring them, and from the keys they lie under.

No hivemind in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from swarmd.core.commands import CollectReports
from swarmd.core.events import ReportSeen
from swarmd.core.state import MEMBERS_MAX
from swarmd.dht.gossip import Gossip
from swarmd.dht.membership import Presences
from swarmd.dht.record_store import KeyWatch, RecordStore
from swarmd.dht.rounds import find_shards
from swarmd.dht.store.seniority import Slots, pick
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.names import shard_of
from swarmd.dht.wire.records import Record, ReportRecord
from swarmd.errors import RecordRejected
from swarmd.worker.runtime import Running, TimeSource

NEWCOMERS_MAX = 256  # peers without any credit whose reports count in a stage: those that worked most, then by lot
IDLE_MAX = 16  # of those that have not worked
CHANGES_MAX = 4  # of one peer's report of one stage; an honest one never changes, see `swarmd.dht.wire.evidence`
CHANGES_APART_S = 10.0
READ_AT_ONCE = 8  # shards that are read in each `dht.poll_s`, of those in which a member's report is missing
EARLY_POLLS = 4  # so many polls lie between two reads while most reports are missing: their owners still train
TOGETHER_S = 0.05  # what is brought within so long is handed on together


class ChangeLimit:
    """How often what one peer says of one stage may change, before it is no longer listened to.

    Args:
        changes_max: taken after the first.
        apart_s: the least time between two.
        now: a monotone clock in seconds.
    """

    def __init__(self, changes_max: int, apart_s: float, now: TimeSource) -> None:
        self._changes_max = changes_max
        self._apart_s = apart_s
        self._now = now
        self._taken: dict[str, tuple[object, int, float]] = {}  # peer → (latest, changes, when)
        self._waiting: dict[str, object] = {}  # seen too early; it is taken when it is still there in time

    def admit(self, peer: str, content: object) -> bool:
        """Record a value and return whether to report it: false if it was reported before or changes too early.

        Raises:
            RecordRejected: "flood" for each change that is not taken, or has been replaced before its time; once.
        """
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
            raise RecordRejected("flood", f"{peer} changes what it says of one stage too often")
        return False


class SeenReports:
    """Tells of the reports of one stage, each once, of those whose reports count.

    Attributes:
        peers: whose reports were seen: those whom the swarm knows, and a bounded number of newcomers.
    """

    def __init__(self, view: SwarmView, gossip: Gossip, round: int, stage: int) -> None:
        self.peers: set[str] = set()
        self._view = view
        self._evidence = gossip.evidence
        self._key = names.key_id(names.reports(view.swarm, round, stage))  # under which newcomers draw their lots
        self._awaited: set[str] = set()  # of them, those that a stage may wait for
        self._slots = Slots(MEMBERS_MAX, NEWCOMERS_MAX, IDLE_MAX)
        self._changes = ChangeLimit(CHANGES_MAX, CHANGES_APART_S, view.runtime.now)

    def see(self, records: Mapping[str, Record]) -> None:
        """Take owner → record, new or seen before."""
        self._choose({peer: record for peer, record in records.items() if peer not in self.peers})
        for peer, record in records.items():
            content = record.content
            if peer in self.peers and isinstance(content, ReportRecord) and self._admit(peer, content):
                place = (peer, content.round, content.stage, content.reward, content.digest)
                self._view.emit(ReportSeen(*place, record=record.encode(), worked=peer in self._awaited))

    def _choose(self, fresh: Mapping[str, Record]) -> None:
        ranks = self._view.seniority.ranks_of(fresh, self._key)
        chosen = pick(ranks, self._slots.try_occupy)
        self.peers.update(chosen)
        self._awaited.update(peer for peer in chosen if not ranks[peer].no_proof_of_work)

    def _admit(self, peer: str, content: ReportRecord) -> bool:
        try:
            return not self._evidence.bans(peer, content.round) and self._changes.admit(peer, content)
        except RecordRejected as error:
            self._view.rejections.count(peer, error.reason, error.message)
            return False


class ReportCollector:
    """Reports every member's report of the stage that is collected.

    Where the stage lies in shards, a member's report counts as soon as the member itself has brought it, whether or not
    this node has room to keep it for others. Shards are read for the reports of known members that were not brought.

    Args:
        presences: the members that this node knows.
    """

    def __init__(self, view: SwarmView, store: RecordStore, gossip: Gossip, presences: Presences) -> None:
        self._view = view
        self._store = store
        self._gossip = gossip
        self._presences = presences
        self._command: CollectReports | None = None
        self._seen = SeenReports(view, gossip, -1, -1)
        self._keys: dict[str, KeyWatch] = {}  # name → its watch; by shard where there are any
        self._awaited_keys: frozenset[bytes] = frozenset()  # of the shards
        self._shards = 0
        self._unread: set[int] = set()  # shards that are read though nobody known is missing there
        self._turns: list[int] = []  # shards, the one that was read longest ago first
        self._walking: Running | None = None
        self._brought: dict[str, Record] = {}  # by owner, not handed on yet
        store.deliver_reports(self.awaits, self.take)

    async def collect(self, command: CollectReports) -> None:
        """Report every member's report of a stage, and those that were seen before once more. Raises NetworkDown."""
        shards = await find_shards(self._view, self._store, command.round)
        self._end(command)
        begins = self._command is None  # in this life: what was brought to the one before lies in the shards
        self._command, self._shards = command, shards
        self._seen = SeenReports(self._view, self._gossip, command.round, command.stage)
        if shards:
            self._collect_shards(command, begins)
        else:
            name = names.reports(self._view.swarm, command.round, command.stage)
            self._keys = {name: self._store.watch(name, self._seen.see)}

    def _end(self, next: CollectReports) -> None:
        """Collect no longer what was collected before this."""
        view, store, before = self._view, self._store, self._command
        for name in self._keys:
            store.unwatch(name)
        if self._walking is not None:
            self._walking.stop()
        self._keys, self._awaited_keys, self._walking = {}, frozenset(), None
        if before is not None and (before.round, before.stage) != (next.round, next.stage):
            self._brought = {}
            view.contact.closed(bool(self._seen.peers - {view.peer_id}), view.members - 1)

    def _collect_shards(self, command: CollectReports, begins: bool) -> None:
        view, store, dht = self._view, self._store, self._view.config.dht
        brought = view.coordinating  # to whom else nobody brings anything
        polls = dht.record_s / dht.poll_s if brought else max(1.0, self._shards / READ_AT_ONCE)
        self._turns = list(range(self._shards))
        self._unread = set(self._turns) if begins else set()
        for shard in self._turns:
            name = names.reports(view.swarm, command.round, command.stage, self._shards, shard)
            seen = partial(self._see_shard, shard)
            self._keys[name] = store.watch(name, seen, polls, later=brought or self._shards > READ_AT_ONCE)
        if brought:
            self._awaited_keys = frozenset(map(names.key_id, self._keys))
            self._walking = view.runtime.start(self._walk())

    # --- what its owner brings ---

    def awaits(self, key: bytes, owner: str) -> bool:
        """Whether a report of this owner under this key is waited for: of a member, once."""
        if key not in self._awaited_keys or owner in self._seen.peers or owner in self._brought:
            return False
        member = self._presences.known.get(owner)
        return (member is not None and member.here) or self._view.is_credited(owner)

    def take(self, record: Record) -> bool:
        """Take a report that was stored with this node. False where it is none that is collected from shards."""
        if not self._shards or record.content.key not in self._keys:
            return False
        if not self._brought:
            self._view.runtime.start(self._hand_on())
        self._brought[record.owner] = record
        return True

    async def _hand_on(self) -> None:
        await self._view.runtime.sleep(TOGETHER_S)
        brought, self._brought = self._brought, {}
        self._seen.see(brought)

    # --- what lies in shards ---

    async def _walk(self) -> None:
        """Have shards read in which reports are missing, until this is stopped."""
        poll, poll_s = 0, self._view.config.dht.poll_s
        while True:
            missing, late = self._missing()
            if late <= len(self._seen.peers) or self._unread or poll % EARLY_POLLS == EARLY_POLLS - 1:
                self._read(missing | self._unread)
            poll += 1
            await self._view.runtime.sleep(poll_s)

    def _missing(self) -> tuple[set[int], int]:
        """(shards in which reports of known members are missing, how many of these members there are)."""
        command, here = self._command, self._presences.known.items()
        assert command is not None
        late = [peer for peer, known in here if known.here and peer not in self._seen.peers]
        place = (command.round, command.stage, self._shards)
        return {shard_of(self._view.swarm, peer, *place) for peer in late}, len(late)

    def _read(self, wanted: set[int]) -> None:
        """Have some of these shards read, those first that were read longest ago."""
        watches = list(self._keys.values())
        due = [shard for shard in self._turns if shard in wanted][:READ_AT_ONCE]
        self._turns = [*(shard for shard in self._turns if shard not in due), *due]
        for shard in due:
            watches[shard].look()

    def _see_shard(self, shard: int, records: Mapping[str, Record]) -> None:
        self._unread.discard(shard)
        self._seen.see(records)
