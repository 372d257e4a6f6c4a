"""Sends transactions: with an account's own key (`Wallet`), or through a signer proxy that holds one (`ProxySender`).

A sender prepares attempts, sends them, and finds out whether they were mined. It keeps no state: earlier attempts are
in the event log and are passed with every `Submit`.

- `AccountTransactions` prices, signs and sends single transactions of an account, including an operator's orders.
- The wallet chooses nonces. All attempts at one submission have the same nonce, so that the chain mines at most one of
  them. It chooses another nonce only if that one is used, or can never be reached.
- A proxy is RL Swarm's login server, `swarmd signer`, or anything with their HTTP interface. It reports what it sent,
  but not whether it was mined: only the chain shows that. So a proxy's attempt only records that a request may have
  been made.
"""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

import aiohttp
import rlp  # type: ignore[import-untyped]
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from swarmd import errors
from swarmd.chain.contract import ERRORS, advice_for_error, encode_call, refusal_from_revert
from swarmd.chain.endpoints import RpcPool, is_url, url_without_secrets
from swarmd.chain.fees import DailyBudget, counted_cost_wei, quote_gas_price, replacement_price
from swarmd.chain.logs import replace_unprintable
from swarmd.chain.ports import AccountClient, Block, Price, SignedTransaction, TransactionSigner
from swarmd.config import ChainConfig, FeesConfig
from swarmd.core.commands import Submit
from swarmd.core.values import BlockRef, Drive, SubmissionAttempt, SubmissionKind, Value
from swarmd.gas import format_coins
from swarmd.http_client import read_body_start
from swarmd.http_server import load_token
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.secret_files import SecretKind

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

log = get_logger(__name__)


class MinedAttempt(Value, frozen=True):
    """An attempt that was mined."""

    hash: str
    block: BlockRef
    succeeded: bool  # False: it was reverted, or it only replaced a withdrawn attempt


Fate = MinedAttempt | Literal["waiting", "gone"]  # gone: none of the attempts can be mined any more


class SubmissionSender(Protocol):
    """A way to submit to the contract. Every method may raise a ChainError, which may be temporary."""

    @property
    def account(self) -> str:
        """The account that submissions come from, checksummed; empty while unknown."""

    @property
    def budget(self) -> DailyBudget | None:
        """The bound on what the account signs for in a day; None if a proxy signs."""

    @property
    def repeatable(self) -> bool:
        """Whether sending an attempt twice has the same effect as sending it once."""

    async def prepare_attempt(
        self, peer: str, command: Submit, attempts: Sequence[SubmissionAttempt]
    ) -> SubmissionAttempt | None:
        """Return the next attempt after these; None if the bounds on fees allow no replacement. Raises ContractRefused:
        the contract would revert it; ChainError: it cannot be prepared now, for the reason in the message."""

    async def prepare_withdrawal(self, attempts: Sequence[SubmissionAttempt]) -> SubmissionAttempt | None:
        """Return an attempt that replaces the last one and does nothing; None if that is impossible."""

    async def send_attempt(self, peer: str, command: Submit, prepared: SubmissionAttempt) -> str | None:
        """Send an attempt. Returns its hash, or None if it was not accepted for a reason that `trace_attempts` will
        find. Raises ContractRefused: the contract would revert it; ChainError: it was not sent, for the reason in the
        message; EndpointFailed: it may have been sent."""

    async def trace_attempts(self, attempts: Sequence[SubmissionAttempt]) -> Fate:
        """Find out whether one of the attempts (at least one) was mined."""

    async def is_attempt_known(self, prepared: SubmissionAttempt) -> bool:
        """Return whether an endpoint has this attempt, mined or not."""

    async def explain_revert(self, peer: str, command: Submit, mined: MinedAttempt) -> None:
        """Find out why a mined attempt was reverted. Raises ContractRefused if the contract gives a reason."""


def make_sender(config: ChainConfig, data: NodeDirectory, rpc: RpcPool) -> SubmissionSender | None:
    """Return the configured sender; None if nothing is to be submitted. Raises KeystoreError: the account's key or the
    proxy's token cannot be read; ConfigError: the proxy's URL is not valid."""
    if config.sender == "wallet":
        from swarmd.chain.keystore import load_account  # heavy, and only needed to sign

        return make_wallet(config, rpc, load_account(config, data))
    if config.sender == "proxy":
        url = config.proxy.url
        if not is_url(url, "http", "https") or urlsplit(url).username is not None or urlsplit(url).query:
            raise errors.ConfigError(
                "chain.proxy.url is not a plain URL of a signer proxy",
                "Write it as http://host:port/api; a token has its own key",
            )
        return ProxySender(config, rpc, load_token(config.proxy.token, data.root, TOKEN, chars_min=1))
    return None


