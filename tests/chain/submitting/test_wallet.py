"""The wallet: nonce, gas and price of what it signs, and nothing above the bounds."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st

from swarmd.chain import senders as wallet_module
from swarmd.chain.endpoints import Rpc
from swarmd.chain.ethereum import Ethereum
from swarmd.chain.fees import GWEI, Price, bound_wei, quote, raised, replacing
from swarmd.chain.senders import (
    KNOWN,
    POOR,
    UNTIMELY,
    Mined,
    SignedTransaction,
    call_of,
    make_sender,
    read_signed,
    sign,
    wallet_of,
)
from swarmd.config import ChainConfig, FeesConfig
from swarmd.core.commands import Submit
from swarmd.core.events import RegistrationLog
from swarmd.core.values import Prepared
from swarmd.errors import ChainError, ContractRefused, KeystoreError, RpcRefused
from swarmd.paths import NodeDirectory
from tests.chain.faults import account_named, nonce_of, settings
from tests.chain.grounds import CHAIN_ID, Ground

pytestmark = pytest.mark.anyio

REGISTER = Submit("submit/register/1", "register", "register")
KEY = Account.from_key("0x" + 32 * "17")
PRICES = st.integers(0, 10**14)
SIGNED = st.builds(
    SignedTransaction,
    nonce=st.integers(0, 2**32),
    price=st.builds(Price, st.integers(1, 10**14), st.none() | st.just(1)),
    gas=st.integers(21_000, 10**7),
    to=st.just(Account.from_key("0x" + 32 * "18").address),
    content=st.binary(max_size=300),
)


@pytest.fixture
async def rpc(ground: Ground) -> AsyncIterator[Rpc]:
    connected = Rpc((ground.url,), CHAIN_ID, 2.0)
    yield connected
    await connected.close()


# --- prices ---


@given(earlier=PRICES, tip=PRICES, asked=PRICES, asked_tip=PRICES, cap_gwei=st.integers(1, 10**5))
def test_a_replacement_is_an_eighth_dearer_and_within_the_bound(
    earlier: int, tip: int, asked: int, asked_tip: int, cap_gwei: int
) -> None:
    fees = FeesConfig(max_gwei=float(cap_gwei))
    price = replacing(Price(earlier, min(tip, earlier)), Price(asked, min(asked_tip, asked)), fees)
    if price is None:
        assert max(asked, raised(earlier)) > bound_wei(fees) or raised(min(tip, earlier)) > raised(earlier) - 1
        return
    assert price.tip_wei is not None
    assert earlier * 1.125 <= price.fee_wei <= bound_wei(fees)
    assert min(tip, earlier) * 1.125 <= price.tip_wei <= price.fee_wei
    assert price.fee_wei >= asked


@given(earlier=PRICES, asked=PRICES)
def test_a_replacement_without_1559_has_one_price(earlier: int, asked: int) -> None:
    price = replacing(Price(earlier), Price(asked), FeesConfig(max_gwei=1e9))
    assert price == Price(max(asked, raised(earlier)))


@given(said=SIGNED)
def test_what_is_signed_can_be_read_back(said: SignedTransaction) -> None:
    assert read_signed(sign(KEY, 7, said)) == said


@given(raw=st.binary(max_size=120))
def test_bytes_that_are_no_transaction_are_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(ChainError, match="holds no transaction"):
        read_signed(Prepared("0x12", 1, raw))


WORDS = {
    KNOWN: ("already known", "Known transaction", "AlreadyKnown", "transaction already imported"),
    UNTIMELY: (
        *("nonce too low: next nonce 5, tx nonce 4", "OldNonce", "replacement transaction underpriced"),
        *("max fee per gas less than block base fee: address 0x0", "ReplacementNotAllowed", "FeeTooLow"),
        *("transaction underpriced: gas tip cap 0, minimum needed 1", "Gas price below configured minimum gas price"),
    ),
    POOR: (
        *("insufficient funds for gas * price + value", "INSUFFICIENT_FUNDS", "Upfront cost exceeds account balance"),
        "sender doesn't have enough funds to send tx",
    ),
}


@pytest.mark.parametrize(("pattern", "message"), [(pattern, word) for pattern in WORDS for word in WORDS[pattern]])
def test_the_words_of_ethereums_clients_are_understood(pattern: re.Pattern[str], message: str) -> None:
    assert [each for each in WORDS if each.search(message)] == [pattern]


# --- what is signed ---


def registrations(ground: Ground) -> list[Any]:
    """Registrations on the chain."""
    return [log for logs in ground.logs().values() for log in logs if isinstance(log, RegistrationLog)]


class Old:
    """A Caller on a chain without EIP-1559."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def request(self, method: str, params: Any) -> Any:
        answer = await self._rpc.request(method, params)
        if method == "eth_getBlockByNumber":
            answer.pop("baseFeePerGas")
        return hex(3 * GWEI) if method == "eth_gasPrice" else answer


