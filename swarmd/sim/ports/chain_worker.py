"""The chain worker of a simulated node: the shipped watcher, submitter and wallet over a simulated chain.

Simulated are the endpoints, the chain behind them, signatures, and the process: it dies and freezes, and its facts come
twice now and then. It knows nothing but what it reads and what it is told, and forgets it all when it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from swarmd.chain.fees import GWEI, Budget
from swarmd.chain.logs import LogEntry
from swarmd.chain.senders import Wallet
from swarmd.chain.submitter import ChainAgent, Submitter
from swarmd.chain.watcher import ChainRequirements, Watcher
from swarmd.config import ChainConfig, FeesConfig
from swarmd.core.commands import Command, Submit
from swarmd.core.events import AnyChainLog, Event, SubmissionRefused
from swarmd.errors import ChainMismatch, ConfigError
from swarmd.gas import COIN_WEI
from swarmd.sim.coroutines import VirtualRuntime
from swarmd.sim.ports.chain import FEE, Spoken
from swarmd.sim.ports.endpoints import Line, SimAccounts, SimBlocks, SimContract, SimEndpoints, SimHeads
from swarmd.sim.ports.signatory import CONTRACT, SimSignatory
from swarmd.sim.ports.worker import SimWorker

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode

PIPE_S = 0.001  # from the daemon to the worker
CALL_S = 10.0  # a call without an answer ends after this
RANGE_BLOCKS = 16  # read at once while catching up
BOUNDS = (20 * FEE, 20 * FEE, 4 * FEE)  # highest prices that nodes sign, by their number
SAFE_EVERY = 4  # every so many nodes go by the chain's own word for what is confirmed


class ChainWorker(SimWorker):
    """A node's chain worker."""

    kind = "chain"

    def __init__(self, node: SimNode, pid: int) -> None:
        super().__init__(node, pid)
        self.deaf = self.random.random() < self.world.chance("slow_start")
        self.runtime = VirtualRuntime(self.later, lambda: self.world.now, node.clock)
        config = config_of(node)
        self.line = Line(node, self.runtime, lambda: self.alive, CALL_S)
        self.heads = SimHeads(self.line, self.later, config.poll_s)
        self.accounts = SimAccounts(self.line)
        contract = SimContract(self.line, SimBlocks(self.line, config.depth, RANGE_BLOCKS))
        wallet = Wallet(config, self.accounts, SimSignatory(node), Budget(config.fees, node.clock))
        terms = ChainRequirements(config, node.settings.stages, node.peer, contract)
        watcher = Watcher(
            config,
            terms,
            SimEndpoints(self.line),
            self.heads,
            self.tell_all,
            lambda: node.account,
            self.runtime,
            said_in,
        )
        submitter = Submitter(
            config, node.peer, contract, self.accounts, wallet, watcher.confirmed_number, self.tell_all, self.runtime
        )
        self._agent = ChainAgent(watcher, submitter, wallet.budget, self.tell_all, self._begin)
        self._wanted: dict[str, Submit] = {}

    def _begin(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.runtime.start(self._guarded(run))

    async def _guarded(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The worker ends by itself only on another chain or contract; there is only one."""
        try:
            await run()
        except (ChainMismatch, ConfigError) as error:
            self.world.fail(self.node, f"its chain worker gives up: {error.message}")

    def begin(self) -> None:
        """The first order says where to begin; a deaf worker never comes up."""
        if not self.deaf:
            self._agent.run()

    def perform(self, command: Command) -> None:
        if not self.deaf:
            self.later(PIPE_S, self._take, command)

    def _take(self, command: Command) -> None:
        if isinstance(command, Submit):
            self._wanted[command.submission] = command
        self._agent.take(command)

    def tell_all(self, fact: Event) -> None:
        """Report a fact; now and then one comes twice."""
        if self.alive and isinstance(fact, SubmissionRefused):
            wanted, answered = self._wanted[fact.submission], self.accounts.refusals.get(fact.submission, "")
            self.world.note_refused(self.node, wanted, fact.code, answered)
        self.tell(fact)
        if self.random.random() < self.world.chance("duplicate"):
            self.tell(fact)

    def notice_head(self) -> None:
        """There is a new block."""
        self.heads.announce(self.line.chain.head)

    def end(self) -> None:
        super().end()
        self.runtime.stop()


def config_of(node: SimNode) -> ChainConfig:
    """What a node's configuration says of the chain: in some things nodes differ, by their number."""
    profile, settings = node.world.profile, node.settings.chain
    assert settings is not None, "there is a chain"
    fees = FeesConfig(
        max_gwei=BOUNDS[node.index % len(BOUNDS)] / GWEI,
        tip_gwei=FEE / 10 / GWEI,
        stuck_s=profile.stuck_s,
        day_coins_max=node.world.day_wei_max() / COIN_WEI,
    )
    return ChainConfig(
        rpc=(),
        chain_id=31337,
        contract=CONTRACT,
        depth=profile.depth - 1,
        finality="safe" if node.index % SAFE_EVERY == SAFE_EVERY - 1 else "depth",
        poll_s=profile.block_s,
        drive=settings.drive,
        fees=fees,
    )


def said_in(entry: LogEntry, rejected: Counter[str]) -> AnyChainLog | None:
    """What an entry of the simulated chain says."""
    assert isinstance(entry, Spoken), "there are no others"
    return entry.said
