"""A chain's accounts, transactions and calls, through web3.py over the configured endpoints.

web3.py knows each JSON-RPC method's arguments and results. Its own providers are not used: `RpcPoolProvider` routes its
requests to an `RpcPool`, which bounds every answer and turns to the next endpoint if one fails (docs/adr/0025).
"""

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar, cast

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address
from hexbytes import HexBytes
from web3 import AsyncWeb3
from web3.exceptions import TransactionNotFound, Web3Exception
from web3.providers.async_base import AsyncBaseProvider
from web3.types import BlockIdentifier, RPCEndpoint, RPCResponse, TxParams

from swarmd.bounds import WORD_MAX
from swarmd.chain.endpoints import RpcPool
from swarmd.chain.ports import Block, MinedTransaction
from swarmd.core.values import BlockRef
from swarmd.errors import EndpointFailed

QUANTITY_MAX = 2**256 - 1  # the chain's own bound
NONCE_MAX = 2**64 - 2  # the highest that a transaction may have (EIP-2681)

# What web3.py raises if an endpoint's answer is malformed.
MISSHAPEN = (Web3Exception, ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError)

T = TypeVar("T")


class RpcPoolProvider(AsyncBaseProvider):
    """Routes web3.py's requests to an `RpcPool`, whose EndpointFailed, RpcRefused and ChainMismatch pass through."""

    def __init__(self, rpc: RpcPool) -> None:
        super().__init__()
        self._rpc = rpc

    async def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        return {"jsonrpc": "2.0", "id": 0, "result": await self._rpc.call(method, params, Any)}


class EthereumClient:
    """Accounts, transactions and calls: see `swarmd.chain.ports.AccountClient`."""

    def __init__(self, rpc: RpcPool) -> None:
        # Without its middleware, which would request chain id and prices by itself, and without look-ups in ENS.
        self._eth = AsyncWeb3(RpcPoolProvider(rpc), middleware=[], ens=None).eth

    async def balance_wei(self, account: str) -> int:
        return await _await_number(self._eth.get_balance(_checksum_address(account), "latest"), "balance")

    async def nonce(self, account: str, block: Block = "latest") -> int:
        asked = self._eth.get_transaction_count(_checksum_address(account), cast(BlockIdentifier, block))
        return await _await_number(asked, "nonce", NONCE_MAX)

    async def gas_price_wei(self) -> int:
        return await _await_number(self._eth.gas_price, "gas price")

    async def base_fee_wei(self) -> int | None:
        block = await _await_typed_answer(self._eth.get_block("latest"), dict, "block")
        fee = block.get("baseFeePerGas")
        return None if fee is None else _check_number(fee, "base fee")

    async def estimate_gas(self, account: str, to: str, content: bytes) -> int:
        asked = _make_transaction_params(account, to, content)
        return await _await_number(self._eth.estimate_gas(asked, "latest"), "amount of gas")

    async def call_contract(self, to: str, content: bytes, account: str = "", block: Block = "latest") -> bytes:
        asked = _make_transaction_params(account, to, content)
        return bytes(await _await_typed_answer(self._eth.call(asked, cast(BlockIdentifier, block)), bytes, "result"))

    async def has_code(self, address: str, block: Block = "latest") -> bool:
        return bool(
            await _await_typed_answer(
                self._eth.get_code(_checksum_address(address), cast(BlockIdentifier, block)), bytes, "code"
            )
        )

    async def send_raw_transaction(self, raw: bytes) -> None:
        await _await_answer(self._eth.send_raw_transaction(raw), "hash")

    async def has_transaction(self, hash: str) -> bool:
        try:
            return bool(await _await_answer(self._eth.get_transaction(HexBytes(hash)), "transaction"))
        except TransactionNotFound:
            return False

    async def find_receipt(self, hash: str) -> MinedTransaction | None:
        try:
            found = await _await_typed_answer(self._eth.get_transaction_receipt(HexBytes(hash)), dict, "receipt")
        except TransactionNotFound:
            return None
        return await _await_answer(_parse_receipt(found), "receipt") if found.get("blockHash") else None


async def _parse_receipt(found: Mapping[str, Any]) -> MinedTransaction:
    price, created, to = found.get("effectiveGasPrice"), found.get("contractAddress"), found.get("to")
    return MinedTransaction(
        BlockRef(
            _check_number(found.get("blockNumber"), "block number", WORD_MAX), HexBytes(found["blockHash"]).to_0x_hex()
        ),
        _check_number(found.get("status"), "status") == 1,
        _check_number(found.get("gasUsed"), "amount of gas"),
        None if price is None else _check_number(price, "price"),
        to_checksum_address(created) if created else "",
        to_checksum_address(to) if to else "",
    )


def _make_transaction_params(account: str, to: str, content: bytes) -> TxParams:
    asked: TxParams = {"data": HexBytes(content)}
    if account:
        asked["from"] = _checksum_address(account)
    if to:
        asked["to"] = _checksum_address(to)
    return asked


def _checksum_address(text: str) -> ChecksumAddress:
    return to_checksum_address(text)


async def _await_answer(asked: Awaitable[T], what: str) -> T:
    """Wait for web3.py to decode an answer. Raises EndpointFailed if it cannot."""
    try:
        return await asked
    except TransactionNotFound:
        raise
    except MISSHAPEN as error:
        raise EndpointFailed(f"an endpoint's answer is not a valid {what}") from error


async def _await_typed_answer(asked: Awaitable[Any], kind: type[T], what: str) -> T:
    answer = await _await_answer(asked, what)
    if not isinstance(answer, kind):
        raise EndpointFailed(f"an endpoint's answer is not a valid {what}")
    return answer


async def _await_number(asked: Awaitable[Any], what: str, most: int = QUANTITY_MAX) -> int:
    return _check_number(await _await_answer(asked, what), what, most)


def _check_number(answer: Any, what: str, most: int = QUANTITY_MAX) -> int:
    """Check a number, because web3.py does not check its type and size. Raises EndpointFailed."""
    if type(answer) is not int or not 0 <= answer <= most:
        raise EndpointFailed(f"an endpoint's answer is not a valid {what}")
    return answer
