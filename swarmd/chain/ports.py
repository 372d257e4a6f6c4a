"""What the chain worker's decisions ask of the chain: typed reads and writes, whoever answers them.

Watcher, submitter and wallet know the chain by these protocols alone. In a node they are answered over the endpoints of
the configuration (`Blocks`, `Coordinator`, `Ethereum`, `Rpc`, `Heads`, `AccountKey`), in the simulator by its
own chain (`swarmd.sim.chain_worker`).

Every method that waits may raise:

- EndpointFailed: no endpoint answers, or one answers with something that is no such thing.
- RpcRefused: a node answers with an error that is about the request itself.
- ChainMismatch: all endpoints that answer are of another chain.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from swarmd.chain.fees import Price
from swarmd.chain.logs import LogEntry
from swarmd.core.commands import Submit
from swarmd.core.values import BlockRef, Prepared, Value
from swarmd.errors import ChainError

Block = str | int  # a tag, a number as hex, or a number
LogFilter = Sequence[Sequence[str]]  # for each topic of an entry those that it may be, 32 bytes as hex; none: any


class NotThere(ChainError):
    """The endpoint does not have the block, or not yet."""


class Span(NamedTuple):
    """Log entries of the blocks `first` to `last`, in order."""

    first: int
    last: int
    entries: list[LogEntry]


class RoundPolicy(NamedTuple):
    """When anybody may move the swarm on; 0 turns a condition off."""

    min_submissions: int = 0
    max_stage_s: int = 0


class MinedTransaction(NamedTuple):
    """What became of a transaction that a block has."""

    block: BlockRef  # number and hash
    succeeded: bool
    gas_used: int
    price_wei: int | None  # of a unit of gas; None where the endpoint does not say it
    contract: str  # the one that it created, checksummed, or empty
    to: str = ""  # whom it called, checksummed; empty for nobody, or where the endpoint does not say it


class SignedTransaction(Value, frozen=True):
    """What a transaction says, apart from its signature."""

    nonce: int
    price: Price
    gas: int
    to: str  # empty where it creates a contract
    content: bytes


class BlockReader(Protocol):
    """Blocks, and the log entries of one contract."""

    async def head(self) -> BlockRef:
        """The newest block."""

    async def at(self, block: int | str) -> BlockRef:
        """A block by its number or tag. Raises NotThere."""

    async def all_at(self, numbers: Sequence[int]) -> list[BlockRef]:
        """Blocks by their numbers, asked for at once. Raises NotThere."""

    async def logs_of_all(self, blocks: Sequence[BlockRef], filters: Sequence[LogFilter] = ()) -> list[list[LogEntry]]:
        """The entries of each of these blocks, asked for at once; with filters those that any of them lets through.

        No two filters may let the same entry through. Raises NotThere when one of the blocks is not known.
        """

    def spans(
        self, first: int, last: int, filters: Sequence[LogFilter] = (), backwards: bool = False
    ) -> AsyncIterator[Span]:
        """Entries of the blocks `first` to `last`, in ranges; filters as in `logs_of_all`.

        Raises ChainError where they are not to be had.
        """

    async def is_syncing(self) -> bool:
        """Whether the endpoint says that it is still catching up."""


async def check_unreplaced(blocks: BlockReader, block: BlockRef) -> None:
    """Raise NotThere when the chain has another block of this number by now: what was read by number may be of both."""
    if (await blocks.at(block.number)).hash != block.hash:
        raise NotThere(f"block {block.number} was replaced while the contract was read")


async def is_on_chain(blocks: BlockReader, block: BlockRef) -> bool:
    """Whether the chain has this block, of those of its number. Raises ChainError, as every read."""
    try:
        return (await blocks.at(block.number)).hash == block.hash
    except NotThere:
        return False


class ContractReader(Protocol):
    """The swarm's contract; `block` is a tag, or a number as hex."""

    @property
    def contract(self) -> str:
        """The contract's address, checksummed."""

    @property
    def blocks(self) -> BlockReader:
        """The blocks of the contract's chain."""

    async def check(self) -> None:
        """Raise ChainMismatch when there is no contract, or another kind of contract, at the address."""

    async def place(self, block: str = "latest") -> tuple[int, int]:
        """Round and stage that the swarm is at."""

    async def stages(self, block: str = "latest") -> int:
        """Number of stages in a round."""

    async def extensions(self) -> int:
        """0 for a contract without round policy and membership."""

    async def policy(self, block: str = "latest") -> RoundPolicy:
        """The round policy, off where the contract has none."""

    async def submissions(self, block: str = "latest") -> int | None:
        """How many peers' rewards for the present stage are there; None where the contract does not count them."""

    async def opened_at(self, block: str = "latest") -> float:
        """When the present stage began, POSIX seconds, by the chain's time."""

    async def eoa(self, peer: str, block: str = "latest") -> str:
        """The account that a peer id is registered to, empty where it is not."""

    async def has_reward(self, round: int, stage: int, peer: str, account: str = "", block: str = "latest") -> bool:
        """Whether the peer has reported a reward for a stage."""

    async def votes(self, round: int, peer: str, block: str = "latest") -> tuple[str, ...]:
        """Whom a peer voted for in a round."""

    async def membership_open(self, block: str = "latest") -> bool:
        """Whether anybody may take part, with no allow-list."""


