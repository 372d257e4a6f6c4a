"""The simulated chain: blocks in their time, a pool of transactions, fees that rise, branches that replace others."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import msgspec

from swarmd.chain.logs import LogEntry
from swarmd.core.events import AnyChainLog
from swarmd.core.values import BlockRef
from swarmd.sim.ports.contract import Call, SimContract, Undo, View

if TYPE_CHECKING:
    from swarmd.sim.world import World

REORG_DEPTH_MAX = 8
BUMP = 1.1  # a replacement must offer so many times the fee
FEE = 1000  # what a unit of gas costs in quiet times, in wei
GAS, GAS_IDLE = 100_000, 21_000  # that a call takes, and a transaction that does nothing
GAS_ALLOWED, GAS_IDLE_ALLOWED = GAS * 5 // 4, GAS_IDLE * 5 // 4  # as the wallet signs them
CALL_WEI = GAS_ALLOWED * (2 * FEE + FEE // 10)  # that a call may cost at most, as it is signed in quiet times
RICH_WEI = 10**18  # what an account has
DAWDLE = 0.1  # chance that a block leaves a transaction out which it could have
REJOIN = 0.5  # chance that a block of a new branch takes a transaction

Answer = Literal["taken", "already known", "nonce too low", "replacement transaction underpriced"]  # in geth's words


class Tx(msgspec.Struct, frozen=True):
    """A signed transaction; the hash is made of all the rest. Prices are in wei for a unit of gas."""

    hash: str
    call: Call
    nonce: int
    fee: int
    submission: str = ""
    tip: int = 0


class Spoken(LogEntry, gc=False):
    """A log entry, with what it says instead of its encoding."""

    said: AnyChainLog | None = None


class SimReceipt(msgspec.Struct, frozen=True):
    """A transaction that a block of the present branch has; `error` is why the contract took it back."""

    tx: Tx
    block: BlockRef
    error: str = ""


class Block(msgspec.Struct, frozen=True):
    """One block of the present branch."""

    ref: BlockRef
    receipts: tuple[SimReceipt, ...]
    entries: tuple[Spoken, ...]
    undo: Undo


def sign(call: Call, nonce: int, fee: int, submission: str = "", tip: int = 0) -> Tx:
    """A transaction; the same content gives the same hash."""
    content = msgspec.msgpack.encode((call, nonce, fee, submission, tip))
    return Tx("0x" + hashlib.blake2b(content, digest_size=8).hexdigest(), call, nonce, fee, submission, tip)


def entry_of(said: AnyChainLog, ref: BlockRef, timed: bool) -> Spoken:
    """What eth_getLogs has of a log; some nodes give the block's time."""
    number, index = hex(ref.number), hex(said.index)
    return Spoken(
        address="",
        topics=(),
        data="",
        block_number=number,
        block_hash=ref.hash,
        transaction_hash=said.transaction,
        log_index=index,
        block_timestamp=hex(int(ref.at)) if timed else None,
        said=said,
    )