@pytest.mark.parametrize("old", [False, True])
async def test_the_price_is_of_the_chains_kind(ground: Ground, rpc: Rpc, old: bool) -> None:
    wallet = wallet_of(
        settings(ground, tip_gwei=0.5, legacy=old), Old(rpc) if old else rpc, account_named(ground, "alice")
    )
    ground.say("evm_setAutomine", False)
    first = await wallet.prepare("me", REGISTER, ())
    assert first is not None and await wallet.send("me", REGISTER, first) == first.hash
    second = await wallet.prepare("me", REGISTER, [first])
    assert second is not None and await wallet.send("me", REGISTER, second) == second.hash
    ground.say("evm_mine")
    prices = [read_signed(each).price for each in (first, second)]
    if old:
        assert prices == [Price(3 * GWEI), Price(raised(3 * GWEI))]
    else:
        assert [each.tip_wei for each in prices] == [GWEI // 2, raised(GWEI // 2)]
        assert prices[0].fee_wei > GWEI
    mined = await wallet.trace([first, second])
    assert isinstance(mined, Mined) and mined.succeeded and mined.hash == second.hash
    assert mined.block.hash == ground.hash_of(mined.block.number)


@pytest.mark.parametrize("drive", ["policy", "manager"])
async def test_every_call_is_the_contracts(ground: Ground, drive: Any) -> None:
    calls = {
        "register": ground.swarm.call("registerPeer", "pé\x00er"),
        "reward": ground.swarm.call("submitReward(uint256,uint256,int256,string)", 3, 1, -5, "pé\x00er"),
        "winners": ground.swarm.call("submitWinners", 3, ["a", "b"], "pé\x00er"),
        "advance": ground.swarm.call("advance" if drive == "policy" else "updateStageAndRound"),
    }
    for kind, call in calls.items():
        command = Submit("submit/x/1", "x", kind, 3, 1, -5, ("a", "b"))  # type: ignore[arg-type]
        assert call_of(command, "pé\x00er", drive) == call.content


async def test_a_node_that_drives_nothing_signs_no_step(ground: Ground, rpc: Rpc) -> None:
    wallet = wallet_of(settings(ground, drive="never"), rpc, account_named(ground, "alice"))
    with pytest.raises(ChainError, match=r"chain\.drive"):
        await wallet.prepare("me", Submit("submit/advance/0/0/1", "advance/0/0", "advance"), ())


async def test_gas_has_a_margin_and_a_bound(ground: Ground, rpc: Rpc, monkeypatch: pytest.MonkeyPatch) -> None:
    account = account_named(ground, "alice")
    prepared = await wallet_of(settings(ground), rpc, account).prepare("me", REGISTER, ())
    assert prepared is not None
    used = 166_000  # of the account's first registration, docs/CONTRACT.md; a shorter peer id takes less
    assert used // 2 < read_signed(prepared).gas < used * 1.3
    monkeypatch.setattr(wallet_module, "GAS_MAX", 50_000)
    with pytest.raises(ChainError, match="no more than 50000"):
        await wallet_of(settings(ground), rpc, account).prepare("me", REGISTER, ())


async def test_the_bound_on_prices_holds(ground: Ground, rpc: Rpc) -> None:
    fees = FeesConfig(max_gwei=5.0, tip_gwei=100.0)
    ground.say("anvil_setNextBlockBaseFeePerGas", hex(4 * GWEI))
    ground.say("evm_mine")
    assert await quote(Ethereum(rpc), fees) == Price(5 * GWEI, 5 * GWEI)
    ground.say("anvil_setNextBlockBaseFeePerGas", hex(5 * GWEI + 1))
    ground.say("evm_mine")
    with pytest.raises(ChainError, match=r"chain\.fees\.max_gwei is 5"):
        await quote(Ethereum(rpc), fees)


async def test_a_refusal_of_the_contract_is_named_before_anything_is_signed(ground: Ground, rpc: Rpc) -> None:
    ground.swarm.register(ground.swarm.bob, "me")
    wallet = wallet_of(settings(ground), rpc, account_named(ground, "alice"))
    with pytest.raises(ContractRefused) as refused:
        await wallet.prepare("me", REGISTER, ())
    assert refused.value.code == "PeerIdAlreadyRegistered"


async def test_a_replacement_keeps_the_nonce_and_withdrawing_does_nothing(ground: Ground, rpc: Rpc) -> None:
    account = account_named(ground, "alice")
    wallet = wallet_of(settings(ground), rpc, account)
    ground.say("evm_setAutomine", False)
    first = await wallet.prepare("me", REGISTER, ())
    assert first is not None
    await wallet.send("me", REGISTER, first)
    assert await wallet.is_known(first) and await wallet.trace([first]) == "waiting"
    assert await wallet.send("me", REGISTER, first) == first.hash, "sent twice is sent once"
    second = await wallet.prepare("me", REGISTER, [first])
    third = await wallet.withdraw([first, second])
    assert second is not None and third is not None
    for prepared in (second, third):
        assert prepared.nonce == first.nonce
        assert await wallet.send("me", REGISTER, prepared) == prepared.hash
    assert await wallet.send("me", REGISTER, first) is None, "too cheap by now"
    ground.say("evm_mine")
    mined = await wallet.trace([first, second, third])
    assert isinstance(mined, Mined) and mined.hash == third.hash and not mined.succeeded
    assert await wallet.trace([first, second]) == "gone"
    assert await wallet.send("me", REGISTER, first) is None, "its nonce is spent"
    assert nonce_of(ground, account) == 1 and not registrations(ground)


@pytest.mark.parametrize("words", ["intrinsic gas too low", "out of gas", "exceeds block gas limit"])
async def test_what_an_endpoint_refuses_for_want_of_gas_is_no_word_of_the_contract(words: str) -> None:
    class Refusing:
        async def request(self, method: str, params: Any) -> Any:
            raise RpcRefused(-32000, words)

    config = ChainConfig(rpc=("http://127.0.0.1:1",), chain_id=CHAIN_ID, contract="0x" + "c" * 40)
    signed = sign(KEY, CHAIN_ID, SignedTransaction(0, Price(GWEI, GWEI), 9_000, KEY.address, b""))
    with pytest.raises(RpcRefused, match=words):
        await wallet_of(config, Refusing(), KEY).send("me", REGISTER, signed)


async def test_without_a_key_there_is_no_wallet(ground: Ground, rpc: Rpc, tmp_path: Any) -> None:
    with pytest.raises(KeystoreError):
        make_sender(settings(ground), NodeDirectory(tmp_path), rpc)
    assert make_sender(settings(ground, sender="none"), NodeDirectory(tmp_path), rpc) is None
