"""The interface between the chain worker's logic and the chain: typed reads and writes.

Watcher, submitter and wallet access the chain through these protocols only. A node implements them over its configured
endpoints (`RpcBlockReader`, `CoordinatorContract`, `EthereumClient`, `RpcPool`, `HeadSubscription`, `AccountSigner`),
the simulator over its own chain (`swarmd.sim.chain_worker`).

Every async method may raise:

- EndpointFailed: no endpoint answers, or an answer is malformed.
- RpcRefused: a node answers with an error about the request itself.
- ChainMismatch: all endpoints that answer serve another chain.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from swarmd.chain.logs import LogEntry
from swarmd.core.commands import Submit
from swarmd.core.values import BlockRef, SubmissionAttempt, Value
from swarmd.errors import ChainError

Block = str | int  # a tag, a number as hex, or a number
LogFilter = Sequence[Sequence[str]]  # for each topic of an entry, the accepted values (32 bytes as hex); none: any


class BlockNotFound(ChainError):
    """The endpoint does not have the block, or not yet."""


class LogRange(NamedTuple):
    """Log entries of the blocks `first` to `last`, in order."""

    first: int
    last: int
    entries: list[LogEntry]


class RoundPolicy(NamedTuple):
    """When anyone may advance the contract; 0 turns a condition off."""

    min_submissions: int = 0
    max_stage_s: int = 0


class MinedTransaction(NamedTuple):
    """The receipt of a mined transaction."""

    block: BlockRef  # number and hash
    succeeded: bool
    gas_used: int
    price_wei: int | None  # per unit of gas; None if the endpoint does not report it
    contract: str  # the contract that it created, checksummed; empty if none
    to: str = ""  # the address that it called, checksummed; empty if none, or if the endpoint does not report it


class Price(Value, frozen=True):
    """The price of a unit of gas; `tip_wei` is None on a chain without EIP-1559."""

    fee_wei: int  # the most that is paid, including the tip
    tip_wei: int | None = None


class SignedTransaction(Value, frozen=True):
    """The content of a transaction, without its signature."""

    nonce: int
    price: Price
    gas: int
    to: str  # empty if it creates a contract
    content: bytes


class BlockReader(Protocol):
    """Blocks, and the log entries of one contract."""

    async def get_head(self) -> BlockRef:
        """Return the newest block."""

    async def get_block(self, block: int | str) -> BlockRef:
        """Return a block by its number or tag. Raises BlockNotFound."""

    async def get_blocks(self, numbers: Sequence[int]) -> list[BlockRef]:
        """Return blocks by their numbers, requested concurrently. Raises BlockNotFound."""

    async def get_logs_of_blocks(
        self, blocks: Sequence[BlockRef], filters: Sequence[LogFilter] = ()
    ) -> list[list[LogEntry]]:
        """Return the entries of each of these blocks, requested concurrently; with filters, those that pass one of
        them. No entry may pass two filters. Raises BlockNotFound if one of the blocks is unknown."""

    def iter_log_ranges(
        self, first: int, last: int, filters: Sequence[LogFilter] = (), backwards: bool = False
    ) -> AsyncIterator[LogRange]:
        """Yield the entries of the blocks `first` to `last`, in ranges; filters as in `get_logs_of_blocks`. Raises
        ChainError if they cannot be read."""

    async def is_syncing(self) -> bool:
        """Return whether the endpoint reports that it is still catching up."""


async def check_block_not_replaced(blocks: BlockReader, block: BlockRef) -> None:
    """Raise BlockNotFound if another block now has this number: data read by number may then come from both blocks."""
    if (await blocks.get_block(block.number)).hash != block.hash:
        raise BlockNotFound(f"block {block.number} was replaced while the contract was read")


async def is_on_chain(blocks: BlockReader, block: BlockRef) -> bool:
    """Return whether the chain still has this block. Raises ChainError, as every read."""
    try:
        return (await blocks.get_block(block.number)).hash == block.hash
    except BlockNotFound:
        return False


class ContractReader(Protocol):
    """The swarm's contract; `block` is a tag, or a number as hex."""

    @property
    def contract(self) -> str:
        """The contract's address, checksummed."""

    @property
    def blocks(self) -> BlockReader:
        """The blocks of the contract's chain."""

    async def check_contract(self) -> None:
        """Raise ChainMismatch if there is no contract, or another kind of contract, at the address."""

    async def round_and_stage(self, block: str = "latest") -> tuple[int, int]:
        """The swarm's current round and stage."""

    async def stage_count(self, block: str = "latest") -> int:
        """Number of stages in a round."""

    async def extensions_version(self) -> int:
        """Return the version of swarmd's extensions; 0 for a contract without round policy and membership."""

    async def round_policy(self, block: str = "latest") -> RoundPolicy:
        """Return the round policy; all conditions are off if the contract has none."""

    async def submission_count(self, block: str = "latest") -> int | None:
        """Return how many peers have reported the current stage; None if the contract does not count them."""

    async def stage_opened_at(self, block: str = "latest") -> float:
        """Return when the current stage began, in POSIX seconds by the chain's clock."""

    async def account_of_peer(self, peer: str, block: str = "latest") -> str:
        """Return the account that a peer id is registered to; empty if none."""

    async def has_reward(self, round: int, stage: int, peer: str, account: str = "", block: str = "latest") -> bool:
        """Whether the peer has reported a reward for a stage."""

    async def votes(self, round: int, peer: str, block: str = "latest") -> tuple[str, ...]:
        """The peers that a peer voted for in a round."""

    async def is_membership_open(self, block: str = "latest") -> bool:
        """Whether anyone may take part, without an allow-list."""


