"""Observes a swarm without taking part in it: in the DHT, and in the contract if one keeps the rounds.

- It uses parts of a node's network and chain workers, without a membership record or an account. They report the same
  events as in a node's log, which go into the same ledger.
- Earlier rewards are known only from the last round's leaderboard; on a chain, from the contract's own sums minus the
  blocks that were read.
- The contract takes precedence over the DHT, which gives members and what they share.
"""

import asyncio
import math
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
from msgspec.structs import replace

from swarmd import __version__
from swarmd.bounds import Backoff
from swarmd.chain.blocks import HeadSubscription
from swarmd.chain.coordinator import PEERS_A_CALL, CoordinatorContract, is_text_peer_id
from swarmd.chain.endpoints import RpcPool, read_endpoint_urls
from swarmd.chain.ports import BlockNotFound, HeadListener
from swarmd.chain.watcher import ChainRequirements, ChainWatcher, ReadProgress
from swarmd.config import ChainConfig, Config, DhtConfig, LogsConfig, SwarmConfig
from swarmd.core.applied import AppliedEvent
from swarmd.core.commands import CollectReports, Gather, WatchChain
from swarmd.core.events import (
    ChainBlock,
    ChainDegraded,
    ChainReorged,
    ChainUp,
    Envelope,
    Equivocated,
    Event,
    LinkDegraded,
    LinkDown,
    LinkUp,
    MemberLeft,
    MemberSeen,
    MembersSeen,
    PolicyLog,
    ReportSeen,
    ReportsSeen,
    RolloutsGathered,
    RoundAnnounced,
    StageLog,
)
from swarmd.core.evidence import add_evidence
from swarmd.core.ids import command_id
from swarmd.core.rounds import preceding_stage
from swarmd.core.state import BLOCKS_KEPT, ChainState, Clock, State
from swarmd.core.values import BlockRef, ChainSettings, Settings
from swarmd.dht.gather import Gathering, WaitPolicy
from swarmd.dht.identity.identity import create_identity
from swarmd.dht.membership import Members
from swarmd.dht.p2p.hivemind_api import use_hivemind_log_handler
from swarmd.dht.report_collector import ReportCollector
from swarmd.dht.rounds import LeaderboardFetcher, SwarmClock
from swarmd.dht.session import Session
from swarmd.dht.wire.addresses import check_bootstrap
from swarmd.dht.wire.bodies import LeaderboardBody
from swarmd.errors import ConfigError, SwarmdError, single_error
from swarmd.eventlog.blobs import BlobStore
from swarmd.logger import get_logger
from swarmd.manifest import Manifest, read_manifest
from swarmd.observe.words import equivocation_notes
from swarmd.paths import NodeDirectory
from swarmd.web.gossip import GossipFeed
from swarmd.web.moments import redact_and_cut
from swarmd.web.shapes import ChangeSignal, PageSource, SwarmView
from swarmd.web.source import SwarmSource
from swarmd.web.swarm import PeerLedger, ViewContext, describe_isolation, swarm_view
from swarmd.worker.messages import EventSink

PEERS_A_LOOK = 16 * PEERS_A_CALL  # peers whose sums are read at one block
RETRY = Backoff(5.0, 600.0)
FAILURES_TOLD = 3  # failures in a row before the page says so

log = get_logger(__name__)


