"""What this node submits through: the key of an account (`Wallet`), or a signer proxy that holds one (`Proxy`).

A sender prepares attempts, sends them, and tells what became of them. It remembers nothing: what was tried stands in
the event log and comes back with every `Submit`.

- The wallet alone decides on nonce and gas. All attempts at one submission carry the same nonce, so that the chain
  takes at most one of them. Only where that nonce is spent, or can never come up, is another one taken.
- A proxy is RL Swarm's login server, `swarmd signer`, or whatever speaks their HTTP interface. It says what it sent,
  but not what became of it: only the chain tells. So an attempt is nothing but the note that a request may have been
  made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

import aiohttp
import rlp  # type: ignore[import-untyped]
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from swarmd.chain.contract import ERRORS, advice, encode_call, refusal_of
from swarmd.chain.endpoints import Rpc, name_of
from swarmd.chain.fees import Budget, counted, quote, replacing
from swarmd.chain.logs import show_text
from swarmd.chain.ports import AccountPort, Price, Signatory, SignedTransaction
from swarmd.config import ChainConfig, FeesConfig
from swarmd.core.commands import Submit
from swarmd.core.values import BlockRef, Drive, Prepared, SubmissionKind, Value
from swarmd.errors import (
    AccountPoor,
    ChainError,
    ConfigError,
    ContractRefused,
    EndpointFailed,
    KeystoreError,
    RpcRefused,
    SignerError,
)
from swarmd.gas import coins
from swarmd.http_client import read_start
from swarmd.http_server import load_token
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.secret_files import SecretKind

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

log = get_logger(__name__)


class Mined(Value, frozen=True):
    """An attempt that a block has."""

    hash: str
    block: BlockRef
    succeeded: bool  # False: the contract reverted it, or it only took a withdrawn attempt's place


Fate = Mined | Literal["waiting", "gone"]  # gone: none of the attempts can be mined any more


class Sender(Protocol):
    """One way to the contract. Everything may raise ChainError, which passes."""

    @property
    def account(self) -> str:
        """The account that submissions come from, checksummed; empty while unknown."""

    @property
    def budget(self) -> Budget | None:
        """Of what the account signs for in a day; None where somebody else signs."""

    @property
    def repeatable(self) -> bool:
        """Whether sending an attempt twice is sending it once."""

    async def prepare(self, peer: str, command: Submit, attempts: Sequence[Prepared]) -> Prepared | None:
        """The next attempt after these; None where the bounds on fees allow none that would replace them.

        Raises:
            ContractRefused: the contract would revert it.
            ChainError: not now; the message says why.
        """

    async def withdraw(self, attempts: Sequence[Prepared]) -> Prepared | None:
        """An attempt that does nothing in the place of the last one; None where there can be none."""

    async def send(self, peer: str, command: Submit, prepared: Prepared) -> str | None:
        """Send an attempt; what it is called, or None where it was not taken for a reason that `trace` will tell.

        Raises:
            ContractRefused: the contract would revert it.
            ChainError: it was not sent; the message says why.
            EndpointFailed: it may have been sent.
        """

    async def trace(self, attempts: Sequence[Prepared]) -> Fate:
        """What became of the attempts, of which there is at least one."""

    async def is_known(self, prepared: Prepared) -> bool:
        """Whether the chain's nodes are seen to have this attempt."""

    async def explain(self, peer: str, command: Submit, mined: Mined) -> None:
        """Ask why a mined attempt was reverted. Raises ContractRefused where the contract says it."""


def make_sender(config: ChainConfig, data: NodeDirectory, rpc: Rpc) -> Sender | None:
    """The sender that the configuration asks for, None where nothing is to be submitted.

    Raises:
        KeystoreError: the account's key or the proxy's token cannot be read.
        ConfigError: the proxy's URL is none that can be asked.
    """
    if config.sender == "wallet":
        from swarmd.chain.keystore import load_account  # what signs is loaded where something is signed

        return wallet_of(config, rpc, load_account(config, data))
    if config.sender == "proxy":
        _check_url(config.proxy.url)
        return Proxy(config, rpc, load_token(config.proxy.token, data.root, TOKEN, chars_min=1))
    return None


