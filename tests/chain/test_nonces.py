"""Which nonce the next attempt takes, on a chain that forgets transactions and takes blocks back."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.chain.fees import GWEI
from swarmd.chain.ports import MinedTransaction, Price, SignedTransaction
from swarmd.chain.senders import Mined, Wallet
from swarmd.chain.submitter import Submitter, TrackedSubmission
from swarmd.config import ChainConfig, FeesConfig
from swarmd.core.commands import Submit
from swarmd.core.events import Event, SubmissionLost
from swarmd.core.values import BlockRef, Prepared
from swarmd.errors import ChainError, ContractRefused

pytestmark = pytest.mark.anyio

ME, CONTRACT = "0xme", "0xcontract"
BLOCK = BlockRef(7, "0x7")
REWARD = Submit("submit/reward/1/0/5", "reward/1/0", "reward", 1, 0)
ADVANCE = Submit("submit/advance/1/0/5", "advance/1/0", "advance", 1, 0)


class Chain:
    """Accounts of which only ours matters, and a key whose signatures are readable. The test sets the nonces."""

    account = ME

    def __init__(self, mined: int, pending: int) -> None:
        self.nonces = {"latest": mined, "pending": pending}
        self.receipts: dict[str, MinedTransaction] = {}

    async def nonce(self, account: str, block: str = "latest") -> int:
        return self.nonces[block]

    async def receipt(self, hash: str) -> MinedTransaction | None:
        return self.receipts.get(hash)

    async def estimate_gas(self, account: str, to: str, content: bytes) -> int:
        return 100_000 if content else 21_000

    async def base_fee_wei(self) -> int:
        return GWEI

    async def balance_wei(self, account: str) -> int:
        return 10**18

    def content_of(self, command: Submit, peer: str) -> bytes:
        return command.submission.encode()

    def sign(self, said: SignedTransaction) -> Prepared:
        words = f"{said.nonce} {said.price.fee_wei} {said.price.tip_wei} {said.to} {said.content.decode()}"
        return Prepared(f"0x{hash(words)}", said.nonce, words.encode(), str(said.price.fee_wei))

    def read(self, prepared: Prepared) -> SignedTransaction:
        nonce, fee, tip, to, content = prepared.raw.decode().split(" ")
        return SignedTransaction(int(nonce), Price(int(fee), int(tip)), 100_000, to, content.encode())

    def mine(self, prepared: Prepared, to: str = CONTRACT) -> None:
        self.receipts[prepared.hash] = MinedTransaction(BLOCK, True, 100_000, GWEI, "", to)
        self.nonces["latest"] = max(self.nonces["latest"], prepared.nonce + 1)
        self.nonces["pending"] = max(self.nonces["pending"], prepared.nonce + 1)


def wallet_on(chain: Chain, max_gwei: float = 200.0) -> Wallet:
    fees = FeesConfig(max_gwei=max_gwei)
    config = ChainConfig(rpc=(), chain_id=1, contract=CONTRACT, drive="manager", fees=fees)
    return Wallet(config, cast(Any, chain), cast(Any, chain))


def submitter_through(sender: object, told: list[Event]) -> Submitter:
    config = ChainConfig(rpc=(), chain_id=1, contract=CONTRACT, fees=FeesConfig(stuck_s=1.0))
    contract, nobody = SimpleNamespace(blocks=None), cast(Any, None)
    return Submitter(config, "me", cast(Any, contract), nobody, cast(Any, sender), nobody, told.append)


async def prepared_by(wallet: Wallet, command: Submit, attempts: Sequence[Prepared]) -> Prepared:
    prepared = await wallet.prepare("me", command, attempts)
    assert prepared is not None
    return prepared


async def test_no_second_nonce_is_taken_for_what_was_mined_since_it_was_looked_at() -> None:
    chain = Chain(4, 4)
    wallet = wallet_on(chain)
    first = await prepared_by(wallet, REWARD, ())
    chain.mine(first)
    with pytest.raises(ChainError, match="was mined meanwhile, in block 7"):
        await wallet.prepare("me", REWARD, [first])


async def test_nor_is_a_gap_filled_then() -> None:
    chain = Chain(4, 6)
    wallet = wallet_on(chain)
    high = await prepared_by(wallet, REWARD, ())
    chain.nonces["pending"] = 4
    low = await prepared_by(wallet, REWARD, [high])
    assert (low.nonce, high.nonce) == (4, 6)
    chain.mine(low)
    with pytest.raises(ChainError, match="was mined meanwhile"):
        await wallet.prepare("me", REWARD, [high, low])


async def test_a_mined_withdrawal_is_no_success_although_the_log_has_its_hash_alone() -> None:
    chain = Chain(4, 4)
    wallet = wallet_on(chain)
    withdrawal = await wallet.withdraw([await prepared_by(wallet, REWARD, ())])
    assert withdrawal is not None
    chain.mine(withdrawal, to=ME)
    for known in (withdrawal, Prepared(withdrawal.hash, withdrawal.nonce)):
        assert await wallet.trace([known]) == Mined(withdrawal.hash, BLOCK, succeeded=False)


async def test_what_is_withdrawn_gives_up_its_own_nonce_before_one_below_is_filled() -> None:
    """Filled first, it would have the withdrawn one mined."""
    chain = Chain(4, 5)
    wallet = wallet_on(chain)
    step = await prepared_by(wallet, ADVANCE, ())
    chain.nonces["pending"] = 4
    first = await wallet.withdraw([step])
    assert first is not None and first.nonce == step.nonce == 5
    second = await wallet.withdraw([step, first])
    assert second is not None and second.nonce == 4


async def test_a_gap_below_a_step_of_the_contract_is_filled_with_nothing_and_the_step_keeps_its_nonce() -> None:
    chain = Chain(4, 5)
    wallet = wallet_on(chain)
    step = await prepared_by(wallet, ADVANCE, ())
    chain.nonces["pending"] = 4
    filler = await prepared_by(wallet, ADVANCE, [step])
    assert (filler.nonce, chain.read(filler).to, chain.read(filler).content) == (4, ME, b"")
    chain.nonces["pending"] = 6
    dearer = await prepared_by(wallet, ADVANCE, [step, filler])
    assert (dearer.nonce, chain.read(dearer).to) == (5, CONTRACT)


async def test_a_gap_below_anything_else_is_filled_with_the_thing_itself() -> None:
    chain = Chain(4, 5)
    wallet = wallet_on(chain)
    reward = await prepared_by(wallet, REWARD, ())
    chain.nonces["pending"] = 4
    again = await prepared_by(wallet, REWARD, [reward])
    assert (again.nonce, chain.read(again).to) == (4, CONTRACT)


async def test_at_the_highest_price_the_lowest_nonce_is_sent_again_too() -> None:
    """The endpoints forgot it, and the other one waits for it: nothing dearer may be signed for either."""
    low, high = Prepared("0xa", 4, b"low", "9"), Prepared("0xb", 5, b"high", "9")
    sent: list[Prepared] = []

    class Sender:
        account = ME
        repeatable = True

        async def prepare(self, *asked: object) -> None:
            return None

        async def send(self, peer: str, command: Submit, prepared: Prepared) -> str:
            sent.append(prepared)
            return prepared.hash

    following = TrackedSubmission(Submit(REWARD.id, REWARD.submission, "reward", 1, 0, prepared=(low, high)))
    following.pushed_at = 0.0
    await submitter_through(Sender(), [])._push(following)
    assert sent == [low, high]


async def test_one_that_was_mined_before_its_stage_began_is_tried_again() -> None:
    """The contract refused it in that block; by now the stage has begun."""
    told: list[Event] = []

    class Sender:
        account = ME

        async def explain(self, peer: str, command: Submit, mined: Mined) -> None:
            raise ContractRefused("InvalidStageNumber", "the call was refused: InvalidStageNumber")

    mined = Mined("0xa", BLOCK, succeeded=False)
    await submitter_through(Sender(), told)._end_reverted(TrackedSubmission(REWARD), mined)
    assert told == [SubmissionLost(REWARD.submission, "the call was refused: InvalidStageNumber")]
