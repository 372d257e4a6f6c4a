"""Brings submissions about, each exactly once.

The order is always the same: what became of earlier attempts, what the contract has, and only then something new. A new
attempt is told first, and leaves when it comes back as a `Broadcast` or with a `Submit`: then it is in the log. So all
follows from `Submit` and the chain, and this process may be killed at any point.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
from anyio import current_time

from swarmd.chain.blocks import Blocks, NotThere
from swarmd.chain.coordinator import Coordinator
from swarmd.chain.following import Following
from swarmd.chain.rpc import Caller
from swarmd.chain.sender import Fate, Mined, Sender
from swarmd.chain.verdicts import Refusal, Verdicts
from swarmd.config import ChainConfig
from swarmd.core.commands import Broadcast, Submit
from swarmd.core.events import (
    BlockRef,
    CommandFailed,
    Event,
    Prepared,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionLost,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionSent,
)
from swarmd.errors import ChainError, ContractRefused, EndpointFailed, SwarmdError

FOLLOWED_MAX = 4096  # submissions looked after at once; one more is turned away, and comes again
IDLE_S = 5.0  # everything is looked at again after so long without a new head
DEAD_LOOKS = 2  # an attempt is gone when two looks find it so: endpoints do not all know the same block

log = logging.getLogger(__name__)


class Submitter:
    """Follows submissions from their order until they are confirmed, refused, lost or failed.

    Args:
        config: patience, and who moves the contract on.
        peer: this node's peer id.
        coordinator: the contract.
        caller: of the chain.
        sender: what they go out through.
        confirmed: gives the number of the last block that counts as confirmed.
        emit: takes the facts.
    """

    def __init__(
        self,
        config: ChainConfig,
        peer: str,
        coordinator: Coordinator,
        caller: Caller,
        sender: Sender,
        confirmed: Callable[[], Awaitable[int]],
        emit: Callable[[Event], None],
    ) -> None:
        self._config = config
        self._peer = peer
        self._sender = sender
        self._confirmed = confirmed
        self._emit = emit
        self._blocks = Blocks(caller, config.contract, config.range_blocks)
        self._verdicts = Verdicts(coordinator, self._blocks, peer, sender.account)
        self._following: dict[str, Following] = {}
        self._unsent: set[str] = set()  # known not to be on their way, though the log has an attempt
        self._woken = anyio.Event()
        self._depth: int | None = None  # in this round of looks: the last confirmed block,
        self._hashes: dict[int, str] = {}  # and the chain's blocks by number, read after it

    # --- orders ---

    def take(self, command: Submit | Broadcast) -> None:
        """Take an order; what comes of it is told as facts."""
        if isinstance(command, Broadcast):
            self._release(command)
        elif command.submission in self._following:
            self._following[command.submission].renew(command)
        elif len(self._following) >= FOLLOWED_MAX:
            self._emit(CommandFailed(command.id, f"{FOLLOWED_MAX} submissions are looked after already"))
        else:
            self._following[command.submission] = self._begun(command)
        self._woken.set()

    def _begun(self, command: Submit) -> Following:
        """An attempt of an earlier life may be on its way; where nobody can tell, wait and see."""
        following = Following(command)
        if command.prepared and not self._sender.repeatable and command.submission not in self._unsent:
            following.pushed_at = current_time()
        self._unsent.discard(command.submission)
        return following

    def _release(self, command: Broadcast) -> None:
        following = self._following.get(command.submission)
        if following is None:
            self._emit(CommandFailed(command.id, "this submission is not under way here"))
        else:
            following.release(command.prepared)

    def on_head(self) -> None:
        """The chain has a new head: look at everything again."""
        self._woken.set()

    async def run(self) -> None:
        """Look after everything, for ever.

        Raises:
            ChainMismatch: this is another chain, or another contract.
        """
        while True:
            with anyio.move_on_after(self._pause_s()):
                await self._woken.wait()
            self._woken = anyio.Event()
            self._depth = None
            self._hashes.clear()
            for following in list(self._following.values()):
                await self._look_after(following)

    def _pause_s(self) -> float | None:
        return min(IDLE_S, self._config.fees.stuck_s / 2) if self._following else None

    async def _look_after(self, following: Following) -> None:
        try:
            await self._step(following)
        except (ChainError, ContractRefused) as error:
            self._on_trouble(following, error)
        except SwarmdError:
            raise
        except Exception as error:
            log.exception("%s failed", following.command.id)
            self._fail(following, f"{type(error).__name__}: {error}")

    def _on_trouble(self, following: Following, error: SwarmdError) -> None:
        """What is under way is looked at again anyway; what could not even begin is given back."""
        under_way = following.block is not None or (isinstance(error, EndpointFailed) and following.attempts)
        if under_way:
            log.info("%s: %s", following.command.id, error)
        else:
            self._fail(following, str(error))

    # --- one look ---

    async def _step(self, following: Following) -> None:
        if following.block is not None and await self._is_still_there(following, following.block):
            return
        fate: Fate = await self._sender.trace(following.attempts) if following.attempts else "gone"
        if isinstance(fate, Mined) and fate.succeeded:
            self._include(following, fate.block, fate.hash)
            return
        seen = await self._verdicts.look(following.command)
        if seen is True:
            await self._include_here(following)
        elif isinstance(seen, Refusal):
            await self._end_unwanted(following, seen, fate)
        elif fate == "waiting":
            following.dead_looks = 0
            await self._push(following)
        elif isinstance(fate, Mined) or following.is_dead(DEAD_LOOKS):
            await self._replace_dead(following, fate)

    async def _replace_dead(self, following: Following, fate: Fate) -> None:
        """No attempt can be mined. Those of an earlier life may have been reported as lost already."""
        if not following.was_alive:
            await self._begin(following)
        elif isinstance(fate, Mined):
            await self._end_reverted(following, fate)
        else:
            self._lose(following, "another transaction took the nonce")

    async def _begin(self, following: Following) -> None:
        """The first attempt of this life."""
        command = following.command
        if command.kind == "winners" and not command.winners:
            self._refuse(
                following, Refusal("empty-vote", "a vote without winners leaves no trace and could be repeated")
            )
        elif (
            not command.prepared
            and command.mark >= (command.round, command.stage)
            and command.kind in ("reward", "winners")
        ):
            reason = f"the chain has a later one of this node, of round {command.mark[0]}: nothing older is signed"
            self._refuse(following, Refusal("below-mark", reason))
        else:
            await self._prepare(following)

    async def _prepare(self, following: Following) -> None:
        try:
            prepared = await self._sender.prepare(self._peer, following.command, following.attempts)
        except ContractRefused as error:
            await self._end_refused(following, error)
            return
        if prepared is None:
            raise ChainError("the bounds of chain.fees leave no price for it")
        self._tell_prepared(following, prepared)

    def _tell_prepared(self, following: Following, prepared: Prepared) -> None:
        following.add(prepared, current_time())
        self._emit(SubmissionPrepared(following.command.submission, prepared))

    # --- on its way ---

    async def _push(self, following: Following) -> None:
        """Have the newest attempt that may leave on its way, and make a dearer one when it is stuck."""
        following.was_alive = True
        now, patience_s = current_time(), self._config.fees.stuck_s
        if following.is_held_back(now - patience_s):
            self._tell_prepared(following, following.attempts[-1])
        if following.is_stuck(now - patience_s):
            await self._make_dearer(following)
        elif (prepared := following.released()) is not None:
            await self._send(following, prepared)

    async def _send(self, following: Following, prepared: Prepared) -> None:
        if following.pushed_at is not None and not self._sender.repeatable:
            return
        if self._sender.repeatable and not prepared.raw:
            await self._prepare(following)  # it was confirmed once, and its bytes are kept no longer
            return
        try:
            name = await self._sender.send(self._peer, following.command, prepared)
        except EndpointFailed as error:
            if self._sender.repeatable:
                raise
            following.pushed_at = current_time()  # it may have arrived all the same
            self._emit(CommandFailed(following.command.id, str(error)))
            return
        except ContractRefused as error:
            self._unsent.add(following.command.submission)
            await self._end_refused(following, error)
            return
        except ChainError:
            self._unsent.add(following.command.submission)
            raise
        if following.pushed_at is None:
            following.pushed_at = current_time()
        if name is not None and following.is_news(prepared):
            self._emit(SubmissionSent(following.command.submission, name))

    async def _make_dearer(self, following: Following) -> None:
        """Replace a stuck attempt: by a dearer one, or by nothing where the contract would not take it any more."""
        if not self._sender.repeatable:
            self._unsent.add(following.command.submission)
            waited_s = self._config.fees.stuck_s
            raise ChainError(f"the signer proxy was asked {waited_s:g} s ago or more, and the chain does not have it")
        following.pushed_at = current_time()
        try:
            if following.withdrawn:
                prepared = await self._sender.withdraw(following.attempts)
            else:
                prepared = await self._sender.prepare(self._peer, following.command, following.attempts)
        except ContractRefused:
            await self._withdraw(following)
            return
        except EndpointFailed:
            raise
        except ChainError as error:
            log.warning("%s is stuck: %s", following.command.submission, error)
            prepared = None
        if prepared is not None:
            self._tell_prepared(following, prepared)
        elif (released := following.released()) is not None and released.raw:
            log.warning("%s is stuck at the highest price that chain.fees allows", following.command.submission)
            await self._send(following, released)

    async def _withdraw(self, following: Following) -> None:
        following.withdrawn = True
        prepared = await self._sender.withdraw(following.attempts)
        if prepared is not None:
            self._tell_prepared(following, prepared)

    # --- on the chain ---

    async def _is_still_there(self, following: Following, block: BlockRef) -> bool:
        """Whether the chain still has it in this block; confirm it once that is deep enough."""
        if self._depth is None:
            self._depth = await self._confirmed()
        if await self._hash_at(block.number) != block.hash:
            following.drop()
            return False
        if following.is_unannounced:
            self._include(following, block, following.hash)
        if block.number > self._depth:
            return True
        if not following.hash and await self._verdicts.look(following.command) is not True:
            following.drop()
            return False
        self._emit(SubmissionConfirmed(following.command.submission, block))
        self._forget(following)
        return True

    async def _hash_at(self, number: int) -> str:
        if number not in self._hashes:
            try:
                self._hashes[number] = (await self._blocks.at(number)).hash
            except NotThere:
                self._hashes[number] = ""
        return self._hashes[number]

    def _include(self, following: Following, block: BlockRef, hash: str) -> None:
        following.include(block, hash)
        self._emit(SubmissionIncluded(following.command.submission, block, hash))

    async def _include_here(self, following: Following) -> None:
        """The contract has it: the head, read after the contract, is no earlier than the block that brought it."""
        self._include(following, await self._blocks.head(), "")

    # --- ends ---

    async def _end_unwanted(self, following: Following, refusal: Refusal, fate: Fate) -> None:
        """Refuse it, but not while an attempt is under way that could still be mined: its nonce must be spent first."""
        may_be_mined = fate == "waiting" and self._sender.repeatable and following.has_released
        if refusal.permanent or not may_be_mined:
            self._refuse(following, refusal)
        elif self._config.drive == "manager" and not following.withdrawn:
            await self._withdraw(following)  # a stage manager's step asks nothing, and would be made from another stage
        else:
            await self._push(following)

    async def _end_refused(self, following: Following, error: ContractRefused) -> None:
        """The contract did not want the attempt, which has not been sent."""
        verdict = await self._verdicts.judge(following.command, error)
        if isinstance(verdict, Refusal):
            self._refuse(following, verdict)
        else:
            await self._include_here(following)

    async def _end_reverted(self, following: Following, mined: Mined) -> None:
        """It was mined and reverted, so its nonce is spent."""
        try:
            await self._sender.explain(self._peer, following.command, mined)
        except ContractRefused as error:
            try:
                await self._end_refused(following, error)
            except EndpointFailed:
                raise
            except ChainError as passing:
                self._lose(following, str(passing))
            return
        self._lose(following, f"it was reverted in block {mined.block.number}")

    def _refuse(self, following: Following, refusal: Refusal) -> None:
        command = following.command
        self._emit(SubmissionRefused(command.submission, refusal.code, refusal.reason, refusal.permanent))
        self._forget(following)

    def _lose(self, following: Following, reason: str) -> None:
        self._emit(SubmissionLost(following.command.submission, reason))
        self._forget(following)

    def _fail(self, following: Following, reason: str) -> None:
        log.info("%s: %s", following.command.id, reason)
        self._emit(CommandFailed(following.command.id, reason))
        self._forget(following)

    def _forget(self, following: Following) -> None:
        self._following.pop(following.command.submission, None)
