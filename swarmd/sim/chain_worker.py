"""The chain worker of a simulated node: the shipped watcher, submitter and wallet over a simulated chain.

Simulated are the endpoints, the chain behind them, signatures, and the process: it dies and freezes, and its facts come
twice now and then. It knows nothing but what it reads and what it is told, and forgets it all when it ends.

The endpoints are the ports of `swarmd.chain.ports` over `swarmd.sim.chain`. Each call takes its time on the
simulated clock and then says what the chain has in that instant, so a block, a reorganisation or a death may fall
between any two calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random

import msgspec

from swarmd.chain.contract import ERRORS
from swarmd.chain.fees import GWEI, Budget
from swarmd.chain.logs import LogEntry
from swarmd.chain.ports import Block, LogFilter, MinedTransaction, NotThere, Price, RoundPolicy, SignedTransaction, Span
from swarmd.chain.senders import Wallet
from swarmd.chain.submitter import ChainAgent, Submitter
from swarmd.chain.watcher import ChainRequirements, Watcher
from swarmd.config import ChainConfig, FeesConfig
from swarmd.core.commands import Command, Submit
from swarmd.core.events import AnyChainLog, Event, SubmissionRefused
from swarmd.core.values import BlockRef, Prepared
from swarmd.errors import ChainError, EndpointFailed, RpcRefused
from swarmd.gas import COIN_WEI
from swarmd.sim.chain import FEE, GAS, GAS_IDLE, Call, SimChain, Spoken, Tx, View, sign
from swarmd.sim.coroutines import Answer, Later, VirtualRuntime, VirtualSignal
from swarmd.sim.machine import Machine
from swarmd.sim.processes import SimSupervisor, SimWorker
from swarmd.sim.simulation import Place
from swarmd.sim.submission_checks import SubmissionChecks, day_wei_max

CONTRACT = "0xcontract"

_raw = msgspec.msgpack.Decoder(Tx)
_content = msgspec.msgpack.Decoder(tuple[Call, str])
_encode = msgspec.msgpack.encode


PIPE_S = 0.001  # from the daemon to the worker
CALL_S = 10.0  # a call without an answer ends after this
RANGE_BLOCKS = 16  # read at once while catching up
BOUNDS = (20 * FEE, 20 * FEE, 4 * FEE)  # highest prices that nodes sign, by their number
SAFE_EVERY = 4  # one node in this many goes by the chain's own word for what is confirmed
CALL_S_MAX = 2.0
SHARE = 0.25  # of `Profile.latency_s` that a call takes on average; one look makes ten of them
SLOW = 0.4  # share of the calls that take time; the others are answered in the same instant
FAILED = 0.1  # share of `Profile.failure` with which a single call fails
SENT_ALL_THE_SAME = 0.5  # chance that a transaction arrives although nobody answers
SILENT = 0.1  # chance that a call without an answer ends only when the caller's patience does
SLOW_POLLS = 5  # of poll_s between two looks while a subscription brings the news
SUBSCRIBED = 0.7  # chance that a process has a subscription
REVERT = 3  # JSON-RPC's code for it

SELECTORS = {name: selector for selector, name in ERRORS.items()}


class SimSignatory:
    """A node's account, see `swarmd.chain.ports.Signatory`: what it signs is readable, and no other makes the same."""

    def __init__(self, node: Machine, checks: SubmissionChecks) -> None:
        self._node = node
        self._checks = checks
        self.account = node.account

    def content_of(self, command: Submit, peer: str) -> bytes:
        chain = self._node.settings.chain
        if command.kind == "advance" and (chain is None or chain.drive == "never"):
            raise ChainError('chain.drive is "never": this node does not move the contract on')
        place = (command.round, command.stage)
        call = Call(command.kind, self.account, peer, *place, command.reward, command.winners)
        return _encode((call, command.submission))

    def sign(self, said: SignedTransaction) -> Prepared:
        call, submission = _content.decode(said.content) if said.content else (Call("idle", said.to), "")
        tx = sign(call, said.nonce, said.price.fee_wei, submission, said.price.tip_wei or 0)
        cost_wei = said.gas * said.price.fee_wei
        self._checks.on_signed(tx)
        return Prepared(tx.hash, tx.nonce, _encode(tx), str(tx.fee), str(cost_wei))

    def read(self, prepared: Prepared) -> SignedTransaction:
        if not prepared.raw:
            raise ChainError(f"the logged attempt {prepared.hash} holds no transaction")
        tx = _raw.decode(prepared.raw)
        idle = tx.call.kind == "idle"
        content = b"" if idle else _encode((tx.call, tx.submission))
        gas = int(prepared.cost_wei) // max(tx.fee, 1)
        return SignedTransaction(tx.nonce, Price(tx.fee, tx.tip), gas, self.account if idle else CONTRACT, content)


