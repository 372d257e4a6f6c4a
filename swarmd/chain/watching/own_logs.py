"""What a node of a large swarm reads of the contract: what is said once a stage, and of rewards and votes its own."""

from __future__ import annotations

from swarmd.chain.ports import AccountSource, ContractReader, LogFilter
from swarmd.chain.watching.logs import REWARD_TOPIC, SAYINGS, VOTE_TOPIC
from swarmd.core.events import SubmissionsCounted
from swarmd.core.values import BlockRef
from swarmd.worker.ports import EventSink

EACH_MEMBERS = (REWARD_TOPIC, VOTE_TOPIC)  # every member says them in each round
COMMON = tuple(topic for topic in SAYINGS if topic not in EACH_MEMBERS)


class OwnLogs:
    """Which log entries are read, and the count in the place of those that are not.

    Args:
        shards: of the swarm; where it has none, the entries of all are read.
        contract: counts a stage's rewards.
        account: that this node submits from; while it is empty, rewards and votes of all accounts are read.
        emit: takes the counts.
    """

    def __init__(self, shards: int, contract: ContractReader, account: AccountSource, emit: EventSink) -> None:
        self._shards = shards
        self._contract = contract
        self._account = account
        self._emit = emit
        self._counted: SubmissionsCounted | None = None  # what was observed last

    def filters(self) -> tuple[LogFilter, ...]:
        """Filters that let through what is read; none where that is all."""
        if not self._shards:
            return ()
        account = self._account().removeprefix("0x").lower()
        senders = [["0x" + account.rjust(64, "0")]] if account else []
        return [COMMON], [EACH_MEMBERS, *senders]

    async def count(self, head: BlockRef) -> None:
        """Observe how many peers have reported the stage that is open at a block, where it is another number.

        Raises ChainError.
        """
        if not self._shards:
            return
        block = hex(head.number)
        count = await self._contract.submissions(block)
        counted = None if count is None else SubmissionsCounted(*await self._contract.place(block), count)
        if counted is not None and counted != self._counted:
            self._counted = counted
            self._emit(counted)

    def forget(self) -> None:
        """Blocks were replaced: what is counted next is observed, whatever it is."""
        self._counted = None