DYNAMIC_FEE = 2  # first byte of an EIP-1559 transaction; a legacy one begins with an RLP list
STEPS: dict[Drive, str] = {"policy": "advance()", "manager": "updateStageAndRound()"}


class AccountSigner:
    """Implements `swarmd.chain.ports.TransactionSigner` with a local key."""

    def __init__(self, account: "LocalAccount", chain_id: int, drive: Drive = "never") -> None:
        self.account = str(account.address)
        self._account = account
        self._chain_id = chain_id
        self._drive: Drive = drive

    def encode_submission(self, command: Submit, peer: str) -> bytes:
        return encode_submission_call(command, peer, self._drive)

    def sign_transaction(self, said: SignedTransaction) -> SubmissionAttempt:
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
        return SubmissionAttempt("0x" + keccak(raw).hex(), said.nonce, raw, str(said.price.fee_wei), str(cost_wei))

    @staticmethod
    def decode_signed(prepared: SubmissionAttempt) -> SignedTransaction:
        try:
            if prepared.raw[0] == DYNAMIC_FEE:
                _, nonce, tip, fee, gas, to, _, content, *_ = rlp.decode(prepared.raw[1:])
                price = Price(_int_from_bytes(fee), _int_from_bytes(tip))
            else:
                nonce, fee, gas, to, _, content, *_ = rlp.decode(prepared.raw)
                price = Price(_int_from_bytes(fee))
            called = to_checksum_address(to) if to else ""
            return SignedTransaction(_int_from_bytes(nonce), price, _int_from_bytes(gas), called, bytes(content))
        except (IndexError, ValueError, TypeError, rlp.exceptions.RLPException):
            raise errors.ChainError(f"the logged attempt {prepared.hash} holds no transaction") from None


def encode_submission_call(command: Submit, peer: str, drive: Drive) -> bytes:
    if command.kind == "register":
        return encode_call("registerPeer(string)", peer)
    if command.kind == "reward":
        signature = "submitReward(uint256,uint256,int256,string)"
        return encode_call(signature, command.round, command.stage, command.reward, peer)
    if command.kind == "winners":
        return encode_call("submitWinners(uint256,string[],string)", command.round, command.winners, peer)
    if drive not in STEPS:
        raise errors.ChainError('chain.drive is "never": this node does not move the contract on')
    return encode_call(STEPS[drive])


def _int_from_bytes(encoded: bytes) -> int:
    return int.from_bytes(encoded, "big")


GAS_MAX = 2_500_000  # units of gas of one submission
# What Ethereum's nodes say if they refuse a transaction; JSON-RPC's error codes do not distinguish these reasons.
KNOWN = re.compile(r"already.?(known|imported|exists|in)|known transaction", re.IGNORECASE)
UNTIMELY = re.compile(
    r"nonce.{0,12}too (low|high)|old.?nonce|underpriced|(fee|price).{0,8}too.?low|replacement.?not.?allowed|"
    r"less than (the )?(block )?base.?fee|gas price below",
    re.IGNORECASE,
)
POOR = re.compile(r"insufficient.?(funds|balance)|enough funds|exceeds (account )?balance", re.IGNORECASE)


class TransactionCall(NamedTuple):
    """The call that a transaction makes; `to` is empty if it creates a contract."""

    to: str
    content: bytes
    gas: int


class NonceSlot(NamedTuple):
    """The next attempt's nonce, and the attempt with that nonce that it would replace."""

    nonce: int
    replaced: SubmissionAttempt | None
    fills_gap: bool = False  # no transaction has this nonce any more, and those with higher nonces wait for one