class SimEndpoint:
    """A node's connection to the chain: all that `swarmd.chain.ports` has of an endpoint.

    That is its `Endpoints`, `BlockReader`, `ContractReader` and `AccountPort`.

    Attributes:
        refusals: the last error with which the contract refused each submission here.

    Args:
        node: whose.
        chain: behind it.
        checks: are told what is sent.
        runtime: of the process that asks.
        is_alive: whether that process is.
        depth: blocks below the head at which the chain itself calls a block safe.
    """

    contract = CONTRACT
    current = "an endpoint"
    has_base_fee = True

    def __init__(
        self,
        node: Machine,
        chain: SimChain,
        checks: SubmissionChecks,
        runtime: VirtualRuntime,
        is_alive: Callable[[], bool],
        depth: int,
    ) -> None:
        self.chain = chain
        self.random: Random = node.world.random
        self.refusals: dict[str, str] = {}
        self._node = node
        self._checks = checks
        self._world = node.world
        self._runtime = runtime
        self._is_alive = is_alive
        self._depth = depth
        self._mean_s = node.world.profile.latency_s * SHARE / SLOW

    # --- the line ---

    @property
    def is_cut_off(self) -> bool:
        """Whether none of this node's endpoints answers."""
        return self._node.rpc_out_until > self._world.now

    def latency_s(self) -> float:
        """How long a call takes that is not answered at once."""
        return min(self.random.expovariate(1.0) * self._mean_s, CALL_S_MAX)

    async def _travel(self) -> None:
        """Let some time pass; a process that died meanwhile comes no further."""
        if self.random.random() < SLOW:
            await self._runtime.sleep(self.latency_s())
        if not self._is_alive():
            await Answer()

    def _fails(self) -> bool:
        """Whether nobody answers this call."""
        chance = self._world.chance("failure")
        return self.is_cut_off or (chance > 0 and self.random.random() < chance * FAILED)

    async def _fail(self) -> None:
        """Raise EndpointFailed, at once or when the caller's patience is over."""
        if self.random.random() < SILENT:
            await self._runtime.sleep(CALL_S)
        raise EndpointFailed("no endpoint answers")

    async def _ask(self) -> None:
        """Let the time of one call pass. Raises EndpointFailed if nobody answers."""
        await self._travel()
        if self._fails():
            await self._fail()

    async def _view(self, block: Block) -> View:
        """The contract at a block: a tag, a number, or a number as hex."""
        await self._ask()
        if isinstance(block, str) and not block.startswith("0x"):
            return self.chain.contract
        number = int(block, 16) if isinstance(block, str) else block
        if number > self.chain.head.number:
            raise RpcRefused(-32000, "header not found")
        return self.chain.view(number)

    # --- blocks ---

    @property
    def blocks(self) -> SimEndpoint:
        return self

    async def head(self) -> BlockRef:
        await self._ask()
        return self.chain.head

    async def at(self, block: int | str) -> BlockRef:
        await self._ask()
        number = max(self.chain.head.number - self._depth, 0) if isinstance(block, str) else block
        if number > self.chain.head.number:
            raise NotThere(f"the chain has no block {block} yet")
        return self.chain.blocks[number].ref

    async def all_at(self, numbers: Sequence[int]) -> list[BlockRef]:
        return await self._runtime.gather([self.at(number) for number in numbers])

    async def logs_of_all(self, blocks: Sequence[BlockRef], filters: Sequence[LogFilter] = ()) -> list[list[LogEntry]]:
        assert not filters, "nobody asks the simulated chain so"
        return await self._runtime.gather([self._logs_of(block) for block in blocks])

    async def _logs_of(self, block: BlockRef) -> list[LogEntry]:
        await self._ask()
        if not self.chain.has(block):
            raise NotThere(f"no logs of block {block.number} {block.hash}")
        return list(self.chain.blocks[block.number].entries)

    async def spans(
        self, first: int, last: int, filters: Sequence[LogFilter] = (), backwards: bool = False
    ) -> AsyncIterator[Span]:
        assert not filters and not backwards, "nobody asks the simulated chain so"
        while first <= last:
            end = min(first + RANGE_BLOCKS - 1, last)
            await self._ask()
            blocks = self.chain.blocks[first : end + 1]
            yield Span(first, end, [entry for block in blocks for entry in block.entries])
            first = end + 1

    async def is_syncing(self) -> bool:
        await self._ask()
        return False

    async def learn_base_fee(self) -> None:
        await self._ask()

    async def has_block(self, block: BlockRef) -> bool:
        await self._travel()
        return not self._fails() and self.chain.has(block)

    async def pause_lagging_endpoints(self) -> None:
        await self._travel()

    def pause_current_endpoint(self, reason: str) -> None:
        """All endpoints show the same chain."""

    def distrust_current(self, reason: str) -> bool:
        return False

    # --- the contract ---

    async def check(self) -> None:
        await self._ask()

    async def place(self, block: str = "latest") -> Place:
        """Two calls, as a node makes them: at the head they may be of two blocks."""
        round = (await self._view(block)).place[0]
        return round, (await self._view(block)).place[1]

    async def stages(self, block: str = "latest") -> int:
        return (await self._view(block)).rules.stages

    async def extensions(self) -> int:
        await self._ask()
        return 0 if self.chain.contract.rules.manager else 1

    async def policy(self, block: str = "latest") -> RoundPolicy:
        rules = (await self._view(block)).rules
        return RoundPolicy(rules.min_submissions, rules.max_stage_s)

    async def submissions(self, block: str = "latest") -> int | None:
        await self._ask()
        return None  # its nodes read the rewards of all

    async def opened_at(self, block: str = "latest") -> float:
        return (await self._view(block)).opened_at

    async def eoa(self, peer: str, block: str = "latest") -> str:
        return (await self._view(block)).account_of(peer)

    async def has_reward(self, round: int, stage: int, peer: str, account: str = "", block: str = "latest") -> bool:
        return (await self._view(block)).block_of("reward", round, stage, peer) is not None

    async def votes(self, round: int, peer: str, block: str = "latest") -> tuple[str, ...]:
        return (await self._view(block)).votes(round, peer)

    async def membership_open(self, block: str = "latest") -> bool:
        await self._view(block)
        return True

    # --- accounts ---

    async def balance_wei(self, account: str) -> int:
        await self._ask()
        return self.chain.balance_of(account)

    async def nonce(self, account: str, block: Block = "latest") -> int:
        await self._ask()
        return self.chain.pending_nonce_of(account) if block == "pending" else self.chain.contract.nonce_of(account)

    async def gas_price_wei(self) -> int:
        await self._ask()
        return self.chain.fee

    async def base_fee_wei(self) -> int | None:
        return await self.gas_price_wei()

    async def estimate_gas(self, account: str, to: str, content: bytes) -> int:
        if not content:
            await self._ask()
            return GAS_IDLE
        self._rehearse(await self._view("latest"), content, self.chain.head.at)
        return GAS

    async def call(self, to: str, content: bytes, account: str = "", block: Block = "latest") -> bytes:
        view = await self._view(block)
        number = block if isinstance(block, int) else self.chain.head.number
        self._rehearse(view, content, self.chain.blocks[number].ref.at)
        return b""

    def _rehearse(self, view: View, content: bytes, at: float) -> None:
        """Raise RpcRefused where the contract would revert a call."""
        call, submission = _content.decode(content)
        error = view.refusal(call, at)
        if error:
            self.refusals[submission] = error
            raise RpcRefused(REVERT, "execution reverted", SELECTORS[error])

    async def send(self, raw: bytes) -> None:
        """Send a transaction. If nobody answers, it may have arrived all the same."""
        await self._travel()
        fails = self._fails()
        tx = _raw.decode(raw)
        if fails and self.random.random() >= SENT_ALL_THE_SAME:
            await self._fail()
        self._checks.on_sent(tx)
        poor = self.chain.balance_of(tx.call.account) < tx.fee * GAS
        answer = "insufficient funds for gas * price + value" if poor else self.chain.send(tx)
        await self._travel()
        if fails:
            await self._fail()
        if answer != "taken":
            raise RpcRefused(-32000, answer)

    async def is_known(self, hash: str) -> bool:
        await self._ask()
        return self.chain.is_known(hash)

    async def receipt(self, hash: str) -> MinedTransaction | None:
        await self._ask()
        found = self.chain.receipts.get(hash)
        if found is None:
            return None
        block = BlockRef(found.block.number, found.block.hash)
        to = found.tx.call.account if found.tx.call.kind == "idle" else CONTRACT
        return MinedTransaction(block, not found.error, GAS, found.tx.fee, "", to)


