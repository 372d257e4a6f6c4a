"""An operator's transactions: deploying a contract, and changing one.

- Unlike a node's submissions, a person orders them and waits for the outcome.
- The journal, if there is one, holds every signed attempt before it is sent. After a crash, the same order looks for
  the attempts on the chain, and sends the last one again.
- All attempts at one order have the same nonce, until another transaction uses it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, NamedTuple

import anyio
import msgspec
from eth_abi.abi import encode

from swarmd import errors
from swarmd.bounds import DECODE_ERRORS, Backoff
from swarmd.chain.contract import call_view, encode_call
from swarmd.chain.coordinator import CoordinatorContract
from swarmd.chain.endpoints import RpcPool
from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.fees import GWEI, DailyBudget
from swarmd.chain.ports import RoundPolicy
from swarmd.chain.senders import AccountSigner, AccountTransactions, NonceSlot, TransactionCall
from swarmd.config import FeesConfig
from swarmd.core.values import SubmissionAttempt
from swarmd.files import advise_on_path_error, replace_durably

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

PEERS_AT_ONCE = 50  # peer ids allowed by one transaction, which takes 1.5 million units of gas
STAGES_BUILT = (1, 2, 3)  # stage counts that the contract is compiled for
DEPLOY_GAS = 4_700_000  # units of gas for all steps of an open swarm, a little more than measured


class DeploymentPlan(msgspec.Struct, frozen=True):
    """What to deploy: the contract's version and constructor arguments."""

    stages: int
    policy: RoundPolicy
    bootnodes: tuple[str, ...]
    members: tuple[str, ...] | None = None  # the allow-list of a closed swarm; None: open to all


class Deployment(NamedTuple):
    contract: str
    from_block: int
    receipts: tuple[OrderReceipt, ...]