class OpeningBalances:
    """Adds to the ledger, once for each peer, the rewards from before the first block that is read.

    Args:
        ledger: has the rewards of the blocks that were read.
        scale: a reward of 1.0 is this integer in the contract.

    Attributes:
        needed: blocks with rewards may lie before the first one that is read.
    """

    def __init__(self, ledger: PeerLedger, scale: int) -> None:
        self.needed = False
        self._ledger = ledger
        self._scale = scale
        self._done: set[str] = set()
        self._asked: tuple[BlockRef, dict[str, float]] | None = None  # the block, and the ledger's rewards up to it
        self._due = asyncio.Event()
        self._failures = 0
        self._seeded = False  # the contract's own leaderboard has been read

    def describe_state(self) -> str:
        """A sentence for the page on how complete the rewards are."""
        if self._failures >= FAILURES_TOLD:
            return "Rewards as well: the contract's own sums cannot be read."
        if not self._seeded:
            return "The contract's own sums of what was before are still being read."
        return "Rewards are the contract's own sums; peers that were not heard of since may be missing."

    def request_update(self, tip: BlockRef) -> None:
        """Ask for the sums of new peers, unless a call is under way. The ledger has all blocks up to `tip`."""
        if not self.needed or self._asked is not None:
            return
        accounts = self._ledger.accounts
        self._done &= accounts.keys()  # drops peers that the ledger has forgotten
        fresh = [peer for peer in accounts if peer not in self._done and is_text_peer_id(peer)][:PEERS_A_LOOK]
        if fresh or not self._seeded:
            self._asked = tip, {peer: accounts[peer].reward for peer in fresh}
            self._due.set()

    async def run(self, coordinator: CoordinatorContract) -> None:
        """Read opening balances whenever they are due, until cancelled."""
        self._asked = None  # left over from an earlier run
        self._due.clear()
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._read_balances(coordinator)
                self._failures = 0
            except SwarmdError as error:
                log.info("sums cannot be read: %s", error.message)
                self._failures += 1
                await anyio.sleep(RETRY.after(self._failures))
            self._asked = None

    async def _read_balances(self, coordinator: CoordinatorContract) -> None:
        assert self._asked is not None
        tip, rewards = self._asked
        if not self._seeded:
            board = await coordinator.winner_leaderboard(hex(tip.number))
            unheard = [peer for peer in board if peer not in self._ledger.accounts and is_text_peer_id(peer)]
            rewards |= dict.fromkeys(unheard, 0.0)
        totals = await coordinator.total_rewards(list(rewards), hex(tip.number))
        if (await coordinator.blocks.get_block(tip.number)).hash != tip.hash:
            raise BlockNotFound(f"block {tip.number} changed while sums were read")
        for peer, total in totals.items():
            self._ledger.add_opening_balance(peer, total / self._scale - rewards[peer])
        self._done.update(totals)
        self._seeded = True


HISTORY_BLOCKS = 50_000  # blocks before the head that an observer reads; for earlier ones it asks for sums
POLL_S = 2.0  # between two polls of an endpoint without subscriptions
RETRY_S = 5.0  # delay before the chain is tried again after the watcher gave up
REASON_CHARACTERS_MAX = 500  # of an error's text
ContractEvent = ChainUp | ChainBlock | ChainReorged | ChainDegraded


class ContractFeed:
    """Reads the contract until cancelled; errors are shown and retried.

    Args:
        manifest: of a swarm whose rounds a contract keeps.
        urls: endpoints, best first; already checked.
        peer: the observer's peer id, which is registered nowhere.
        ledger: gets what peers had earned before the first block that is read.
        emit: called in the event loop with each event; must have it in the ledger when it returns.
        on_head: called when the newest block has been read.
    """

    def __init__(
        self,
        manifest: Manifest,
        urls: Sequence[str],
        peer: str,
        ledger: PeerLedger,
        emit: EventSink,
        on_head: HeadListener,
    ) -> None:
        assert manifest.chain is not None, "the swarm has no contract"
        self._config = make_chain_config(manifest, urls)
        self._stages = manifest.recipe.stages
        self._peer = peer
        self._emit = emit
        self._on_head = on_head
        self._sums = OpeningBalances(ledger, manifest.chain.reward_scale)
        self._anchor: BlockRef | None = None  # only blocks after it are read
        self._recent: tuple[BlockRef, ...] = ()  # the latest blocks reported
        self._genesis = ""
        self._reach: ReadProgress | None = None

    async def run(self) -> None:
        """Follow the contract until cancelled; a further call continues where the last one ended."""
        config = self._config
        rpc = RpcPool(config.rpc, config.chain_id)
        coordinator = CoordinatorContract(rpc, config.contract, config.from_block)
        terms = ChainRequirements(config, self._stages, self._peer, coordinator)
        heads = HeadSubscription(rpc, config.contract, config.poll_s)
        watcher = ChainWatcher(config, terms, rpc, heads, self._apply_event, lambda: "")

        def on_progress(reach: ReadProgress) -> None:
            self._reach = reach

        def on_head() -> None:
            self._sums.request_update(watcher.branch.tip)
            self._on_head()

        watcher.on_progress, watcher.on_head = on_progress, on_head
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(heads.run)
                tasks.start_soon(self._sums.run, coordinator)
                await self._run_watcher(watcher, coordinator)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await rpc.close()

    async def _run_watcher(self, watcher: ChainWatcher, coordinator: CoordinatorContract) -> None:
        while True:
            try:
                await watcher.run(await self._make_watch_command(coordinator))
            except SwarmdError as error:  # another chain, another contract, or no answer
                self._apply_event(ChainDegraded(error.message))
                watcher.emit_chain_up_again()
            await anyio.sleep(RETRY_S)

    async def _make_watch_command(self, coordinator: CoordinatorContract) -> WatchChain:
        """Find the block to begin after. Raises ChainError, ChainMismatch."""
        if self._anchor is None:
            head = await coordinator.blocks.get_head()
            created = max(self._config.from_block - 1, 0)
            self._anchor = await coordinator.blocks.get_block(max(created, head.number - HISTORY_BLOCKS))
            self._recent = (self._anchor,)
            self._sums.needed = self._anchor.number > created
        return WatchChain("watch", self._recent, self._genesis)

    def _apply_event(self, event: Event) -> None:
        if isinstance(event, ChainUp):
            self._genesis = event.genesis
        block = _block_after_event(event)
        if block is not None:
            before = [known for known in self._recent if known.number < block.number]
            self._recent = (*before[1 - BLOCKS_KEPT :], block)
        self._emit(event)

    def notes(self, chain: ChainState) -> tuple[str, ...]:
        """What is unknown of the contract, and why, in sentences."""
        notes = []
        if chain.chart == "degraded":
            reason = redact_and_cut(chain.reason, REASON_CHARACTERS_MAX)
            notes.append(f"The contract cannot be read at present: {reason}. What is shown of it may be old.")
        elif chain.chart != "up":
            far = f": block {self._reach.tip} of {self._reach.head}" if self._reach else ""
            notes.append(f"The contract is still being read{far}.")
        if self._anchor is not None and self._sums.needed:
            notes.append(
                f"The contract's blocks are read from {self._anchor.number + 1} on: rounds, votes and curves begin "
                f"there. {self._sums.describe_state()}"
            )
        return tuple(notes)


