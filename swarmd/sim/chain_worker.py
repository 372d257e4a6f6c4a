"""A simulated node's chain worker: the shipped watcher, submitter and wallet over a simulated chain.

The endpoints, the chain behind them, signatures and the process are simulated: it dies and freezes, and sometimes
reports a fact twice. It knows only what it reads and the commands that it gets, and loses everything when it ends.

The endpoints implement `swarmd.chain.ports` over `swarmd.sim.chain`. Each call takes some simulated time and then
returns the chain's state at that instant, so a block, a reorganisation or a death may happen between any two calls.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random

import msgspec

from swarmd.chain import ports
from swarmd.chain.contract import ERRORS
from swarmd.chain.fees import GWEI, DailyBudget
from swarmd.chain.logs import LogEntry
from swarmd.chain.senders import Wallet
from swarmd.chain.submitter import ChainCommandDispatcher, Submitter
from swarmd.chain.watcher import ChainRequirements, ChainWatcher
from swarmd.config import ChainConfig, FeesConfig
from swarmd.core.commands import Command, Submit
from swarmd.core.events import AnyChainLog, Event, SubmissionRefused
from swarmd.core.values import BlockRef, SubmissionAttempt
from swarmd.errors import ChainError, EndpointFailed, RpcRefused
from swarmd.gas import COIN_WEI
from swarmd.sim.chain import FEE, GAS, GAS_IDLE, ContractCall, ContractView, SignedTx, SimChain, SimLogEntry, sign_call
from swarmd.sim.coroutines import Later, VirtualFuture, VirtualRuntime, VirtualSignal
from swarmd.sim.machine import SimMachine
from swarmd.sim.processes import SimSupervisor, SimWorker
from swarmd.sim.simulation import Place
from swarmd.sim.submission_checks import SubmissionChecks, daily_budget_wei

CONTRACT = "0xcontract"

_raw = msgspec.msgpack.Decoder(SignedTx)
_content = msgspec.msgpack.Decoder(tuple[ContractCall, str])
_encode = msgspec.msgpack.encode


PIPE_S = 0.001  # latency from the daemon to the worker
CALL_S = 10.0  # a call without an answer fails after this
RANGE_BLOCKS = 16  # blocks read at once while catching up
BOUNDS = (20 * FEE, 20 * FEE, 4 * FEE)  # nodes' highest prices, by node number
SAFE_EVERY = 4  # one node in this many uses the chain's own finality
CALL_S_MAX = 2.0
SHARE = 0.25  # mean duration of a call as a share of `Profile.latency_s`; one check makes ten calls
SLOW = 0.4  # share of calls that take time; the others are answered in the same instant
FAILED = 0.1  # probability that a single call fails, as a share of `Profile.failure`
SENT_ALL_THE_SAME = 0.5  # chance that a transaction arrives although its call fails
SILENT = 0.1  # chance that a failing call fails only at the caller's timeout
SLOW_POLLS = 5  # poll intervals between two polls while a subscription works
SUBSCRIBED = 0.7  # chance that a process has a subscription
REVERT = 3  # JSON-RPC's error code for a revert

SELECTORS = {name: selector for selector, name in ERRORS.items()}


class SimTransactionSigner:
    """A node's account (`swarmd.chain.ports.TransactionSigner`); its signed transactions are plain encodings, for the
    checks."""

    def __init__(self, node: SimMachine, checks: SubmissionChecks) -> None:
        self._node = node
        self._checks = checks
        self.account = node.account

    def encode_submission(self, command: Submit, peer: str) -> bytes:
        chain = self._node.settings.chain
        if command.kind == "advance" and (chain is None or chain.drive == "never"):
            raise ChainError('chain.drive is "never": this node does not move the contract on')
        place = (command.round, command.stage)
        call = ContractCall(command.kind, self.account, peer, *place, command.reward, command.winners)
        return _encode((call, command.submission))

    def sign_transaction(self, said: ports.SignedTransaction) -> SubmissionAttempt:
        call, submission = _content.decode(said.content) if said.content else (ContractCall("idle", said.to), "")
        tx = sign_call(call, said.nonce, said.price.fee_wei, submission, said.price.tip_wei or 0)
        cost_wei = said.gas * said.price.fee_wei
        self._checks.on_transaction_signed(tx)
        return SubmissionAttempt(tx.hash, tx.nonce, _encode(tx), str(tx.fee), str(cost_wei))

    def decode_signed(self, prepared: SubmissionAttempt) -> ports.SignedTransaction:
        if not prepared.raw:
            raise ChainError(f"the logged attempt {prepared.hash} holds no transaction")
        tx = _raw.decode(prepared.raw)
        idle = tx.call.kind == "idle"
        content = b"" if idle else _encode((tx.call, tx.submission))
        gas = int(prepared.cost_wei) // max(tx.fee, 1)
        return ports.SignedTransaction(
            tx.nonce, ports.Price(tx.fee, tx.tip), gas, self.account if idle else CONTRACT, content
        )


class SimEndpoint:
    """A node's connection to the chain.

    Implements `EndpointPool`, `BlockReader`, `ContractReader` and `AccountClient` of `swarmd.chain.ports`.

    Attributes:
        refusals: the last error with which the contract refused each submission here.

    Args:
        depth: blocks below the head at which the chain itself calls a block safe.
    """

    contract = CONTRACT
    current = "an endpoint"
    has_base_fee = True

    def __init__(
        self,
        node: SimMachine,
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

    # --- latency and failures ---

    @property
    def has_no_reachable_endpoint(self) -> bool:
        """Whether all of this node's endpoints are down."""
        return self._node.rpc_out_until > self._world.now

    def draw_latency_s(self) -> float:
        """Return a random duration of a call that is not answered at once."""
        return min(self.random.expovariate(1.0) * self._mean_s, CALL_S_MAX)

    async def _wait_latency(self) -> None:
        """Let some time pass. Never returns if the process dies meanwhile."""
        if self.random.random() < SLOW:
            await self._runtime.sleep(self.draw_latency_s())
        if not self._is_alive():
            await VirtualFuture()

    def _draw_call_failure(self) -> bool:
        chance = self._world.fault_chance("failure")
        return self.has_no_reachable_endpoint or (chance > 0 and self.random.random() < chance * FAILED)

    async def _raise_call_failure(self) -> None:
        """Raise EndpointFailed, at once or at the caller's timeout."""
        if self.random.random() < SILENT:
            await self._runtime.sleep(CALL_S)
        raise EndpointFailed("no endpoint answers")

    async def _simulate_call(self) -> None:
        """Let the time of one call pass. Raises EndpointFailed if the call fails."""
        await self._wait_latency()
        if self._draw_call_failure():
            await self._raise_call_failure()

    async def _view_at(self, block: ports.Block) -> ContractView:
        """Return the contract at a block: a tag, a number, or a number as hex."""
        await self._simulate_call()
        if isinstance(block, str) and not block.startswith("0x"):
            return self.chain.contract
        number = int(block, 16) if isinstance(block, str) else block
        if number > self.chain.head.number:
            raise RpcRefused(-32000, "header not found")
        return self.chain.view_at(number)

    # --- blocks ---

    @property
    def blocks(self) -> "SimEndpoint":
        return self

    async def get_head(self) -> BlockRef:
        await self._simulate_call()
        return self.chain.head

    async def get_block(self, block: int | str) -> BlockRef:
        await self._simulate_call()
        number = max(self.chain.head.number - self._depth, 0) if isinstance(block, str) else block
        if number > self.chain.head.number:
            raise ports.BlockNotFound(f"the chain has no block {block} yet")
        return self.chain.blocks[number].ref

    async def get_blocks(self, numbers: Sequence[int]) -> list[BlockRef]:
        return await self._runtime.gather([self.get_block(number) for number in numbers])

    async def get_logs_of_blocks(
        self, blocks: Sequence[BlockRef], filters: Sequence[ports.LogFilter] = ()
    ) -> list[list[LogEntry]]:
        assert not filters, "nobody asks the simulated chain so"
        return await self._runtime.gather([self._get_logs_of_block(block) for block in blocks])

    async def _get_logs_of_block(self, block: BlockRef) -> list[LogEntry]:
        await self._simulate_call()
        if not self.chain.has_block(block):
            raise ports.BlockNotFound(f"no logs of block {block.number} {block.hash}")
        return list(self.chain.blocks[block.number].entries)

    async def iter_log_ranges(
        self, first: int, last: int, filters: Sequence[ports.LogFilter] = (), backwards: bool = False
    ) -> AsyncIterator[ports.LogRange]:
        assert not filters and not backwards, "nobody asks the simulated chain so"
        while first <= last:
            end = min(first + RANGE_BLOCKS - 1, last)
            await self._simulate_call()
            blocks = self.chain.blocks[first : end + 1]
            yield ports.LogRange(first, end, [entry for block in blocks for entry in block.entries])
            first = end + 1

    async def is_syncing(self) -> bool:
        await self._simulate_call()
        return False

    async def detect_base_fee(self) -> None:
        await self._simulate_call()

    async def has_block(self, block: BlockRef) -> bool:
        await self._wait_latency()
        return not self._draw_call_failure() and self.chain.has_block(block)

    async def pause_lagging_endpoints(self) -> None:
        await self._wait_latency()

    def pause_current_endpoint(self, reason: str) -> None:
        """Do nothing: all endpoints show the same chain."""

    def distrust_current_endpoint(self, reason: str) -> bool:
        return False

    # --- the contract ---

    async def check_contract(self) -> None:
        await self._simulate_call()

    async def round_and_stage(self, block: str = "latest") -> Place:
        """Return round and stage by two calls, as a node makes them: at the head they may be of two blocks."""
        round = (await self._view_at(block)).round_and_stage[0]
        return round, (await self._view_at(block)).round_and_stage[1]

    async def stage_count(self, block: str = "latest") -> int:
        return (await self._view_at(block)).rules.stages

    async def extensions_version(self) -> int:
        await self._simulate_call()
        return 0 if self.chain.contract.rules.manager else 1

    async def round_policy(self, block: str = "latest") -> ports.RoundPolicy:
        rules = (await self._view_at(block)).rules
        return ports.RoundPolicy(rules.min_submissions, rules.max_stage_s)

    async def submission_count(self, block: str = "latest") -> int | None:
        await self._simulate_call()
        return None  # None: its nodes read all rewards

    async def stage_opened_at(self, block: str = "latest") -> float:
        return (await self._view_at(block)).stage_opened_at

    async def account_of_peer(self, peer: str, block: str = "latest") -> str:
        return (await self._view_at(block)).account_of_peer(peer)

    async def has_reward(self, round: int, stage: int, peer: str, account: str = "", block: str = "latest") -> bool:
        return (await self._view_at(block)).block_of_submission("reward", round, stage, peer) is not None

    async def votes(self, round: int, peer: str, block: str = "latest") -> tuple[str, ...]:
        return (await self._view_at(block)).votes(round, peer)

    async def is_membership_open(self, block: str = "latest") -> bool:
        await self._view_at(block)
        return True

    # --- accounts ---

    async def balance_wei(self, account: str) -> int:
        await self._simulate_call()
        return self.chain.balance_of(account)

    async def nonce(self, account: str, block: ports.Block = "latest") -> int:
        await self._simulate_call()
        return self.chain.pending_nonce_of(account) if block == "pending" else self.chain.contract.nonce_of(account)

    async def gas_price_wei(self) -> int:
        await self._simulate_call()
        return self.chain.fee

    async def base_fee_wei(self) -> int | None:
        return await self.gas_price_wei()

    async def estimate_gas(self, account: str, to: str, content: bytes) -> int:
        if not content:
            await self._simulate_call()
            return GAS_IDLE
        self._check_call_accepted(await self._view_at("latest"), content, self.chain.head.at)
        return GAS

    async def call_contract(self, to: str, content: bytes, account: str = "", block: ports.Block = "latest") -> bytes:
        view = await self._view_at(block)
        number = block if isinstance(block, int) else self.chain.head.number
        self._check_call_accepted(view, content, self.chain.blocks[number].ref.at)
        return b""

    def _check_call_accepted(self, view: ContractView, content: bytes, at: float) -> None:
        """Raise RpcRefused if the contract would revert a call."""
        call, submission = _content.decode(content)
        error = view.refusal_reason(call, at)
        if error:
            self.refusals[submission] = error
            raise RpcRefused(REVERT, "execution reverted", SELECTORS[error])

    async def send_raw_transaction(self, raw: bytes) -> None:
        """Send a transaction. If the call fails, it may still have arrived."""
        await self._wait_latency()
        fails = self._draw_call_failure()
        tx = _raw.decode(raw)
        if fails and self.random.random() >= SENT_ALL_THE_SAME:
            await self._raise_call_failure()
        self._checks.on_transaction_sent(tx)
        poor = self.chain.balance_of(tx.call.account) < tx.fee * GAS
        answer = "insufficient funds for gas * price + value" if poor else self.chain.submit_transaction(tx)
        await self._wait_latency()
        if fails:
            await self._raise_call_failure()
        if answer != "taken":
            raise RpcRefused(-32000, answer)

    async def has_transaction(self, hash: str) -> bool:
        await self._simulate_call()
        return self.chain.has_transaction(hash)

    async def find_receipt(self, hash: str) -> ports.MinedTransaction | None:
        await self._simulate_call()
        found = self.chain.receipts.get(hash)
        if found is None:
            return None
        block = BlockRef(found.block.number, found.block.hash)
        to = found.tx.call.account if found.tx.call.kind == "idle" else CONTRACT
        return ports.MinedTransaction(block, not found.error, GAS, found.tx.fee, "", to)


