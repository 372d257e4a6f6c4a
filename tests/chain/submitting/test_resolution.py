"""What a refusal of the contract means, while the contract moves on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from swarmd.chain.ports import NotThere
from swarmd.chain.submitting.tracking import REFUSED_ONCE_MAX, ContractRefusal, SubmissionResolver
from swarmd.core.commands import Submit
from swarmd.core.values import BlockRef
from swarmd.errors import ChainError, ContractRefused

pytestmark = pytest.mark.anyio

TOO_EARLY = ContractRefused("InvalidRoundNumber", "the call was refused: InvalidRoundNumber")


class Contract:
    """One that has nothing of ours, at a place that the test sets."""

    def __init__(self) -> None:
        self.where = (0, 0)
        self.owner = ""
        self.tip = BlockRef(7, "0x7")
        self.while_read: Callable[[], None] = lambda: None

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
    return contract, SubmissionResolver(cast(Any, contract), cast(Any, contract), "me", account)


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
