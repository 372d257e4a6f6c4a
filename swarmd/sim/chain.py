"""The simulated chain: timed blocks, a transaction pool, rising fees, and reorganisations.

The contract accepts calls by the rules of docs/CONTRACT.md; its blocks can be undone.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import msgspec

from swarmd.chain.logs import LogEntry
from swarmd.core.events import AnyChainLog, RegistrationLog, RewardLog, StageLog, VoteLog
from swarmd.core.values import BlockRef
from swarmd.sim.simulation import Place, Simulation

Kind = Literal["register", "reward", "winners", "advance", "allow", "bar", "idle"]
Undo = list[tuple[Hashable, Any]]

_NOTHING = object()


class ContractCall(msgspec.Struct, frozen=True):
    """A transaction's call of the contract; an "idle" one does nothing."""

    kind: Kind
    account: str
    peer: str = ""
    round: int = 0
    stage: int = 0
    reward: int = 0
    winners: tuple[str, ...] = ()


class ContractRules(msgspec.Struct, frozen=True):
    """The parameters of a contract; `manager` may advance the swarm without a policy, empty for none."""

    stages: int
    min_submissions: int
    max_stage_s: int
    manager: str = ""


class ContractView:
    """The contract's state at some block, and what it would accept then. `get` returns a key's value or the default."""

    def __init__(self, rules: ContractRules, get: Callable[[Hashable, Any], Any]) -> None:
        self.rules = rules
        self._get = get

    # --- what it says ---

    @property
    def round_and_stage(self) -> Place:
        place: Place = self._get("place", (0, 0))
        return place

    @property
    def stage_opened_at(self) -> float:
        """When the stage began, by its block's time."""
        return float(self._get("opened_at", 0.0))

    def account_of_peer(self, peer: str) -> str:
        """Return `getEoa`: the account that a peer is registered to, empty for none."""
        return str(self._get(("account", peer), ""))

    def block_of_submission(self, *key: str | int) -> int | None:
        """Return the block number of ("reward", round, stage, peer), ("vote", round, peer) or ("registered", peer)."""
        block: int | None = self._get(key, None)
        return block

    def votes(self, round: int, peer: str) -> tuple[str, ...]:
        """Return `getVoterVotes`: the peers that a peer voted for."""
        return tuple(self._get(("winners", round, peer), ()))

    def is_banned(self, peer: str) -> bool:
        """Return whether the allow-list excludes a peer."""
        return bool(self._get(("barred", peer), False))

    def nonce_of(self, account: str) -> int:
        """Return the number of an account's transactions on the chain."""
        return int(self._get(("nonce", account), 0))

    # --- what it takes ---

    def refusal_reason(self, call: ContractCall, at: float) -> str:
        """Return the name of the error for a call in a block at time `at`; empty if the contract would accept it."""
        if call.kind == "register":
            taken = "PeerIdAlreadyRegistered" if self.account_of_peer(call.peer) else ""
            return taken or ("PeerNotAllowed" if self.is_banned(call.peer) else "")
        if call.kind == "reward":
            return self._reward_refusal_reason(call)
        if call.kind == "winners":
            return self._vote_refusal_reason(call)
        if call.kind == "advance":
            return "" if self._may_advance(call.account, at) else "AdvanceNotAllowed"
        return ""

    def _reward_refusal_reason(self, call: ContractCall) -> str:
        round, stage = self.round_and_stage
        if call.round > round:
            return "InvalidRoundNumber"
        if call.stage > (stage if call.round == round else self.rules.stages):
            return "InvalidStageNumber"
        if self.block_of_submission("reward", call.round, call.stage, call.peer) is not None:
            return "RewardAlreadySubmitted"
        return self._peer_refusal_reason(call)

    def _vote_refusal_reason(self, call: ContractCall) -> str:
        if call.round > self.round_and_stage[0]:
            return "InvalidRoundNumber"
        if self.block_of_submission("vote", call.round, call.peer) is not None:
            return "WinnerAlreadyVoted"
        return self._peer_refusal_reason(call)

    def _peer_refusal_reason(self, call: ContractCall) -> str:
        if self.account_of_peer(call.peer) != call.account:
            return "InvalidVoterPeerId"
        return "PeerNotAllowed" if self.is_banned(call.peer) else ""

    def _may_advance(self, account: str, at: float) -> bool:
        rules = self.rules
        enough = 0 < rules.min_submissions <= self._get("submissions", 0)
        late = rules.max_stage_s > 0 and at >= self.stage_opened_at + rules.max_stage_s
        return enough or late or (rules.manager != "" and account == rules.manager)


