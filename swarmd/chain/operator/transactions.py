"""Single transactions of an operator's account: signed, noted, sent, and waited for.

Unlike a node's submissions these are ordered by a person who waits for the outcome. The journal, where there is one,
holds every signed attempt before it is sent; after a crash the same order looks for it on the chain and sends it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from swarmd.bounds import DECODE_ERRORS
from swarmd.chain.contract import refusal_of
from swarmd.chain.endpoints.rpc import RpcCaller
from swarmd.chain.ethereum import Ethereum
from swarmd.chain.fees import GWEI, Price, quote, replacing
from swarmd.chain.ports import MinedTransaction
from swarmd.config import FeesConfig
from swarmd.errors import (
    ChainError,
    ChainMismatch,
    ContractRefused,
    EndpointFailed,
    GasTooDear,
    ManifestError,
    PathUnusable,
    RpcRefused,
)
from swarmd.gas import coins

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

GAS_MAX = 8_000_000  # of one transaction; creating the contract takes five million
GAS_PERCENT = 120  # of what an endpoint estimates: state may change until it is mined
POLL_S = 0.05  # doubled up to POLL_MAX_S
POLL_MAX_S = 2.0
TELL_S = 10.0  # of waiting, between two lines about it
MINED_S = 900.0  # longest wait for one transaction
GONE_LOOKS = 5  # looks, a second apart, before a transaction whose nonce is used up counts as lost
ATTEMPTS_MAX = 32  # of one order

PASSING = re.compile(r"already|known|nonce|underpriced|base fee", re.IGNORECASE)  # what waiting or a higher price mends
_FUND = "Send it some, then run the same command again"

Tell = Callable[[str], None]


Hash = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{64}\Z")]
Raw = Annotated[str, msgspec.Meta(pattern=r"^0x([0-9a-f]{2})+\Z")]


class Attempt(msgspec.Struct, frozen=True):
    """A signed transaction."""

    hash: Hash
    nonce: int
    raw: Raw
    fee_wei: str
    tip_wei: str | None = None
    gas: int = 0


class JournalEntry(msgspec.Struct):
    """The journal's file."""

    chain_id: int
    genesis: str  # hash of block 0: a chain that was reset has another one
    account: str
    steps: dict[str, list[Attempt]] = {}


class OrderReceipt(msgspec.Struct, frozen=True):
    """An order that the chain has carried out."""

    name: str
    hash: str
    block: int
    gas_used: int
    cost_wei: int
    contract: str = ""  # that was created