DYNAMIC_FEE = 2  # first byte of a transaction of EIP-1559; one of the old kind begins with an RLP list
STEPS: dict[Drive, str] = {"policy": "advance()", "manager": "updateStageAndRound()"}


class AccountKey:
    """See `swarmd.chain.ports.Signatory`.

    Args:
        chain_id: part of what is signed.
        drive: by which call the contract is moved on.
    """

    def __init__(self, account: LocalAccount, chain_id: int, drive: Drive = "never") -> None:
        self._account = account
        self._chain_id = chain_id
        self._drive: Drive = drive

    @property
    def account(self) -> str:
        return str(self._account.address)

    def content_of(self, command: Submit, peer: str) -> bytes:
        return call_of(command, peer, self._drive)

    def sign(self, said: SignedTransaction) -> Prepared:
        fields: dict[str, Any] = {
            "chainId": self._chain_id,
            "nonce": said.nonce,
            "gas": said.gas,
            "value": 0,
            "data": said.content,
        }
        if said.to:
            fields["to"] = to_checksum_address(said.to)
        if said.price.tip_wei is None:
            fields["gasPrice"] = said.price.fee_wei
        else:
            fields |= {"maxFeePerGas": said.price.fee_wei, "maxPriorityFeePerGas": said.price.tip_wei}
        raw = bytes(self._account.sign_transaction(fields).raw_transaction)
        cost_wei = said.gas * said.price.fee_wei
        return Prepared("0x" + keccak(raw).hex(), said.nonce, raw, str(said.price.fee_wei), str(cost_wei))

    @staticmethod
    def read(prepared: Prepared) -> SignedTransaction:
        try:
            if prepared.raw[0] == DYNAMIC_FEE:
                _, nonce, tip, fee, gas, to, _, content, *_ = rlp.decode(prepared.raw[1:])
                price = Price(_number(fee), _number(tip))
            else:
                nonce, fee, gas, to, _, content, *_ = rlp.decode(prepared.raw)
                price = Price(_number(fee))
            called = to_checksum_address(to) if to else ""
            return SignedTransaction(_number(nonce), price, _number(gas), called, bytes(content))
        except (IndexError, ValueError, TypeError, rlp.exceptions.RLPException):
            raise ChainError(f"the logged attempt {prepared.hash} holds no transaction") from None


def call_of(command: Submit, peer: str, drive: Drive) -> bytes:
    """The contract's call that brings a submission about."""
    if command.kind == "register":
        return encode_call("registerPeer(string)", peer)
    if command.kind == "reward":
        signature = "submitReward(uint256,uint256,int256,string)"
        return encode_call(signature, command.round, command.stage, command.reward, peer)
    if command.kind == "winners":
        return encode_call("submitWinners(uint256,string[],string)", command.round, command.winners, peer)
    if drive not in STEPS:
        raise ChainError('chain.drive is "never": this node does not move the contract on')
    return encode_call(STEPS[drive])


def _number(encoded: bytes) -> int:
    return int.from_bytes(encoded, "big")


# What the clients of Ethereum say when they do not take a transaction; JSON-RPC's codes do not tell these apart.
GAS_MAX = 2_500_000  # units of gas of one submission
KNOWN = re.compile(r"already.?(known|imported|exists|in)|known transaction", re.IGNORECASE)
UNTIMELY = re.compile(
    r"nonce.{0,12}too (low|high)|old.?nonce|underpriced|(fee|price).{0,8}too.?low|replacement.?not.?allowed|"
    r"less than (the )?(block )?base.?fee|gas price below",
    re.IGNORECASE,
)
POOR = re.compile(r"insufficient.?(funds|balance)|enough funds|exceeds (account )?balance", re.IGNORECASE)


