"""Brings submissions about, each exactly once.

The order is always the same: what became of earlier attempts, what the contract has, and only then something new. A new
attempt is told first, and leaves when it comes back as a `Broadcast` or with a `Submit`: then it is in the log. So all
follows from `Submit` and the chain, and this process may be killed at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from cachetools import FIFOCache
from msgspec.structs import replace

from swarmd.chain.fees import Budget
from swarmd.chain.ports import (
    AccountPort,
    ConfirmedBlock,
    ContractReader,
    check_unreplaced,
    is_on_chain,
)
from swarmd.chain.senders import Fate, Mined, Sender
from swarmd.chain.watcher import Watcher
from swarmd.config import ChainConfig
from swarmd.core.commands import Broadcast, Command, Submit, WatchChain
from swarmd.core.events import (
    CommandFailed,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionLost,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionSent,
)
from swarmd.core.values import BlockRef, Prepared, SubmissionKind, Value
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

DONE_ALREADY = ("PeerIdAlreadyRegistered", "RewardAlreadySubmitted", "WinnerAlreadyVoted")
TOO_EARLY = ("InvalidRoundNumber", "InvalidStageNumber")
REFUSED_ONCE_MAX = 64  # submissions; of an older one the first refusal is forgotten, and it is asked once more

Name = tuple[SubmissionKind, int, int]  # of a submission: kind, round, stage
log = get_logger(__name__)


class ContractRefusal(Value, frozen=True):
    """The contract will never take it, see `SubmissionRefused`."""

    code: str
    reason: str
    permanent: bool = False


class SubmissionResolver:
    """Decides what the chain's state, or a revert, means for a submission.

    Args:
        account: that submissions come from, empty while unknown: then what is there counts as ours.
    """

    def __init__(self, coordinator: ContractReader, peer: str, account: str) -> None:
        self._coordinator = coordinator
        self._blocks = coordinator.blocks
        self._peer = peer
        self._account = account
        # With the head at which it was not too early.
        self._refused_once: FIFOCache[Name, BlockRef] = FIFOCache(REFUSED_ONCE_MAX)

    async def look(self, command: Submit) -> bool | ContractRefusal:
        """Whether the chain has it; a refusal where it can never have it from us. Raises ChainError: not known now."""
        contract, found = self._coordinator, True
        if command.kind == "advance":
            return await self._advanced(command)
        if command.kind == "reward":
            found = await contract.has_reward(command.round, command.stage, self._peer, self._account)
        elif command.kind == "winners":
            found = bool(await contract.votes(command.round, self._peer))
        owner = await contract.eoa(self._peer) if found else ""
        return self._ours(owner) if owner else False

    async def _advanced(self, command: Submit) -> bool | ContractRefusal:
        """A step leaves no name behind: that the contract is further says only that somebody made it."""
        place, _ = await self._place_and_head()
        if place < (command.round, command.stage):
            raise self._behind(command, place)
        if place > (command.round, command.stage):
            return ContractRefusal("moved-on", f"the contract is at round {place[0]} stage {place[1]} already")
        return False

    async def _place_and_head(self) -> tuple[tuple[int, int], BlockRef]:
        """Round and stage of one block, and that block: read one after the other, they might be of two."""
        head = await self._blocks.head()
        place = await self._coordinator.place(hex(head.number))
        await check_unreplaced(self._blocks, head)
        return place, head

    def _ours(self, owner: str) -> bool | ContractRefusal:
        if not self._account or owner.lower() == self._account.lower():
            return True
        reason = (
            f"the peer id {self._peer} is registered to the account {owner}, this node submits from {self._account}"
        )
        return ContractRefusal("taken", reason, permanent=True)

    def _behind(self, command: Submit, place: tuple[int, int]) -> ChainError:
        return ChainError(
            f"the contract is at round {place[0]} stage {place[1]}, which is before round {command.round} stage "
            f"{command.stage}; a reorganisation may have taken it back"
        )

    async def judge(self, command: Submit, error: ContractRefused) -> bool | ContractRefusal:
        """As `look`, after the contract has refused it: it is there, or never will be. ChainError: this may pass."""
        seen = await self.look(command)
        if seen:
            return seen
        if error.code == "InvalidVoterPeerId":
            return await self._judge_ownership(error)
        if error.code in TOO_EARLY:
            await self._judge_early(command, error)
        if error.code in (*DONE_ALREADY, "AdvanceNotAllowed", "Error", ""):
            raise ChainError(error.message, error.fix)
        return ContractRefusal(error.code, str(error))

    async def _judge_early(self, command: Submit, error: ContractRefused) -> None:
        """Of a round or stage that is not there: return where it never will be.

        The contract may have come to this very place since it refused, so the first refusal at a place that is not too
        early counts for nothing; nor does a second one, where the block with that place was replaced in between.

        Raises:
            ChainError: it is too early, or was a moment ago.
        """
        name = (command.kind, command.round, command.stage)
        place, head = await self._place_and_head()
        if place < (command.round, command.stage):
            raise self._behind(command, place)
        known = self._refused_once.pop(name, None)
        if known is None or not await is_on_chain(self._blocks, known):
            self._refused_once[name] = head
            where = f"round {place[0]} stage {place[1]}"
            raise ChainError(f"{error.message}; the contract is at {where} by now, so it is asked again")

    async def _judge_ownership(self, error: ContractRefused) -> bool | ContractRefusal:
        owner = await self._coordinator.eoa(self._peer)
        verdict = self._ours(owner) if owner else True
        if isinstance(verdict, ContractRefusal):
            return verdict
        raise ChainError(error.message, error.fix)


ATTEMPTS_MAX = 64  # remembered; the core remembers fewer, and gives them back after a restart


class TrackedSubmission:
    """State of one submission.

    Args:
        command: its order; the attempts that come with it are in the log, and may leave.
    """

    def __init__(self, command: Submit) -> None:
        self.command = command
        self.attempts: list[Prepared] = _each_once(command.prepared)
        self.block: BlockRef | None = None  # that has it
        self.hash = ""  # of the transaction, empty where the contract was seen to have it
        self.pushed_at: float | None = None  # when the last attempt was sent first, in the event loop's time
        self.was_alive = False  # an attempt could still be mined when this process looked
        self.withdrawn = False  # what is wanted now is only the end of its attempts
        self.dead_looks = 0
        self.is_unannounced = False
        self.needed_wei = 0  # that the account has to have before it is looked at again
        self.held_until = 0.0  # the day's budget is spent: not looked at before, in the event loop's time
        self.unwanted: set[str] = set()  # hashes of attempts that an endpoint did not take as they are signed
        self.prepared_at = 0.0  # when the newest attempt was made, in the event loop's time
        self._in_log = {each.hash for each in command.prepared}
        self._sent: set[str] = set()

    def renew(self, command: Submit) -> None:
        """A new order: the attempts that it brings are in the log; what was prepared meanwhile stays.

        So do bytes that were made anew: after a confirmation the log keeps none, and may not have these yet.
        """
        anew = {each.hash for each in self.attempts if each.raw} - self._in_log
        logged = [each for each in command.prepared if each.raw or each.hash not in anew]
        brought = {each.hash for each in logged}
        self.command = command
        self.needed_wei, self.held_until = 0, 0.0
        self.attempts = _each_once([*logged, *(each for each in self.attempts if each.hash not in brought)])
        self._in_log |= brought
        self.is_unannounced = self.block is not None

    def add(self, prepared: Prepared, at: float) -> None:
        """The next attempt, which may not leave yet.

        It takes the place of one without bytes: the same transaction, signed again after its block was lost.
        """
        if not self._has_bytes(prepared.hash):
            self._in_log.discard(prepared.hash)
            self._put(prepared)
            self.pushed_at = None
        self.was_alive = True
        self.prepared_at = at

    def release(self, prepared: Prepared) -> None:
        """This attempt is in the log."""
        if not self._has_bytes(prepared.hash):
            self._put(prepared)
        self._in_log.add(prepared.hash)

    def _put(self, prepared: Prepared) -> None:
        others = [each for each in self.attempts if each.hash != prepared.hash]
        self.attempts = [*others, prepared][-ATTEMPTS_MAX:]

    def _has_bytes(self, hash: str) -> bool:
        return any(each.hash == hash and (each.raw or not hash) for each in self.attempts)

    def released(self) -> Prepared | None:
        """The newest attempt that may leave."""
        return next((each for each in reversed(self.attempts) if each.hash in self._in_log), None)

    def released_by_nonce(self) -> list[Prepared]:
        """Of each nonce the newest attempt that may leave and has its bytes, the lowest nonce first."""
        newest = {each.nonce: each for each in self.attempts if each.raw and each.hash in self._in_log}
        return [newest[nonce] for nonce in sorted(newest)]

    @property
    def submission(self) -> str:
        """The submission's id."""
        return self.command.submission

    @property
    def was_sent(self) -> bool:
        """Whether this process sent an attempt."""
        return bool(self._sent)

    @property
    def waits_for_log(self) -> bool:
        """Whether the newest attempt may not leave yet."""
        return self.attempts[-1].hash not in self._in_log

    def mark_sent(self, prepared: Prepared) -> bool:
        """Record an attempt as sent; true if this process had not sent it before."""
        first = prepared.hash not in self._sent
        self._sent.add(prepared.hash)
        return first

    def count_missing(self, looks: int) -> bool:
        """Count one more check without a live attempt; true after `looks` in a row, at once if there never was an
        attempt."""
        self.dead_looks += 1
        return not self.attempts or self.dead_looks >= looks

    def include(self, block: BlockRef, hash: str) -> None:
        """Record the block in which the submission was mined."""
        self.block, self.hash, self.is_unannounced, self.was_alive = block, hash, False, True

    def drop(self) -> None:
        """Forget the block: a reorganisation has replaced it."""
        self.block, self.hash, self.is_unannounced, self.dead_looks = None, "", False, 0
        self.pushed_at = None  # the same bytes are sent again