class SimHeads:
    """See `swarmd.chain.ports.HeadNews`; a subscription that most processes have.

    Args:
        endpoint: that is asked.
        later: of the process.
        poll_s: seconds between two looks without a subscription.
    """

    def __init__(self, endpoint: SimEndpoint, later: Later, poll_s: float) -> None:
        self._endpoint = endpoint
        self._later = later
        self._poll_s = poll_s
        self._subscribed = endpoint.random.random() < SUBSCRIBED
        self._news = VirtualSignal(later)
        self._header: BlockRef | None = None

    @property
    def live(self) -> str:
        return "an endpoint" if self._subscribed and not self._endpoint.is_cut_off else ""

    def announce(self, head: BlockRef) -> None:
        """There is a new block."""
        if self._subscribed:
            self._later(self._endpoint.latency_s(), self._hear, head)

    def _hear(self, head: BlockRef) -> None:
        if not self._endpoint.is_cut_off:
            self._header = head
            self.wake()

    async def wait(self, soon: bool = False) -> BlockRef | None:
        await self._news.wait(self._poll_s * (SLOW_POLLS if self.live and not soon else 1))
        header, self._header = self._header, None
        return header

    def wake(self) -> None:
        self._news.set()

    def found_unannounced(self) -> None:
        """The simulated subscription is late at most, never deaf."""