class AccountClient(Protocol):
    """Accounts and their transactions."""

    async def balance_wei(self, account: str) -> int:
        """An account's balance in wei."""

    async def nonce(self, account: str, block: Block = "latest") -> int:
        """Return an account's next nonce; with `block` "pending", transactions that wait for a block count as well."""

    async def gas_price_wei(self) -> int:
        """Return the endpoint's suggested gas price, for a chain without a base fee."""

    async def base_fee_wei(self) -> int | None:
        """Return the newest block's base fee; None if it has none."""

    async def estimate_gas(self, account: str, to: str, content: bytes) -> int:
        """Estimate the gas of a transaction of an account; `to` is empty for one that creates a contract."""

    async def call_contract(self, to: str, content: bytes, account: str = "", block: Block = "latest") -> bytes:
        """Return the result of a call by `account` that changes nothing."""

    async def send_raw_transaction(self, raw: bytes) -> None:
        """Broadcast a signed transaction."""

    async def has_transaction(self, hash: str) -> bool:
        """Return whether an endpoint has a transaction, mined or not."""

    async def find_receipt(self, hash: str) -> MinedTransaction | None:
        """Return a transaction's receipt; None if it is not mined."""


class TransactionSigner(Protocol):
    """An account's key: signs transactions, and decodes what it signed."""

    @property
    def account(self) -> str:
        """The account's address, checksummed."""

    def encode_submission(self, command: Submit, peer: str) -> bytes:
        """Return the contract call for a submission. Raises ChainError if this node never makes such a call."""

    def sign_transaction(self, said: SignedTransaction) -> SubmissionAttempt:
        """Sign a transaction that transfers no coins."""

    def decode_signed(self, prepared: SubmissionAttempt) -> SignedTransaction:
        """Decode a logged attempt. Raises ChainError if `sign_transaction` cannot have made it."""


class EndpointPool(Protocol):
    """The state of the RPC endpoints, apart from calls."""

    has_base_fee: bool  # blocks have one: an endpoint whose head has none has failed

    @property
    def current(self) -> str:
        """Name of the endpoint that answered last."""

    async def detect_base_fee(self) -> None:
        """Set `has_base_fee` if at least half of the endpoints that answer show a base fee."""

    async def has_block(self, block: BlockRef) -> bool:
        """Return whether any endpoint has this block on its chain; if so, pause those without it."""

    async def pause_lagging_endpoints(self) -> None:
        """Pause endpoints that are far behind the highest head."""

    def pause_current_endpoint(self, reason: str) -> None:
        """Pause the endpoint that answered last, if another one can be used."""

    def distrust_current_endpoint(self, reason: str) -> bool:
        """Pause the endpoint that answered last, because it shows another chain or contract. Returns whether another
        endpoint may contradict it."""


class HeadNotifier(Protocol):
    """Announces new heads."""

    @property
    def live(self) -> str:
        """Name of the endpoint whose subscription works, empty for none."""

    async def wait_for_head(self, soon: bool = False) -> BlockRef | None:
        """Wait for a new head, or until it is time to poll. Returns the newest head if it was announced. With `soon`,
        poll after `poll_s` even if a subscription works."""

    def end_wait(self) -> None:
        """End the wait, so that the chain is polled now."""

    def record_unannounced_head(self) -> None:
        """Record that polling found a new block that was not announced."""


# Returns the number of the last confirmed block on the present chain; raises ChainError, as every read.
ConfirmedBlock = Callable[[], Awaitable[int]]
# Returns the account that a node submits from, checksummed; empty if unknown, as behind a signer proxy.
AccountSource = Callable[[], str]
# Called when the chain has been read up to its head; returns at once.
HeadListener = Callable[[], None]