class SimHeadNotifier:
    """Implements `swarmd.chain.ports.HeadNotifier`; most processes get a subscription."""

    def __init__(self, endpoint: SimEndpoint, later: Later, poll_s: float) -> None:
        self._endpoint = endpoint
        self._later = later
        self._poll_s = poll_s
        self._subscribed = endpoint.random.random() < SUBSCRIBED
        self._news = VirtualSignal(later)
        self._header: BlockRef | None = None

    @property
    def live(self) -> str:
        return "an endpoint" if self._subscribed and not self._endpoint.has_no_reachable_endpoint else ""

    def announce_head(self, head: BlockRef) -> None:
        if self._subscribed:
            self._later(self._endpoint.draw_latency_s(), self._on_head, head)

    def _on_head(self, head: BlockRef) -> None:
        if not self._endpoint.has_no_reachable_endpoint:
            self._header = head
            self.end_wait()

    async def wait_for_head(self, soon: bool = False) -> BlockRef | None:
        await self._news.wait(self._poll_s * (SLOW_POLLS if self.live and not soon else 1))
        header, self._header = self._header, None
        return header

    def end_wait(self) -> None:
        self._news.set()

    def record_unannounced_head(self) -> None:
        """Do nothing: the simulated subscription may be late, but never loses a head."""


