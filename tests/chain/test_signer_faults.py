"""The signer in this process: transactions that are stuck, dropped, reorganised away or overtaken."""

from pathlib import Path

import anyio
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from swarmd.chain import signer as signer_module
from swarmd.chain.signer import NonceReservingClient, SignerBusy, SignerRequest
from swarmd.config import FeesConfig
from swarmd.core.events import RegistrationLog, VoteLog
from swarmd.errors import ChainError, ContractRefused
from tests.chain.grounds import Answer, Call, Ground, ScriptedRpc, acting, middleman, result
from tests.chain.signing import ADDRESS, by_hand, fund, seated, sent, take_nonce, told

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def sent_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signer_module, "RESEND_S", 0.01)


PATIENT = FeesConfig()  # nothing is replaced while the test runs
REGISTER = SignerRequest("register", "Qm1")


async def test_a_stuck_transaction_is_replaced_by_a_dearer_one(ground: Ground, tmp_path: Path) -> None:
    by_hand(ground)
    async with seated(ground, tmp_path) as seat:
        first = await seat.signer.submit(REGISTER)
        ground.say("anvil_setNextBlockBaseFeePerGas", hex(50 * 10**9))
        await anyio.sleep(0.02)
        await seat.until(lambda: seat.whats.count("signed") >= 2)
        nonces = {line.nonce for line in seat.lines if line.what == "signed"}
        fees = [int(line.fee_wei) for line in seat.lines if line.what == "signed"]
        assert nonces == {0} and fees == sorted(set(fees))
        assert await seat.signer.submit(REGISTER) != first  # the newest is what may be mined
        await seat.until(lambda: int(seat.ledger.open_submissions()[0].attempts[-1].fee_wei) > 60 * 10**9)
        ground.mine(3)
        await seat.until(lambda: "confirmed" in seat.whats)
    assert (len(told(ground, RegistrationLog)), sent(ground)) == (1, 1)


async def test_one_that_the_contract_would_refuse_by_now_is_withdrawn(ground: Ground, tmp_path: Path) -> None:
    """Somebody else was quicker, and our transaction keeps all later ones waiting."""
    by_hand(ground)
    async with seated(ground, tmp_path) as seat:
        await seat.signer.submit(REGISTER)
        ground.say("anvil_dropTransaction", seat.lines[-1].hash)
        ground.say("evm_setAutomine", True)
        ground.swarm.register(ground.swarm.alice, "Qm1")
        by_hand(ground)
        await anyio.sleep(0.02)
        await seat.until(lambda: seat.whats.count("signed") >= 2)
        assert {line.nonce for line in seat.lines if line.what == "signed"} == {0}
        ground.mine()
        await seat.until(lambda: "ended" in seat.whats)
        assert seat.ledger.open_submissions() == []
        with pytest.raises(ContractRefused, match="PeerIdAlreadyRegistered"):
            await seat.signer.submit(REGISTER)
    assert sent(ground) == 1


async def test_one_whose_nonce_goes_to_another_program_after_the_answer_gets_another(
    ground: Ground, tmp_path: Path
) -> None:
    by_hand(ground)
    async with seated(ground, tmp_path, fees=PATIENT) as seat:
        first = await seat.signer.submit(REGISTER)
        for nonce in (0, 1):
            take_nonce(ground, nonce)
            await seat.until(lambda nonce=nonce: seat.ledger.open_submissions()[0].attempts[-1].nonce == nonce + 1)  # type: ignore[misc]
        assert await seat.signer.submit(REGISTER) != first
        ground.mine(3)
        await seat.until(lambda: "confirmed" in seat.whats)
        assert "ended" not in seat.whats
    assert (len(told(ground, RegistrationLog)), sent(ground)) == (1, 3)


async def test_one_look_that_misses_a_receipt_signs_nothing_anew(ground: Ground, tmp_path: Path) -> None:
    """An endpoint that knows the account's count may not know the receipt yet."""
    asked: list[Call] = []

    def hide(call: Call) -> Answer:
        asked.append(call)
        return result(call, None) if len(asked) == 1 else None

    act = acting(hide, "eth_getTransactionReceipt")
    async with middleman(ground.url, act) as one, seated(ground, tmp_path, rpc=(one.url,), fees=PATIENT) as seat:
        await seat.signer.submit(REGISTER)
        await seat.look()
        assert asked
        ground.mine(3)
        await seat.until(lambda: "confirmed" in seat.whats)
        assert seat.whats.count("signed") == 1


async def test_one_that_cannot_be_paid_a_second_time_keeps_no_other_waiting(ground: Ground, tmp_path: Path) -> None:
    by_hand(ground)
    async with seated(ground, tmp_path, fees=PATIENT) as seat:
        await seat.signer.submit(REGISTER)
        take_nonce(ground, 0)
        ground.say("anvil_setBalance", ADDRESS, "0x1")
        await seat.look()
        await seat.look()
        with pytest.raises(ChainError, match="has 1e-18 coins"):
            await seat.signer.submit(REGISTER)
        seat.signer._ready = False  # as after a restart
        await seat.look()
        fund(ground)
        await seat.until(lambda: seat.whats.count("signed") == 2)
        ground.mine(3)
        await seat.until(lambda: "confirmed" in seat.whats)
    assert len(told(ground, RegistrationLog)) == 1