class Journal:
    """Attempts by the name of their order, in a file or, without one, in memory.

    Raises:
        ManifestError: the file is no journal.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.record: JournalEntry | None = None
        if path is not None and path.exists():
            try:
                self.record = msgspec.json.decode(path.read_bytes(), type=JournalEntry)
            except DECODE_ERRORS as error:
                fix = "It tells which transactions were sent; restore it, or begin in another directory"
                raise ManifestError(f"the journal {path} is damaged: {error}", fix) from error

    def begin(self, chain_id: int, genesis: str, account: str) -> None:
        """Take the journal up for this chain and account. Raises ChainMismatch when it is of others."""
        if self.record is None:
            self.record = JournalEntry(chain_id, genesis, account)
            self._save()
        elif (self.record.chain_id, self.record.genesis) != (chain_id, genesis):
            raise ChainMismatch(
                f"{self._path} belongs to a swarm on chain {self.record.chain_id}, block 0 {self.record.genesis}: "
                "this is another chain, or it was reset",
                "Begin in another directory",
            )
        elif self.record.account != account:
            raise ChainMismatch(f"{self._path} was begun by the account {self.record.account}, not by {account}")

    @property
    def is_kept(self) -> bool:
        """Whether another process can take it up."""
        return self._path is not None

    def attempts(self, name: str) -> list[Attempt]:
        """The signed attempts of one order, oldest first."""
        return self.record.steps.get(name, []) if self.record else []

    def note(self, name: str, attempt: Attempt) -> None:
        """Write an attempt to the journal before it is sent."""
        assert self.record is not None
        self.record.steps.setdefault(name, []).append(attempt)
        self._save()

    def forget(self, name: str) -> None:
        """None of the order's attempts counts any more."""
        assert self.record is not None
        self.record.steps.pop(name, None)
        self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        fresh = self._path.with_name(f".{self._path.name}.new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(self.record), indent=1))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            _sync(self._path.parent)
        except OSError as error:
            raise PathUnusable(f"the journal {self._path} cannot be written: {error.strerror}") from error


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class OperatorTransactions:
    """Transactions of one account.

    Args:
        caller: of the chain.
        key: the account's.
        fees: nothing above `max_gwei` is signed; `gas_max` is for a node's submissions and not looked at.
        journal: begun already for this chain and account.
        tell: takes a line about what is going on.
    """

    def __init__(self, caller: RpcCaller, key: LocalAccount, fees: FeesConfig, journal: Journal, tell: Tell) -> None:
        assert journal.record is not None
        self.caller = caller
        self.chain = Ethereum(caller)
        self.account = str(key.address)
        self._key = key
        self._fees = fees
        self._journal = journal
        self._chain_id = journal.record.chain_id
        self._tell = tell

    def has(self, name: str) -> bool:
        """Whether the journal has this order in hand, or carried out."""
        return bool(self._journal.attempts(name))

    async def carry_out(self, name: str, to: str | None, content: bytes) -> OrderReceipt:
        """Have one transaction mined, once; `to` is None for one that creates a contract.

        Raises:
            ContractRefused: the contract reverts it.
            ChainError: it costs too much, cannot be paid, or is not mined in time.
        """
        for _ in range(ATTEMPTS_MAX):
            if not self.has(name):
                await self._prepare(name, to, content)
            elif await self._is_lost(name):
                self._tell(f"{name}: another transaction took its place, it is made anew")
                self._journal.forget(name)
                continue
            receipt = await self._find(name) or await self._follow(name, to, content)
            if receipt is not None:
                return receipt
        raise ChainError(f"{name}: other programs use the account {self.account} all the time", "Stop them for a while")

    async def balance_wei(self) -> int:
        """The account's balance in wei."""
        return await self.chain.balance_wei(self.account)

    # --- one attempt ---

    async def _prepare(self, name: str, to: str | None, content: bytes) -> None:
        price = await quote(self.chain, self._fees)
        gas = await self._estimate(name, to, content)
        balance_wei, most_wei = await self.balance_wei(), gas * price.fee_wei
        if balance_wei < most_wei:
            raise ChainError(
                f"{name}: the account {self.account} has {coins(balance_wei)}, and this may cost {coins(most_wei)}",
                _FUND,
            )
        nonce = await self.chain.nonce(self.account, "pending")
        self._journal.note(name, self._sign(nonce, price, gas, to, content))

    async def _estimate(self, name: str, to: str | None, content: bytes) -> int:
        try:
            estimate = await self.chain.estimate_gas(self.account, to, content)
        except RpcRefused as refused:
            raise refusal_of(refused, name) or self._refused(name, refused) from None
        gas = estimate * GAS_PERCENT // 100
        if gas > GAS_MAX:
            raise ChainError(f"{name} would take {gas} units of gas; no more than {GAS_MAX} are ever asked for")
        return gas

    def _refused(self, name: str, refused: RpcRefused) -> ChainError:
        fix = _FUND if "insufficient" in refused.message.lower() else ""
        return ChainError(f"{name}: the endpoint refuses the transaction: {refused.message}", fix)

    def _sign(self, nonce: int, price: Price, gas: int, to: str | None, content: bytes) -> Attempt:
        fields: dict[str, Any] = {"chainId": self._chain_id, "nonce": nonce, "gas": gas, "value": 0, "data": content}
        if to is not None:
            fields["to"] = to_checksum_address(to)
        if price.tip_wei is None:
            fields["gasPrice"] = price.fee_wei
        else:
            fields |= {"maxFeePerGas": price.fee_wei, "maxPriorityFeePerGas": price.tip_wei}
        raw = bytes(self._key.sign_transaction(fields).raw_transaction)
        tip = None if price.tip_wei is None else str(price.tip_wei)
        return Attempt("0x" + keccak(raw).hex(), nonce, "0x" + raw.hex(), str(price.fee_wei), tip, gas)

    # --- what becomes of it ---

    async def _follow(self, name: str, to: str | None, content: bytes) -> OrderReceipt | None:
        """Send the last attempt, and dearer ones in its place, until one is mined; None where the nonce is used up."""
        begun = told = monotonic()
        tried, pause_s = 0.0, POLL_S
        while monotonic() - begun < MINED_S:
            waits_for = "waiting for a block that has it"
            try:
                if tried == 0.0 or monotonic() - tried > self._fees.stuck_s:
                    await (self._raise_price(name, to, content) if tried else self._send(name))
                    tried = monotonic()
                receipt = await self._find(name)
                if receipt is not None or await self._is_used_up(name):
                    return receipt
            except ChainError as failed:  # what was sent may be mined all the same, and is not to be ordered again
                if tried == 0.0 and not isinstance(failed, EndpointFailed):
                    raise
                waits_for = failed.message
            if monotonic() - told > TELL_S:
                told = monotonic()
                self._tell(f"{name}: {waits_for}, for {told - begun:.0f} s now")
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_MAX_S)
        raise ChainError(
            f"{name}: no block has the transaction {self._journal.attempts(name)[-1].hash} after {MINED_S:.0f} s",
            "Run the same command again: it goes on where it is"
            if self._journal.is_kept
            else "It may be mined yet: look for it on the chain before the same is ordered again",
        )

    async def _send(self, name: str) -> None:
        """Hand the last attempt to an endpoint, which may have it already."""
        attempt = self._journal.attempts(name)[-1]
        self._tell(f"{name}: sending {attempt.hash}")
        try:
            await self.chain.send(bytes.fromhex(attempt.raw[2:]))
        except RpcRefused as refused:
            if not PASSING.search(refused.message):
                raise self._refused(name, refused) from None
            self._tell(f"{name}: the endpoint says: {refused.message}")

    async def _raise_price(self, name: str, to: str | None, content: bytes) -> None:
        attempts = self._journal.attempts(name)
        last = attempts[-1]
        earlier = Price(int(last.fee_wei), None if last.tip_wei is None else int(last.tip_wei))
        try:
            price = replacing(earlier, await quote(self.chain, self._fees), self._fees)
        except GasTooDear as dear:
            self._tell(f"{name}: {dear.message}")
            price = None
        if price is not None and len(attempts) < ATTEMPTS_MAX:
            self._tell(f"{name}: not mined, trying again at {price.fee_wei / GWEI:.6g} gwei")
            self._journal.note(name, self._sign(last.nonce, price, last.gas, to, content))
        await self._send(name)

    async def _find(self, name: str) -> OrderReceipt | None:
        """The receipt of the attempt that was mined. Raises ContractRefused when it was reverted."""
        for attempt in reversed(self._journal.attempts(name)):
            found = await self.chain.receipt(attempt.hash)
            if found is None:
                continue
            if not found.succeeded:
                self._journal.forget(name)
                raise ContractRefused("", f"{name}: the transaction {attempt.hash} was mined and reverted")
            return _receipt(name, attempt, found)
        return None

    async def _is_lost(self, name: str) -> bool:
        """Whether something else used the nonce up; an endpoint may know that it is, before it knows a receipt."""
        for look in range(GONE_LOOKS):
            if not await self._is_used_up(name) or await self._find(name) is not None:
                return False
            if look < GONE_LOOKS - 1:
                await anyio.sleep(1.0)
        return True

    async def _is_used_up(self, name: str) -> bool:
        return await self.chain.nonce(self.account) > self._journal.attempts(name)[-1].nonce


def _receipt(name: str, attempt: Attempt, found: MinedTransaction) -> OrderReceipt:
    paid_wei = found.gas_used * (found.price_wei or int(attempt.fee_wei))
    return OrderReceipt(name, attempt.hash, found.block.number, found.gas_used, paid_wei, found.contract)
