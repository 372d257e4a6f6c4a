"""A sender with the account's own key: the one place that decides on nonce and gas.

All attempts at one submission carry the same nonce, so that the chain takes at most one of them. Only where that nonce
is spent, or can never come up, is another one taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from swarmd.chain.contract import refusal_of
from swarmd.chain.fees import Budget, Price, counted, quote, replacing
from swarmd.chain.ports import AccountPort, Signatory, SignedTransaction
from swarmd.chain.submitting.sender import Fate, Mined
from swarmd.config import ChainConfig
from swarmd.core.commands import Submit
from swarmd.core.values import Prepared
from swarmd.errors import AccountPoor, ChainError, RpcRefused
from swarmd.logger import get_logger

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

    from swarmd.chain.endpoints.rpc import RpcCaller
    from swarmd.paths import NodeDirectory

# What the clients of Ethereum say when they do not take a transaction; JSON-RPC's codes do not tell these apart.
GAS_MAX = 2_500_000  # units of gas of one transaction
KNOWN = re.compile(r"already.?(known|imported|exists|in)|known transaction", re.IGNORECASE)
UNTIMELY = re.compile(
    r"nonce.{0,12}too low|old.?nonce|underpriced|(fee|price).{0,8}too.?low|replacement.?not.?allowed|"
    r"less than (the )?(block )?base.?fee|gas price below",
    re.IGNORECASE,
)
POOR = re.compile(r"insufficient.?(funds|balance)|enough funds|exceeds (account )?balance", re.IGNORECASE)

log = get_logger(__name__)


def open_wallet(config: ChainConfig, data: NodeDirectory, caller: RpcCaller) -> Wallet:
    """The wallet of the configured keystore. Raises KeystoreError where its key cannot be read."""
    from swarmd.chain.keystore import load_account  # what signs is loaded where something is signed

    return wallet_of(config, caller, load_account(config, data))


def wallet_of(config: ChainConfig, caller: RpcCaller, account: LocalAccount, budget: Budget | None = None) -> Wallet:
    """The wallet of an account, over the chain that `caller` calls."""
    from swarmd.chain.ethereum import Ethereum
    from swarmd.chain.submitting.sender import AccountKey

    return Wallet(config, Ethereum(caller), AccountKey(account, config.chain_id, config.drive), budget)


class TransactionCall(NamedTuple):
    """What a transaction asks for."""

    to: str
    content: bytes
    gas: int


class NonceSlot(NamedTuple):
    """Where the next attempt goes, and the attempt there that it would replace."""

    nonce: int
    replaced: Prepared | None
    fills_gap: bool = False  # nobody's transaction has this nonce any more, and those after it wait for one


class Wallet:
    """See `swarmd.chain.submitting.sender.Sender`.

    Args:
        config: the contract, and the bounds on fees.
        chain: accounts and their transactions.
        key: the account's.
        budget: of what it signs for in a day; one that knows of nothing yet where it is left out.
    """

    repeatable = True

    def __init__(self, config: ChainConfig, chain: AccountPort, key: Signatory, budget: Budget | None = None) -> None:
        self.budget = budget or Budget(config.fees)
        self._config = config
        self._chain = chain
        self._key = key

    @property
    def account(self) -> str:
        """The key's address."""
        return self._key.account

    async def prepare(self, peer: str, command: Submit, attempts: Sequence[Prepared]) -> Prepared | None:
        """Sign the next attempt, see `Sender`."""
        content = self._key.content_of(command, peer)
        gas = await self._gas_for(self._config.contract, content)
        place = await self._place_for(attempts, command.kind)
        if place.fills_gap and command.kind == "advance":
            return await self._next(attempts, place, await self._nothing(), "withdrawal")
        return await self._next(attempts, place, TransactionCall(self._config.contract, content, gas), command.kind)

    async def withdraw(self, attempts: Sequence[Prepared]) -> Prepared | None:
        """Sign a transaction of nothing to ourselves, which takes the nonce of the last attempt."""
        nothing = await self._nothing()
        return await self._next(attempts, await self._place_for(attempts, "withdrawal"), nothing, "withdrawal")

    async def _nothing(self) -> TransactionCall:
        return TransactionCall(self.account, b"", await self._gas_for(self.account, b""))

    async def _next(
        self, attempts: Sequence[Prepared], place: NonceSlot, said: TransactionCall, what: str
    ) -> Prepared | None:
        price: Price | None = await quote(self._chain, self._config.fees)
        if price is not None and place.replaced is not None and place.replaced.raw:
            price = replacing(self._key.read(place.replaced).price, price, self._config.fees)
        if price is None:
            return None
        cost_wei, counted_wei = said.gas * price.fee_wei, counted(attempts, place.nonce)
        self.budget.check(cost_wei, counted_wei, what)
        await self._check_funds(cost_wei, what)
        self.budget.note(cost_wei, counted_wei)
        return self._key.sign(SignedTransaction(place.nonce, price, said.gas, said.to, said.content))

    async def _place_for(self, attempts: Sequence[Prepared], what: str) -> NonceSlot:
        """Which nonce the next attempt takes.

        A step of the contract would be taken twice if two attempts at it were mined, so it keeps to the highest nonce
        that any of them has; and what is withdrawn gives up its own nonce before one below it is filled, for that lets
        it come up.
        """
        mined = await self._chain.nonce(self.account)
        waiting = max(await self._chain.nonce(self.account, "pending"), mined)
        free = [each for each in attempts if each.nonce >= mined]
        await self._check_none_succeeded([each for each in attempts if each.nonce < mined])
        if not free:
            return NonceSlot(waiting, None)
        keeps = what in ("advance", "withdrawal")
        last = max(reversed(free), key=lambda each: each.nonce) if keeps else free[-1]
        if waiting >= last.nonce or (what == "withdrawal" and not self._is_withdrawal(last)):
            return NonceSlot(last.nonce, last)
        # Another process's transaction before ours is gone, and ours cannot come up. The contract takes each of these
        # only once, so a second nonce is safe; for a step of the contract the gap is filled with nothing.
        log.warning("%s: nonce %d of %s is free again", what, waiting, self.account)
        at_gap = (each for each in reversed(free) if each.nonce == waiting)
        return NonceSlot(waiting, next(at_gap, None), fills_gap=True)

    async def _check_none_succeeded(self, attempts: Sequence[Prepared]) -> None:
        """Raise ChainError when the chain has one by now: a second nonce would bring it about a second time."""
        for each in reversed(attempts):
            mined = await self._receipt_of(each)
            if mined is not None and mined.succeeded:
                raise ChainError(f"{each.hash} was mined meanwhile, in block {mined.block.number}")

    async def _gas_for(self, to: str, content: bytes) -> int:
        """Gas to allow, a quarter more than it takes now."""
        try:
            estimate = await self._chain.estimate_gas(self.account, to, content)
        except RpcRefused as refused:
            raise refusal_of(refused, "the call") or refused from None
        if estimate > GAS_MAX:
            raise ChainError(f"the call takes {estimate} gas, and no more than {GAS_MAX} is ever signed for")
        return min(estimate + estimate // 4, GAS_MAX)

    async def _check_funds(self, needed_wei: int, what: str) -> None:
        balance = await self._chain.balance_wei(self.account)
        if balance < needed_wei:
            raise AccountPoor(
                f"the account {self.account} has {balance} wei, and the {what} may cost {needed_wei}",
                "Send it some of the chain's coin; the node goes on by itself",
                needed_wei,
            )

    async def send(self, peer: str, command: Submit, prepared: Prepared) -> str | None:
        """Send the signed bytes, see `Sender`. What is refused without an error of the contract, as for want of gas, is
        refused by the endpoint."""
        try:
            await self._chain.send(prepared.raw)
        except RpcRefused as refused:
            if KNOWN.search(refused.message):
                return prepared.hash
            if UNTIMELY.search(refused.message):
                log.info("%s was not taken: %s", prepared.hash, refused.message)
                return None
            if POOR.search(refused.message):
                said = self._key.read(prepared)
                await self._check_funds(said.gas * said.price.fee_wei, command.kind)
            refusal = refusal_of(refused, command.kind)
            raise refusal if refusal is not None and refusal.code else refused from None
        return prepared.hash

    async def trace(self, attempts: Sequence[Prepared]) -> Fate:
        """Follow the nonces first: where none is spent, no receipt can be there."""
        count = await self._chain.nonce(self.account)
        spent = [each for each in attempts if each.nonce < count]
        mined = [found for each in reversed(spent) if (found := await self._receipt_of(each))]
        succeeded = next((each for each in mined if each.succeeded), None)
        if succeeded is not None:
            return succeeded
        if len(spent) < len(attempts):
            return "waiting"
        return mined[0] if mined else "gone"

    async def _receipt_of(self, attempt: Prepared) -> Mined | None:
        if not attempt.hash:
            return None
        receipt = await self._chain.receipt(attempt.hash)
        if receipt is None:
            return None
        withdrawn = receipt.to == self.account or self._is_withdrawal(attempt)  # after a confirmation no bytes are kept
        return Mined(attempt.hash, receipt.block, receipt.succeeded and not withdrawn)

    def _is_withdrawal(self, attempt: Prepared) -> bool:
        return bool(attempt.raw) and self._key.read(attempt).to == self.account

    async def is_known(self, prepared: Prepared) -> bool:
        """Ask for it by its hash."""
        return await self._chain.is_known(prepared.hash)

    async def explain(self, peer: str, command: Submit, mined: Mined) -> None:
        """Call again at that block, see `Sender`."""
        content = self._key.content_of(command, peer)
        try:
            await self._chain.call(self._config.contract, content, self.account, mined.block.number)
        except RpcRefused as refused:
            raise refusal_of(refused, "the call") or refused from None