class SimChain:
    """What all honest endpoints agree on.

    Attributes:
        blocks: the present branch; a block's number is its place.
        receipts: of the present branch, by hash.
        pool: transactions that wait, by account and nonce.
        seen: every transaction that ever reached the pool, by hash.
        halted_until: no block before that.
        fee: what a unit of gas costs now.
        balances: of accounts that do not have RICH_WEI.
        highest: the highest number of a block that there ever was.
        furthest: the last round and stage that any branch ever reached.
    """

    def __init__(self, world: World, contract: SimContract) -> None:
        self.world = world
        self.random = world.random
        self.contract = contract
        genesis = BlockRef(0, "0xgenesis", "", float(int(world.now)))
        self.blocks = [Block(genesis, (), (), [])]
        self.receipts: dict[str, SimReceipt] = {}
        self.pool: dict[tuple[str, int], Tx] = {}
        self.seen: dict[str, Tx] = {}
        self.halted_until = 0.0
        self.fee = FEE
        self.balances: dict[str, int] = {}
        self.highest = 0
        self.furthest = (0, 0)
        self.reorgs = 0
        self._timed = self.random.random() < 0.5
        self._hashes = 0
        self._calm = False

    @property
    def head(self) -> BlockRef:
        """The last block."""
        return self.blocks[-1].ref

    def has(self, block: BlockRef) -> bool:
        """Whether a block is on the present branch."""
        return block.number < len(self.blocks) and self.blocks[block.number].ref.hash == block.hash

    def view(self, number: int) -> View:
        """The contract as it was at the end of a block of the present branch."""
        if number >= self.head.number:
            return self.contract
        return self.contract.before([block.undo for block in self.blocks[number + 1 :]])

    def balance_of(self, account: str) -> int:
        """What an account has, in wei."""
        return self.balances.get(account, RICH_WEI)

    def is_known(self, transaction: str) -> bool:
        """Whether a block of the present branch, or the pool, has a transaction."""
        tx = self.seen.get(transaction)
        waiting = None if tx is None else self.pool.get((tx.call.account, tx.nonce))
        return transaction in self.receipts or (waiting is not None and waiting.hash == transaction)

    def pending_nonce_of(self, account: str) -> int:
        """The first nonce of an account that neither the chain nor the pool has a transaction for."""
        nonce = self.contract.nonce_of(account)
        while (account, nonce) in self.pool:
            nonce += 1
        return nonce

    def send(self, tx: Tx) -> Answer:
        """Offer a transaction to the pool."""
        place = (tx.call.account, tx.nonce)
        if tx.nonce < self.contract.nonce_of(tx.call.account):
            return "nonce too low"
        waiting = self.pool.get(place)
        if waiting is not None and waiting.hash == tx.hash:
            return "already known"
        if waiting is not None and (tx.fee < waiting.fee * BUMP or tx.tip < waiting.tip * BUMP):
            return "replacement transaction underpriced"
        self.pool[place] = tx
        self.seen.setdefault(tx.hash, tx)
        return "taken"

    # --- blocks ---

    def begin(self) -> None:
        """Start producing blocks."""
        self.world.call_in(self.world.profile.block_s, self._tick)
        if self.world.profile.reorgs > 0 and self.world.profile.reorg_depth > 0:
            self._await_reorganisation()

    def _await_reorganisation(self) -> None:
        self.world.call_in(self.random.expovariate(self.world.profile.reorgs / 3600.0), self._fork)

    def _fork(self) -> None:
        if not self._calm:
            self._await_reorganisation()
            self.reorganise(self.random.randint(1, self.world.profile.reorg_depth))

    def calm_down(self) -> None:
        """From now on blocks come in time and take what waits."""
        self._calm = True
        self.halted_until = 0.0
        self.fee = FEE
        self.balances.clear()

    def _tick(self) -> None:
        self.world.call_in(self.world.profile.block_s * self.random.uniform(0.7, 1.3), self._tick)
        if self.world.now >= self.halted_until:
            self._mine(float(int(self.world.now)), 0.0 if self._calm else DAWDLE)
            self.world.note_head()

    def _mine(self, at: float, left_out: float) -> None:
        """Add a block of what waits."""
        parent = self.head
        self._hashes += 1
        ref = BlockRef(parent.number + 1, f"0x{self._hashes:06x}", parent.hash, max(at, parent.at))
        contract = self.contract
        undo: Undo = []
        contract.undo = undo
        logs: list[AnyChainLog] = []
        receipts = [self._execute(tx, ref, logs) for tx in self._ripe(left_out)]
        entries = tuple([entry_of(said, ref, self._timed) for said in logs])
        self.blocks.append(Block(ref, tuple(receipts), entries, undo))
        self.highest = max(self.highest, ref.number)
        self.furthest = max(self.furthest, contract.place)
        for receipt in receipts:
            self.receipts[receipt.tx.hash] = receipt
            self.world.note_receipt(receipt)

    def _ripe(self, left_out: float) -> list[Tx]:
        """Transactions whose turn it is and that pay enough, taken out of the pool."""
        taken: list[Tx] = []
        for account in dict.fromkeys([account for account, _ in self.pool]):
            nonce = self.contract.nonce_of(account)
            while (tx := self.pool.get((account, nonce))) and tx.fee >= self.fee:
                if self.balance_of(account) < tx.fee * GAS:
                    break
                if left_out and self.random.random() < left_out:
                    break
                taken.append(self.pool.pop((account, nonce)))
                nonce += 1
        return taken

    def _execute(self, tx: Tx, ref: BlockRef, logs: list[AnyChainLog]) -> SimReceipt:
        contract = self.contract
        contract.count(tx.call.account)
        error = contract.refusal(tx.call, ref.at)
        if not error:
            said = contract.take(tx.call, ref.number, ref.at, tx.hash, len(logs))
            if said is not None:
                logs.append(said)
        return SimReceipt(tx, ref, error)

    # --- what goes wrong ---

    def reorganise(self, depth: int) -> None:
        """A longer branch replaces the last blocks; of what they held, some is forgotten."""
        depth = min(depth, len(self.blocks) - 1)
        if depth < 1:
            return
        self.reorgs += 1
        gone = self.blocks[-depth:]
        del self.blocks[-depth:]
        for block in reversed(gone):
            self.contract.take_back(block.undo)
            for receipt in block.receipts:
                del self.receipts[receipt.tx.hash]
        for receipt in [each for block in gone for each in block.receipts]:
            if self.random.random() >= self.world.profile.reorg_loss:
                self.pool.setdefault((receipt.tx.call.account, receipt.tx.nonce), receipt.tx)
        for number in range(depth + 1):
            at = gone[number].ref.at if number < depth else float(int(self.world.now))
            self._mine(at, REJOIN)
        self.world.note_head()

    def evict(self) -> None:
        """Every pool forgets a transaction."""
        if self.pool:
            del self.pool[self.random.choice(list(self.pool))]

    def raise_fee(self, times: float) -> None:
        """Gas becomes dearer."""
        self.fee = int(FEE * times)

    def lower_fee(self) -> None:
        """Gas costs what it did."""
        self.fee = FEE