class SimContract(ContractView):
    """The contract at the newest block, with its changes. `undo` lists the current block's earlier values."""

    def __init__(self, rules: ContractRules, at: float) -> None:
        self.undo: Undo = []
        self._book: dict[Hashable, Any] = {"place": (0, 0), "opened_at": at, "submissions": 0}
        super().__init__(rules, self._book.get)

    def view_before(self, undone: Sequence[Undo]) -> ContractView:
        """Return the contract before the newest blocks, given each one's changes, oldest first."""

        def get_value(key: Hashable, default: Any) -> Any:
            for undo in undone:
                for changed, value in undo:
                    if changed == key:
                        return default if value is _NOTHING else value
            return self._book.get(key, default)

        return ContractView(self.rules, get_value)

    def count_transaction(self, account: str) -> None:
        """Count a transaction in the block, whether the contract accepted or reverted it."""
        self._set_value(("nonce", account), self.nonce_of(account) + 1)

    def apply_call(self, call: ContractCall, block: int, at: float, transaction: str, index: int) -> AnyChainLog | None:
        """Apply a call that the contract accepts. Returns its log entry, if it has one."""
        round, stage, peer = call.round, call.stage, call.peer
        if call.kind == "register":
            self._set_value(("account", peer), call.account)
            self._set_value(("registered", peer), block)
            return RegistrationLog(index, transaction, call.account, peer)
        if call.kind == "reward":
            self._set_value(("reward", round, stage, peer), block)
            if (round, stage) == self.round_and_stage:
                self._set_value("submissions", self._book["submissions"] + 1)
            return RewardLog(index, transaction, call.account, peer, round, stage, str(call.reward))
        if call.kind == "winners":
            self._set_value(("vote", round, peer), block)
            self._set_value(("winners", round, peer), call.winners)
            return VoteLog(index, transaction, call.account, peer, round, call.winners)
        if call.kind == "advance":
            return self._advance_stage(at, transaction, index)
        if call.kind in ("bar", "allow"):
            self._set_value(("barred", peer), call.kind == "bar")
        return None

    def _advance_stage(self, at: float, transaction: str, index: int) -> StageLog:
        round, stage = self.round_and_stage
        after = (round, stage + 1) if stage + 1 < self.rules.stages else (round + 1, 0)
        self._set_value("place", after)
        self._set_value("opened_at", at)
        self._set_value("submissions", 0)
        return StageLog(index, transaction, *after)

    def _set_value(self, key: Hashable, value: Any) -> None:
        self.undo.append((key, self._book.get(key, _NOTHING)))
        self._book[key] = value

    def undo_block(self, undo: Undo) -> None:
        for key, before in reversed(undo):
            if before is _NOTHING:
                del self._book[key]
            else:
                self._book[key] = before


