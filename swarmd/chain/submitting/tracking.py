"""A submission on its way: what was tried, how it ends, and the events that tell of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from swarmd.chain.ports import BlockReader, ContractReader, NotThere
from swarmd.chain.requirements import check_unreplaced
from swarmd.core.commands import Submit
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
from swarmd.errors import ChainError, ContractRefused
from swarmd.logger import get_logger
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import LOOP, Runtime

DONE_ALREADY = ("PeerIdAlreadyRegistered", "RewardAlreadySubmitted", "WinnerAlreadyVoted")
TOO_EARLY = ("InvalidRoundNumber", "InvalidStageNumber")
REFUSED_ONCE_MAX = 64  # submissions; of an older one the first refusal is forgotten, and it is asked once more

Name = tuple[SubmissionKind, int, int]  # of a submission: kind, round, stage


class ContractRefusal(Value, frozen=True):
    """The contract will never take it, see `SubmissionRefused`."""

    code: str
    reason: str
    permanent: bool = False


class SubmissionResolver:
    """Decides what the chain's state, or a revert, means for a submission.

    Args:
        coordinator: the contract.
        blocks: of its chain.
        peer: this node's peer id.
        account: that submissions come from, empty while unknown: then what is there counts as ours.
    """

    def __init__(self, coordinator: ContractReader, blocks: BlockReader, peer: str, account: str) -> None:
        self._coordinator = coordinator
        self._blocks = blocks
        self._peer = peer
        self._account = account
        self._refused_once: dict[Name, BlockRef] = {}  # with the head at which it was not too early
        self._looks: dict[SubmissionKind, Callable[[Submit], Awaitable[bool | ContractRefusal]]] = {
            "register": self._registered,
            "reward": self._rewarded,
            "winners": self._voted,
            "advance": self._advanced,
        }

    async def look(self, command: Submit) -> bool | ContractRefusal:
        """Whether the chain has it; a refusal where it can never have it from us.

        Raises:
            ChainError: this cannot be told now.
        """
        return await self._looks[command.kind](command)

    async def _registered(self, command: Submit) -> bool | ContractRefusal:
        owner = await self._coordinator.eoa(self._peer)
        return self._ours(owner) if owner else False

    async def _rewarded(self, command: Submit) -> bool | ContractRefusal:
        found = await self._coordinator.has_reward(command.round, command.stage, self._peer, self._account)
        return await self._registered(command) if found else False

    async def _voted(self, command: Submit) -> bool | ContractRefusal:
        found = await self._coordinator.votes(command.round, self._peer)
        return await self._registered(command) if found else False

    async def _advanced(self, command: Submit) -> bool | ContractRefusal:
        """A step leaves no name behind: that the contract is further says only that somebody made it."""
        place = await self._place()
        if place < (command.round, command.stage):
            raise self._behind(command, place)
        if place > (command.round, command.stage):
            return ContractRefusal("moved-on", f"the contract is at round {place[0]} stage {place[1]} already")
        return False

    async def _place(self) -> tuple[int, int]:
        """Round and stage of the head."""
        return (await self._place_and_head())[0]

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
        """As `look`, after the contract has refused it: either it is there, or never will be.

        Raises:
            ChainError: the reason may pass.
        """
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
        if known is None or not await self._is_on_chain(known):
            self._remember(name, head)
            where = f"round {place[0]} stage {place[1]}"
            raise ChainError(f"{error.message}; the contract is at {where} by now, so it is asked again")

    def _remember(self, name: Name, head: BlockRef) -> None:
        self._refused_once[name] = head
        if len(self._refused_once) > REFUSED_ONCE_MAX:
            del self._refused_once[next(iter(self._refused_once))]

    async def _is_on_chain(self, block: BlockRef) -> bool:
        try:
            return (await self._blocks.at(block.number)).hash == block.hash
        except NotThere:
            return False

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
        self._prepared_at = 0.0
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
        self._prepared_at = at

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

    def is_held_back(self, since: float) -> bool:
        """Whether the newest attempt has waited to be in the log for too long."""
        return self.waits_for_log and self._prepared_at <= since

    def is_stuck(self, since: float) -> bool:
        """Whether the newest attempt was sent so long ago."""
        return not self.waits_for_log and self.pushed_at is not None and self.pushed_at <= since

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


log = get_logger(__name__)


class SubmissionReporter:
    """Notes what became of a submission, and tells it.

    Args:
        emit: takes the facts.
        forget: is called with a submission that comes to its end here.
        runtime: the clock.
    """

    def __init__(self, emit: EventSink, forget: Callable[[TrackedSubmission], None], runtime: Runtime = LOOP) -> None:
        self._emit = emit
        self._forget = forget
        self._runtime = runtime

    def prepared(self, following: TrackedSubmission, attempt: Prepared) -> None:
        """The next attempt waits to be in the log."""
        following.add(attempt, self._runtime.now())
        self._emit(SubmissionPrepared(following.submission, attempt))

    def sent(self, following: TrackedSubmission, attempt: Prepared, name: str) -> None:
        """An attempt was taken; told once in a process's life."""
        if following.mark_sent(attempt):
            self._emit(SubmissionSent(following.submission, name))

    def included(self, following: TrackedSubmission, block: BlockRef, hash: str) -> None:
        """Report that the submission was mined in `block`."""
        following.include(block, hash)
        self._emit(SubmissionIncluded(following.submission, block, hash))

    def confirmed(self, following: TrackedSubmission, block: BlockRef) -> None:
        """Report that the submission's block is at the confirmed depth."""
        self._emit(SubmissionConfirmed(following.submission, block))
        self._forget(following)

    def refused(self, following: TrackedSubmission, refusal: ContractRefusal) -> None:
        """The contract will never take it."""
        self._emit(SubmissionRefused(following.submission, refusal.code, refusal.reason, refusal.permanent))
        self._forget(following)

    def lost(self, following: TrackedSubmission, reason: str) -> None:
        """No attempt can be mined any more."""
        self._emit(SubmissionLost(following.submission, reason))
        self._forget(following)

    def failed(self, following: TrackedSubmission, reason: str) -> None:
        """It is given back, and will come again."""
        log.info("%s: %s", following.command.id, reason)
        self._emit(CommandFailed(following.command.id, reason))
        self._forget(following)

    def troubled(self, following: TrackedSubmission, reason: str) -> None:
        """Something failed, but it may be under way: it is looked after here all the same."""
        log.info("%s: %s", following.command.id, reason)
        self._emit(CommandFailed(following.command.id, reason))
