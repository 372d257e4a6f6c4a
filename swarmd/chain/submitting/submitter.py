"""Brings submissions about, each exactly once.

The order is always the same: what became of earlier attempts, what the contract has, and only then something new. A new
attempt is told first, and leaves when it comes back as a `Broadcast` or with a `Submit`: then it is in the log. So all
follows from `Submit` and the chain, and this process may be killed at any point.
"""

from __future__ import annotations

from swarmd.chain.ports import AccountPort, BlockReader, ConfirmedBlock, ContractReader, NotThere
from swarmd.chain.submitting.sender import Fate, Mined, Sender
from swarmd.chain.submitting.tracking import (
    TOO_EARLY,
    ContractRefusal,
    SubmissionReporter,
    SubmissionResolver,
    TrackedSubmission,
    list_replaced,
)
from swarmd.config import ChainConfig
from swarmd.core.commands import Broadcast, Submit
from swarmd.core.events import CommandFailed
from swarmd.core.values import BlockRef, Prepared
from swarmd.errors import (
    AccountPoor,
    BudgetSpent,
    ChainError,
    ChainMismatch,
    ContractRefused,
    EndpointFailed,
    RpcRefused,
    SwarmdError,
)
from swarmd.logger import get_logger
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import LOOP, Runtime

log = get_logger(__name__)


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


FOLLOWED_MAX = 4096  # submissions looked after at once; one more is turned away, and comes again
IDLE_S = 5.0  # everything is looked at again after so long without a new head
HELD_S = 60.0  # what the day's budget has no room for is looked at again after so long
DEAD_LOOKS = 2  # an attempt is gone when two looks find it so: endpoints do not all know the same block

log = get_logger(__name__)


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