def _block_after_event(event: Event) -> BlockRef | None:
    """The chain's latest block after an event; None if the event does not name one."""
    if isinstance(event, ChainBlock):
        return event.block
    if isinstance(event, ChainUp):
        return event.head
    return event.fork if isinstance(event, ChainReorged) else None


def make_chain_config(manifest: Manifest, urls: Sequence[str]) -> ChainConfig:
    """The configuration for reading the contract without an account."""
    chain = manifest.chain
    assert chain is not None
    return ChainConfig(
        rpc=tuple(urls),
        chain_id=chain.chain_id,
        contract=chain.contract,
        from_block=chain.from_block,
        depth=chain.depth,
        poll_s=POLL_S,
        sender="none",
    )


def apply_contract_event(chain: ChainState, event: ContractEvent, ledger: PeerLedger) -> ChainState:
    """The contract's state after an event that the ledger has already applied."""
    if isinstance(event, ChainDegraded):
        return replace(chain, chart="degraded", reason=event.reason)
    if isinstance(event, ChainUp):
        chain = _chain_at_head(chain, event)
    elif isinstance(event, ChainBlock):
        chain = _apply_block(chain, event)
    else:
        chain = replace(chain, recent=(event.fork,))
    if isinstance(event, ChainBlock) and not (event.logs and chain.chart == "up"):
        return chain  # nothing new, or an old block read to catch up
    return replace(chain, reporters=ledger.find_reporters(chain.round, chain.stage))


def _chain_at_head(chain: ChainState, event: ChainUp) -> ChainState:
    return replace(
        chain,
        chart="up",
        reason="",
        genesis=event.genesis,
        stages=event.stages,
        extensions=event.extensions,
        min_submissions=event.min_submissions,
        max_stage_s=event.max_stage_s,
        round=event.round,
        stage=event.stage,
        opened_at=event.opened_at,
        recent=(event.head,),
    )


def _apply_block(chain: ChainState, event: ChainBlock) -> ChainState:
    for entry in event.logs:
        if isinstance(entry, StageLog):
            chain = replace(chain, round=entry.round, stage=entry.stage, opened_at=event.block.at)
        elif isinstance(entry, PolicyLog):
            chain = replace(chain, min_submissions=entry.min_submissions, max_stage_s=entry.max_stage_s)
    return replace(chain, recent=(event.block,))


