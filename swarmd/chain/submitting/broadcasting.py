"""How an attempt gets to the chain: prepared, told, sent when it is in the log, and made dearer when it is stuck."""

from __future__ import annotations

import logging

from swarmd.chain.ports import BlockReader
from swarmd.chain.submitting.resolution import TOO_EARLY, ContractRefusal, SubmissionResolver
from swarmd.chain.submitting.sender import Mined, Sender
from swarmd.chain.submitting.submission_events import SubmissionReporter
from swarmd.chain.submitting.tracking import TrackedSubmission, list_replaced
from swarmd.core.values import Prepared
from swarmd.errors import ChainError, ContractRefused, EndpointFailed, RpcRefused
from swarmd.worker.runtime import LOOP, Runtime

log = logging.getLogger(__name__)


class Broadcaster:
    """Signs and sends attempts, each only after it is in the log, and replaces those that are stuck.

    Args:
        peer: this node's peer id.
        sender: what they go out through.
        verdicts: what to think of a refusal.
        blocks: of the chain.
        telling: of the facts.
        patience_s: how long an attempt may be without a result.
        runtime: the clock.
    """

    def __init__(
        self,
        peer: str,
        sender: Sender,
        verdicts: SubmissionResolver,
        blocks: BlockReader,
        telling: SubmissionReporter,
        patience_s: float,
        runtime: Runtime = LOOP,
    ) -> None:
        self._peer = peer
        self._sender = sender
        self._verdicts = verdicts
        self._blocks = blocks
        self._tell = telling
        self._patience_s = patience_s
        self._runtime = runtime
        self._unsent: set[str] = set()  # given back, and known not to be under way though the log has an attempt

    def resume(self, following: TrackedSubmission) -> None:
        """Continue attempts of an earlier process, which may still be pending; wait if their fate is unknown."""
        if following.attempts and not self._sender.repeatable and following.submission not in self._unsent:
            following.pushed_at = self._runtime.now()
        self._unsent.discard(following.submission)

    async def prepare(self, following: TrackedSubmission) -> None:
        """Make the first attempt of this life."""
        try:
            prepared = await self._sender.prepare(self._peer, following.command, following.attempts)
        except ContractRefused as error:
            await self._end_refused(following, error)
            return
        if prepared is None:
            raise ChainError("the bounds of chain.fees leave no price for it")
        self._tell.prepared(following, prepared)

    async def push(self, following: TrackedSubmission) -> None:
        """Have the newest attempt that may leave under way, and make a dearer one when it is stuck."""
        following.was_alive = True
        since = self._runtime.now() - self._patience_s
        if following.is_held_back(since):
            self._tell.prepared(following, following.attempts[-1])
        if following.is_stuck(since):
            await self._bump_fee(following)
        elif (prepared := following.released()) is not None:
            await self._send(following, prepared)

    async def _send(self, following: TrackedSubmission, prepared: Prepared) -> None:
        if not self._sender.repeatable:
            await self._send_once(following, prepared)
        elif prepared.raw:
            await self._hand_over(following, prepared)
        elif not following.waits_for_log:
            await self.prepare(following)  # it was confirmed once, and its bytes are kept no longer

    async def _hand_over(self, following: TrackedSubmission, prepared: Prepared) -> bool:
        """Send an attempt; False where the contract, or the endpoint, refused it."""
        try:
            name = await self._sender.send(self._peer, following.command, prepared)
        except ContractRefused as error:
            await self._end_refused(following, error)
            return False
        except RpcRefused as error:
            if following.pushed_at is None:  # not taken as it is signed, for want of gas, say: in time another one is
                following.pushed_at = self._runtime.now()
                self._tell.troubled(following, str(error))
            if not following.was_sent:
                following.unwanted.add(prepared.hash)
            return False
        if following.pushed_at is None or prepared.hash in following.unwanted:
            following.pushed_at = self._runtime.now()
        following.unwanted.discard(prepared.hash)
        if name is not None:
            self._tell.sent(following, prepared, name)
        return True

    async def _send_once(self, following: TrackedSubmission, prepared: Prepared) -> None:
        if following.pushed_at is not None:
            return
        try:
            await self._hand_over(following, prepared)
        except EndpointFailed as error:
            following.pushed_at = self._runtime.now()  # it may have arrived all the same
            self._tell.troubled(following, str(error))
        except ChainError:
            self._unsent.add(following.submission)
            raise

    async def _bump_fee(self, following: TrackedSubmission) -> None:
        """Replace a stuck attempt: by a dearer one, or by nothing where the contract would not take it any more."""
        if not self._sender.repeatable:
            self._unsent.add(following.submission)
            raise ChainError(f"the chain does not have it {self._patience_s:g} s after the signer proxy was asked")
        following.pushed_at = self._runtime.now()
        if following.withdrawn:
            await self.withdraw(following)
            return
        try:
            prepared = await self._sender.prepare(self._peer, following.command, list_replaced(following))
        except ContractRefused:
            await self.withdraw(following)
            return
        except EndpointFailed:
            raise
        except ChainError as error:
            log.warning("%s is stuck: %s", following.submission, error)
            prepared = None
        await self._replace(following, prepared)

    async def withdraw(self, following: TrackedSubmission) -> None:
        """Have nothing mined in the place of what is under way."""
        following.withdrawn = True
        await self._replace(following, await self._sender.withdraw(list_replaced(following)))

    async def _replace(self, following: TrackedSubmission, prepared: Prepared | None) -> None:
        """Tell the next attempt; where there can be none, send again what was sent.

        Of each nonce one: the endpoints may have forgotten the lowest, and no other comes up before it.
        """
        if prepared is not None:
            self._tell.prepared(following, prepared)
            return
        log.warning("%s is stuck at the highest price that chain.fees allows", following.submission)
        for each in following.released_by_nonce():
            if not await self._hand_over(following, each):
                return

    # --- what the contract says to it ---

    async def _end_refused(self, following: TrackedSubmission, error: ContractRefused) -> None:
        """The contract would not take the attempt."""
        verdict = await self._verdicts.judge(following.command, error)
        if isinstance(verdict, ContractRefusal):
            self._tell.refused(following, verdict)
        else:
            await self.include_here(following)

    async def include_here(self, following: TrackedSubmission) -> None:
        """The contract has it: the head, read after the contract, is no earlier than the block that brought it."""
        self._tell.included(following, await self._blocks.head(), "")

    async def end_reverted(self, following: TrackedSubmission, mined: Mined) -> None:
        """It was mined and reverted, so its nonce is spent."""
        try:
            await self._sender.explain(self._peer, following.command, mined)
        except ContractRefused as error:
            await self._judge_reverted(following, error)
            return
        self._tell.lost(following, f"it was reverted in block {mined.block.number}")

    async def _judge_reverted(self, following: TrackedSubmission, error: ContractRefused) -> None:
        if error.code in TOO_EARLY:  # in that block, which says nothing of now: the contract is asked again
            self._tell.lost(following, error.message)
            return
        try:
            await self._end_refused(following, error)
        except EndpointFailed:
            raise
        except ChainError as passing:
            self._tell.lost(following, str(passing))
