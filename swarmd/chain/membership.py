"""Who may take part, as the contract says at its confirmed depth: computed from its logs, for it keeps no list."""

from __future__ import annotations

from swarmd.chain.ports import BlockReader, ContractReader, NotThere
from swarmd.chain.watching.logs import ALLOWED_TOPIC, DISALLOWED_TOPIC, OPEN_TOPIC, PEERS_MAX, LogEntry, decode_peers
from swarmd.core.events import MembershipRead
from swarmd.errors import ChainError, ChainMismatch, ContractRefused
from swarmd.logger import get_logger
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import LOOP, Runtime

CHANGES = ("MembershipChanged", "PeersAllowed", "PeersDisallowed")
FILTERS = [[[OPEN_TOPIC, ALLOWED_TOPIC, DISALLOWED_TOPIC]]]
RETRY_S = 2.0
CHANGES_MAX = 4096  # blocks with changes that are remembered one by one; of more, the first and the last count

log = get_logger(__name__)


class MembershipReader:
    """Observes the allow-list: at the start, and whenever a change is confirmed.

    The list is read only once the swarm is closed, for until then nobody asks for it.

    Args:
        blocks: to read the logs from.
        coordinator: the contract.
        from_block: in which it was created.
        emit: takes the facts.
        runtime: the clock, and what wakes.
    """

    def __init__(
        self,
        blocks: BlockReader,
        coordinator: ContractReader,
        from_block: int,
        emit: EventSink,
        runtime: Runtime = LOOP,
    ) -> None:
        self._blocks = blocks
        self._coordinator = coordinator
        self._from_block = from_block
        self._emit = emit
        self._allowed: set[str] = set()
        self._read_to = from_block - 1  # what `_allowed` holds
        self._changes = [from_block]  # blocks with changes that have not been observed
        self._lacking = False  # the contract seemed to have no list when its changes were due
        self._forgotten = 0  # times that blocks were taken back
        self._confirmed = -1
        self._told: MembershipRead | None = None
        self._runtime = runtime
        self._due = runtime.signal()

    def note_change(self, number: int) -> None:
        """A log in this block changes who may take part."""
        self._changes.append(number)
        if len(self._changes) > CHANGES_MAX:
            del self._changes[1]  # what it changed is read with a later one

    def found(self) -> None:
        """The contract has a list. What was passed over while it seemed to have none is due again."""
        if self._lacking:
            self._lacking = False
            self._changes.insert(0, self._from_block)

    def forget(self, fork: int) -> None:
        """Blocks after `fork` are no longer part of the chain."""
        if self._read_to > fork:
            self._allowed, self._read_to = set(), self._from_block - 1
        self._forgotten += 1
        self._confirmed = min(self._confirmed, fork)
        self._changes = [max(fork, self._from_block)]

    def look(self, confirmed: int) -> None:
        """Read the allow-list's changes up to a block that is now confirmed."""
        self._confirmed = confirmed
        if self._changes and confirmed >= min(self._changes):
            self._due.set()

    async def run(self) -> None:
        """Read and observe what is due, for ever."""
        while True:
            await self._due.wait()
            try:
                await self._update()
            except (ChainError, ChainMismatch, ContractRefused) as error:  # a mismatch is for the watcher to judge
                log.info("membership cannot be read: %s", error.message)
                self._due.set()
                await self._runtime.sleep(RETRY_S)

    async def _update(self) -> None:
        confirmed, forgotten = self._confirmed, self._forgotten
        self._lacking = await self._coordinator.extensions() < 1
        if not self._lacking:
            open = await self._coordinator.membership_open(hex(confirmed))
            if not open:
                await self._read(confirmed)
            if forgotten != self._forgotten:
                raise NotThere("blocks were replaced while the allow-list was read")
            self._report(MembershipRead(open, () if open else tuple(sorted(self._allowed)[:PEERS_MAX])))
        self._changes = [number for number in self._changes if number > confirmed]

    async def _read(self, confirmed: int) -> None:
        forgotten = self._forgotten
        async for span in self._blocks.spans(self._read_to + 1, confirmed, FILTERS):
            if forgotten != self._forgotten:
                return
            for entry in span.entries:
                self._apply(entry)
            self._read_to = span.last

    def _apply(self, entry: LogEntry) -> None:
        try:
            if entry.topics[0] == ALLOWED_TOPIC:
                self._allowed.update(decode_peers(entry))
            elif entry.topics[0] == DISALLOWED_TOPIC:
                self._allowed.difference_update(decode_peers(entry))
        except ValueError as error:
            log.warning("a change of the allow-list in block %s is left out: %s", entry.block_number, error)

    def _report(self, read: MembershipRead) -> None:
        if len(self._allowed) > PEERS_MAX:
            log.warning("the allow-list has %d peers, the first %d count", len(self._allowed), PEERS_MAX)
        if read != self._told:
            self._told = read
            self._emit(read)
