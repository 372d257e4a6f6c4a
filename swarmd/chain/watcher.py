"""Follows the chain: turns the contract's logs into events, in the order of the blocks, across reorganisations.

- Before anything is read, and after every failure, chain and contract are checked against the configuration
  (`ChainRequirements`).
- Far behind the head, logs are read in ranges. The last blocks are read one by one, by their hashes, and each is
  checked against its parent's hash, so that no reorganisation is missed. A reorganisation's depth is found by comparing
  the blocks that were read with those of the chain.
- The allow-list (`MembershipReader`) is computed from logs at the confirmed depth, because the contract keeps no list.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from swarmd import errors
from swarmd.bounds import Backoff
from swarmd.chain import logs, ports
from swarmd.chain.blocks import BlockReporter, EntryDecoder, RecentBlocks, group_by_block
from swarmd.config import ChainConfig
from swarmd.core import events
from swarmd.core.commands import WatchChain
from swarmd.core.state import OUTBOX_MAX
from swarmd.core.values import BlockRef
from swarmd.logger import get_logger
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import LOOP, Runtime

log = get_logger(__name__)


class ChainRequirements:
    """What a configuration requires of chain and contract. `extensions`: the contract's version of them, once read."""

    def __init__(self, config: ChainConfig, stages: int, peer: str, coordinator: ports.ContractReader) -> None:
        self._config = config
        self._stages = stages
        self._peer = peer
        self.coordinator = coordinator
        self.blocks = coordinator.blocks
        self.extensions: int | None = None

    async def check_chain(self, genesis: str) -> str:
        """Check that the chain has this first block (empty: any), and the contract.

        Returns the hash of the first block. Raises ChainMismatch: it is another chain or contract; ConfigError: the
        contract's rounds have another number of stages than the configuration says; ChainError: it cannot be checked
        yet.
        """
        found = (await self.blocks.get_block(0)).hash
        if genesis and found != genesis:
            raise errors.ChainMismatch(
                f"the chain was reset: its first block is {found}, it was {genesis} before",
                "Start with an empty data directory if this is meant to be a new chain, else correct chain.rpc",
            )
        # The contract would seem to be missing if the endpoint did not have its first block yet.
        syncing = await self.blocks.is_syncing()
        head = await self.blocks.get_head()
        if syncing or head.number < self._config.from_block:
            raise errors.ChainError(
                f"the endpoint is still at block {head.number}, and the contract's first block comes later"
            )
        await self.coordinator.check_contract()
        stages = await self.coordinator.stage_count()
        if stages != self._stages:
            raise errors.ConfigError(
                f"swarm.stages is {self._stages}, the contract {self._config.contract} has rounds of {stages} stages",
                "Set swarm.stages to what the contract says, or correct chain.contract",
            )
        return found

    async def read_contract_state(self, head: BlockRef, genesis: str, account: str) -> events.ChainUp:
        """Read the contract's state at a block. Raises BlockNotFound: the block was replaced meanwhile, so that some
        answers may be of another one; ChainError: it cannot be read now."""
        block, contract = hex(head.number), self.coordinator
        extensions = await contract.extensions_version()  # first, because the other reads depend on it
        round, stage = await contract.round_and_stage(block)
        policy = await contract.round_policy(block)
        up = events.ChainUp(
            chain_id=self._config.chain_id,
            contract=contract.contract,
            genesis=genesis,
            head=head,
            stages=self._stages,
            round=round,
            stage=stage,
            opened_at=await contract.stage_opened_at(block),
            account=account,
            registered_to=await contract.account_of_peer(self._peer, block),
            extensions=extensions,
            min_submissions=policy.min_submissions,
            max_stage_s=policy.max_stage_s,
        )
        await ports.check_block_not_replaced(self.blocks, head)
        self.extensions = extensions
        return up


CHANGES = ("MembershipChanged", "PeersAllowed", "PeersDisallowed")
FILTERS = [[[logs.OPEN_TOPIC, logs.ALLOWED_TOPIC, logs.DISALLOWED_TOPIC]]]
RETRY_S = 2.0
CHANGES_MAX = 4096  # remembered blocks with changes; above it, the first and the newest ones are kept


