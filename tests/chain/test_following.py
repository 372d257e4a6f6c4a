"""What is found on the chain without a transaction of this node's, on a chain whose endpoints disagree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import anyio
import pytest

from swarmd.chain.submitter import Submitter, _unsignable
from swarmd.config import ChainConfig
from swarmd.core.commands import Submit
from swarmd.core.events import Event, SubmissionConfirmed, SubmissionIncluded, SubmissionLost

pytestmark = pytest.mark.anyio

REGISTER = Submit("submit/register/0", "register", "register")


class Endpoint:
    """A chain whose head stays, a contract that the test changes, and a sender that never sent anything."""

    account = "0xme"

    def __init__(self) -> None:
        self.owner = "0xme"
        self.depth = 0  # the last block that counts as confirmed

    async def request(self, method: str, params: Sequence[Any]) -> Any:
        assert method == "eth_getBlockByNumber"
        return {"number": "0x7", "hash": "0x" + "a" * 64, "parentHash": "0x" + "b" * 64, "timestamp": "0x1"}

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
