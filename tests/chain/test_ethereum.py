"""What web3.py makes of a chain's answers, over endpoints of ours: values that are right, and typed errors."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.chain.endpoints import RpcPool
from swarmd.chain.ethereum import EthereumClient
from swarmd.errors import EndpointFailed
from tests.chain.faults import account_named
from tests.chain.grounds import CHAIN_ID, Ground, ScriptedRpc

pytestmark = pytest.mark.anyio

ACCOUNT = "0x" + 20 * "ab"  # as configurations may have it, without a checksum
HASH = "0x" + 32 * "12"
QUESTIONS: list[Callable[[EthereumClient], Awaitable[Any]]] = [
    lambda chain: chain.balance_wei(ACCOUNT),
    lambda chain: chain.nonce(ACCOUNT, "pending"),
    lambda chain: chain.gas_price_wei(),
    lambda chain: chain.base_fee_wei(),
    lambda chain: chain.estimate_gas(ACCOUNT, None, b"code"),
    lambda chain: chain.call_contract(ACCOUNT, b"call", ACCOUNT, 7),
    lambda chain: chain.has_code(ACCOUNT),
    lambda chain: chain.send_raw_transaction(b"signed"),
    lambda chain: chain.has_transaction(HASH),
    lambda chain: chain.find_receipt(HASH),
]
ANSWERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.from_regex(r"0x[0-9a-f]{0,80}"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["baseFeePerGas", "blockHash", "blockNumber", "status", "gasUsed", "contractAddress", "logs", "type"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=8,
)


@given(ANSWERS)
async def test_whatever_an_endpoint_answers_is_a_value_or_its_failure(answer: Any) -> None:
    for question in QUESTIONS:
        script = ScriptedRpc(lambda method, params: answer)
        try:
            await question(EthereumClient(script))
        except EndpointFailed as failed:
            assert "is not a valid" in failed.message
        assert len(script.asked) == 1


async def test_a_number_that_no_log_can_hold_is_an_endpoints_failure() -> None:
    with pytest.raises(EndpointFailed, match="not a valid nonce"):
        await EthereumClient(ScriptedRpc(lambda *_: hex(2**64))).nonce(ACCOUNT, "pending")
    receipt = {"blockHash": HASH, "blockNumber": hex(2**64), "status": "0x1", "gasUsed": "0x1"}
    with pytest.raises(EndpointFailed, match="not a valid block number"):
        await EthereumClient(ScriptedRpc(lambda *_: receipt)).find_receipt(HASH)


async def test_a_real_chain_is_understood(ground: Ground, calls: RpcPool) -> None:
    chain, account = EthereumClient(calls), account_named(ground, "alice")
    assert await chain.balance_wei(account.address.lower()) == ground.w3.eth.get_balance(account.address)
    assert await chain.has_code(ground.contract) and not await chain.has_code(account.address)
    assert await chain.base_fee_wei() == ground.w3.eth.get_block("latest")["baseFeePerGas"]
    gas = await chain.estimate_gas(account.address, None, b"\x60\x00")
    fields = {"chainId": CHAIN_ID, "nonce": 0, "gas": gas, "value": 0, "data": b"\x60\x00", "gasPrice": 10**10}
    signed = account.sign_transaction(fields)
    name = signed.hash.to_0x_hex()
    assert not await chain.has_transaction(name) and await chain.find_receipt(name) is None
    ground.say("evm_setAutomine", False)
    await chain.send_raw_transaction(signed.raw_transaction)
    assert await chain.has_transaction(name) and await chain.find_receipt(name) is None
    assert (await chain.nonce(account.address), await chain.nonce(account.address, "pending")) == (0, 1)
    ground.say("evm_mine")
    ground.say("evm_setAutomine", True)
    mined, said = await chain.find_receipt(name), ground.w3.eth.get_transaction_receipt(signed.hash)
    assert mined is not None and mined.succeeded and mined.contract == said["contractAddress"]
    assert (mined.block.number, mined.gas_used) == (said["blockNumber"], said["gasUsed"])
    assert mined.block.hash == said["blockHash"].to_0x_hex() and mined.price_wei == said["effectiveGasPrice"]
