"""What is found on the chain without a transaction of this node, and what a refusal of the contract means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest

from swarmd.chain.ports import NotThere
from swarmd.chain.submitter import (
    REFUSED_ONCE_MAX,
    ContractRefusal,
    SubmissionResolver,
    Submitter,
    TrackedSubmission,
    _unsignable,
)
from swarmd.config import ChainConfig
from swarmd.core.commands import Submit
from swarmd.core.events import Event, SubmissionConfirmed, SubmissionIncluded, SubmissionLost
from swarmd.core.values import BlockRef, Prepared
from swarmd.errors import ChainError, ContractRefused

pytestmark = pytest.mark.anyio

REGISTER = Submit("submit/register/0", "register", "register")


class Endpoint:
    """A chain whose head stays, a contract that the test changes, and a sender that never sent anything."""

    account = "0xme"

    def __init__(self) -> None:
        self.owner = "0xme"
        self.depth = 0  # the last block that counts as confirmed

    @property
    def blocks(self) -> Endpoint:
        return self

    async def head(self) -> BlockRef:
        return BlockRef(7, "0x" + "a" * 64, "0x" + "b" * 64, 1.0)

    async def at(self, number: int) -> BlockRef:
        assert number == 7
        return await self.head()

    async def eoa(self, peer: str) -> str:
        return self.owner

    async def confirmed(self) -> int:
        return self.depth


@pytest.mark.parametrize(("mark", "code"), [((2, 5), ""), ((3, 0), ""), ((3, 1), "below-mark"), ((4, 0), "below-mark")])
def test_nothing_new_is_signed_up_to_the_place_that_the_chain_knows(mark: tuple[int, int], code: str) -> None:
    refusal = _unsignable(Submit("submit/reward/3/1/0", "reward/3/1", "reward", 3, 1, mark=mark))
    assert (refusal.code if refusal else "") == code


@pytest.fixture
def chain() -> Endpoint:
    return Endpoint()


async def follow(chain: Endpoint, *changes: Callable[[], None]) -> list[Event]:
    """What is told of a registration that the contract has, with a change of the chain before each further look."""
    told: list[Event] = []
    config = ChainConfig(rpc=("http://127.0.0.1:1",), chain_id=1, contract="0x" + "c" * 40)
    double = cast(Any, chain)
    submitter = Submitter(config, "me", double, double, double, chain.confirmed, told.append)
    submitter.take(REGISTER)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(submitter.run)
        await anyio.wait_all_tasks_blocked()
        for change in changes:
            change()
            submitter.on_head()
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    return told


async def test_it_is_confirmed_at_the_depth_if_the_contract_still_has_it(chain: Endpoint) -> None:
    told = await follow(chain, lambda: None, lambda: setattr(chain, "depth", 7))
    assert [type(event) for event in told] == [SubmissionIncluded, SubmissionConfirmed]


async def test_it_is_lost_if_the_contract_has_it_no_longer_although_the_block_stands(chain: Endpoint) -> None:
    """One endpoint was on another branch when it was asked for the contract, another one named the block."""

    def turn() -> None:
        chain.owner, chain.depth = "", 7

    told = await follow(chain, turn)
    assert [type(event) for event in told] == [SubmissionIncluded, SubmissionLost]


BARE = Prepared("0xa", 4, b"", "9")  # confirmed once, so that the log keeps its hash alone
WHOLE = Prepared("0xa", 4, b"signed", "9")
DEARER = Prepared("0xb", 4, b"", "12")


def ordered(*prepared: Prepared) -> Submit:
    return Submit("submit/register/0", "register", "register", prepared=prepared)


def test_the_same_transaction_with_bytes_takes_the_place_of_the_one_without() -> None:
    following = TrackedSubmission(ordered(BARE))
    following.add(WHOLE, at=1.0)
    assert following.attempts == [WHOLE] and following.waits_for_log and following.released() is None
    following.release(WHOLE)
    assert following.attempts == [WHOLE] and following.released() == WHOLE


def test_signed_again_it_is_the_newest_whichever_of_the_attempts_it_was() -> None:
    following = TrackedSubmission(ordered(BARE, DEARER))
    following.add(WHOLE, at=1.0)
    following.release(WHOLE)
    assert following.attempts == [DEARER, WHOLE] and following.released() == WHOLE


def test_an_order_from_before_it_was_logged_takes_no_bytes_away() -> None:
    following = TrackedSubmission(ordered(BARE))
    following.add(WHOLE, at=1.0)
    following.renew(ordered(BARE))
    assert following.attempts == [WHOLE] and following.waits_for_log
    following.renew(ordered(WHOLE))
    assert following.released() == WHOLE


def test_a_log_that_has_it_with_and_without_bytes_has_it_once() -> None:
    assert TrackedSubmission(ordered(BARE, DEARER, WHOLE, BARE)).attempts == [DEARER, WHOLE]


def test_a_request_to_a_proxy_has_no_bytes_to_wait_for() -> None:
    following = TrackedSubmission(ordered())
    following.add(Prepared(), at=1.0)
    following.release(Prepared())
    following.renew(ordered(Prepared()))
    assert following.attempts == [Prepared()] and following.released() == Prepared()


TOO_EARLY = ContractRefused("InvalidRoundNumber", "the call was refused: InvalidRoundNumber")


class Contract:
    """One that has nothing of ours, at a place that the test sets."""

    def __init__(self) -> None:
        self.where = (0, 0)
        self.owner = ""
        self.tip = BlockRef(7, "0x7")
        self.while_read: Callable[[], None] = lambda: None

    @property
    def blocks(self) -> Contract:
        return self

    async def eoa(self, peer: str) -> str:
        return self.owner

    async def has_reward(self, *asked: object) -> bool:
        return False

    async def place(self, block: str) -> tuple[int, int]:
        self.while_read()
        return self.where

    async def head(self) -> BlockRef:
        return self.tip

    async def at(self, number: int) -> BlockRef:
        return self.tip


def judging(account: str = "") -> tuple[Contract, SubmissionResolver]:
    contract = Contract()
    return contract, SubmissionResolver(cast(Any, contract), "me", account)


def reward(round: int) -> Submit:
    return Submit(f"submit/reward/{round}/0/0", f"reward/{round}/0", "reward", round=round, stage=0)


async def test_a_round_that_began_after_the_refusal_is_asked_for_again() -> None:
    contract, verdicts = judging()
    with pytest.raises(ChainError, match="before round 1"):
        await verdicts.judge(reward(1), TOO_EARLY)
    contract.where = (1, 0)  # between the call and the look: the refusal is of before
    with pytest.raises(ChainError, match="asked again"):
        await verdicts.judge(reward(1), TOO_EARLY)


async def test_what_is_refused_at_its_own_place_again_is_refused_for_good() -> None:
    contract, verdicts = judging()
    contract.where = (3, 0)
    for _ in range(2):
        with pytest.raises(ChainError, match="asked again"):
            await verdicts.judge(reward(1), TOO_EARLY)
        refused = await verdicts.judge(reward(1), TOO_EARLY)
        assert isinstance(refused, ContractRefusal) and refused.code == "InvalidRoundNumber"


async def test_a_refusal_of_before_a_reorganisation_counts_for_nothing() -> None:
    contract, verdicts = judging()
    contract.where = (1, 0)
    for tip in (BlockRef(7, "0x7"), BlockRef(7, "0x70"), BlockRef(7, "0x700")):
        contract.tip = tip  # it was taken back, refused, and came to its place again
        with pytest.raises(ChainError, match="asked again"):
            await verdicts.judge(reward(1), TOO_EARLY)
    refused = await verdicts.judge(reward(1), TOO_EARLY)
    assert isinstance(refused, ContractRefusal)


@pytest.mark.parametrize(
    ("account", "owner", "seen"),
    [("0xAb", "", False), ("0xAb", "0xaB", True), ("", "0xcd", True), ("0xAb", "0xcd", "taken")],
)
async def test_a_registration_is_ours_if_the_account_is(account: str, owner: str, seen: bool | str) -> None:
    contract, verdicts = judging(account)
    contract.owner = owner
    found = await verdicts.look(Submit("submit/register/0", "register", "register"))
    assert (found.code if isinstance(found, ContractRefusal) else found) == seen
    assert not isinstance(found, ContractRefusal) or found.permanent, "no waiting helps, so the node stops"


async def test_what_is_remembered_of_refusals_has_a_bound() -> None:
    contract, verdicts = judging()
    contract.where = (10_000, 0)
    for round in [0, *range(1, REFUSED_ONCE_MAX + 1), 0]:
        with pytest.raises(ChainError, match="asked again"):
            await verdicts.judge(reward(round), TOO_EARLY)


async def test_a_place_of_two_blocks_says_nothing() -> None:
    """Round and stage are asked for one after the other, by a number that another block may have by then."""
    contract, verdicts = judging()
    contract.where = (3, 2)
    contract.while_read = lambda: setattr(contract, "tip", BlockRef(7, "0x70"))
    with pytest.raises(NotThere, match="block 7 was replaced while the contract was read"):
        await verdicts.look(Submit("submit/advance/3/0/0", "advance/3/0", "advance", round=3, stage=0))