THREADS = 1  # for answers, each of which takes a tenth of a second in a large swarm
GATHER_S = 20.0  # for gathering the rollouts of a stage
AGAIN_S = 5.0  # delay before the DHT is tried again after an error
BLOB_BYTES_MAX = 64 * 1024 * 1024  # of rollouts on disk; beyond that the oldest are removed
IN_LEDGER = (MemberSeen, MembersSeen, MemberLeft, ReportSeen, ReportsSeen, RolloutsGathered)
OF_A_STAGE = (ReportSeen, ReportsSeen, RolloutsGathered)  # they show which stage a peer is at


@contextmanager
def open_observer(manifest: Path, bootstrap: Sequence[str] = (), rpc: Sequence[str] = ()) -> "Iterator[DhtSwarmSource]":
    """Open an observer of a manifest's swarm, with a scratch directory that is removed afterwards.

    Args:
        bootstrap: addresses of nodes besides the manifest's.
        rpc: endpoints that replace the manifest's.

    Raises:
        NotFoundError, ManifestError: the manifest is missing or invalid.
        ConfigError: an endpoint is not a URL, or the swarm has no chain.
    """
    read = read_manifest(manifest)
    if rpc and read.chain is None:
        raise ConfigError(f"the swarm {read.id} has no chain: endpoints have no use there", "Leave out --rpc")
    endpoints = tuple(rpc) or (read.chain.rpc if read.chain else ())
    urls = read_endpoint_urls(endpoints, Path.cwd()) if endpoints else ()
    with tempfile.TemporaryDirectory(prefix="swarmd-") as place:
        yield DhtSwarmSource(read, Path(place), bootstrap, urls)