class MembershipReader:
    """Reports the allow-list at the start, and whenever a change is confirmed. Reads the list only if the swarm is
    closed, because an open one does not use it."""

    def __init__(
        self,
        blocks: ports.BlockReader,
        coordinator: ports.ContractReader,
        from_block: int,
        emit: EventSink,
        runtime: Runtime = LOOP,
    ) -> None:
        self._blocks = blocks
        self._coordinator = coordinator
        self._from_block = from_block
        self._emit = emit
        self._allowed: set[str] = set()
        self._read_to = from_block - 1  # last block whose changes are in `_allowed`
        self._changes = [from_block]  # blocks with changes that have not been reported
        self._lacking = False  # whether the contract seemed to have no list when changes were due
        self._forgotten = 0  # number of reorganisations
        self._confirmed = -1
        self._told: events.MembershipRead | None = None
        self._runtime = runtime
        self._due = runtime.make_signal()

    def record_change(self, number: int) -> None:
        self._changes.append(number)
        if len(self._changes) > CHANGES_MAX:
            del self._changes[1]  # its change is read together with a later one

    def reread_after_detection(self) -> None:
        """Read all changes again, because the contract has a list although it seemed to have none."""
        if self._lacking:
            self._lacking = False
            self._changes.insert(0, self._from_block)

    def forget_after_fork(self, fork: int) -> None:
        """Forget the blocks after `fork`, which are no longer part of the chain."""
        if self._read_to > fork:
            self._allowed, self._read_to = set(), self._from_block - 1
        self._forgotten += 1
        self._confirmed = min(self._confirmed, fork)
        self._changes = [max(fork, self._from_block)]

    def request_update(self, confirmed: int) -> None:
        """Read changes up to a newly confirmed block."""
        self._confirmed = confirmed
        if self._changes and confirmed >= min(self._changes):
            self._due.set()

    async def run(self) -> None:
        """Read and report due changes until cancelled."""
        while True:
            await self._due.wait()
            try:
                await self._read_and_report()
            except (
                errors.ChainError,
                errors.ChainMismatch,
                errors.ContractRefused,
            ) as error:  # the watcher handles a mismatch
                log.info("membership cannot be read: %s", error.message)
                self._due.set()
                await self._runtime.sleep(RETRY_S)

    async def _read_and_report(self) -> None:
        confirmed, forgotten = self._confirmed, self._forgotten
        self._lacking = await self._coordinator.extensions_version() < 1
        if not self._lacking:
            open = await self._coordinator.is_membership_open(hex(confirmed))
            if not open:
                await self._read_changes(confirmed)
            if forgotten != self._forgotten:
                raise ports.BlockNotFound("blocks were replaced while the allow-list was read")
            self._report_membership(
                events.MembershipRead(open, () if open else tuple(sorted(self._allowed)[: logs.PEERS_MAX]))
            )
        self._changes = [number for number in self._changes if number > confirmed]

    async def _read_changes(self, confirmed: int) -> None:
        forgotten = self._forgotten
        async for span in self._blocks.iter_log_ranges(self._read_to + 1, confirmed, FILTERS):
            if forgotten != self._forgotten:
                return
            for entry in span.entries:
                self._apply_change(entry)
            self._read_to = span.last

    def _apply_change(self, entry: logs.LogEntry) -> None:
        try:
            if entry.topics[0] == logs.ALLOWED_TOPIC:
                self._allowed.update(logs.decode_allow_list_change(entry))
            elif entry.topics[0] == logs.DISALLOWED_TOPIC:
                self._allowed.difference_update(logs.decode_allow_list_change(entry))
        except ValueError as error:
            log.warning("a change of the allow-list in block %s is left out: %s", entry.block_number, error)

    def _report_membership(self, read: events.MembershipRead) -> None:
        if len(self._allowed) > logs.PEERS_MAX:
            log.warning("the allow-list has %d peers, the first %d count", len(self._allowed), logs.PEERS_MAX)
        if read != self._told:
            self._told = read
            self._emit(read)