async def test_a_peer_that_the_account_has_registered_is_no_refusal(ground: Ground, tmp_path: Path) -> None:
    """Clients of RL Swarm up to 0.4.3 end at one; the audit log that knew the transaction is gone."""
    async with seated(ground, tmp_path) as seat:
        await seat.signer.submit(REGISTER)
        ground.mine(3)
        await seat.until(lambda: "confirmed" in seat.whats)
    other = tmp_path / "anew"
    other.mkdir()
    async with seated(ground, other) as seat:
        assert await seat.signer.submit(REGISTER) == ""
        assert seat.whats == []
    assert sent(ground) == 1


async def test_what_a_reorganisation_drops_is_sent_again(ground: Ground, tmp_path: Path) -> None:
    async with seated(ground, tmp_path, depth=3, fees=PATIENT) as seat:
        hash = await seat.signer.submit(REGISTER)
        await seat.until(lambda: seat.whats[-1] == "mined")
        ground.say("anvil_rollback", 1)
        ground.say("anvil_dropAllTransactions")
        by_hand(ground)
        await seat.look()
        assert "reorganised" in seat.whats
        assert await seat.signer.submit(REGISTER) == hash
        ground.mine(5)
        await seat.until(lambda: seat.whats[-1] == "confirmed")
        assert seat.whats.count("signed") == 1
    assert (len(told(ground, RegistrationLog)), sent(ground)) == (1, 1)


async def test_what_one_endpoint_took_and_another_refuses_as_old_is_known(ground: Ground, tmp_path: Path) -> None:
    def take_silently(call: Call) -> Answer:
        ground.say(call["method"], *call["params"])
        return web.Response(status=502)

    endpoints = middleman(ground.url, acting(take_silently, "eth_sendRawTransaction"))
    async with endpoints as between, seated(ground, tmp_path, rpc=(between.url, ground.url), fees=PATIENT) as seat:
        hash = await seat.signer.submit(REGISTER)
        await seat.until(lambda: (ground.say("eth_getTransactionReceipt", hash) or {}).get("status") == "0x1")
        assert seat.whats.count("signed") == 1
    assert sent(ground) == 1


async def test_a_confirmed_one_that_the_chain_lost_is_brought_back(ground: Ground, tmp_path: Path) -> None:
    async with seated(ground, tmp_path, depth=0, fees=PATIENT) as seat:
        hash = await seat.signer.submit(REGISTER)
        await seat.until(lambda: seat.whats[-1] == "confirmed")
        ground.say("anvil_rollback", 1)
        ground.say("anvil_dropAllTransactions")
        assert await seat.signer.submit(REGISTER) == hash
        assert "reorganised" in seat.whats
    ground.say("evm_mine")  # what is sent is mined at once, but not before it is answered
    assert len(told(ground, RegistrationLog)) == 1


async def test_an_empty_vote_is_cast_once(ground: Ground, tmp_path: Path) -> None:
    """The contract would take it again and again."""
    async with seated(ground, tmp_path) as seat:
        await seat.signer.submit(REGISTER)
        await seat.until(lambda: "mined" in seat.whats)
        vote = SignerRequest("winners", "Qm1", 0)
        assert await seat.signer.submit(vote) == await seat.signer.submit(vote)
        await seat.until(lambda: seat.whats.count("mined") == 2)
    assert len(told(ground, VoteLog)) == 1


async def test_too_much_at_once_is_refused(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand(ground)
    monkeypatch.setattr(signer_module, "OPEN_MAX", 2)
    async with seated(ground, tmp_path) as seat:
        await seat.signer.submit(REGISTER)
        await seat.signer.submit(SignerRequest("register", "Qm2"))
        with pytest.raises(SignerBusy):
            await seat.signer.submit(SignerRequest("register", "Qm3"))
        ground.mine(3)
        await seat.until(lambda: seat.whats.count("confirmed") == 2)
        await seat.signer.submit(SignerRequest("register", "Qm3"))


async def test_a_request_does_not_wait_for_ever(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signer_module, "TURN_S", 0.05)
    async with seated(ground, tmp_path) as seat, seat.signer._exclusive_turn():
        with pytest.raises(SignerBusy, match="took longer"):
            await seat.signer.submit(REGISTER)
    assert sent(ground) == 0


@given(st.integers(0, 20), st.sets(st.integers(0, 30)))
async def test_the_next_nonce_is_the_first_that_nothing_in_flight_has(count: int, held: set[int]) -> None:
    chain, account = NonceReservingClient(ScriptedRpc(lambda *_: hex(count)), lambda: held), "0x" + 40 * "1"
    given_nonce = await chain.nonce(account, "pending")
    assert given_nonce >= count and given_nonce not in held
    assert set(range(count, given_nonce)) <= held
    assert await chain.nonce(account) == count