class SimChainWorker(SimWorker):
    kind = "chain"

    def __init__(self, supervisor: SimSupervisor, pid: int, chain: SimChain, checks: SubmissionChecks) -> None:
        super().__init__(supervisor, pid)
        node, self._checks = self.node, checks
        self.deaf = self.random.random() < self.world.fault_chance("slow_start")
        self.runtime = VirtualRuntime(self.call_later, lambda: self.world.now, node.local_time)
        config = make_chain_config(node)
        self.endpoint = endpoint = SimEndpoint(node, chain, checks, self.runtime, lambda: self.alive, config.depth)
        self.heads = SimHeadNotifier(endpoint, self.call_later, config.poll_s)
        wallet = Wallet(config, endpoint, SimTransactionSigner(node, checks), DailyBudget(config.fees, node.local_time))
        terms = ChainRequirements(config, node.settings.stages, node.peer, endpoint)
        told = (self.emit_event, self.runtime)
        watcher = ChainWatcher(
            config,
            terms,
            endpoint,
            self.heads,
            self.emit_event,
            lambda: node.account,
            self.runtime,
            decode_sim_log_entry,
        )
        submitter = Submitter(config, node.peer, endpoint, endpoint, wallet, watcher.confirmed_number, *told)
        start = self.runtime.start
        self._agent = ChainCommandDispatcher(
            watcher, submitter, wallet.budget, self.emit_event, lambda run: start(run())
        )
        self._wanted: dict[str, Submit] = {}

    def start(self) -> None:
        """Start the worker's tasks; a deaf worker never starts."""
        if not self.deaf:
            self._agent.start_tasks()

    def perform(self, command: Command) -> None:
        if not self.deaf:
            self.call_later(PIPE_S, self._handle_command, command)

    def _handle_command(self, command: Command) -> None:
        if isinstance(command, Submit):
            self._wanted[command.submission] = command
        self._agent.handle_command(command)

    def emit_event(self, fact: Event) -> None:
        """Report a fact, sometimes twice."""
        if self.alive and isinstance(fact, SubmissionRefused):
            wanted, answered = self._wanted[fact.submission], self.endpoint.refusals.get(fact.submission, "")
            self._checks.on_submission_refused(wanted, fact.code, answered)
        self.send_event(fact)
        if self.random.random() < self.world.fault_chance("duplicate"):
            self.send_event(fact)

    def terminate(self) -> None:
        super().terminate()
        self.runtime.stop()


def make_chain_config(node: SimMachine) -> ChainConfig:
    """Return a node's chain configuration, in which some values differ by node number."""
    profile, settings = node.world.profile, node.settings.chain
    assert settings is not None, "there is a chain"
    fees = FeesConfig(
        max_gwei=BOUNDS[node.index % len(BOUNDS)] / GWEI,
        tip_gwei=FEE / 10 / GWEI,
        stuck_s=profile.stuck_s,
        day_coins_max=daily_budget_wei(node) / COIN_WEI,
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


def decode_sim_log_entry(entry: LogEntry, rejected: Counter[str]) -> AnyChainLog | None:
    assert isinstance(entry, SimLogEntry), "there are no others"
    return entry.said