EACH_MEMBERS = (logs.REWARD_TOPIC, logs.VOTE_TOPIC)  # logs that every member causes in each round
COMMON = tuple(topic for topic in logs.SAYINGS if topic not in EACH_MEMBERS)


class LogSelection:
    """Chooses the log entries to read, and counts submissions instead of reading all of them. `shards`: the swarm's;
    without any, all entries are read. `account` returns this node's account; while it is empty, rewards and votes of
    all accounts are read."""

    def __init__(
        self, shards: int, contract: ports.ContractReader, account: ports.AccountSource, emit: EventSink
    ) -> None:
        self._shards = shards
        self._contract = contract
        self._account = account
        self._emit = emit
        self._counted: events.SubmissionsCounted | None = None  # the count reported last

    def make_filters(self) -> tuple[ports.LogFilter, ...]:
        """Return filters for the entries to read; empty if all are read."""
        if not self._shards:
            return ()
        account = self._account().removeprefix("0x").lower()
        senders = [["0x" + account.rjust(64, "0")]] if account else []
        return [COMMON], [EACH_MEMBERS, *senders]

    async def report_submission_count(self, head: BlockRef) -> None:
        """Report how many peers reported the stage open at a block, if that changed. Raises ChainError."""
        if not self._shards:
            return
        block = hex(head.number)
        count = await self._contract.submission_count(block)
        counted = (
            None if count is None else events.SubmissionsCounted(*await self._contract.round_and_stage(block), count)
        )
        if counted is not None and counted != self._counted:
            self._counted = counted
            self._emit(counted)

    def reset_reported_count(self) -> None:
        """Report the next count even if it is unchanged, because blocks were replaced."""
        self._counted = None


STILL_S = 1800.0  # time without a new final block until a warning; Ethereum has one every 6.4 minutes


class FinalityTracker:
    """Finds the last block that counts as confirmed."""

    def __init__(self, config: ChainConfig, blocks: ports.BlockReader, runtime: Runtime = LOOP) -> None:
        self._config = config
        self._blocks = blocks
        self._runtime = runtime
        self._lacking = False  # whether the chain has no final blocks, and a warning said so
        self._final = -1
        self._moved_at = runtime.now()
        self._still = False  # whether there was no new final block for long, and a warning said so

    async def find_confirmed_number(self, tip: int) -> int:
        """Return the number of the last confirmed block up to `tip`; -1 if there is none. Raises ChainError."""
        if self._config.finality != "depth":
            try:
                final = (await self._blocks.get_block(self._config.finality)).number
            except (errors.RpcRefused, ports.BlockNotFound) as error:
                if not self._lacking:
                    self._lacking = True
                    log.warning(
                        "the chain has no %s blocks (%s): chain.depth = %d counts as confirmed instead",
                        *(self._config.finality, error.message, self._config.depth),
                    )
            else:
                self._warn_if_stalled(final)
                return min(final, tip)
        return max(tip - self._config.depth, -1)

    def _warn_if_stalled(self, final: int) -> None:
        """Warn if there has been no new final block for a long time: submissions are then never confirmed."""
        now = self._runtime.now()
        if final > self._final:
            if self._still:
                log.info("block %d is %s: blocks are confirmed again", final, self._config.finality)
            self._final, self._moved_at, self._still = final, now, False
        elif now - self._moved_at > STILL_S and not self._still:
            self._still = True
            log.warning(
                "the last %s block is %d since %.0f minutes: nothing that this node submits is confirmed meanwhile, "
                'and once %d submissions wait no more are taken; chain.finality = "depth" goes by chain.depth',
                *(self._config.finality, self._final, (now - self._moved_at) / 60, OUTBOX_MAX),
            )