class DhtSwarmSource(SwarmSource):
    """Follows a swarm in the DHT and, if it has one, in its contract.

    Args:
        manifest: of the swarm.
        place: a scratch directory for its own key, sockets and rollouts.
        bootstrap: addresses besides the manifest's.
        rpc: endpoints of the chain that replace the manifest's, best first and already checked.
    """

    def __init__(self, manifest: Manifest, place: Path, bootstrap: Sequence[str] = (), rpc: Sequence[str] = ()) -> None:
        super().__init__(THREADS)
        self.changes = ChangeSignal()
        self._manifest = manifest
        self._paths = NodeDirectory(place)
        self._paths.network.mkdir(exist_ok=True)
        self._identity = create_identity(NodeDirectory(place).identity)
        self._config = observer_config(manifest, bootstrap)
        self._blobs = BlobStore(self._paths.blobs)
        self._wait_policy = WaitPolicy()
        self._ledger = PeerLedger()
        self._gossip = GossipFeed(self._blobs, self._ledger)
        self._state = State(settings=_make_settings(manifest))
        self._link = "no node of the swarm has answered yet"
        self._isolated = ""  # why the coordinator is not heard although nodes answer
        self._seq = 0
        self._begun_at = time.time()
        self._lock = threading.RLock()  # held while the event loop writes what the answers' thread reads
        self._session: Session
        self._clock: SwarmClock
        self._members: Members
        self._reports: ReportCollector
        self._standings: LeaderboardFetcher
        self._dials = False  # whether the session runs
        self._contract: ContractFeed | None = None
        if manifest.chain is not None and (urls := tuple(rpc) or manifest.chain.rpc):
            books = (self._ledger, self.observe, self._go_to_contract_stage)
            self._contract = ContractFeed(manifest, urls, self._identity.peer_id, *books)
            named = manifest.chain
            unread = ChainState("connecting", chain_id=named.chain_id, contract=named.contract, round=-1, stage=-1)
            self._state = replace(self._state, chain=unread)

    def describe_source(self) -> PageSource:
        return PageSource(
            __version__,
            node=False,
            swarm=True,
            live=True,
            name=self._manifest.name,
            swarm_id=self._manifest.id,
        )

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            if self._contract is not None:
                tasks.start_soon(self._contract.run)
            tasks.start_soon(self._follow_dht)

    async def _follow_dht(self) -> None:
        """Follow the swarm in the DHT; after an error, try again while the contract is followed."""
        use_hivemind_log_handler("nowhere")
        while True:
            try:
                parts = (self._config, self._paths, self._identity, self._blobs)
                self._session = Session(*parts, self.observe, fills_process=False)
                view, store, gossip = self._session.view, self._session.store, self._session.gossip
                self._members = Members(view, store, self._session.publisher, self._session)
                self._reports = ReportCollector(view, store, gossip, self._members.presences)
                self._standings = LeaderboardFetcher(view, store, self._session.bodies, self._adopt_coordinator_sums)
                self._clock = SwarmClock(view, store, self._session.publisher, gossip)
                await self._session.run(self._follow_session)
            except* SwarmdError as errors:
                self._link = str(single_error(errors))
            finally:
                self._dials = False
            self.changes.notify()
            await anyio.sleep(AGAIN_S)

    async def _follow_session(self) -> None:
        self._clock.watch_clock()
        self._members.watch_others()
        self._dials = True
        if self._state.clock is not None:  # the contract was read before the DHT
            self._read_stage(self._state.clock, fresh=True)
        await asyncio.Event().wait()

    # --- events ---

    def observe(self, event: Event) -> None:
        """Apply an event of the session, in the event loop."""
        with self._lock:
            noted = self._apply_event(event)
        if noted:
            self.changes.notify()

    def _apply_event(self, event: Event) -> bool:
        """Apply an event. Returns whether the page may have changed."""
        if isinstance(event, RoundAnnounced):
            self._on_clock(event)
        elif isinstance(event, ContractEvent):
            self._on_contract_event(event)
        elif isinstance(event, LinkUp):
            self._link, self._isolated = "", event.isolated
        elif isinstance(event, LinkDegraded | LinkDown):
            self._link, self._isolated = event.reason, ""
        elif isinstance(event, Equivocated):
            known = add_evidence(self._state.equivocations, event, time.time())
            self._state = replace(self._state, equivocations=known)
        elif isinstance(event, IN_LEDGER):
            self._record_in_ledger(event)
        else:
            return False
        return True

    def _record_in_ledger(self, event: Event) -> None:
        self._seq += 1
        applied = AppliedEvent(Envelope(self._seq, time.time(), event), self._state, self._state, ())
        chain = self._state.chain
        if chain is None or chain.chart == "up" or not isinstance(event, OF_A_STAGE):
            self._ledger.apply(applied)  # if a later stage were set, rounds of blocks still to be read would not count
        self._gossip.apply(applied)

    def _on_clock(self, event: RoundAnnounced) -> None:
        """Go to the stage that the coordinator announces, unless the contract can be read, which takes precedence."""
        chain, clock = self._state.chain, self._state.clock
        if chain is not None and clock is not None:
            older = (event.round, event.stage) < (clock.round, clock.stage)
            if older or chain.chart == "up":
                return
        self._go_to_stage(event)

    def _on_contract_event(self, event: ContractEvent) -> None:
        assert self._state.chain is not None, "a contract that nobody reads"
        self._record_in_ledger(event)
        chain = apply_contract_event(self._state.chain, event, self._ledger)
        self._state = replace(self._state, chain=chain)

    def _go_to_contract_stage(self) -> None:
        """Go to the contract's stage once the newest block has been read; stages before are not shown."""
        chain = self._state.chain
        if chain is not None and chain.chart == "up":
            # From then on the policy lets anybody end the stage; infinity if it sets no time.
            deadline_at = chain.opened_at + chain.max_stage_s if chain.max_stage_s else math.inf
            self._go_to_stage(RoundAnnounced(chain.round, chain.stage, chain.opened_at, deadline_at))
            self.changes.notify()

    def _go_to_stage(self, event: RoundAnnounced) -> None:
        """Record the stage that the swarm is at, and read it if it is new."""
        before = self._state.clock
        clock = Clock(event.round, event.stage, event.opened_at, event.deadline_at, event.final)
        self._state = replace(self._state, clock=clock)
        if before is not None and (before.round, before.stage, before.final) == (clock.round, clock.stage, clock.final):
            return
        if self._dials:
            self._read_stage(clock, before is None or before.round != clock.round)

    def _read_stage(self, clock: Clock, fresh: bool) -> None:
        """Collect the reports of a stage that opened, and the rollouts of the one before. `fresh`: whether its round is
        new."""
        view = self._session.view
        view.policy.set_round(clock.round)
        if not clock.final:
            collect = CollectReports(command_id("collect", f"{clock.round}/{clock.stage}"), clock.round, clock.stage)
            view.runtime.start(self._await_or_skip(self._reports.collect(collect)))
        source = preceding_stage(clock.round, clock.stage, self._manifest.recipe.stages)
        if source is not None:
            until_at = time.time() + GATHER_S
            command = Gather(
                command_id("gather", f"{clock.round}/{clock.stage}"), clock.round, clock.stage, *source, until_at
            )
            view.runtime.start(self._await_or_skip(self._fetch_rollouts(command)))
        if self._manifest.chain is None and (fresh or clock.final):
            self._standings.watch_previous_leaderboard(clock.round)

    async def _fetch_rollouts(self, command: Gather) -> None:
        """Fetch the rollouts that peers shared, and prune the blob store."""
        parts = (self._session.view, self._session.store, self._session.gossip, self._session.bodies)
        await Gathering(*parts, self._wait_policy, self._members.require_member, command).run()
        await asyncio.to_thread(self._blobs.prune, frozenset(), BLOB_BYTES_MAX)

    async def _await_or_skip(self, reading: object) -> None:
        """Await a read; log and skip it if it fails, because the next stage brings more."""
        try:
            await reading  # type: ignore[misc]
        except SwarmdError as error:
            log.info("%s", error.message)

    def _adopt_coordinator_sums(self, board: LeaderboardBody) -> None:
        """Adopt the coordinator's sums in the ledger."""
        with self._lock:
            self._ledger.adopt_coordinator_sums(board.round, board.standings, time.time())
        self._session.gossip.comparison.compare_quoted_reports(board.reports)
        self.changes.notify()

    # --- requests ---

    @contextmanager
    def _lock_state_and_ledger(self) -> Iterator[tuple[State, PeerLedger]]:
        with self._lock:
            yield self._state, self._ledger

    @property
    def _gossip_feed(self) -> GossipFeed:
        return self._gossip

    def _view(self, peers_max: int) -> SwarmView:
        around = ViewContext(self._manifest.recipe.kind, time.time(), 0, ())
        with self._lock_state_and_ledger() as (state, ledger):
            seen = swarm_view(state, ledger, around, peers_max)
            alone = bool(self._link or self._isolated)
            return replace(seen, source="dht", notes=self._notes(), out_of_reach=alone)

    def _notes(self) -> tuple[str, ...]:
        notes = [f"The swarm is not reached in the DHT: {self._link}."] if self._link else []
        if self._isolated:
            notes.append(describe_isolation("This observer", self._isolated))
        if self._state.clock is None:
            notes.append("No round has been seen yet.")
        since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._begun_at))
        if self._contract is not None and self._state.chain is not None:
            notes += self._contract.notes(self._state.chain)
            notes.append(f"Who is there and what they write is read from the DHT since {since}.")
        else:
            notes.append(f"Read from the DHT since {since}: of what came before only the sums are known.")
            notes += _unread_contract_notes(self._manifest)
        notes += equivocation_notes(self._state)
        if self._ledger.turned_away:
            notes.append("There are more peers than this server keeps count of.")
        return tuple(notes)