BUMP = 1.1  # least factor by which a replacement must raise the fee
FEE = 1000  # price of a unit of gas in quiet times, in wei
GAS, GAS_IDLE = 100_000, 21_000  # gas used by a call, and by an empty transaction
GAS_ALLOWED, GAS_IDLE_ALLOWED = GAS * 5 // 4, GAS_IDLE * 5 // 4  # gas limits, as signed by the wallet
CALL_WEI = GAS_ALLOWED * (2 * FEE + FEE // 10)  # the most that a call may cost, as signed in quiet times
RICH_WEI = 10**18  # an account's balance
DAWDLE = 0.1  # chance that a block omits a transaction that it could include
REJOIN = 0.5  # chance that a block of a new branch includes a transaction

Answer = Literal["taken", "already known", "nonce too low", "replacement transaction underpriced"]  # in geth's words


class SignedTx(msgspec.Struct, frozen=True):
    """A signed transaction, with a hash of all other fields. Prices are in wei per unit of gas."""

    hash: str
    call: ContractCall
    nonce: int
    fee: int
    submission: str = ""
    tip: int = 0


class SimLogEntry(LogEntry, gc=False):
    """A log entry that carries the decoded event instead of its encoding."""

    said: AnyChainLog | None = None


class SimReceipt(msgspec.Struct, frozen=True):
    """A transaction in a block of the present branch; `error` is why the contract reverted it."""

    tx: SignedTx
    block: BlockRef
    error: str = ""


class SimBlock(msgspec.Struct, frozen=True):
    """One block of the present branch."""

    ref: BlockRef
    receipts: tuple[SimReceipt, ...]
    entries: tuple[SimLogEntry, ...]
    undo: Undo


def sign_call(call: ContractCall, nonce: int, fee: int, submission: str = "", tip: int = 0) -> SignedTx:
    """Make a transaction; the same content gives the same hash."""
    content = msgspec.msgpack.encode((call, nonce, fee, submission, tip))
    return SignedTx("0x" + hashlib.blake2b(content, digest_size=8).hexdigest(), call, nonce, fee, submission, tip)


def make_log_entry(said: AnyChainLog, ref: BlockRef, timed: bool) -> SimLogEntry:
    """Return a log as eth_getLogs gives it; `timed`: with the block's time, as some nodes do."""
    number, index = hex(ref.number), hex(said.index)
    return SimLogEntry(
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
    """The chain that all honest endpoints agree on.

    Attributes:
        blocks: the present branch; a block's number is its index.
        receipts: of the present branch, by hash.
        pool: pending transactions, by account and nonce.
        seen: every transaction that ever reached the pool, by hash.
        halted_until: no block is mined before this time.
        fee: the current price of a unit of gas.
        balances: of accounts that do not have RICH_WEI.
        highest: the highest block number that ever existed.
        furthest: the last round and stage that any branch ever reached.
    """

    def __init__(self, world: Simulation, contract: SimContract, on_receipt: Callable[[SimReceipt], None]) -> None:
        self.world = world
        self._on_receipt = on_receipt
        self.random = world.random
        self.contract = contract
        genesis = BlockRef(0, "0xgenesis", "", float(int(world.now)))
        self.blocks = [SimBlock(genesis, (), (), [])]
        self.receipts: dict[str, SimReceipt] = {}
        self.pool: dict[tuple[str, int], SignedTx] = {}
        self.seen: dict[str, SignedTx] = {}
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
        return self.blocks[-1].ref

    def has_block(self, block: BlockRef) -> bool:
        """Return whether a block is on the present branch."""
        return block.number < len(self.blocks) and self.blocks[block.number].ref.hash == block.hash

    def view_at(self, number: int) -> ContractView:
        """Return the contract at the end of a block of the present branch."""
        if number >= self.head.number:
            return self.contract
        return self.contract.view_before([block.undo for block in self.blocks[number + 1 :]])

    def balance_of(self, account: str) -> int:
        return self.balances.get(account, RICH_WEI)

    def has_transaction(self, transaction: str) -> bool:
        """Return whether a block of the present branch, or the pool, contains a transaction."""
        tx = self.seen.get(transaction)
        waiting = None if tx is None else self.pool.get((tx.call.account, tx.nonce))
        return transaction in self.receipts or (waiting is not None and waiting.hash == transaction)

    def pending_nonce_of(self, account: str) -> int:
        """Return the first nonce of an account without a transaction on the chain or in the pool."""
        nonce = self.contract.nonce_of(account)
        while (account, nonce) in self.pool:
            nonce += 1
        return nonce

    def submit_transaction(self, tx: SignedTx) -> Answer:
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

    def start_producing_blocks(self) -> None:
        self.world.call_in(self.world.profile.block_s, self._produce_block)
        if self.world.profile.reorgs > 0 and self.world.profile.reorg_depth > 0:
            self._schedule_reorganisation()

    def _schedule_reorganisation(self) -> None:
        self.world.call_in(self.random.expovariate(self.world.profile.reorgs / 3600.0), self._reorganise_at_random)

    def _reorganise_at_random(self) -> None:
        if not self._calm:
            self._schedule_reorganisation()
            self.reorganise(self.random.randint(1, self.world.profile.reorg_depth))

    def stop_faults(self) -> None:
        """End all faults: from now on blocks come in time and include all pending transactions."""
        self._calm = True
        self.halted_until = 0.0
        self.fee = FEE
        self.balances.clear()

    def _produce_block(self) -> None:
        self.world.call_in(self.world.profile.block_s * self.random.uniform(0.7, 1.3), self._produce_block)
        if self.world.now >= self.halted_until:
            self._mine_block(float(int(self.world.now)), 0.0 if self._calm else DAWDLE)
            self.world.on_head()

    def _mine_block(self, at: float, left_out: float) -> None:
        """Add a block with pending transactions, each omitted with probability `left_out`."""
        parent = self.head
        self._hashes += 1
        ref = BlockRef(parent.number + 1, f"0x{self._hashes:06x}", parent.hash, max(at, parent.at))
        contract = self.contract
        undo: Undo = []
        contract.undo = undo
        logs: list[AnyChainLog] = []
        receipts = [self._execute_transaction(tx, ref, logs) for tx in self._take_minable_transactions(left_out)]
        entries = tuple([make_log_entry(said, ref, self._timed) for said in logs])
        self.blocks.append(SimBlock(ref, tuple(receipts), entries, undo))
        self.highest = max(self.highest, ref.number)
        self.furthest = max(self.furthest, contract.round_and_stage)
        for receipt in receipts:
            self.receipts[receipt.tx.hash] = receipt
            self._on_receipt(receipt)

    def _take_minable_transactions(self, left_out: float) -> list[SignedTx]:
        """Remove from the pool, and return, transactions that are next by nonce and pay enough."""
        taken: list[SignedTx] = []
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

    def _execute_transaction(self, tx: SignedTx, ref: BlockRef, logs: list[AnyChainLog]) -> SimReceipt:
        contract = self.contract
        contract.count_transaction(tx.call.account)
        error = contract.refusal_reason(tx.call, ref.at)
        if not error:
            said = contract.apply_call(tx.call, ref.number, ref.at, tx.hash, len(logs))
            if said is not None:
                logs.append(said)
        return SimReceipt(tx, ref, error)

    # --- what goes wrong ---

    def reorganise(self, depth: int) -> None:
        """Replace the last blocks by a longer branch; some of their transactions are lost."""
        depth = min(depth, len(self.blocks) - 1)
        if depth < 1:
            return
        self.reorgs += 1
        gone = self.blocks[-depth:]
        del self.blocks[-depth:]
        for block in reversed(gone):
            self.contract.undo_block(block.undo)
            for receipt in block.receipts:
                del self.receipts[receipt.tx.hash]
        for receipt in [each for block in gone for each in block.receipts]:
            if self.random.random() >= self.world.profile.reorg_loss:
                self.pool.setdefault((receipt.tx.call.account, receipt.tx.nonce), receipt.tx)
        for number in range(depth + 1):
            at = gone[number].ref.at if number < depth else float(int(self.world.now))
            self._mine_block(at, REJOIN)
        self.world.on_head()

    def set_fee_multiple(self, times: float) -> None:
        """Set the gas price to a multiple of the initial one."""
        self.fee = int(FEE * times)