NEAR_BLOCKS = 64  # number of blocks below the head that are read one by one
LEFT_AFTER = 2  # failed polls with an endpoint that answers, until another one is used
DEGRADED_AFTER = 3  # failed polls in a row
ABSENT_AFTER = 12  # the same if endpoints answer, but lack a block that another one has
PAUSE = Backoff(0.25, 4.0)  # after a failed poll
LOWER_POLLS = 2  # polls with a head below the tip, and no endpoint that has the tip, until blocks count as lost
AGAIN_S = 300.0  # between two checks for extensions
STALE_S = 60.0  # without a new block until endpoints are compared


class ReadProgress(NamedTuple):
    """The watcher's progress, for the status."""

    tip: int
    head: int
    lag_s: float  # age of the tip by the block's own time
    endpoint: str
    up: bool


# Called after every poll; returns at once. Raises BrokenPipeError if the daemon is gone.
ReachListener = Callable[[ReadProgress], None]


class ChainWatcher:
    """Reads one contract's logs block by block and reports them as events, across reorganisations."""

    def __init__(
        self,
        config: ChainConfig,
        terms: ChainRequirements,
        endpoints: ports.EndpointPool,
        heads: ports.HeadNotifier,
        emit: EventSink,
        account: ports.AccountSource,
        runtime: Runtime = LOOP,
        decode: EntryDecoder = logs.decode_log_entry,
    ) -> None:
        self._config = config
        self._terms = terms
        self._endpoints = endpoints
        self._emit = emit
        self._account = account
        self._runtime = runtime
        self._blocks = terms.blocks
        self._branch: RecentBlocks | None = None
        self._genesis = ""
        self._head = 0
        self._up = False  # whether ChainUp was emitted, and nothing since needs another one
        self._checked = False  # whether chain and contract were checked since the last failure
        self._degraded = False  # whether ChainDegraded was emitted, and no ChainUp since
        self._failures = 0
        self._lower = 0  # polls with a head below the tip
        self._moved_at = self._runtime.now()
        self.heads = heads
        self.reports = BlockReporter(emit, decode)
        self.membership = MembershipReader(self._blocks, terms.coordinator, config.from_block, emit, runtime)
        self._finality = FinalityTracker(config, self._blocks, runtime)
        self._own = LogSelection(config.shards, terms.coordinator, account, emit)
        self.on_head: ports.HeadListener = lambda: None
        self.on_progress: ReachListener = lambda reach: None

    @property
    def branch(self) -> RecentBlocks:
        """The branch read so far."""
        assert self._branch is not None, "the watcher has not begun"
        return self._branch

    async def run(self, order: WatchChain) -> None:
        """Follow the chain until cancelled.

        An error ends it only if no other endpoint may contradict the one that caused it: an endpoint that lies or is
        misconfigured is paused. Raises ChainMismatch: it is another chain than before or than configured, or the
        contract is missing; ConfigError: the contract's rounds have another number of stages than the configuration
        says.
        """
        self._genesis = order.genesis
        self._endpoints.has_base_fee |= order.base_fee
        header: BlockRef | None = None
        while True:
            try:
                await self._read_new_blocks(order, header)
            except (errors.ChainError, errors.ContractRefused) as error:
                await self._handle_failure(error)
                header = None
            except (errors.ChainMismatch, errors.ConfigError) as error:
                if not self._endpoints.distrust_current_endpoint(error.message):
                    raise
                await self._handle_failure(errors.ChainError(error.message, error.fix))
                header = None
            else:
                self._failures = 0
                header = await self.heads.wait_for_head(soon=self._lower > 0)

    def emit_chain_up_again(self) -> None:
        """Emit `ChainUp` again once the chain has been read up to its head."""
        self._up = False
        self.heads.end_wait()

    async def _handle_failure(self, error: errors.ChainError | errors.ContractRefused) -> None:
        """Report a failure once, and pause."""
        log.debug("poll failed: %s", error.message)
        self._failures += 1
        if self._failures % LEFT_AFTER == 0 and not isinstance(error, errors.EndpointFailed):
            self._endpoints.pause_current_endpoint(error.message)
        if (
            self._failures >= (ABSENT_AFTER if isinstance(error, ports.BlockNotFound) else DEGRADED_AFTER)
            and not self._degraded
        ):
            self._degraded = True
            log.warning("the chain cannot be followed: %s", error.message)
            self._emit(events.ChainDegraded(error.message))
            self._up = self._checked = False
        await self._runtime.sleep(PAUSE.after(self._failures))

    async def _read_new_blocks(self, order: WatchChain, header: BlockRef | None) -> None:
        if not self._checked:
            await self._check_chain()
        if self._branch is None:
            await self._set_starting_block(order)
        tip = self.branch.tip
        head = header if header is not None and header.parent == tip.hash else await self._blocks.get_head()
        if self.heads.live and header is None and head.number > tip.number:
            self.heads.record_unannounced_head()
        await self._read_up_to(head)
        if self.branch.tip != tip:
            self._moved_at = self._runtime.now()
        elif self._runtime.now() - self._moved_at > STALE_S:
            self._moved_at = self._runtime.now()
            await self._endpoints.pause_lagging_endpoints()
        if self.branch.tip.number > tip.number or not self._up:
            await self._report_chain_up()
        self.membership.request_update(await self.confirmed_number())
        self._report_progress()

    async def _check_chain(self) -> None:
        self._genesis = await self._terms.check_chain(self._genesis)
        self._checked = True

    async def _set_starting_block(self, order: WatchChain) -> None:
        """Continue where the log ends, or start before the contract's first block."""
        if order.recent:
            self._branch = RecentBlocks(order.recent)
            self.reports.resume_after(self.branch.tip)
        else:
            anchor = await self._blocks.get_block(max(self._config.from_block - 1, 0))
            self._branch = RecentBlocks([anchor])
            self.reports.report_block(anchor, [])

    # --- from the tip to the head ---

    async def _read_up_to(self, head: BlockRef) -> None:
        """Read the blocks after the tip up to the head; first undo blocks that the chain has replaced."""
        self._head = head.number
        tip = self.branch.tip
        if head.number < tip.number:
            known = self.branch.find_block(head.number)
            if known is None or known.hash == head.hash:
                # The chain got shorter only if no endpoint had the tip in several polls in a row.
                self._lower = 0 if await self._endpoints.has_block(tip) else self._lower + 1
                if self._lower < LOWER_POLLS:
                    return
        self._lower = 0
        if head.number <= tip.number and head.hash != tip.hash:
            await self._report_reorganisation(head)
        while head.number - self.branch.tip.number > NEAR_BLOCKS:
            if not await self._read_in_ranges(head.number - NEAR_BLOCKS):
                await self._report_reorganisation(head)
        while head.number > self.branch.tip.number and not await self._read_block_by_block(head):
            await self._report_reorganisation(head)

    async def _report_reorganisation(self, head: BlockRef) -> None:
        """Report where the chain forked off, because the tip is no longer part of it."""
        self._checked = False
        await self._check_chain()
        tip = self.branch.tip

        async def is_still_on_chain(block: BlockRef) -> bool:
            return block.number <= head.number and await ports.is_on_chain(self._blocks, block)

        fork = await self.branch.find_fork(is_still_on_chain)
        if fork is None:
            raise errors.ChainMismatch(
                f"the chain was reset: none of the last {len(self.branch)} blocks that were read, up to "
                f"{tip.number} {tip.hash}, is part of it any more",
                "Start with an empty data directory if this is meant to be a new chain, else correct chain.rpc",
            )
        if fork == tip:
            raise ports.BlockNotFound(f"block {tip.number} came and went")
        log.warning("blocks %d to %d were replaced", fork.number + 1, tip.number)
        self.branch.drop_blocks_after(fork.number)
        self.reports.resume_after(fork)
        self.membership.forget_after_fork(fork.number)
        self._own.reset_reported_count()
        self._up = False
        self._emit(events.ChainReorged(fork, tip.number - fork.number))

    async def _read_in_ranges(self, last: int) -> bool:
        """Read in ranges up to the block `last`. Returns False if the tip is no longer part of the chain."""
        async for span in self._blocks.iter_log_ranges(self.branch.tip.number + 1, last, self._own.make_filters()):
            first, end = await self._blocks.get_blocks((span.first, span.last))
            if span.first == self.branch.tip.number + 1 and first.parent != self.branch.tip.hash:
                return False
            await self._report_range(span, end)
            self.branch.append_block(end)
            self._report_progress()
        return True

    async def _report_range(self, span: ports.LogRange, end: BlockRef) -> None:
        groups = group_by_block(span.entries)
        untimed = [number for number, entries in groups if entries[0].block_timestamp is None]
        headers = {block.number: block for block in [*await self._blocks.get_blocks(untimed), end]}
        for number, entries in groups:
            block = headers.get(number) or BlockRef(
                number, entries[0].block_hash, "", logs.parse_block_time(entries[0].block_timestamp or "")
            )
            if block.hash != entries[0].block_hash:
                raise ports.BlockNotFound(f"block {number} changed while it was read")
            self._record_membership_changes(block, self.reports.report_block(block, entries))
            await self._runtime.sleep(0.0)
        if not groups or groups[-1][0] != end.number:
            self.reports.report_block(end, [])

    async def _read_block_by_block(self, head: BlockRef) -> bool:
        """Read block by block. Returns False if the tip is no longer part of the chain."""
        blocks = [*await self._blocks.get_blocks(range(self.branch.tip.number + 1, head.number)), head]
        for before, block in pairwise(blocks):
            if block.parent != before.hash:
                raise ports.BlockNotFound(f"block {block.number} changed while it was read")
        if blocks[0].parent != self.branch.tip.hash:
            return False
        for block, entries in zip(
            blocks, await self._blocks.get_logs_of_blocks(blocks, self._own.make_filters()), strict=True
        ):
            self._record_membership_changes(block, self.reports.report_block(block, entries))
            self.branch.append_block(block)
        return True

    def _record_membership_changes(self, block: BlockRef, entries: tuple[events.AnyChainLog, ...]) -> None:
        if any(isinstance(entry, events.OtherLog) and entry.name in CHANGES for entry in entries):
            self.membership.record_change(block.number)

    # --- state at the tip ---

    async def _report_chain_up(self) -> None:
        if not self._up:
            await self._endpoints.detect_base_fee()
            up = await self._terms.read_contract_state(self.branch.tip, self._genesis, self._account())
            self._emit(replace(up, base_fee=self._endpoints.has_base_fee))
            if up.extensions:
                self.membership.reread_after_detection()
            self._up, self._degraded = True, False
            log.info("at block %d, by %s", self.branch.tip.number, self._endpoints.current)
        await self._own.report_submission_count(self.branch.tip)
        self.on_head()

    async def confirmed_number(self) -> int:
        """Return the number of the last confirmed block; -1 if there is none. Raises ChainError."""
        tip = self.branch.tip.number if self._branch is not None else (await self._blocks.get_head()).number
        return await self._finality.find_confirmed_number(tip)

    def _report_progress(self) -> None:
        tip = self.branch.tip
        lag_s = max(self._runtime.time() - tip.at, 0.0) if tip.at else 0.0
        self.on_progress(
            ReadProgress(
                tip.number, max(self._head, tip.number), lag_s, self.heads.live or self._endpoints.current, self._up
            )
        )

    # --- extensions that an endpoint had not shown ---

    async def watch_extensions(self) -> None:
        """Check for extensions at intervals, until cancelled."""
        while True:
            await self._runtime.sleep(AGAIN_S)
            await self.check_for_extensions()

    async def check_for_extensions(self) -> None:
        """Read the extensions' version again if the contract seemed to have none; report any found."""
        if self._terms.extensions != 0:
            return
        try:
            found = await self._terms.coordinator.extensions_version()
        except errors.SwarmdError as error:  # even for another chain: `run` handles that
            log.debug("whether the contract has extensions is not known: %s", error.message)
            return
        if found:
            log.warning("the contract has extensions, which an endpoint did not show before")
            self.emit_chain_up_again()