def observer_config(manifest: Manifest, bootstrap: Sequence[str] = ()) -> Config:
    """The configuration of an observer's DHT node: it only dials, and registers nowhere. Raises ConfigError: one of
    `bootstrap`, addresses besides the manifest's, is invalid."""
    check_bootstrap(bootstrap, "further bootnodes")
    return Config(
        swarm=SwarmConfig(manifest.id, manifest.creator, manifest.recipe.kind, manifest.recipe.stages),
        name="observer",
        dht=DhtConfig(
            listen=(),
            bootstrap=tuple(dict.fromkeys((*bootstrap, *manifest.bootnodes))),
            client_mode=True,
            members=manifest.members,
        ),
        logs=LogsConfig(level="warning"),
    )


def _make_settings(manifest: Manifest) -> Settings:
    """Settings without a peer id: the observer has no account in the ledger."""
    chain = manifest.chain
    settings = ChainSettings(sends=False, drive="never", reward_scale=chain.reward_scale) if chain else None
    return Settings("", manifest.id, "follower", manifest.creator, stages=manifest.recipe.stages, chain=settings)


def _unread_contract_notes(manifest: Manifest) -> tuple[str, ...]:
    """A note on what is missing if a contract keeps the rounds but no endpoint is known."""
    chain = manifest.chain
    if chain is None:
        return ()
    return (
        f"The contract that keeps the rounds, {chain.contract}, is not read: the manifest names no endpoint of its "
        f"chain. Give --rpc URL of chain {chain.chain_id} for votes and rewards as they are there; rewards shown are "
        "those that peers reported.",
    )
