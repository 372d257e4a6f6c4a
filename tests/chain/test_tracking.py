"""What is found on the chain without a transaction of this node, what a refusal means, and which nonces are taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import anyio
import pytest

from swarmd.chain.fees import GWEI
from swarmd.chain.ports import BlockNotFound, MinedTransaction, Price, SignedTransaction
from swarmd.chain.senders import MinedAttempt, Wallet
from swarmd.chain.submitter import (
    REFUSED_ONCE_MAX,
    ContractRefusal,
    SubmissionResolver,
    Submitter,
    TrackedSubmission,
    _reason_not_to_sign,
)
from swarmd.config import ChainConfig, FeesConfig
from swarmd.core.commands import Submit
from swarmd.core.events import Event, SubmissionConfirmed, SubmissionIncluded, SubmissionLost
from swarmd.core.values import BlockRef, SubmissionAttempt
from swarmd.errors import ChainError, ContractRefused

pytestmark = pytest.mark.anyio

ME, CONTRACT = "0xme", "0xcontract"
BLOCK = BlockRef(7, "0x7")
REGISTER = Submit("submit/register/0", "register", "register")
REWARD = Submit("submit/reward/1/0/5", "reward/1/0", "reward", 1, 0)
ADVANCE = Submit("submit/advance/1/0/5", "advance/1/0", "advance", 1, 0)


class Chain:
    """Blocks, contract, accounts and a key whose signatures are readable; a test sets what they say."""

    account = ME

    def __init__(self, mined: int = 0, pending: int = 0) -> None:
        self.nonces = {"latest": mined, "pending": pending}
        self.receipts: dict[str, MinedTransaction] = {}
        self.owner = ""  # of the peer id
        self.where = (0, 0)  # round and stage
        self.tip = BlockRef(7, "0x7")
        self.depth = 0  # the last block that counts as confirmed
        self.while_read: Callable[[], None] = lambda: None

    @property
    def blocks(self) -> Chain:
        return self

    async def get_head(self) -> BlockRef:
        return self.tip

    async def get_block(self, number: int) -> BlockRef:
        return self.tip

    async def confirmed(self) -> int:
        return self.depth

    async def account_of_peer(self, peer: str) -> str:
        return self.owner

    async def has_reward(self, *asked: object) -> bool:
        return False

    async def round_and_stage(self, block: str) -> tuple[int, int]:
        self.while_read()
        return self.where

    async def nonce(self, account: str, block: str = "latest") -> int:
        return self.nonces[block]

    async def find_receipt(self, hash: str) -> MinedTransaction | None:
        return self.receipts.get(hash)

    async def estimate_gas(self, account: str, to: str, content: bytes) -> int:
        return 100_000 if content else 21_000

    async def base_fee_wei(self) -> int:
        return GWEI

    async def balance_wei(self, account: str) -> int:
        return 10**18

    def encode_submission(self, command: Submit, peer: str) -> bytes:
        return command.submission.encode()

    def sign_transaction(self, said: SignedTransaction) -> SubmissionAttempt:
        words = f"{said.nonce} {said.price.fee_wei} {said.price.tip_wei} {said.to} {said.content.decode()}"
        return SubmissionAttempt(f"0x{hash(words)}", said.nonce, words.encode(), str(said.price.fee_wei))

    def decode_signed(self, prepared: SubmissionAttempt) -> SignedTransaction:
        nonce, fee, tip, to, content = prepared.raw.decode().split(" ")
        return SignedTransaction(int(nonce), Price(int(fee), int(tip)), 100_000, to, content.encode())

    def mine(self, prepared: SubmissionAttempt, to: str = CONTRACT) -> None:
        self.receipts[prepared.hash] = MinedTransaction(BLOCK, True, 100_000, GWEI, "", to)
        self.nonces["latest"] = max(self.nonces["latest"], prepared.nonce + 1)
        self.nonces["pending"] = max(self.nonces["pending"], prepared.nonce + 1)


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("reward", {"mark": (2, 5)}, ""),
        ("reward", {"mark": (3, 0)}, ""),
        ("reward", {"mark": (3, 1)}, "below-mark"),
        ("reward", {"mark": (4, 0)}, "below-mark"),
        ("reward", {"mark": (3, 1), "prepared": (SubmissionAttempt("0xa", 4, b"signed", "9"),)}, ""),  # signed already
        ("winners", {"mark": (2, 0), "winners": ("a",)}, ""),
        ("winners", {"mark": (2, 0)}, "empty-vote"),
    ],
)
def test_nothing_new_is_signed_that_the_chain_may_know_or_takes_twice(
    kind: Any, fields: dict[str, Any], code: str
) -> None:
    refusal = _reason_not_to_sign(Submit("submit/it/0", "it", kind, 3, 1, **fields))
    assert (refusal.code if refusal else "") == code


def submitter_through(sender: object, told: list[Event], chain: Chain | None = None) -> Submitter:
    config = ChainConfig(rpc=(), chain_id=1, contract=CONTRACT, fees=FeesConfig(stuck_s=1.0))
    double = cast(Any, chain or Chain())
    return Submitter(config, "me", double, double, cast(Any, sender), double.confirmed, told.append)


async def follow(chain: Chain, *changes: Callable[[], None]) -> list[Event]:
    """What is told of a registration that the contract has, with a change of the chain before each further look."""
    told: list[Event] = []
    submitter = submitter_through(chain, told, chain)
    submitter.handle_command(REGISTER)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(submitter.run)
        await anyio.wait_all_tasks_blocked()
        for change in changes:
            change()
            submitter.on_head()
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    return told


async def test_it_is_confirmed_at_the_depth_if_the_contract_still_has_it() -> None:
    chain = Chain()
    chain.owner = ME
    told = await follow(chain, lambda: None, lambda: setattr(chain, "depth", 7))
    assert [type(event) for event in told] == [SubmissionIncluded, SubmissionConfirmed]


async def test_it_is_lost_if_the_contract_has_it_no_longer_although_the_block_stands() -> None:
    """One endpoint was on another branch when it was asked for the contract, another one named the block."""
    chain = Chain()
    chain.owner = ME

    def turn() -> None:
        chain.owner, chain.depth = "", 7

    told = await follow(chain, turn)
    assert [type(event) for event in told] == [SubmissionIncluded, SubmissionLost]


BARE = SubmissionAttempt("0xa", 4, b"", "9")  # confirmed once, so that the log keeps its hash alone
WHOLE = SubmissionAttempt("0xa", 4, b"signed", "9")
DEARER = SubmissionAttempt("0xb", 4, b"", "12")


def ordered(*prepared: SubmissionAttempt) -> Submit:
    return Submit("submit/register/0", "register", "register", prepared=prepared)


def test_the_same_transaction_with_bytes_takes_the_place_of_the_one_without() -> None:
    following = TrackedSubmission(ordered(BARE))
    following.add_attempt(WHOLE, at=1.0)
    assert following.attempts == [WHOLE] and following.is_waiting_for_log and following.newest_released() is None
    following.release_attempt(WHOLE)
    assert following.attempts == [WHOLE] and following.newest_released() == WHOLE


def test_signed_again_it_is_the_newest_whichever_of_the_attempts_it_was() -> None:
    following = TrackedSubmission(ordered(BARE, DEARER))
    following.add_attempt(WHOLE, at=1.0)
    following.release_attempt(WHOLE)
    assert following.attempts == [DEARER, WHOLE] and following.newest_released() == WHOLE


def test_an_order_from_before_it_was_logged_takes_no_bytes_away() -> None:
    following = TrackedSubmission(ordered(BARE))
    following.add_attempt(WHOLE, at=1.0)
    following.update_command(ordered(BARE))
    assert following.attempts == [WHOLE] and following.is_waiting_for_log
    following.update_command(ordered(WHOLE))
    assert following.newest_released() == WHOLE


def test_a_log_that_has_it_with_and_without_bytes_has_it_once() -> None:
    assert TrackedSubmission(ordered(BARE, DEARER, WHOLE, BARE)).attempts == [DEARER, WHOLE]


def test_a_request_to_a_proxy_has_no_bytes_to_wait_for() -> None:
    following = TrackedSubmission(ordered())
    following.add_attempt(SubmissionAttempt(), at=1.0)
    following.release_attempt(SubmissionAttempt())
    following.update_command(ordered(SubmissionAttempt()))
    assert following.attempts == [SubmissionAttempt()] and following.newest_released() == SubmissionAttempt()


TOO_EARLY = ContractRefused("InvalidRoundNumber", "the call was refused: InvalidRoundNumber")


def judging(account: str = "") -> tuple[Chain, SubmissionResolver]:
    contract = Chain()
    return contract, SubmissionResolver(cast(Any, contract), "me", account)


def reward(round: int) -> Submit:
    return Submit(f"submit/reward/{round}/0/0", f"reward/{round}/0", "reward", round=round, stage=0)


async def test_a_round_that_began_after_the_refusal_is_asked_for_again() -> None:
    contract, verdicts = judging()
    with pytest.raises(ChainError, match="before round 1"):
        await verdicts.resolve_refusal(reward(1), TOO_EARLY)
    contract.where = (1, 0)  # between the call and the look: the refusal is of before
    with pytest.raises(ChainError, match="asked again"):
        await verdicts.resolve_refusal(reward(1), TOO_EARLY)


async def test_what_is_refused_at_its_own_place_again_is_refused_for_good() -> None:
    contract, verdicts = judging()
    contract.where = (3, 0)
    for _ in range(2):
        with pytest.raises(ChainError, match="asked again"):
            await verdicts.resolve_refusal(reward(1), TOO_EARLY)
        refused = await verdicts.resolve_refusal(reward(1), TOO_EARLY)
        assert isinstance(refused, ContractRefusal) and refused.code == "InvalidRoundNumber"


async def test_a_refusal_of_before_a_reorganisation_counts_for_nothing() -> None:
    contract, verdicts = judging()
    contract.where = (1, 0)
    for tip in (BlockRef(7, "0x7"), BlockRef(7, "0x70"), BlockRef(7, "0x700")):
        contract.tip = tip  # it was taken back, refused, and came to its place again
        with pytest.raises(ChainError, match="asked again"):
            await verdicts.resolve_refusal(reward(1), TOO_EARLY)
    refused = await verdicts.resolve_refusal(reward(1), TOO_EARLY)
    assert isinstance(refused, ContractRefusal)


@pytest.mark.parametrize(
    ("account", "owner", "seen"),
    [("0xAb", "", False), ("0xAb", "0xaB", True), ("", "0xcd", True), ("0xAb", "0xcd", "taken")],
)
async def test_a_registration_is_ours_if_the_account_is(account: str, owner: str, seen: bool | str) -> None:
    contract, verdicts = judging(account)
    contract.owner = owner
    found = await verdicts.resolve_submission(Submit("submit/register/0", "register", "register"))
    assert (found.code if isinstance(found, ContractRefusal) else found) == seen
    assert not isinstance(found, ContractRefusal) or found.permanent, "no waiting helps, so the node stops"


async def test_what_is_remembered_of_refusals_has_a_bound() -> None:
    contract, verdicts = judging()
    contract.where = (10_000, 0)
    for round in [0, *range(1, REFUSED_ONCE_MAX + 1), 0]:
        with pytest.raises(ChainError, match="asked again"):
            await verdicts.resolve_refusal(reward(round), TOO_EARLY)


async def test_a_place_of_two_blocks_says_nothing() -> None:
    """Round and stage are asked for one after the other, by a number that another block may have by then."""
    contract, verdicts = judging()
    contract.where = (3, 2)
    contract.while_read = lambda: setattr(contract, "tip", BlockRef(7, "0x70"))
    with pytest.raises(BlockNotFound, match="block 7 was replaced while the contract was read"):
        await verdicts.resolve_submission(Submit("submit/advance/3/0/0", "advance/3/0", "advance", round=3, stage=0))


# --- which nonce the next attempt takes ---


def wallet_on(chain: Chain) -> Wallet:
    config = ChainConfig(rpc=(), chain_id=1, contract=CONTRACT, drive="manager", fees=FeesConfig(max_gwei=200.0))
    return Wallet(config, cast(Any, chain), cast(Any, chain))


async def prepared_by(wallet: Wallet, command: Submit, attempts: Sequence[SubmissionAttempt]) -> SubmissionAttempt:
    prepared = await wallet.prepare_attempt("me", command, attempts)
    assert prepared is not None
    return prepared


async def test_no_second_nonce_is_taken_for_what_was_mined_since_it_was_looked_at() -> None:
    chain = Chain(4, 4)
    wallet = wallet_on(chain)
    first = await prepared_by(wallet, REWARD, ())
    chain.mine(first)
    with pytest.raises(ChainError, match="was mined meanwhile, in block 7"):
        await wallet.prepare_attempt("me", REWARD, [first])


async def test_nor_is_a_gap_filled_then() -> None:
    chain = Chain(4, 6)
    wallet = wallet_on(chain)
    high = await prepared_by(wallet, REWARD, ())
    chain.nonces["pending"] = 4
    low = await prepared_by(wallet, REWARD, [high])
    assert (low.nonce, high.nonce) == (4, 6)
    chain.mine(low)
    with pytest.raises(ChainError, match="was mined meanwhile"):
        await wallet.prepare_attempt("me", REWARD, [high, low])


async def test_a_mined_withdrawal_is_no_success_although_the_log_has_its_hash_alone() -> None:
    chain = Chain(4, 4)
    wallet = wallet_on(chain)
    withdrawal = await wallet.prepare_withdrawal([await prepared_by(wallet, REWARD, ())])
    assert withdrawal is not None
    chain.mine(withdrawal, to=ME)
    for known in (withdrawal, SubmissionAttempt(withdrawal.hash, withdrawal.nonce)):
        assert await wallet.trace_attempts([known]) == MinedAttempt(withdrawal.hash, BLOCK, succeeded=False)


async def above_a_gap(command: Submit) -> tuple[Chain, Wallet, SubmissionAttempt]:
    """An attempt with nonce 5, when the endpoints have forgotten the transaction with nonce 4."""
    chain = Chain(4, 5)
    wallet = wallet_on(chain)
    attempt = await prepared_by(wallet, command, ())
    chain.nonces["pending"] = 4
    return chain, wallet, attempt


async def test_what_is_withdrawn_gives_up_its_own_nonce_before_one_below_is_filled() -> None:
    """Filled first, it would have the withdrawn one mined."""
    _, wallet, step = await above_a_gap(ADVANCE)
    first = await wallet.prepare_withdrawal([step])
    assert first is not None and first.nonce == step.nonce == 5
    second = await wallet.prepare_withdrawal([step, first])
    assert second is not None and second.nonce == 4


async def test_a_gap_below_a_step_of_the_contract_is_filled_with_nothing_and_the_step_keeps_its_nonce() -> None:
    chain, wallet, step = await above_a_gap(ADVANCE)
    filler = await prepared_by(wallet, ADVANCE, [step])
    assert (filler.nonce, chain.decode_signed(filler).to, chain.decode_signed(filler).content) == (4, ME, b"")
    chain.nonces["pending"] = 6
    dearer = await prepared_by(wallet, ADVANCE, [step, filler])
    assert (dearer.nonce, chain.decode_signed(dearer).to) == (5, CONTRACT)


async def test_a_gap_below_anything_else_is_filled_with_the_thing_itself() -> None:
    chain, wallet, reward = await above_a_gap(REWARD)
    again = await prepared_by(wallet, REWARD, [reward])
    assert (again.nonce, chain.decode_signed(again).to) == (4, CONTRACT)


async def test_at_the_highest_price_the_lowest_nonce_is_sent_again_too() -> None:
    """The endpoints forgot it, and the other one waits for it: nothing dearer may be signed for either."""
    low, high = SubmissionAttempt("0xa", 4, b"low", "9"), SubmissionAttempt("0xb", 5, b"high", "9")
    sent: list[SubmissionAttempt] = []

    class Sender:
        account = ME
        repeatable = True

        async def prepare_attempt(self, *asked: object) -> None:
            return None

        async def send_attempt(self, peer: str, command: Submit, prepared: SubmissionAttempt) -> str:
            sent.append(prepared)
            return prepared.hash

    following = TrackedSubmission(Submit(REWARD.id, REWARD.submission, "reward", 1, 0, prepared=(low, high)))
    following.pushed_at = 0.0
    await submitter_through(Sender(), [])._send_or_bump_fee(following)
    assert sent == [low, high]


async def test_one_that_was_mined_before_its_stage_began_is_tried_again() -> None:
    """The contract refused it in that block; by now the stage has begun."""
    told: list[Event] = []

    class Sender:
        account = ME

        async def explain_revert(self, peer: str, command: Submit, mined: MinedAttempt) -> None:
            raise ContractRefused("InvalidStageNumber", "the call was refused: InvalidStageNumber")

    mined = MinedAttempt("0xa", BLOCK, succeeded=False)
    await submitter_through(Sender(), told)._resolve_reverted(TrackedSubmission(REWARD), mined)
    assert told == [SubmissionLost(REWARD.submission, "the call was refused: InvalidStageNumber")]