class ChainWorker(SimWorker):
    """A node's chain worker."""

    kind = "chain"

    def __init__(self, supervisor: SimSupervisor, pid: int, chain: SimChain, checks: SubmissionChecks) -> None:
        super().__init__(supervisor, pid)
        node, self._checks = self.node, checks
        self.deaf = self.random.random() < self.world.chance("slow_start")
        self.runtime = VirtualRuntime(self.later, lambda: self.world.now, node.clock)
        config = config_of(node)
        self.endpoint = endpoint = SimEndpoint(node, chain, checks, self.runtime, lambda: self.alive, config.depth)
        self.heads = SimHeads(endpoint, self.later, config.poll_s)
        wallet = Wallet(config, endpoint, SimSignatory(node, checks), Budget(config.fees, node.clock))
        terms = ChainRequirements(config, node.settings.stages, node.peer, endpoint)
        told = (self.tell_all, self.runtime)
        watcher = Watcher(
            config, terms, endpoint, self.heads, self.tell_all, lambda: node.account, self.runtime, said_in
        )
        submitter = Submitter(config, node.peer, endpoint, endpoint, wallet, watcher.confirmed_number, *told)
        start = self.runtime.start
        self._agent = ChainAgent(watcher, submitter, wallet.budget, self.tell_all, lambda run: start(run()))
        self._wanted: dict[str, Submit] = {}

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
            wanted, answered = self._wanted[fact.submission], self.endpoint.refusals.get(fact.submission, "")
            self._checks.on_refused(wanted, fact.code, answered)
        self.tell(fact)
        if self.random.random() < self.world.chance("duplicate"):
            self.tell(fact)

    def end(self) -> None:
        super().end()
        self.runtime.stop()


def config_of(node: Machine) -> ChainConfig:
    """What a node's configuration says of the chain: in some things nodes differ, by their number."""
    profile, settings = node.world.profile, node.settings.chain
    assert settings is not None, "there is a chain"
    fees = FeesConfig(
        max_gwei=BOUNDS[node.index % len(BOUNDS)] / GWEI,
        tip_gwei=FEE / 10 / GWEI,
        stuck_s=profile.stuck_s,
        day_coins_max=day_wei_max(node) / COIN_WEI,
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