def read_creation_bytecode(name: str) -> bytes:
    """Return the bytecode that creates a built contract, without the constructor's arguments. Raises NotFoundError if
    this installation has no such contract."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "contracts"  # in an installed wheel; in a checkout they are beside the package
    path = (inside if inside.is_dir() else package.parent / "contracts" / "build") / f"{name}.json"
    try:
        return bytes.fromhex(json.loads(path.read_text(encoding="utf-8"))["bytecode"].removeprefix("0x"))
    except (OSError, ValueError, LookupError) as error:
        raise errors.NotFoundError(
            f"the built contract {path} cannot be read: {error}", "Install swarmd again"
        ) from error


def check_stage_count(stages: int) -> None:
    """Raise ConfigError unless the contract is built for this number of stages."""
    if stages not in STAGES_BUILT:
        built = " or ".join([", ".join(map(str, STAGES_BUILT[:-1])), str(STAGES_BUILT[-1])])
        raise errors.ConfigError(
            f"there is no contract for rounds of {stages} stages, only of {built}", "Choose another --stages"
        )


async def deploy_coordinator(orders: OperatorTransactions, plan: DeploymentPlan) -> Deployment:
    """Create implementation and proxy and configure the proxy as planned; continue where an earlier run ended.

    Raises:
        ConfigError: the contract is not built for this number of stages.
        ChainMismatch: the journal is of another chain, or another kind of contract is at the address.
        ContractRefused: a step was reverted.
        ChainError: an endpoint failed, the account cannot pay, or a transaction was not mined in time.
    """
    check_stage_count(plan.stages)
    creation = read_creation_bytecode(f"LockedSwarmCoordinator-{plan.stages}")
    implementation = await orders.execute_order("implementation", "", creation)
    begin = encode_call("initialize(address)", orders.account)
    arguments = encode(["address", "bytes"], [implementation.contract, begin])
    proxy = await orders.execute_order("proxy", "", read_creation_bytecode("ERC1967Proxy") + arguments)
    coordinator = CoordinatorContract(orders.rpc, proxy.contract, proxy.block)
    await coordinator.check_contract()
    if await coordinator.stage_count() != plan.stages:
        raise errors.ChainMismatch(
            f"the contract {proxy.contract} has rounds of another number of stages than {plan.stages}",
            "It was begun with another --stages: give that, or begin in another directory",
        )
    receipts = [implementation, proxy, *await _configure_contract(orders, coordinator, plan)]
    return Deployment(proxy.contract, proxy.block, tuple(receipts))


async def _configure_contract(
    orders: OperatorTransactions, coordinator: CoordinatorContract, plan: DeploymentPlan
) -> list[OrderReceipt]:
    steps = [
        await set_round_policy(orders, coordinator, plan.policy),
        await add_bootnodes(orders, coordinator, plan.bootnodes),
    ]
    if plan.members is not None:
        steps += [
            await become_membership_manager(orders, coordinator),
            await set_membership_open(orders, coordinator, False),
        ]
        steps += await allow_peers(orders, coordinator, plan.members)
    return [receipt for receipt in steps if receipt is not None]


# Each of these does nothing if the contract already has the wanted state, unless the journal holds the step.


async def set_round_policy(
    orders: OperatorTransactions, coordinator: CoordinatorContract, policy: RoundPolicy
) -> OrderReceipt | None:
    """Set the round policy, as an owner."""
    if not orders.has_attempts("policy") and await coordinator.round_policy() == policy:
        return None
    return await orders.execute_order(
        "policy", coordinator.contract, encode_call("setRoundPolicy(uint32,uint32)", *policy)
    )


async def add_bootnodes(
    orders: OperatorTransactions, coordinator: CoordinatorContract, addresses: tuple[str, ...]
) -> OrderReceipt | None:
    known = await coordinator.bootnodes()
    missing = [address for address in addresses if address not in known]
    if not missing and not orders.has_attempts("bootnodes"):
        return None
    return await orders.execute_order("bootnodes", coordinator.contract, encode_call("addBootnodes(string[])", missing))


async def remove_bootnode(
    orders: OperatorTransactions, coordinator: CoordinatorContract, address: str
) -> OrderReceipt | None:
    known = await coordinator.bootnodes()
    if address not in known:
        return None
    call = encode_call("removeBootnode(uint256)", known.index(address))
    return await orders.execute_order("bootnode", coordinator.contract, call)


async def become_membership_manager(
    orders: OperatorTransactions, coordinator: CoordinatorContract
) -> OrderReceipt | None:
    """As an owner, grant this account the role of membership manager, if it does not have it."""
    contract = coordinator.contract
    (role,) = await call_view(orders.chain, contract, "MEMBERSHIP_MANAGER_ROLE()", ["bytes32"])
    if not orders.has_attempts("role"):
        asked = "hasRole(bytes32,address)"
        (has,) = await call_view(orders.chain, contract, asked, ["bool"], role, orders.account)
        if has:
            return None
    return await orders.execute_order("role", contract, encode_call("grantRole(bytes32,address)", role, orders.account))


async def set_membership_open(
    orders: OperatorTransactions, coordinator: CoordinatorContract, open: bool
) -> OrderReceipt | None:
    """Open the swarm to all, or close it to all but the allow-list."""
    name = "open" if open else "close"
    if not orders.has_attempts(name) and await coordinator.is_membership_open() == open:
        return None
    return await orders.execute_order(name, coordinator.contract, encode_call("setMembershipOpen(bool)", open))


async def allow_peers(
    orders: OperatorTransactions, coordinator: CoordinatorContract, peers: tuple[str, ...], allow: bool = True
) -> list[OrderReceipt | None]:
    """Add peers to the allow-list, or remove them. The list of an open swarm cannot be read, so all are sent."""
    signature = "allowPeers(string[])" if allow else "disallowPeers(string[])"
    closed = not await coordinator.is_membership_open()
    receipts: list[OrderReceipt | None] = []
    for number, first in enumerate(range(0, len(peers), PEERS_AT_ONCE), 1):
        batch = peers[first : first + PEERS_AT_ONCE]
        name = f"{'allow' if allow else 'disallow'} {number}"
        if closed and not orders.has_attempts(name):
            on_list = await coordinator.are_members(batch)
            batch = tuple(peer for peer, is_on in zip(batch, on_list, strict=True) if is_on != allow)
        if batch:
            receipts.append(await orders.execute_order(name, coordinator.contract, encode_call(signature, list(batch))))
    return receipts


GAS_MAX = 8_000_000  # units of gas of one transaction; creating the contract takes five million
POLL = Backoff(0.05, 2.0)
TELL_S = 10.0  # interval of progress lines while waiting
MINED_S = 900.0  # longest wait for one transaction
GONE_CHECKS = 5  # checks, one second apart, until a transaction whose nonce is used up counts as lost
ATTEMPTS_MAX = 32  # attempts at one order

Tell = Callable[[str], None]


Hash = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{64}\Z")]
Raw = Annotated[str, msgspec.Meta(pattern=r"^0x([0-9a-f]{2})+\Z")]


class JournaledAttempt(msgspec.Struct, frozen=True):
    """A signed transaction in the journal."""

    hash: Hash
    nonce: int
    raw: Raw
    fee_wei: str

    def to_prepared(self) -> SubmissionAttempt:
        """Return the transaction in the form that is sent."""
        return SubmissionAttempt(self.hash, self.nonce, bytes.fromhex(self.raw[2:]), self.fee_wei)


class JournalContent(msgspec.Struct):
    """The journal's file."""

    chain_id: int
    genesis: str  # hash of block 0, which differs on a chain that was reset
    account: str
    steps: dict[str, list[JournaledAttempt]] = {}