class TransactionCall(NamedTuple):
    """What a transaction asks for; `to` is empty for one that creates a contract."""

    to: str
    content: bytes
    gas: int


class NonceSlot(NamedTuple):
    """Where the next attempt goes, and the attempt there that it would replace."""

    nonce: int
    replaced: Prepared | None
    fills_gap: bool = False  # nobody's transaction has this nonce any more, and those after it wait for one


class AccountTransactions:
    """Signs and sends transactions of one account, at prices within the bounds of the configuration.

    Args:
        budget: of what is signed for in a day.
    """

    def __init__(self, fees: FeesConfig, chain: AccountPort, key: Signatory, budget: Budget) -> None:
        self.budget = budget
        self._fees = fees
        self._chain = chain
        self._key = key

    @property
    def account(self) -> str:
        """The key's address."""
        return self._key.account

    async def gas_for(self, to: str, content: bytes, gas_max: int, what: str = "the call") -> int:
        """Gas to allow, a quarter more than it takes now.

        Raises:
            ContractRefused: the contract would revert it.
            ChainError: it takes more than `gas_max`, or the endpoints fail.
        """
        try:
            estimate = await self._chain.estimate_gas(self.account, to, content)
        except RpcRefused as refused:
            raise refusal_of(refused, what) or refused from None
        if estimate > gas_max:
            raise ChainError(f"{what} takes {estimate} gas, and no more than {gas_max} is ever signed for")
        return min(estimate + estimate // 4, gas_max)

    async def sign_next(
        self, attempts: Sequence[Prepared], place: NonceSlot, call: TransactionCall, what: str
    ) -> Prepared | None:
        """Sign the next attempt after these; None if the bounds allow no price at which it replaces the one before.

        Raises:
            AccountPoor, BudgetSpent, GasTooDear: it must wait.
            ChainError: the endpoints fail.
        """
        price: Price | None = await quote(self._chain, self._fees)
        if price is not None and place.replaced is not None and place.replaced.raw:
            price = replacing(self._key.read(place.replaced).price, price, self._fees)
        if price is None:
            return None
        cost_wei, counted_wei = call.gas * price.fee_wei, counted(attempts, place.nonce)
        self.budget.check(cost_wei, counted_wei, what)
        await self._check_funds(cost_wei, what)
        self.budget.note(cost_wei, counted_wei)
        return self._key.sign(SignedTransaction(place.nonce, price, call.gas, call.to, call.content))

    async def _check_funds(self, needed_wei: int, what: str) -> None:
        balance_wei = await self._chain.balance_wei(self.account)
        if balance_wei < needed_wei:
            raise AccountPoor(
                f"the account {self.account} has {coins(balance_wei)}, and the {what} may cost {coins(needed_wei)}",
                "Send it some of the chain's coin; the node goes on by itself",
                needed_wei,
            )

    async def hand_over(self, prepared: Prepared, what: str) -> bool:
        """Send signed bytes; False if they were not taken for a reason that the account's nonces will tell.

        What is refused without an error of the contract, as for want of gas, is refused by the endpoint.

        Raises:
            ContractRefused: the contract would revert it.
            RpcRefused: the endpoint does not take it.
            AccountPoor: the account cannot pay for it.
            EndpointFailed: it may have been sent.
        """
        try:
            await self._chain.send(prepared.raw)
        except RpcRefused as refused:
            if KNOWN.search(refused.message):
                return True
            if UNTIMELY.search(refused.message):
                log.info("%s was not taken: %s", prepared.hash, refused.message)
                return False
            if POOR.search(refused.message):
                said = self._key.read(prepared)
                await self._check_funds(said.gas * said.price.fee_wei, what)
            refusal = refusal_of(refused, what)
            raise refusal if refusal is not None and refusal.code else refused from None
        return True


def wallet_of(config: ChainConfig, rpc: Rpc, account: LocalAccount, budget: Budget | None = None) -> Wallet:
    """The wallet of an account, over the chain that `rpc` reaches."""
    from swarmd.chain.ethereum import Ethereum

    return Wallet(config, Ethereum(rpc), AccountKey(account, config.chain_id, config.drive), budget)


class Wallet(AccountTransactions):
    """A `Sender` with the account's own key.

    Args:
        budget: of what it signs for in a day; one that knows of nothing yet where it is left out.
    """

    repeatable = True

    def __init__(self, config: ChainConfig, chain: AccountPort, key: Signatory, budget: Budget | None = None) -> None:
        super().__init__(config.fees, chain, key, budget or Budget(config.fees))
        self._contract = config.contract

    async def prepare(self, peer: str, command: Submit, attempts: Sequence[Prepared]) -> Prepared | None:
        """Sign the next attempt, see `Sender`."""
        content = self._key.content_of(command, peer)
        gas = await self.gas_for(self._contract, content, GAS_MAX)
        place = await self._place_for(attempts, command.kind)
        if place.fills_gap and command.kind == "advance":
            return await self.sign_next(attempts, place, await self._nothing(), "withdrawal")
        return await self.sign_next(attempts, place, TransactionCall(self._contract, content, gas), command.kind)

    async def withdraw(self, attempts: Sequence[Prepared]) -> Prepared | None:
        """Sign a transaction of nothing to ourselves, which takes the nonce of the last attempt."""
        nothing = await self._nothing()
        return await self.sign_next(attempts, await self._place_for(attempts, "withdrawal"), nothing, "withdrawal")

    async def _nothing(self) -> TransactionCall:
        return TransactionCall(self.account, b"", await self.gas_for(self.account, b"", GAS_MAX))

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

    async def send(self, peer: str, command: Submit, prepared: Prepared) -> str | None:
        """Send the signed bytes, see `Sender`."""
        return prepared.hash if await self.hand_over(prepared, command.kind) else None

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
            await self._chain.call(self._contract, content, self.account, mined.block.number)
        except RpcRefused as refused:
            raise refusal_of(refused, "the call") or refused from None


CALL_S = 10.0  # a call of the proxy ends within this
ANSWER_BYTES_MAX = 64 * 1024  # more of a proxy's answer is not read
HASH_CHARS_MAX = 128
REASON_CHARS_MAX = 200
TOKEN_BYTES_MAX = 4096
METHODS: dict[SubmissionKind, str] = {
    "register": "register-peer",
    "reward": "submit-reward",
    "winners": "submit-winner",
}
NAMES = frozenset(ERRORS.values())
HINTS = {
    400: "it does not understand the request: is chain.proxy.org right?",
    401: "it wants another bearer token: check chain.proxy.token",
    403: "it does not allow this node: check chain.proxy.token and its allow-list",
    404: "it knows no such user or path: check chain.proxy.org and chain.proxy.url, and log in there",
    413: "the request is too long for it",
    429: "it wants to be asked less often",
}


TOKEN = SecretKind("signer proxy's bearer token", KeystoreError, TOKEN_BYTES_MAX, "Ask the proxy's operator for one")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.username is not None or parts.query:
        raise ConfigError(
            "chain.proxy.url is no plain URL of a signer proxy",
            "Write it as http://host:port/api; a token has its own key",
        )


class Proxy:
    """A `Sender` through a signer proxy.

    Args:
        config: the proxy's URL, and the organisation that it knows the account under.
        token: bearer token, empty for none.
    """

    repeatable = False
    budget = None  # the signer's

    def __init__(self, config: ChainConfig, rpc: Rpc, token: str = "") -> None:
        from swarmd.chain.ethereum import Ethereum

        self._config = config
        self._chain = Ethereum(rpc)
        self._url = config.proxy.url.rstrip("/")
        self._name = name_of(self._url)
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    @property
    def account(self) -> str:
        """As configured: the proxy does not say it."""
        return self._config.proxy.account

    async def prepare(self, peer: str, command: Submit, attempts: Sequence[Prepared]) -> Prepared | None:
        """Note that a request is about to be made. Where the account is known, the contract is asked first."""
        if command.kind not in METHODS:
            raise ContractRefused(
                "not-offered", f"a signer proxy does not offer to {command.kind}", 'Set drive = "never"'
            )
        if self.account:
            await self._rehearse(peer, command)
        return Prepared()

    async def _rehearse(self, peer: str, command: Submit) -> None:
        content = call_of(command, peer, "never")
        try:
            await self._chain.call(self._config.contract, content, self.account)
        except RpcRefused as refused:
            raise refusal_of(refused, command.kind) or refused from None

    async def withdraw(self, attempts: Sequence[Prepared]) -> Prepared | None:
        """What was asked for cannot be taken back."""
        return None

    async def trace(self, attempts: Sequence[Prepared]) -> Fate:
        """Always "waiting": a proxy does not report its transactions."""
        return "waiting"

    async def is_known(self, prepared: Prepared) -> bool:
        """Always false: a proxy does not report its transactions."""
        return False

    async def explain(self, peer: str, command: Submit, mined: Mined) -> None:
        """There are no transactions of ours to explain."""

    async def send(self, peer: str, command: Submit, prepared: Prepared) -> str | None:
        """Make the request, see `Sender`; gives the hash that the proxy answers with, empty where it names none."""
        status, answer = await self._post(METHODS[command.kind], self._body(peer, command))
        said = _parsed(answer)
        if status == 200 and isinstance(said, dict):
            return show_text(str(said.get("hash") or "")[:HASH_CHARS_MAX])
        error = str(said.get("error", "") if isinstance(said, dict) else "")
        if error in NAMES:
            raise ContractRefused(error, f"the contract refused it to the signer proxy: {error}", advice(error))
        raise self._failure(status, error)

    def _body(self, peer: str, command: Submit) -> dict[str, Any]:
        body: dict[str, Any] = {"orgId": self._config.proxy.org}
        if command.kind == "reward":
            body |= {"roundNumber": command.round, "stageNumber": command.stage, "reward": command.reward}
        elif command.kind == "winners":
            body |= {"roundNumber": command.round, "winners": list(command.winners)}
        return body | {"peerId": peer}

    async def _post(self, method: str, body: dict[str, Any]) -> tuple[int, bytes]:
        content = json.dumps(body).encode()
        patience = aiohttp.ClientTimeout(total=CALL_S)
        url = f"{self._url}/{method}"
        try:
            async with (
                aiohttp.ClientSession(timeout=patience) as session,
                session.post(url, data=content, headers=self._headers, allow_redirects=False) as answer,
            ):
                return answer.status, await read_start(answer.content, ANSWER_BYTES_MAX)
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL):
            raise SignerError(f"the signer proxy {self._name} cannot be reached: is it running?") from None
        except TimeoutError:
            raise EndpointFailed(f"the signer proxy {self._name} did not answer within {CALL_S:g} s") from None
        except aiohttp.ClientError as error:
            raise EndpointFailed(f"the signer proxy {self._name} broke off ({type(error).__name__})") from None

    def _failure(self, status: int, error: str) -> SignerError | EndpointFailed:
        """From 500 on, and for an answer that makes no sense, the submission may be on its way all the same."""
        words = show_text(error[:REASON_CHARS_MAX])
        said = f" ({words})" if words else ""
        if 300 <= status < 500:
            hint = HINTS.get(status, "it did not do as asked: check chain.proxy.url")
            return SignerError(f"the signer proxy {self._name} answered {status}{said}; {hint}", status, words)
        return EndpointFailed(f"the signer proxy {self._name} answered {status}{said} and may have submitted or not")


def _parsed(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        return None