def list_replaced(following: TrackedSubmission) -> list[Prepared]:
    """The attempts that a new one replaces. Those that no endpoint took come without their bytes: nobody has to be
    outbid whose transaction is nowhere."""
    return [replace(each, raw=b"") if each.hash in following.unwanted else each for each in following.attempts]


def _each_once(attempts: Sequence[Prepared]) -> list[Prepared]:
    """In their order, each hash at its last place, with its bytes wherever they stood."""
    kept: dict[str, Prepared] = {}
    for each in attempts:
        known = kept.pop(each.hash, each)
        kept[each.hash] = each if each.raw else known
    return list(kept.values())


FOLLOWED_MAX = 4096  # submissions looked after at once; one more is turned away, and comes again
IDLE_S = 5.0  # everything is looked at again after so long without a new head
HELD_S = 60.0  # what the day's budget has no room for is looked at again after so long
DEAD_LOOKS = 2  # an attempt is gone when two looks find it so: endpoints do not all know the same block


class Submitter:
    """Follows submissions from their order until they are confirmed, refused, lost or given back.

    Attempts are signed and sent each only after they are in the log, and replaced when they are stuck.
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
        self._peer = peer
        self._accounts = accounts
        self._sender = sender
        self._confirmed = confirmed
        self._emit = emit
        self._following: dict[str, TrackedSubmission] = {}
        self._runtime = runtime
        self._blocks = coordinator.blocks
        self._verdicts = SubmissionResolver(coordinator, peer, sender.account)
        self._unsent: set[str] = set()  # given back, and known not to be under way though the log has an attempt
        self._woken = runtime.signal()
        self._depth: int | None = None  # in this round of looks: the last confirmed block

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
            # Attempts of an earlier process may still be pending; where their fate is unknown, wait.
            if following.attempts and not self._sender.repeatable and command.submission not in self._unsent:
                following.pushed_at = self._runtime.now()
            self._unsent.discard(command.submission)

    def _forget(self, following: TrackedSubmission) -> None:
        self._following.pop(following.submission, None)

    def on_head(self) -> None:
        """The chain has a new head: look at everything again."""
        self._woken.set()

    async def run(self) -> None:
        """Check all tracked submissions until cancelled. Raises nothing that an endpoint can bring about."""
        while True:
            pause_s = min(IDLE_S, self._config.fees.stuck_s / 2) if self._following else None
            await self._woken.wait(pause_s)
            self._depth = None
            for following in list(self._following.values()):
                await self._look_after(following)

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
            self._tell_failed(following, f"{type(error).__name__}: {error}")

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
            self._tell_troubled(following, str(error))
        elif isinstance(error, BudgetSpent) and following.command.kind != "advance":
            following.held_until = self._runtime.now() + HELD_S
            self._tell_troubled(following, str(error))
        elif following.block is not None or (isinstance(error, EndpointFailed) and following.attempts):
            log.info("%s: %s", following.command.id, error)
        else:
            self._tell_failed(following, str(error))

    # --- one look ---

    async def _step(self, following: TrackedSubmission) -> None:
        if following.block is not None and await self._follow_block(following, following.block):
            return
        fate: Fate = await self._sender.trace(following.attempts) if following.attempts else "gone"
        if isinstance(fate, Mined) and fate.succeeded:
            self._tell_included(following, fate.block, fate.hash)
            return
        seen = await self._verdicts.look(following.command)
        if seen is True:
            await self._include_here(following)
        elif isinstance(seen, ContractRefusal):
            await self._end_unwanted(following, seen, fate)
        elif fate == "waiting":
            following.dead_looks = 0
            await self._push(following)
        elif isinstance(fate, Mined) or following.count_missing(DEAD_LOOKS):
            await self._replace_dead(following, fate)

    async def _replace_dead(self, following: TrackedSubmission, fate: Fate) -> None:
        """No attempt can be mined. Those of an earlier life may have been reported as lost already."""
        if not following.was_alive:
            if (refusal := _unsignable(following.command)) is not None:
                self._tell_refused(following, refusal)
            else:
                await self._prepare(following)
        elif isinstance(fate, Mined):
            await self._end_reverted(following, fate)
        else:
            self._tell_lost(following, "another transaction took the nonce")

    async def _end_unwanted(self, following: TrackedSubmission, refusal: ContractRefusal, fate: Fate) -> None:
        """Refuse it, but not while an attempt is under way that could still be mined: its nonce must be spent first."""
        if refusal.permanent or fate != "waiting" or not await self._is_under_way(following):
            self._tell_refused(following, refusal)
        elif self._config.drive == "manager" and not following.withdrawn:
            await self._withdraw(following)  # a manager's step asks nothing, and would be made from another stage
        else:
            await self._push(following)

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
        there = await is_on_chain(self._blocks, block)
        deep = block.number <= self._depth
        if there and deep and not following.hash:
            there = await self._verdicts.look(following.command) is True
        if not there:
            following.drop()
            return False
        if following.is_unannounced:
            self._tell_included(following, block, following.hash)
        if deep:
            self._emit(SubmissionConfirmed(following.submission, block))
            self._forget(following)
        return True

    # --- attempts, each sent only after it is in the log ---

    async def _prepare(self, following: TrackedSubmission) -> None:
        """Make the first attempt of this life."""
        try:
            prepared = await self._sender.prepare(self._peer, following.command, following.attempts)
        except ContractRefused as error:
            await self._end_refused(following, error)
            return
        if prepared is None:
            raise ChainError("the bounds of chain.fees leave no price for it")
        self._tell_prepared(following, prepared)

    async def _push(self, following: TrackedSubmission) -> None:
        """Have the newest attempt that may leave under way, and make a dearer one when it is stuck."""
        following.was_alive = True
        since = self._runtime.now() - self._config.fees.stuck_s
        if following.waits_for_log and following.prepared_at <= since:
            self._tell_prepared(following, following.attempts[-1])
        if not following.waits_for_log and following.pushed_at is not None and following.pushed_at <= since:
            await self._bump_fee(following)
        elif (prepared := following.released()) is not None:
            await self._send(following, prepared)

    async def _send(self, following: TrackedSubmission, prepared: Prepared) -> None:
        if not self._sender.repeatable:
            await self._send_once(following, prepared)
        elif prepared.raw:
            await self._hand_over(following, prepared)
        elif not following.waits_for_log:
            await self._prepare(following)  # it was confirmed once, and its bytes are kept no longer

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
                self._tell_troubled(following, str(error))
            if not following.was_sent:
                following.unwanted.add(prepared.hash)
            return False
        if following.pushed_at is None or prepared.hash in following.unwanted:
            following.pushed_at = self._runtime.now()
        following.unwanted.discard(prepared.hash)
        if name is not None and following.mark_sent(prepared):
            self._emit(SubmissionSent(following.submission, name))
        return True

    async def _send_once(self, following: TrackedSubmission, prepared: Prepared) -> None:
        if following.pushed_at is not None:
            return
        try:
            await self._hand_over(following, prepared)
        except EndpointFailed as error:
            following.pushed_at = self._runtime.now()  # it may have arrived all the same
            self._tell_troubled(following, str(error))
        except ChainError:
            self._unsent.add(following.submission)
            raise

    async def _bump_fee(self, following: TrackedSubmission) -> None:
        """Replace a stuck attempt: by a dearer one, or by nothing where the contract would not take it any more."""
        if not self._sender.repeatable:
            self._unsent.add(following.submission)
            raise ChainError(
                f"the chain does not have it {self._config.fees.stuck_s:g} s after the signer proxy was asked"
            )
        following.pushed_at = self._runtime.now()
        if following.withdrawn:
            await self._withdraw(following)
            return
        try:
            prepared = await self._sender.prepare(self._peer, following.command, list_replaced(following))
        except ContractRefused:
            await self._withdraw(following)
            return
        except EndpointFailed:
            raise
        except ChainError as error:
            log.warning("%s is stuck: %s", following.submission, error)
            prepared = None
        await self._replace(following, prepared)

    async def _withdraw(self, following: TrackedSubmission) -> None:
        """Have nothing mined in the place of what is under way."""
        following.withdrawn = True
        await self._replace(following, await self._sender.withdraw(list_replaced(following)))

    async def _replace(self, following: TrackedSubmission, prepared: Prepared | None) -> None:
        """Tell the next attempt; where there can be none, send again what was sent.

        Of each nonce one: the endpoints may have forgotten the lowest, and no other comes up before it.
        """
        if prepared is not None:
            self._tell_prepared(following, prepared)
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
            self._tell_refused(following, verdict)
        else:
            await self._include_here(following)

    async def _include_here(self, following: TrackedSubmission) -> None:
        """The contract has it: the head, read after the contract, is no earlier than the block that brought it."""
        self._tell_included(following, await self._blocks.head(), "")

    async def _end_reverted(self, following: TrackedSubmission, mined: Mined) -> None:
        """It was mined and reverted, so its nonce is spent."""
        try:
            await self._sender.explain(self._peer, following.command, mined)
        except ContractRefused as error:
            await self._judge_reverted(following, error)
            return
        self._tell_lost(following, f"it was reverted in block {mined.block.number}")

    async def _judge_reverted(self, following: TrackedSubmission, error: ContractRefused) -> None:
        if error.code in TOO_EARLY:  # in that block, which says nothing of now: the contract is asked again
            self._tell_lost(following, error.message)
            return
        try:
            await self._end_refused(following, error)
        except EndpointFailed:
            raise
        except ChainError as passing:
            self._tell_lost(following, str(passing))

    # --- what is told ---

    def _tell_prepared(self, following: TrackedSubmission, attempt: Prepared) -> None:
        """The next attempt waits to be in the log."""
        following.add(attempt, self._runtime.now())
        self._emit(SubmissionPrepared(following.submission, attempt))

    def _tell_included(self, following: TrackedSubmission, block: BlockRef, hash: str) -> None:
        following.include(block, hash)
        self._emit(SubmissionIncluded(following.submission, block, hash))

    def _tell_refused(self, following: TrackedSubmission, refusal: ContractRefusal) -> None:
        """The contract will never take it."""
        self._emit(SubmissionRefused(following.submission, refusal.code, refusal.reason, refusal.permanent))
        self._forget(following)

    def _tell_lost(self, following: TrackedSubmission, reason: str) -> None:
        """No attempt can be mined any more."""
        self._emit(SubmissionLost(following.submission, reason))
        self._forget(following)

    def _tell_failed(self, following: TrackedSubmission, reason: str) -> None:
        """It is given back, and will come again."""
        self._tell_troubled(following, reason)
        self._forget(following)

    def _tell_troubled(self, following: TrackedSubmission, reason: str) -> None:
        """Something failed, but it may be under way: it is looked after here all the same."""
        log.info("%s: %s", following.command.id, reason)
        self._emit(CommandFailed(following.command.id, reason))


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


class ChainAgent:
    """Hands each order to whom it is for.

    Args:
        submitter: brings submissions about; None where this node submits nothing.
        budget: of the account, None where nothing is signed here.
        begin: runs a coroutine function beside whatever else runs.
    """

    def __init__(
        self,
        watcher: Watcher,
        submitter: Submitter | None,
        budget: Budget | None,
        emit: EventSink,
        begin: Callable[[Callable[[], Coroutine[Any, Any, None]]], object],
    ) -> None:
        self._watcher = watcher
        self._submitter = submitter
        self._budget = budget
        self._emit = emit
        self._begin = begin
        self._watching = False
        if submitter is not None:
            watcher.on_head = submitter.on_head

    def run(self) -> None:
        """Begin what goes on for ever."""
        self._begin(self._watcher.membership.run)
        if self._submitter is not None:
            self._begin(self._submitter.run)

    def take(self, command: Command) -> None:
        """Take an order; what comes of it is told as facts."""
        if isinstance(command, WatchChain):
            self._watch(command)
        elif isinstance(command, Submit | Broadcast) and self._submitter is not None:
            self._submitter.take(command)
        elif isinstance(command, Submit):
            reason = 'chain.sender is "none": this node follows the chain and submits nothing'
            self._emit(SubmissionRefused(command.submission, "follows-only", reason))
        else:
            self._emit(CommandFailed(command.id, "this is no command for the chain worker"))

    def _watch(self, order: WatchChain) -> None:
        if self._budget is not None:
            self._budget.restore(order.spent_day, int(order.spent_wei))
        if self._watching:
            self._watcher.say_again()
        else:
            self._watching = True
            self._begin(partial(self._watcher.run, order))