class OrderReceipt(msgspec.Struct, frozen=True):
    """The result of a mined order."""

    name: str
    hash: str
    block: int
    gas_used: int
    cost_wei: int
    contract: str = ""  # address of the contract that it created


class OrderJournal:
    """Attempts by the name of their order, in a file or in memory. Raises ManifestError for a damaged file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.record: JournalContent | None = None
        if path is not None and path.exists():
            try:
                self.record = msgspec.json.decode(path.read_bytes(), type=JournalContent)
            except DECODE_ERRORS as error:
                fix = "It tells which transactions were sent; restore it, or begin in another directory"
                raise errors.ManifestError(f"the journal {path} is damaged: {error}", fix) from error

    def bind_to_account(self, chain_id: int, genesis: str, account: str) -> None:
        """Use the journal for this chain and account. Raises ChainMismatch if it belongs to others."""
        if self.record is None:
            self.record = JournalContent(chain_id, genesis, account)
            self._save_file()
        elif (self.record.chain_id, self.record.genesis) != (chain_id, genesis):
            raise errors.ChainMismatch(
                f"{self._path} belongs to a swarm on chain {self.record.chain_id}, block 0 {self.record.genesis}: "
                "this is another chain, or it was reset",
                "Begin in another directory",
            )
        elif self.record.account != account:
            raise errors.ChainMismatch(
                f"{self._path} was begun by the account {self.record.account}, not by {account}",
                "Continue with that account, or begin in another directory",
            )

    @property
    def is_persistent(self) -> bool:
        """Whether the journal is in a file, so that another process can continue."""
        return self._path is not None

    def attempts(self, name: str) -> list[JournaledAttempt]:
        """Return the signed attempts of one order, oldest first."""
        return self.record.steps.get(name, []) if self.record else []

    def add_attempt(self, name: str, signed: SubmissionAttempt) -> None:
        """Write an attempt to the journal before it is sent."""
        assert self.record is not None
        attempt = JournaledAttempt(signed.hash, signed.nonce, "0x" + signed.raw.hex(), signed.fee_wei)
        self.record.steps.setdefault(name, []).append(attempt)
        self._save_file()

    def remove_attempts(self, name: str) -> None:
        assert self.record is not None
        self.record.steps.pop(name, None)
        self._save_file()

    def _save_file(self) -> None:
        if self._path is None:
            return
        content = msgspec.json.format(msgspec.json.encode(self.record), indent=1)
        try:
            replace_durably(self._path, content, mode=0o600)
        except OSError as error:
            fix = advise_on_path_error(error, self._path) or "Make room for it, and run the same command again"
            raise errors.PathUnusable(f"the journal {self._path} cannot be written: {error.strerror}", fix) from error


class OperatorTransactions:
    """Executes orders by transactions of one account, each order once. `journal` must be bound to chain and account."""

    def __init__(self, rpc: RpcPool, key: LocalAccount, fees: FeesConfig, journal: OrderJournal, tell: Tell) -> None:
        assert journal.record is not None
        self.rpc = rpc
        self.chain = EthereumClient(rpc)
        self.account = str(key.address)
        self._key = AccountSigner(key, journal.record.chain_id)
        # a budget without a daily limit
        self._transactions = AccountTransactions(fees, self.chain, self._key, DailyBudget(FeesConfig()))
        self._stuck_s = fees.stuck_s
        self._journal = journal
        self._tell = tell

    def has_attempts(self, name: str) -> bool:
        """Return whether the journal has attempts at this order."""
        return bool(self._journal.attempts(name))

    async def execute_order(self, name: str, to: str, content: bytes) -> OrderReceipt:
        """Get one transaction mined, exactly once; `to` is empty to create a contract. Raises ContractRefused: the
        contract reverts it; ChainError: it costs too much, cannot be paid, or is not mined in time."""
        try:
            for _ in range(ATTEMPTS_MAX):
                if not self.has_attempts(name):
                    await self._sign_first_attempt(name, to, content)
                elif await self._is_replaced(name):
                    self._tell(f"{name}: another transaction took its place, it is made again")
                    self._journal.remove_attempts(name)
                    continue
                receipt = await self._find_receipt(name) or await self._send_until_mined(name)
                if receipt is not None:
                    return receipt
        except errors.InsufficientFunds as poor:
            raise errors.ChainError(poor.message, "Send it some, then run the same command again") from None
        raise errors.ChainError(
            f"{name}: other programs use the account {self.account} all the time", "Stop them for a while"
        )

    # --- one attempt ---

    async def _sign_first_attempt(self, name: str, to: str, content: bytes) -> None:
        call = TransactionCall(to, content, await self._transactions.estimate_gas_limit(to, content, GAS_MAX, name))
        slot = NonceSlot(await self.chain.nonce(self.account, "pending"), None)
        signed = await self._transactions.sign_next_attempt((), slot, call, name)
        assert signed is not None, "it replaces none"
        self._journal.add_attempt(name, signed)

    async def _raise_price(self, name: str) -> None:
        """Replace the last attempt by one at a higher price, if the bounds allow it."""
        attempts = [each.to_prepared() for each in self._journal.attempts(name)]
        last = attempts[-1]
        said = self._key.decode_signed(last)
        call = TransactionCall(said.to, said.content, said.gas)
        try:
            signed = await self._transactions.sign_next_attempt(attempts, NonceSlot(last.nonce, last), call, name)
        except errors.GasTooDear as dear:
            self._tell(f"{name}: {dear.message}")
            return
        if signed is not None and len(attempts) < ATTEMPTS_MAX:
            self._tell(f"{name}: not mined, trying again at {int(signed.fee_wei) / GWEI:.6g} gwei")
            self._journal.add_attempt(name, signed)

    async def _send_last_attempt(self, name: str) -> None:
        """Send the last attempt to an endpoint, which may have it already."""
        attempt = self._journal.attempts(name)[-1].to_prepared()
        self._tell(f"{name}: sending {attempt.hash}")
        if not await self._transactions.broadcast_attempt(attempt, name):
            self._tell(f"{name}: the endpoint does not take it now")

    # --- the outcome ---

    async def _send_until_mined(self, name: str) -> OrderReceipt | None:
        """Send the last attempt, then dearer replacements, until one is mined; None if the nonce is used up."""
        begun = told = monotonic()
        tried, looks = 0.0, 0
        while monotonic() - begun < MINED_S:
            waits_for = "waiting for a block that has it"
            try:
                if tried == 0.0 or monotonic() - tried > self._stuck_s:
                    if tried:
                        await self._raise_price(name)
                    await self._send_last_attempt(name)
                    tried = monotonic()
                receipt = await self._find_receipt(name)
                if receipt is not None or await self._is_nonce_used(name):
                    return receipt
            except errors.ChainError as failed:  # a sent transaction may still be mined, and must not be ordered again
                if tried == 0.0 and not isinstance(failed, errors.EndpointFailed):
                    raise
                waits_for = failed.message
            if monotonic() - told > TELL_S:
                told = monotonic()
                self._tell(f"{name}: {waits_for}, for {told - begun:.0f} s now")
            looks += 1
            await anyio.sleep(POLL.after(looks))
        raise errors.ChainError(
            f"{name}: no block has the transaction {self._journal.attempts(name)[-1].hash} after {MINED_S:.0f} s",
            "Run the same command again: it goes on where it is"
            if self._journal.is_persistent
            else "It may be mined yet: look for it on the chain before the same is ordered again",
        )

    async def _find_receipt(self, name: str) -> OrderReceipt | None:
        """Return the receipt of the attempt that was mined. Raises ContractRefused if it was reverted."""
        for attempt in reversed(self._journal.attempts(name)):
            found = await self.chain.find_receipt(attempt.hash)
            if found is None:
                continue
            if not found.succeeded:
                self._journal.remove_attempts(name)
                raise errors.ContractRefused("", f"{name}: the transaction {attempt.hash} was mined and reverted")
            paid_wei = found.gas_used * (found.price_wei or int(attempt.fee_wei))
            return OrderReceipt(name, attempt.hash, found.block.number, found.gas_used, paid_wei, found.contract)
        return None

    async def _is_replaced(self, name: str) -> bool:
        """Return whether another transaction has used the nonce. Checks several times: an endpoint may know the nonce
        before the receipt."""
        for look in range(GONE_CHECKS):
            if not await self._is_nonce_used(name) or await self._find_receipt(name) is not None:
                return False
            if look < GONE_CHECKS - 1:
                await anyio.sleep(1.0)
        return True

    async def _is_nonce_used(self, name: str) -> bool:
        return await self.chain.nonce(self.account) > self._journal.attempts(name)[-1].nonce
