"""Brings submissions about, each exactly once.

The order is always the same: what became of earlier attempts, what the contract has, and only then something new. A new
attempt is told first, and leaves when it comes back as a `Broadcast` or with a `Submit`: then it is in the log. So all
follows from `Submit` and the chain, and this process may be killed at any point.
"""

from __future__ import annotations

import logging

from swarmd.chain.ports import AccountPort, ConfirmedBlock, ContractReader, NotThere
from swarmd.chain.submitting.broadcasting import Broadcaster
from swarmd.chain.submitting.resolution import ContractRefusal, SubmissionResolver
from swarmd.chain.submitting.sender import Fate, Mined, Sender
from swarmd.chain.submitting.submission_events import SubmissionReporter
from swarmd.chain.submitting.tracking import TrackedSubmission
from swarmd.config import ChainConfig
from swarmd.core.commands import Broadcast, Submit
from swarmd.core.events import CommandFailed
from swarmd.core.values import BlockRef
from swarmd.errors import (
    AccountPoor,
    BudgetSpent,
    ChainError,
    ChainMismatch,
    ContractRefused,
    EndpointFailed,
    SwarmdError,
)
from swarmd.worker.ports import EventSink
from swarmd.worker.runtime import LOOP, Runtime

FOLLOWED_MAX = 4096  # submissions looked after at once; one more is turned away, and comes again
IDLE_S = 5.0  # everything is looked at again after so long without a new head
HELD_S = 60.0  # what the day's budget has no room for is looked at again after so long
DEAD_LOOKS = 2  # an attempt is gone when two looks find it so: endpoints do not all know the same block

log = logging.getLogger(__name__)