class AccountTransactions:
    """Signs and sends transactions of one account, at prices within the bounds of the configuration."""

    def __init__(self, fees: FeesConfig, chain: AccountClient, key: TransactionSigner, budget: DailyBudget) -> None:
        self.account = key.account
        self.budget = budget
        self._fees = fees
        self._chain = chain
        self._key = key

    async def estimate_gas_limit(self, to: str, content: bytes, gas_max: int, what: str = "the call") -> int:
        """Return the gas limit: the present estimate and a quarter more. Raises ContractRefused: the contract would
        revert it; ChainError: it takes more than `gas_max`, or the endpoints fail."""
        try:
            estimate = await self._chain.estimate_gas(self.account, to, content)
        except errors.RpcRefused as refused:
            raise refusal_from_revert(refused, what) or refused from None
        if estimate > gas_max:
            raise errors.ChainError(
                f"{what} takes {estimate} gas, and no more than {gas_max} is ever signed for",
                "Check chain.contract: a swarm's contract takes less",
            )
        return min(estimate + estimate // 4, gas_max)

    async def sign_next_attempt(
        self, attempts: Sequence[SubmissionAttempt], place: NonceSlot, call: TransactionCall, what: str
    ) -> SubmissionAttempt | None:
        """Sign the next attempt after these; None if the bounds allow no price at which it replaces the one before.
        Raises InsufficientFunds, BudgetSpent, GasTooDear: it must wait; ChainError: the endpoints fail."""
        price: Price | None = await quote_gas_price(self._chain, self._fees)
        if price is not None and place.replaced is not None and place.replaced.raw:
            price = replacement_price(self._key.decode_signed(place.replaced).price, price, self._fees)
        if price is None:
            return None
        cost_wei, counted_wei = call.gas * price.fee_wei, counted_cost_wei(attempts, place.nonce)
        self.budget.check_budget(cost_wei, counted_wei, what)
        await self._check_balance(cost_wei, what)
        self.budget.record_spending(cost_wei, counted_wei)
        return self._key.sign_transaction(SignedTransaction(place.nonce, price, call.gas, call.to, call.content))

    async def _check_balance(self, needed_wei: int, what: str) -> None:
        balance_wei = await self._chain.balance_wei(self.account)
        if balance_wei < needed_wei:
            raise errors.InsufficientFunds(
                f"the account {self.account} has {format_coins(balance_wei)}, and the {what} may cost "
                f"{format_coins(needed_wei)}",
                "Send it some of the chain's coin; the node goes on by itself",
                needed_wei,
            )

    async def broadcast_attempt(self, prepared: SubmissionAttempt, what: str) -> bool:
        """Send a signed transaction; False if it was refused for a reason that the account's nonces will show.

        A refusal without an error of the contract, for instance for lack of gas, raises RpcRefused.

        Raises:
            ContractRefused: the contract would revert it.
            RpcRefused: the endpoint does not accept it.
            InsufficientFunds: the account cannot pay for it.
            EndpointFailed: it may have been sent.
        """
        try:
            await self._chain.send_raw_transaction(prepared.raw)
        except errors.RpcRefused as refused:
            if KNOWN.search(refused.message):
                return True
            if UNTIMELY.search(refused.message):
                log.info("%s was not taken: %s", prepared.hash, refused.message)
                return False
            if POOR.search(refused.message):
                said = self._key.decode_signed(prepared)
                await self._check_balance(said.gas * said.price.fee_wei, what)
            refusal = refusal_from_revert(refused, what)
            raise refusal if refusal is not None and refusal.code else refused from None
        return True


def make_wallet(
    config: ChainConfig, rpc: RpcPool, account: "LocalAccount", budget: DailyBudget | None = None
) -> "Wallet":
    from swarmd.chain.ethereum import EthereumClient

    return Wallet(config, EthereumClient(rpc), AccountSigner(account, config.chain_id, config.drive), budget)


class Wallet(AccountTransactions):
    """A `SubmissionSender` with the account's own key."""

    repeatable = True

    def __init__(
        self, config: ChainConfig, chain: AccountClient, key: TransactionSigner, budget: DailyBudget | None = None
    ) -> None:
        super().__init__(config.fees, chain, key, budget or DailyBudget(config.fees))
        self._contract = config.contract

    async def prepare_attempt(
        self, peer: str, command: Submit, attempts: Sequence[SubmissionAttempt]
    ) -> SubmissionAttempt | None:
        content = self._key.encode_submission(command, peer)
        gas = await self.estimate_gas_limit(self._contract, content, GAS_MAX)
        place = await self._choose_nonce(attempts, command.kind)
        if place.fills_gap and command.kind == "advance":
            return await self.sign_next_attempt(attempts, place, await self._make_empty_call(), "withdrawal")
        return await self.sign_next_attempt(
            attempts, place, TransactionCall(self._contract, content, gas), command.kind
        )

    async def prepare_withdrawal(self, attempts: Sequence[SubmissionAttempt]) -> SubmissionAttempt | None:
        """Sign an empty transaction to the account itself, with the nonce of the last attempt."""
        nothing = await self._make_empty_call()
        return await self.sign_next_attempt(
            attempts, await self._choose_nonce(attempts, "withdrawal"), nothing, "withdrawal"
        )

    async def _make_empty_call(self) -> TransactionCall:
        return TransactionCall(self.account, b"", await self.estimate_gas_limit(self.account, b"", GAS_MAX))

    async def _choose_nonce(self, attempts: Sequence[SubmissionAttempt], what: str) -> NonceSlot:
        """Choose the nonce of the next attempt.

        A step of the contract would be made twice if two attempts at it were mined, so it keeps the highest nonce of
        its attempts. A withdrawal replaces the attempt's own nonce before it fills a lower one, which would let the
        attempt be mined.
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
        # Another process's transaction with a lower nonce is lost, so ours cannot be mined. A second nonce is safe for
        # calls
        # that the contract accepts only once; for a step of the contract an empty transaction fills the gap.
        log.warning("%s: nonce %d of %s is free again", what, waiting, self.account)
        at_gap = (each for each in reversed(free) if each.nonce == waiting)
        return NonceSlot(waiting, next(at_gap, None), fills_gap=True)

    async def _check_none_succeeded(self, attempts: Sequence[SubmissionAttempt]) -> None:
        """Raise ChainError if one was mined meanwhile: a second nonce would submit it twice."""
        for each in reversed(attempts):
            mined = await self._find_mined_attempt(each)
            if mined is not None and mined.succeeded:
                raise errors.ChainError(f"{each.hash} was mined meanwhile, in block {mined.block.number}")

    async def send_attempt(self, peer: str, command: Submit, prepared: SubmissionAttempt) -> str | None:
        return prepared.hash if await self.broadcast_attempt(prepared, command.kind) else None

    async def trace_attempts(self, attempts: Sequence[SubmissionAttempt]) -> Fate:
        """Check the nonces first: an attempt whose nonce is not used has no receipt."""
        count = await self._chain.nonce(self.account)
        spent = [each for each in attempts if each.nonce < count]
        mined = [found for each in reversed(spent) if (found := await self._find_mined_attempt(each))]
        succeeded = next((each for each in mined if each.succeeded), None)
        if succeeded is not None:
            return succeeded
        if len(spent) < len(attempts):
            return "waiting"
        return mined[0] if mined else "gone"

    async def _find_mined_attempt(self, attempt: SubmissionAttempt) -> MinedAttempt | None:
        if not attempt.hash:
            return None
        receipt = await self._chain.find_receipt(attempt.hash)
        if receipt is None:
            return None
        withdrawn = receipt.to == self.account or self._is_withdrawal(attempt)  # a confirmed attempt has no bytes
        return MinedAttempt(attempt.hash, receipt.block, receipt.succeeded and not withdrawn)

    def _is_withdrawal(self, attempt: SubmissionAttempt) -> bool:
        return bool(attempt.raw) and self._key.decode_signed(attempt).to == self.account

    async def is_attempt_known(self, prepared: SubmissionAttempt) -> bool:
        return await self._chain.has_transaction(prepared.hash)

    async def explain_revert(self, peer: str, command: Submit, mined: MinedAttempt) -> None:
        content = self._key.encode_submission(command, peer)
        await rehearse(self._chain, self._contract, content, self.account, "the call", mined.block.number)


async def rehearse(
    chain: AccountClient, contract: str, content: bytes, account: str, what: str, block: Block = "latest"
) -> None:
    """Make a call that changes nothing. Raises ContractRefused if the contract would revert it, ChainError."""
    try:
        await chain.call_contract(contract, content, account, block)
    except errors.RpcRefused as refused:
        raise refusal_from_revert(refused, what) or refused from None


CALL_S = 10.0  # timeout for a call to the proxy
ANSWER_BYTES_MAX = 64 * 1024  # the rest of a proxy's answer is not read
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


TOKEN = SecretKind(
    "signer proxy's bearer token", errors.KeystoreError, TOKEN_BYTES_MAX, "Ask the proxy's operator for one"
)


class ProxySender:
    """A `SubmissionSender` through a signer proxy. `token`: bearer token, empty for none."""

    repeatable = False
    budget = None  # the signer has its own

    def __init__(self, config: ChainConfig, rpc: RpcPool, token: str = "") -> None:
        from swarmd.chain.ethereum import EthereumClient

        self.account = config.proxy.account  # as configured: the proxy does not report it
        self._config = config
        self._chain = EthereumClient(rpc)
        self._url = config.proxy.url.rstrip("/")
        self._name = url_without_secrets(self._url)
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    async def prepare_attempt(
        self, peer: str, command: Submit, attempts: Sequence[SubmissionAttempt]
    ) -> SubmissionAttempt | None:
        """Return an attempt that stands for a request. If the account is known, simulate the call first."""
        if command.kind not in METHODS:
            raise errors.ContractRefused(
                "not-offered", f"a signer proxy does not offer to {command.kind}", 'Set drive = "never"'
            )
        if self.account:
            content = encode_submission_call(command, peer, "never")
            await rehearse(self._chain, self._config.contract, content, self.account, command.kind)
        return SubmissionAttempt()

    async def prepare_withdrawal(self, attempts: Sequence[SubmissionAttempt]) -> SubmissionAttempt | None:
        """Return None: a request cannot be withdrawn."""
        return None

    async def trace_attempts(self, attempts: Sequence[SubmissionAttempt]) -> Fate:
        """Return "waiting": a proxy does not report its transactions."""
        return "waiting"

    async def is_attempt_known(self, prepared: SubmissionAttempt) -> bool:
        """Return False: a proxy does not report its transactions."""
        return False

    async def explain_revert(self, peer: str, command: Submit, mined: MinedAttempt) -> None:
        """Do nothing: this node has no transactions of its own."""

    async def send_attempt(self, peer: str, command: Submit, prepared: SubmissionAttempt) -> str | None:
        """Send the request, see `SubmissionSender`. Returns the hash in the proxy's answer, empty if there is none."""
        status, answer = await self._post_request(METHODS[command.kind], self._make_request_body(peer, command))
        said = _parse_json(answer)
        if status == 200 and isinstance(said, dict):
            return replace_unprintable(str(said.get("hash") or "")[:HASH_CHARS_MAX])
        error = str(said.get("error", "") if isinstance(said, dict) else "")
        if error in NAMES:
            raise errors.ContractRefused(
                error, f"the contract refused it to the signer proxy: {error}", advice_for_error(error)
            )
        raise self._error_from_answer(status, error)

    def _make_request_body(self, peer: str, command: Submit) -> dict[str, Any]:
        body: dict[str, Any] = {"orgId": self._config.proxy.org}
        if command.kind == "reward":
            body |= {"roundNumber": command.round, "stageNumber": command.stage, "reward": command.reward}
        elif command.kind == "winners":
            body |= {"roundNumber": command.round, "winners": list(command.winners)}
        return body | {"peerId": peer}

    async def _post_request(self, method: str, body: dict[str, Any]) -> tuple[int, bytes]:
        content = json.dumps(body).encode()
        patience = aiohttp.ClientTimeout(total=CALL_S)
        url = f"{self._url}/{method}"
        try:
            async with (
                aiohttp.ClientSession(timeout=patience) as session,
                session.post(url, data=content, headers=self._headers, allow_redirects=False) as answer,
            ):
                return answer.status, await read_body_start(answer.content, ANSWER_BYTES_MAX)
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL):
            raise errors.SignerError(f"the signer proxy {self._name} cannot be reached: is it running?") from None
        except TimeoutError:
            raise errors.EndpointFailed(f"the signer proxy {self._name} did not answer within {CALL_S:g} s") from None
        except aiohttp.ClientError as error:
            raise errors.EndpointFailed(f"the signer proxy {self._name} broke off ({type(error).__name__})") from None

    def _error_from_answer(self, status: int, error: str) -> errors.SignerError | errors.EndpointFailed:
        """Return the error for an answer. If status >= 500, or if malformed, it may have been submitted."""
        words = replace_unprintable(error[:REASON_CHARS_MAX])
        said = f" ({words})" if words else ""
        if 300 <= status < 500:
            hint = HINTS.get(status, "it did not do as asked: check chain.proxy.url")
            return errors.SignerError(f"the signer proxy {self._name} answered {status}{said}; {hint}", status, words)
        return errors.EndpointFailed(
            f"the signer proxy {self._name} answered {status}{said} and may have submitted or not"
        )


def _parse_json(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        return None
