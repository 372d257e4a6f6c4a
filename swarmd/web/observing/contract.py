"""A swarm's contract, followed by somebody who has no account: the chain worker's watcher, run beside the page.

How the contract is read, checked and taken up again after trouble is `swarmd.chain`'s; what is seen comes as the same
events as in a node's log, and goes into the same books.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import anyio
from msgspec.structs import replace

from swarmd.chain.blocks import Heads
from swarmd.chain.coordinator import Coordinator
from swarmd.chain.endpoints import Rpc
from swarmd.chain.ports import HeadListener
from swarmd.chain.watcher import ChainRequirements, Reach, Watcher
from swarmd.config import ChainConfig
from swarmd.core.commands import WatchChain
from swarmd.core.events import ChainBlock, ChainDegraded, ChainReorged, ChainUp, Event, PolicyLog, StageLog
from swarmd.core.state import BLOCKS_KEPT, Chain
from swarmd.core.values import BlockRef
from swarmd.errors import SwarmdError
from swarmd.logger import get_logger
from swarmd.manifest import Manifest
from swarmd.web.observing.opening_balances import OpeningBalances
from swarmd.web.views.ledger import PeerLedger
from swarmd.web.views.moments import shown_text
from swarmd.worker.ports import EventSink

HISTORY_BLOCKS = 50_000  # before the head that are read when an observer comes; of what lies before it asks for sums
POLL_S = 2.0  # between two looks where an endpoint has no subscription
RETRY_S = 5.0  # before the chain is tried again where the watcher gave it up
REASON_CHARACTERS_MAX = 500  # of what went wrong
CONTRACT_EVENTS = (ChainUp, ChainBlock, ChainReorged, ChainDegraded)

ContractEvent = ChainUp | ChainBlock | ChainReorged | ChainDegraded
log = get_logger(__name__)


class ContractFeed:
    """Reads the contract until cancelled; trouble is told and waited out.

    Args:
        manifest: of a swarm whose rounds a contract keeps.
        urls: endpoints, best first; checked already.
        peer: the observer's peer id, which is registered nowhere.
        ledger: takes what peers had before the first block that is read.
        emit: takes the events, and must have them in the ledger when it returns. In the event loop.
        on_head: called when all there is has been read.
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
        self._config = config_of(manifest, urls)
        self._stages = manifest.recipe.stages
        self._peer = peer
        self._emit = emit
        self._on_head = on_head
        self._sums = OpeningBalances(ledger, manifest.chain.reward_scale)
        self._anchor: BlockRef | None = None  # what comes after it is read
        self._recent: tuple[BlockRef, ...] = ()  # latest ones told of, to go on after
        self._genesis = ""
        self._reach: Reach | None = None

    async def run(self) -> None:
        """Follow it until cancelled; a second time, from where it was left."""
        config = self._config
        rpc = Rpc(config.rpc, config.chain_id)
        coordinator = Coordinator(rpc, config.contract, config.from_block)
        terms = ChainRequirements(config, self._stages, self._peer, coordinator)
        heads = Heads(rpc, config.contract, config.poll_s)
        watcher = Watcher(config, terms, rpc, heads, self._take, lambda: "")
        watcher.on_progress = self._note
        watcher.on_head = lambda: self._arrive(watcher.branch.tip)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(heads.run)
                tasks.start_soon(self._sums.run, coordinator)
                await self._follow(watcher, coordinator)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await rpc.close()

    async def _follow(self, watcher: Watcher, coordinator: Coordinator) -> None:
        while True:
            try:
                await watcher.run(await self._order(coordinator))
            except SwarmdError as error:  # of another chain, of another contract, or not to be had at all
                self._take(ChainDegraded(error.message))
                watcher.say_again()
            await anyio.sleep(RETRY_S)

    async def _order(self, coordinator: Coordinator) -> WatchChain:
        """Where to begin. Raises ChainError, ChainMismatch."""
        if self._anchor is None:
            head = await coordinator.blocks.head()
            created = max(self._config.from_block - 1, 0)
            self._anchor = await coordinator.blocks.at(max(created, head.number - HISTORY_BLOCKS))
            self._recent = (self._anchor,)
            self._sums.needed = self._anchor.number > created
        return WatchChain("watch", self._recent, self._genesis)

    def _take(self, event: Event) -> None:
        if isinstance(event, ChainUp):
            self._genesis = event.genesis
        block = _block_of(event)
        if block is not None:
            before = [known for known in self._recent if known.number < block.number]
            self._recent = (*before[1 - BLOCKS_KEPT :], block)
        self._emit(event)

    def _arrive(self, tip: BlockRef) -> None:
        self._sums.look(tip)
        self._on_head()

    def _note(self, reach: Reach) -> None:
        self._reach = reach

    def notes(self, chain: Chain) -> tuple[str, ...]:
        """What is unknown of the contract and why, in sentences."""
        notes = []
        if chain.chart == "degraded":
            reason = shown_text(chain.reason, REASON_CHARACTERS_MAX)
            notes.append(f"The contract cannot be read at present: {reason}. What is shown of it may be old.")
        elif chain.chart != "up":
            far = f": block {self._reach.tip} of {self._reach.head}" if self._reach else ""
            notes.append(f"The contract is still being read{far}.")
        if self._anchor is not None and self._sums.needed:
            notes.append(
                f"The contract's blocks are read from {self._anchor.number + 1} on: rounds, votes and curves begin "
                f"there. {self._sums.told()}"
            )
        return tuple(notes)


def _block_of(event: Event) -> BlockRef | None:
    """The latest block that the chain has after an event, where it tells one."""
    if isinstance(event, ChainBlock):
        return event.block
    if isinstance(event, ChainUp):
        return event.head
    return event.fork if isinstance(event, ChainReorged) else None


def config_of(manifest: Manifest, urls: Sequence[str]) -> ChainConfig:
    """How an observer reads the contract: without an account."""
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


def unread(manifest: Manifest) -> Chain:
    """The contract before anything was read of it."""
    assert manifest.chain is not None
    return Chain("connecting", chain_id=manifest.chain.chain_id, contract=manifest.chain.contract, round=-1, stage=-1)


def deadline_of(chain: Chain) -> float:
    """When the policy lets anybody end the stage, POSIX seconds; infinite where it sets no time."""
    return chain.opened_at + chain.max_stage_s if chain.max_stage_s else math.inf


def heed(chain: Chain, event: ContractEvent, ledger: PeerLedger) -> Chain:
    """The contract after an event that the ledger has taken."""
    if isinstance(event, ChainDegraded):
        return replace(chain, chart="degraded", reason=event.reason)
    if isinstance(event, ChainUp):
        chain = _at_head(chain, event)
    elif isinstance(event, ChainBlock):
        chain = _with_block(chain, event)
    else:
        chain = replace(chain, recent=(event.fork,))
    if isinstance(event, ChainBlock) and not (event.logs and chain.chart == "up"):
        return chain  # nothing new, or read to catch up
    return replace(chain, reporters=ledger.reporters(chain.round, chain.stage))


def _at_head(chain: Chain, event: ChainUp) -> Chain:
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


def _with_block(chain: Chain, event: ChainBlock) -> Chain:
    for entry in event.logs:
        if isinstance(entry, StageLog):
            chain = replace(chain, round=entry.round, stage=entry.stage, opened_at=event.block.at)
        elif isinstance(entry, PolicyLog):
            chain = replace(chain, min_submissions=entry.min_submissions, max_stage_s=entry.max_stage_s)
    return replace(chain, recent=(event.block,))