class Submitter:
    """Follows submissions from their order until they are confirmed, refused, lost or given back.

    Args:
        config: patience, and who moves the contract on.
        peer: this node's peer id.
        coordinator: the contract.
        accounts: of its chain.
        sender: what they go out through.
        confirmed: gives the number of the last block that counts as confirmed.
        emit: takes the facts.
        runtime: the clock, and what wakes.
    """

    def __init__(
        self,
        config: ChainConfig,
        peer: str,
        coordinator: ContractReader,
        accounts: AccountPort,
        sender: Sender,
        confirmed: ConfirmedBlock,
        emit: EventSink,
        runtime: Runtime = LOOP,
    ) -> None:
        self._config = config
        self._accounts = accounts
        self._sender = sender
        self._confirmed = confirmed
        self._emit = emit
        self._following: dict[str, TrackedSubmission] = {}
        self._runtime = runtime
        self._blocks = coordinator.blocks
        self._verdicts = SubmissionResolver(coordinator, self._blocks, peer, sender.account)
        self._tell = SubmissionReporter(emit, self._forget, runtime)
        self._way = Broadcaster(peer, sender, self._verdicts, self._blocks, self._tell, config.fees.stuck_s, runtime)
        self._woken = runtime.signal()
        self._depth: int | None = None  # in this round of looks: the last confirmed block,
        self._hashes: dict[int, str] = {}  # and the chain's blocks by number, read after it

    # --- orders ---

    def take(self, command: Submit | Broadcast) -> None:
        """Take an order; what comes of it is told as facts."""
        following = self._following.get(command.submission)
        if isinstance(command, Submit):
            self._take_submit(command, following)
        elif following is None:
            self._emit(CommandFailed(command.id, "this submission is not under way here"))
        else:
            following.release(command.prepared)
        self._woken.set()

    def _take_submit(self, command: Submit, following: TrackedSubmission | None) -> None:
        if following is not None:
            following.renew(command)
        elif len(self._following) >= FOLLOWED_MAX:
            self._emit(CommandFailed(command.id, f"{FOLLOWED_MAX} submissions are looked after already"))
        else:
            following = self._following[command.submission] = TrackedSubmission(command)
            self._way.resume(following)

    def _forget(self, following: TrackedSubmission) -> None:
        self._following.pop(following.submission, None)

    def on_head(self) -> None:
        """The chain has a new head: look at everything again."""
        self._woken.set()

    async def run(self) -> None:
        """Check all tracked submissions until cancelled. Raises nothing that an endpoint can bring about."""
        while True:
            await self._woken.wait(self._pause_s())
            self._depth = None
            self._hashes.clear()
            for following in list(self._following.values()):
                await self._look_after(following)

    def _pause_s(self) -> float | None:
        return min(IDLE_S, self._config.fees.stuck_s / 2) if self._following else None

    async def _look_after(self, following: TrackedSubmission) -> None:
        try:
            if following.held_until <= self._runtime.now() and await self._check_funds(following):
                await self._step(following)
        except (ChainError, ChainMismatch, ContractRefused) as error:  # a mismatch is for the watcher to judge
            self._on_trouble(following, error)
        except SwarmdError:
            raise
        except Exception as error:
            log.exception("%s failed", following.command.id)
            self._tell.failed(following, f"{type(error).__name__}: {error}")

    async def _check_funds(self, following: TrackedSubmission) -> bool:
        """Forget what the account lacked once it has that much. Returns whether it lacks nothing any more."""
        if following.needed_wei and await self._accounts.balance_wei(self._sender.account) >= following.needed_wei:
            following.needed_wei = 0
        return not following.needed_wei

    def _on_trouble(self, following: TrackedSubmission, error: SwarmdError) -> None:
        """What is under way is looked at again anyway; what could not even begin is given back.

        What only coins or the day's budget are missing for stays, so that it goes on as soon as they come; a step of
        the contract does not, for by then somebody else has made it.
        """
        if following.needed_wei:
            log.debug("%s: %s", following.command.id, error)
        elif isinstance(error, AccountPoor) and following.command.kind != "advance":
            following.needed_wei = error.needed_wei
            self._tell.troubled(following, str(error))
        elif isinstance(error, BudgetSpent) and following.command.kind != "advance":
            following.held_until = self._runtime.now() + HELD_S
            self._tell.troubled(following, str(error))
        elif following.block is not None or (isinstance(error, EndpointFailed) and following.attempts):
            log.info("%s: %s", following.command.id, error)
        else:
            self._tell.failed(following, str(error))

    # --- one look ---

    async def _step(self, following: TrackedSubmission) -> None:
        if following.block is not None and await self._follow_block(following, following.block):
            return
        fate: Fate = await self._sender.trace(following.attempts) if following.attempts else "gone"
        if isinstance(fate, Mined) and fate.succeeded:
            self._tell.included(following, fate.block, fate.hash)
            return
        seen = await self._verdicts.look(following.command)
        if seen is True:
            await self._way.include_here(following)
        elif isinstance(seen, ContractRefusal):
            await self._end_unwanted(following, seen, fate)
        elif fate == "waiting":
            following.dead_looks = 0
            await self._way.push(following)
        elif isinstance(fate, Mined) or following.count_missing(DEAD_LOOKS):
            await self._replace_dead(following, fate)

    async def _replace_dead(self, following: TrackedSubmission, fate: Fate) -> None:
        """No attempt can be mined. Those of an earlier life may have been reported as lost already."""
        if not following.was_alive:
            await self._begin(following)
        elif isinstance(fate, Mined):
            await self._way.end_reverted(following, fate)
        else:
            self._tell.lost(following, "another transaction took the nonce")

    async def _begin(self, following: TrackedSubmission) -> None:
        refusal = _unsignable(following.command)
        if refusal is not None:
            self._tell.refused(following, refusal)
        else:
            await self._way.prepare(following)

    async def _end_unwanted(self, following: TrackedSubmission, refusal: ContractRefusal, fate: Fate) -> None:
        """Refuse it, but not while an attempt is under way that could still be mined: its nonce must be spent first."""
        if refusal.permanent or fate != "waiting" or not await self._is_under_way(following):
            self._tell.refused(following, refusal)
        elif self._config.drive == "manager" and not following.withdrawn:
            await self._way.withdraw(following)  # a manager's step asks nothing, and would be made from another stage
        else:
            await self._way.push(following)

    async def _is_under_way(self, following: TrackedSubmission) -> bool:
        released = following.released()
        return released is not None and (following.was_sent or await self._sender.is_known(released))

    # --- on the chain ---

    async def _follow_block(self, following: TrackedSubmission, block: BlockRef) -> bool:
        """Confirm it once its block is deep enough; forget the block where the chain has another in its place.

        Returns whether the chain still has it in this block.
        """
        if self._depth is None:
            self._depth = await self._confirmed()
        there = await self._hash_at(block.number) == block.hash
        deep = block.number <= self._depth
        if there and deep and not following.hash:
            there = await self._verdicts.look(following.command) is True
        if not there:
            following.drop()
            return False
        if following.is_unannounced:
            self._tell.included(following, block, following.hash)
        if deep:
            self._tell.confirmed(following, block)
        return True

    async def _hash_at(self, number: int) -> str:
        if number not in self._hashes:
            try:
                self._hashes[number] = (await self._blocks.at(number)).hash
            except NotThere:
                self._hashes[number] = ""
        return self._hashes[number]


def _unsignable(command: Submit) -> ContractRefusal | None:
    """Why nothing new may be signed for it."""
    if command.kind == "winners" and not command.winners:
        return ContractRefusal(
            "empty-vote", "a vote without winners leaves no trace on the chain, and could be repeated"
        )
    if command.kind in ("register", "advance") or command.prepared or command.mark < (command.round, command.stage):
        return None
    reason = f"the chain has one of this node of round {command.mark[0]} already: nothing older is signed"
    return ContractRefusal("below-mark", reason)