class AccountPort(Protocol):
    """Accounts and their transactions."""

    async def balance_wei(self, account: str) -> int:
        """What an account has, in wei."""

    async def nonce(self, account: str, block: Block = "latest") -> int:
        """The next nonce of an account; those in nobody's block yet are counted where `block` is "pending"."""

    async def gas_price_wei(self) -> int:
        """What a unit of gas costs on a chain without a base fee, as the endpoint thinks."""

    async def base_fee_wei(self) -> int | None:
        """Of the newest block; None where it shows none."""

    async def estimate_gas(self, account: str, to: str | None, content: bytes) -> int:
        """Gas that an account's transaction takes now; `to` is None for one that creates a contract."""

    async def call(self, to: str, content: bytes, account: str = "", block: Block = "latest") -> bytes:
        """The result of a call that changes nothing, as if `account` made it."""

    async def send(self, raw: bytes) -> None:
        """Broadcast a signed transaction."""

    async def is_known(self, hash: str) -> bool:
        """Whether an endpoint has a transaction, in a block or not."""

    async def receipt(self, hash: str) -> MinedTransaction | None:
        """What became of a transaction that a block has; None where none has it."""


class Signatory(Protocol):
    """An account's key: makes transactions, and reads back what was signed."""

    @property
    def account(self) -> str:
        """The account's address, checksummed."""

    def content_of(self, command: Submit, peer: str) -> bytes:
        """The contract's call that brings a submission about. Raises ChainError where this node makes no such call."""

    def sign(self, said: SignedTransaction) -> Prepared:
        """Sign a transaction that carries no value."""

    def read(self, prepared: Prepared) -> SignedTransaction:
        """What a logged attempt says. Raises ChainError when it is no transaction that `sign` makes."""


class Endpoints(Protocol):
    """The state of the RPC endpoints, apart from calls."""

    has_base_fee: bool  # blocks have one: an endpoint that shows a head without it has failed

    @property
    def current(self) -> str:
        """Name of the endpoint that answered last."""

    async def learn_base_fee(self) -> None:
        """Remember that the chain has a base fee, once half of the endpoints that answer show one."""

    async def has_block(self, block: BlockRef) -> bool:
        """Whether any endpoint has this block on its chain; those that do not are left alone then."""

    async def leave_laggards(self) -> None:
        """Leave endpoints alone that are far behind the one that is farthest."""

    def leave_current(self, reason: str) -> None:
        """Leave the endpoint that answered last alone for a while, where there is another one to turn to."""

    def distrust_current(self, reason: str) -> bool:
        """The same for one that shows another chain or contract; False where no other one may say otherwise."""


class HeadNews(Protocol):
    """Tells when it is worth looking at the chain."""

    @property
    def live(self) -> str:
        """Name of the endpoint whose subscription works, empty for none."""

    async def wait(self, soon: bool = False) -> BlockRef | None:
        """Wait for news, or for the time to look without any. Returns the newest head, where it was told.

        Args:
            soon: look after `poll_s` even where a subscription works.
        """

    def wake(self) -> None:
        """Have the chain looked at now."""

    def found_unannounced(self) -> None:
        """A new block was found by asking."""


# Number of the last confirmed block, by the chain as it is now; raises ChainError, as every read.
ConfirmedBlock = Callable[[], Awaitable[int]]
# The account that a node submits from, checksummed; empty while nobody knows, as a signer behind a proxy may not.
AccountSource = Callable[[], str]
# Is told when all there is of the chain has been read; returns at once.
HeadListener = Callable[[], None]
