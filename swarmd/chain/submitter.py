"""Makes submissions to the contract, each exactly once.

- The order is always the same: check the fate of earlier attempts, then the contract's state, and only then sign
  something new.
- A new attempt is first emitted as an event. It is sent when it comes back in a `Broadcast` or a `Submit`, because then
  it is in the log.
- So everything follows from `Submit` and the chain, and this process may be killed at any point.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from cachetools import FIFOCache
from msgspec.structs import replace

from swarmd import errors
from swarmd.chain import ports
from swarmd.chain.fees import DailyBudget
from swarmd.chain.senders import Fate, MinedAttempt, SubmissionSender
from swarmd.chain.watcher import ChainWatcher
from swarmd.config import ChainConfig
from swarmd.core import events
from swarmd.core.commands import Broadcast, Command, Submit, WatchChain
from swarmd.core.values import BlockRef, SubmissionAttempt, SubmissionKind, Value
from swarmd.logger import get_logger
from swarmd.worker.messages import EventSink
from swarmd.worker.runtime import LOOP, Runtime

DONE_ALREADY = ("PeerIdAlreadyRegistered", "RewardAlreadySubmitted", "WinnerAlreadyVoted")
TOO_EARLY = ("InvalidRoundNumber", "InvalidStageNumber")
REFUSED_ONCE_MAX = 64  # submissions; after older ones' first refusal is forgotten, the contract is asked once more

Name = tuple[SubmissionKind, int, int]  # kind, round, stage
log = get_logger(__name__)


class ContractRefusal(Value, frozen=True):
    """A final refusal of a submission by the contract, see `SubmissionRefused`."""

    code: str
    reason: str
    permanent: bool = False


class SubmissionResolver:
    """Decides what the chain's state, or a revert, means for a submission. `account` is the one that submissions come
    from; if it is unknown (empty), whatever the contract has counts as this node's."""

    def __init__(self, coordinator: ports.ContractReader, peer: str, account: str) -> None:
        self._coordinator = coordinator
        self._blocks = coordinator.blocks
        self._peer = peer
        self._account = account
        # submission → head at which the contract first refused it although it was not too early
        self._refused_once: FIFOCache[Name, BlockRef] = FIFOCache(REFUSED_ONCE_MAX)

    async def resolve_submission(self, command: Submit) -> bool | ContractRefusal:
        """Return True if the contract has the submission, False if not; a refusal if it will never accept it from this
        node. Raises ChainError if that is unknown now."""
        contract, found = self._coordinator, True
        if command.kind == "advance":
            return await self._resolve_advance(command)
        if command.kind == "reward":
            found = await contract.has_reward(command.round, command.stage, self._peer, self._account)
        elif command.kind == "winners":
            found = bool(await contract.votes(command.round, self._peer))
        owner = await contract.account_of_peer(self._peer) if found else ""
        return self._check_owner(owner) if owner else False

    async def _resolve_advance(self, command: Submit) -> bool | ContractRefusal:
        """A step leaves no trace of its sender: if the contract is further, somebody has made the step."""
        place, _ = await self._read_stage_and_head()
        if place < (command.round, command.stage):
            raise self._endpoint_behind_error(command, place)
        if place > (command.round, command.stage):
            return ContractRefusal("moved-on", f"the contract is at round {place[0]} stage {place[1]} already")
        return False

    async def _read_stage_and_head(self) -> tuple[tuple[int, int], BlockRef]:
        """Return round and stage at the head, and the head. Raises BlockNotFound if it was replaced meanwhile."""
        head = await self._blocks.get_head()
        place = await self._coordinator.round_and_stage(hex(head.number))
        await ports.check_block_not_replaced(self._blocks, head)
        return place, head

    def _check_owner(self, owner: str) -> bool | ContractRefusal:
        if not self._account or owner.lower() == self._account.lower():
            return True
        reason = (
            f"the peer id {self._peer} is registered to the account {owner}, this node submits from {self._account}"
        )
        return ContractRefusal("taken", reason, permanent=True)

    def _endpoint_behind_error(self, command: Submit, place: tuple[int, int]) -> errors.ChainError:
        return errors.ChainError(
            f"the contract is at round {place[0]} stage {place[1]}, which is before round {command.round} stage "
            f"{command.stage}; a reorganisation may have taken it back"
        )

    async def resolve_refusal(self, command: Submit, error: errors.ContractRefused) -> bool | ContractRefusal:
        """Resolve a submission (`resolve_submission`) that the contract has refused. Raises ChainError if the refusal
        may be temporary."""
        seen = await self.resolve_submission(command)
        if seen:
            return seen
        if error.code == "InvalidVoterPeerId":
            return await self._resolve_ownership_refusal(error)
        if error.code in TOO_EARLY:
            await self._check_early_refusal(command, error)
        if error.code in (*DONE_ALREADY, "AdvanceNotAllowed", "Error", ""):
            raise errors.ChainError(error.message, error.fix)
        return ContractRefusal(error.code, str(error))

    async def _check_early_refusal(self, command: Submit, error: errors.ContractRefused) -> None:
        """Return if a refusal for a missing round or stage is final.

        The contract may have reached this very round and stage since it refused. So the first refusal that is not too
        early does not count, nor does a second one if the block of the first was replaced in between. Raises
        ChainError: it is too early, or was a moment ago.
        """
        name = (command.kind, command.round, command.stage)
        place, head = await self._read_stage_and_head()
        if place < (command.round, command.stage):
            raise self._endpoint_behind_error(command, place)
        known = self._refused_once.pop(name, None)
        if known is None or not await ports.is_on_chain(self._blocks, known):
            self._refused_once[name] = head
            where = f"round {place[0]} stage {place[1]}"
            raise errors.ChainError(f"{error.message}; the contract is at {where} by now, so it is asked again")

    async def _resolve_ownership_refusal(self, error: errors.ContractRefused) -> bool | ContractRefusal:
        owner = await self._coordinator.account_of_peer(self._peer)
        verdict = self._check_owner(owner) if owner else True
        if isinstance(verdict, ContractRefusal):
            return verdict
        raise errors.ChainError(error.message, error.fix)


ATTEMPTS_MAX = 64  # attempts remembered; the core remembers fewer, and passes them again after a restart
MISSING_CHECKS = 2  # checks after which a missing attempt counts as gone: endpoints do not all know the same block


class TrackedSubmission:
    """The state of one submission. Attempts that come with `command` are in the log, and may be sent."""

    def __init__(self, command: Submit) -> None:
        self.command = command
        self.submission = command.submission
        self.attempts: list[SubmissionAttempt] = _deduplicate_attempts(command.prepared)
        self.block: BlockRef | None = None  # the block in which it was mined
        self.hash = ""  # hash of the transaction; empty if only the contract's state shows it
        self.pushed_at: float | None = None  # when the newest attempt was first sent, in the event loop's time
        self.was_alive = False  # whether an attempt could still be mined when this process checked
        self.withdrawn = False  # whether its attempts are only to be replaced by an empty transaction
        self.missing_checks = 0
        self.is_unannounced = False
        self.needed_wei = 0  # balance that the account must have before it is tried again
        self.held_until = 0.0  # not tried before this time of the event loop, because the day's budget is spent
        self.unwanted: set[str] = set()  # hashes of attempts that every endpoint refuses as they are signed
        self.prepared_at = 0.0  # when the newest attempt was prepared, in the event loop's time
        self._in_log = {each.hash for each in command.prepared}
        self._sent: set[str] = set()

    def update_command(self, command: Submit) -> None:
        """Apply a new command, whose attempts are in the log; attempts prepared since stay. Bytes that were signed
        again stay, too: after a confirmation the log keeps none, and may not have these yet."""
        anew = {each.hash for each in self.attempts if each.raw} - self._in_log
        logged = [each for each in command.prepared if each.raw or each.hash not in anew]
        brought = {each.hash for each in logged}
        self.command = command
        self.needed_wei, self.held_until = 0, 0.0
        self.attempts = _deduplicate_attempts([*logged, *(each for each in self.attempts if each.hash not in brought)])
        self._in_log |= brought
        self.is_unannounced = self.block is not None

    def add_attempt(self, prepared: SubmissionAttempt, at: float) -> None:
        """Add the next attempt, which may not be sent yet. It replaces one without bytes, whose block was lost."""
        if not self._has_raw_bytes(prepared.hash):
            self._in_log.discard(prepared.hash)
            self._put_attempt(prepared)
            self.pushed_at = None
        self.was_alive = True
        self.prepared_at = at

    def release_attempt(self, prepared: SubmissionAttempt) -> None:
        """Allow an attempt to be sent, because it is in the log."""
        if not self._has_raw_bytes(prepared.hash):
            self._put_attempt(prepared)
        self._in_log.add(prepared.hash)

    def _put_attempt(self, prepared: SubmissionAttempt) -> None:
        others = [each for each in self.attempts if each.hash != prepared.hash]
        self.attempts = [*others, prepared][-ATTEMPTS_MAX:]

    def _has_raw_bytes(self, hash: str) -> bool:
        return any(each.hash == hash and (each.raw or not hash) for each in self.attempts)

    def newest_released(self) -> SubmissionAttempt | None:
        return next((each for each in reversed(self.attempts) if each.hash in self._in_log), None)

    def newest_released_by_nonce(self) -> list[SubmissionAttempt]:
        """Return the newest attempt of each nonce that may be sent and has its bytes, the lowest nonce first."""
        newest = {each.nonce: each for each in self.attempts if each.raw and each.hash in self._in_log}
        return [newest[nonce] for nonce in sorted(newest)]

    @property
    def was_sent(self) -> bool:
        return bool(self._sent)

    @property
    def is_waiting_for_log(self) -> bool:
        """Whether the newest attempt may not be sent yet."""
        return self.attempts[-1].hash not in self._in_log

    def mark_sent(self, prepared: SubmissionAttempt) -> bool:
        """Record an attempt as sent. Returns whether this is the first time in this process."""
        first = prepared.hash not in self._sent
        self._sent.add(prepared.hash)
        return first

    def count_missing_check(self) -> bool:
        """Count a check without a live attempt. Returns whether the attempts count as gone."""
        self.missing_checks += 1
        return not self.attempts or self.missing_checks >= MISSING_CHECKS

    def mark_included(self, block: BlockRef, hash: str) -> None:
        self.block, self.hash, self.is_unannounced, self.was_alive = block, hash, False, True

    def forget_block(self) -> None:
        """Forget the block, because a reorganisation has replaced it."""
        self.block, self.hash, self.is_unannounced, self.missing_checks = None, "", False, 0
        self.pushed_at = None  # the same bytes are sent again


def list_replaced_attempts(tracked: TrackedSubmission) -> list[SubmissionAttempt]:
    """Return the attempts that a new one replaces, without the bytes of those that all endpoints refused."""
    return [replace(each, raw=b"") if each.hash in tracked.unwanted else each for each in tracked.attempts]


def _deduplicate_attempts(attempts: Sequence[SubmissionAttempt]) -> list[SubmissionAttempt]:
    """Return attempts without repetitions, in order: each hash at its last place, with its bytes from any place."""
    kept: dict[str, SubmissionAttempt] = {}
    for each in attempts:
        known = kept.pop(each.hash, each)
        kept[each.hash] = each if each.raw else known
    return list(kept.values())


TRACKED_MAX = 4096  # submissions at once; one more fails, and the core sends it again
IDLE_S = 5.0  # between two rounds of checks without a new head
HELD_S = 60.0  # until a submission that exceeds the day's budget is tried again


class Submitter:
    """Tracks submissions from their command until they are confirmed, refused, lost or failed. An attempt is sent only
    after it is in the log, and replaced if it is stuck."""

    def __init__(
        self,
        config: ChainConfig,
        peer: str,
        coordinator: ports.ContractReader,
        accounts: ports.AccountClient,
        sender: SubmissionSender,
        confirmed: ports.ConfirmedBlock,
        emit: EventSink,
        runtime: Runtime = LOOP,
    ) -> None:
        self._config = config
        self._peer = peer
        self._accounts = accounts
        self._sender = sender
        self._confirmed = confirmed
        self._emit = emit
        self._tracked: dict[str, TrackedSubmission] = {}
        self._runtime = runtime
        self._blocks = coordinator.blocks
        self._resolver = SubmissionResolver(coordinator, peer, sender.account)
        self._unsent: set[str] = set()  # failed, and not pending although the log has an attempt
        self._woken = runtime.make_signal()
        self._depth: int | None = None  # the last confirmed block in this round of checks

    # --- orders ---

    def handle_command(self, command: Submit | Broadcast) -> None:
        """Handle a command; its results are emitted as events."""
        tracked = self._tracked.get(command.submission)
        if isinstance(command, Submit):
            self._handle_submit(command, tracked)
        elif tracked is None:
            self._emit(events.CommandFailed(command.id, "this submission is not under way here"))
        else:
            tracked.release_attempt(command.prepared)
        self._woken.set()

    def _handle_submit(self, command: Submit, tracked: TrackedSubmission | None) -> None:
        if tracked is not None:
            tracked.update_command(command)
        elif len(self._tracked) >= TRACKED_MAX:
            self._emit(events.CommandFailed(command.id, f"{TRACKED_MAX} submissions are tracked already"))
        else:
            tracked = self._tracked[command.submission] = TrackedSubmission(command)
            # Attempts of an earlier process may still be pending; if their fate cannot be known, wait.
            if tracked.attempts and not self._sender.repeatable and command.submission not in self._unsent:
                tracked.pushed_at = self._runtime.now()
            self._unsent.discard(command.submission)

    def _stop_tracking(self, tracked: TrackedSubmission) -> None:
        self._tracked.pop(tracked.submission, None)

    def on_head(self) -> None:
        """Check everything again, because the chain has a new head."""
        self._woken.set()

    async def run(self) -> None:
        """Check all tracked submissions until cancelled. Endpoints' errors do not end it."""
        while True:
            pause_s = min(IDLE_S, self._config.fees.stuck_s / 2) if self._tracked else None
            await self._woken.wait(pause_s)
            self._depth = None
            for tracked in list(self._tracked.values()):
                await self._check_submission(tracked)

    async def _check_submission(self, tracked: TrackedSubmission) -> None:
        try:
            if tracked.held_until <= self._runtime.now() and await self._has_needed_funds(tracked):
                await self._advance_submission(tracked)
        except (
            errors.ChainError,
            errors.ChainMismatch,
            errors.ContractRefused,
        ) as error:  # the watcher handles a mismatch
            self._handle_failure(tracked, error)
        except errors.SwarmdError:
            raise
        except Exception as error:
            log.exception("%s failed", tracked.command.id)
            self._emit_failed(tracked, f"{type(error).__name__}: {error}")

    async def _has_needed_funds(self, tracked: TrackedSubmission) -> bool:
        """Return whether the account has the funds that it lacked before."""
        if tracked.needed_wei and await self._accounts.balance_wei(self._sender.account) >= tracked.needed_wei:
            tracked.needed_wei = 0
        return not tracked.needed_wei

    def _handle_failure(self, tracked: TrackedSubmission, error: errors.SwarmdError) -> None:
        """Report a failure, and stop tracking the submission unless it only lacks funds.

        One that lacks coins, or exceeds the day's budget, continues as soon as it can. A step of the contract does not:
        by then somebody else has made it.
        """
        if tracked.needed_wei:
            log.debug("%s: %s", tracked.command.id, error)
        elif isinstance(error, errors.InsufficientFunds) and tracked.command.kind != "advance":
            tracked.needed_wei = error.needed_wei
            self._emit_trouble(tracked, str(error))
        elif isinstance(error, errors.BudgetSpent) and tracked.command.kind != "advance":
            tracked.held_until = self._runtime.now() + HELD_S
            self._emit_trouble(tracked, str(error))
        elif tracked.block is not None or (isinstance(error, errors.EndpointFailed) and tracked.attempts):
            log.info("%s: %s", tracked.command.id, error)
        else:
            self._emit_failed(tracked, str(error))

    # --- one check ---

    async def _advance_submission(self, tracked: TrackedSubmission) -> None:
        if tracked.block is not None and await self._check_inclusion_block(tracked, tracked.block):
            return
        fate: Fate = await self._sender.trace_attempts(tracked.attempts) if tracked.attempts else "gone"
        if isinstance(fate, MinedAttempt) and fate.succeeded:
            self._emit_included(tracked, fate.block, fate.hash)
            return
        seen = await self._resolver.resolve_submission(tracked.command)
        if seen is True:
            await self._include_in_head(tracked)
        elif isinstance(seen, ContractRefusal):
            await self._refuse_when_safe(tracked, seen, fate)
        elif fate == "waiting":
            tracked.missing_checks = 0
            await self._send_or_bump_fee(tracked)
        elif isinstance(fate, MinedAttempt) or tracked.count_missing_check():
            await self._handle_dead_attempts(tracked, fate)

    async def _handle_dead_attempts(self, tracked: TrackedSubmission, fate: Fate) -> None:
        """Continue if no attempt can be mined: those of an earlier process may have been reported as lost already."""
        if not tracked.was_alive:
            if (refusal := _reason_not_to_sign(tracked.command)) is not None:
                self._emit_refused(tracked, refusal)
            else:
                await self._prepare_first_attempt(tracked)
        elif isinstance(fate, MinedAttempt):
            await self._resolve_reverted(tracked, fate)
        else:
            self._emit_lost(tracked, "another transaction took the nonce")

    async def _refuse_when_safe(self, tracked: TrackedSubmission, refusal: ContractRefusal, fate: Fate) -> None:
        """Refuse it, but not while an attempt could still be mined: the attempt's nonce must be used first."""
        if refusal.permanent or fate != "waiting" or not await self._is_attempt_pending(tracked):
            self._emit_refused(tracked, refusal)
        elif self._config.drive == "manager" and not tracked.withdrawn:
            await self._cancel_attempt(tracked)  # a manager's step names no stage, and would be made from another one
        else:
            await self._send_or_bump_fee(tracked)

    async def _is_attempt_pending(self, tracked: TrackedSubmission) -> bool:
        released = tracked.newest_released()
        return released is not None and (tracked.was_sent or await self._sender.is_attempt_known(released))

    # --- on the chain ---

    async def _check_inclusion_block(self, tracked: TrackedSubmission, block: BlockRef) -> bool:
        """Confirm a submission in a deep block; forget a replaced block. Returns whether the chain has the block."""
        if self._depth is None:
            self._depth = await self._confirmed()
        there = await ports.is_on_chain(self._blocks, block)
        deep = block.number <= self._depth
        if there and deep and not tracked.hash:
            there = await self._resolver.resolve_submission(tracked.command) is True
        if not there:
            tracked.forget_block()
            return False
        if tracked.is_unannounced:
            self._emit_included(tracked, block, tracked.hash)
        if deep:
            self._emit(events.SubmissionConfirmed(tracked.submission, block))
            self._stop_tracking(tracked)
        return True

    # --- attempts, each of which is sent only after it is in the log ---

    async def _prepare_first_attempt(self, tracked: TrackedSubmission) -> None:
        try:
            prepared = await self._sender.prepare_attempt(self._peer, tracked.command, tracked.attempts)
        except errors.ContractRefused as error:
            await self._resolve_refused(tracked, error)
            return
        if prepared is None:
            raise errors.ChainError("the bounds of chain.fees leave no price for it")
        self._emit_prepared(tracked, prepared)

    async def _send_or_bump_fee(self, tracked: TrackedSubmission) -> None:
        """Send the newest attempt that may be sent, or prepare one at a higher price if it is stuck."""
        tracked.was_alive = True
        since = self._runtime.now() - self._config.fees.stuck_s
        if tracked.is_waiting_for_log and tracked.prepared_at <= since:
            self._emit_prepared(tracked, tracked.attempts[-1])
        if not tracked.is_waiting_for_log and tracked.pushed_at is not None and tracked.pushed_at <= since:
            await self._bump_fee(tracked)
        elif (prepared := tracked.newest_released()) is not None:
            await self._send_released_attempt(tracked, prepared)

    async def _send_released_attempt(self, tracked: TrackedSubmission, prepared: SubmissionAttempt) -> None:
        if not self._sender.repeatable:
            await self._broadcast_once(tracked, prepared)
        elif prepared.raw:
            await self._broadcast_attempt(tracked, prepared)
        elif not tracked.is_waiting_for_log:
            await self._prepare_first_attempt(tracked)  # it was confirmed once, and the log no longer has its bytes

    async def _broadcast_attempt(self, tracked: TrackedSubmission, prepared: SubmissionAttempt) -> bool:
        """Send an attempt; False if the contract or the endpoint refused it."""
        try:
            name = await self._sender.send_attempt(self._peer, tracked.command, prepared)
        except errors.ContractRefused as error:
            await self._resolve_refused(tracked, error)
            return False
        except errors.RpcRefused as error:
            if tracked.pushed_at is None:  # refused as signed, for instance for lack of gas: it is replaced in time
                tracked.pushed_at = self._runtime.now()
                self._emit_trouble(tracked, str(error))
            if not tracked.was_sent:
                tracked.unwanted.add(prepared.hash)
            return False
        if tracked.pushed_at is None or prepared.hash in tracked.unwanted:
            tracked.pushed_at = self._runtime.now()
        tracked.unwanted.discard(prepared.hash)
        if name is not None and tracked.mark_sent(prepared):
            self._emit(events.SubmissionSent(tracked.submission, name))
        return True

    async def _broadcast_once(self, tracked: TrackedSubmission, prepared: SubmissionAttempt) -> None:
        if tracked.pushed_at is not None:
            return
        try:
            await self._broadcast_attempt(tracked, prepared)
        except errors.EndpointFailed as error:
            tracked.pushed_at = self._runtime.now()  # it may have arrived all the same
            self._emit_trouble(tracked, str(error))
        except errors.ChainError:
            self._unsent.add(tracked.submission)
            raise

    async def _bump_fee(self, tracked: TrackedSubmission) -> None:
        """Replace a stuck attempt by a dearer one, or by an empty one if the contract would refuse it now."""
        if not self._sender.repeatable:
            self._unsent.add(tracked.submission)
            raise errors.ChainError(
                f"the chain does not have it {self._config.fees.stuck_s:g} s after the signer proxy was asked"
            )
        tracked.pushed_at = self._runtime.now()
        if tracked.withdrawn:
            await self._cancel_attempt(tracked)
            return
        try:
            prepared = await self._sender.prepare_attempt(self._peer, tracked.command, list_replaced_attempts(tracked))
        except errors.ContractRefused:
            await self._cancel_attempt(tracked)
            return
        except errors.EndpointFailed:
            raise
        except errors.ChainError as error:
            log.warning("%s is stuck: %s", tracked.submission, error)
            prepared = None
        await self._emit_replacement(tracked, prepared)

    async def _cancel_attempt(self, tracked: TrackedSubmission) -> None:
        """Cancel the pending attempt: replace it by an empty transaction with the same nonce."""
        tracked.withdrawn = True
        await self._emit_replacement(tracked, await self._sender.prepare_withdrawal(list_replaced_attempts(tracked)))

    async def _emit_replacement(self, tracked: TrackedSubmission, prepared: SubmissionAttempt | None) -> None:
        """Emit the next attempt; if there is none, send the newest attempt of each nonce again: the endpoints may have
        forgotten the lowest nonce, and the others wait for it."""
        if prepared is not None:
            self._emit_prepared(tracked, prepared)
            return
        log.warning("%s is stuck at the highest price that chain.fees allows", tracked.submission)
        for each in tracked.newest_released_by_nonce():
            if not await self._broadcast_attempt(tracked, each):
                return

    # --- refusals and reverts ---

    async def _resolve_refused(self, tracked: TrackedSubmission, error: errors.ContractRefused) -> None:
        verdict = await self._resolver.resolve_refusal(tracked.command, error)
        if isinstance(verdict, ContractRefusal):
            self._emit_refused(tracked, verdict)
        else:
            await self._include_in_head(tracked)

    async def _include_in_head(self, tracked: TrackedSubmission) -> None:
        """Record inclusion in the head, which is not earlier than the submission's block."""
        self._emit_included(tracked, await self._blocks.get_head(), "")

    async def _resolve_reverted(self, tracked: TrackedSubmission, mined: MinedAttempt) -> None:
        """End a submission whose attempt was mined and reverted, so that its nonce is used."""
        try:
            await self._sender.explain_revert(self._peer, tracked.command, mined)
        except errors.ContractRefused as error:
            await self._resolve_revert_reason(tracked, error)
            return
        self._emit_lost(tracked, f"it was reverted in block {mined.block.number}")

    async def _resolve_revert_reason(self, tracked: TrackedSubmission, error: errors.ContractRefused) -> None:
        if error.code in TOO_EARLY:  # it was too early in that block; it is tried again
            self._emit_lost(tracked, error.message)
            return
        try:
            await self._resolve_refused(tracked, error)
        except errors.EndpointFailed:
            raise
        except errors.ChainError as passing:
            self._emit_lost(tracked, str(passing))

    # --- events ---

    def _emit_prepared(self, tracked: TrackedSubmission, attempt: SubmissionAttempt) -> None:
        tracked.add_attempt(attempt, self._runtime.now())
        self._emit(events.SubmissionPrepared(tracked.submission, attempt))

    def _emit_included(self, tracked: TrackedSubmission, block: BlockRef, hash: str) -> None:
        tracked.mark_included(block, hash)
        self._emit(events.SubmissionIncluded(tracked.submission, block, hash))

    def _emit_refused(self, tracked: TrackedSubmission, refusal: ContractRefusal) -> None:
        """Report that the contract will never accept it."""
        self._emit(events.SubmissionRefused(tracked.submission, refusal.code, refusal.reason, refusal.permanent))
        self._stop_tracking(tracked)

    def _emit_lost(self, tracked: TrackedSubmission, reason: str) -> None:
        """Report that no attempt can be mined any more."""
        self._emit(events.SubmissionLost(tracked.submission, reason))
        self._stop_tracking(tracked)

    def _emit_failed(self, tracked: TrackedSubmission, reason: str) -> None:
        """Report a failure, and stop tracking; the core sends the submission again."""
        self._emit_trouble(tracked, reason)
        self._stop_tracking(tracked)

    def _emit_trouble(self, tracked: TrackedSubmission, reason: str) -> None:
        """Report a failure of a submission that stays tracked."""
        log.info("%s: %s", tracked.command.id, reason)
        self._emit(events.CommandFailed(tracked.command.id, reason))


def _reason_not_to_sign(command: Submit) -> ContractRefusal | None:
    """Return why nothing new may be signed for a submission; None if it may."""
    if command.kind == "winners" and not command.winners:
        return ContractRefusal(
            "empty-vote", "a vote without winners leaves no trace on the chain, and could be repeated"
        )
    if command.kind in ("register", "advance") or command.prepared or command.mark < (command.round, command.stage):
        return None
    reason = f"the chain has one of this node of round {command.mark[0]} already: nothing older is signed"
    return ContractRefusal("below-mark", reason)


class ChainCommandDispatcher:
    """Passes the daemon's commands to watcher and submitter. `submitter`: None if this node submits nothing. `budget`:
    the account's; None if this node signs nothing."""

    def __init__(
        self,
        watcher: ChainWatcher,
        submitter: Submitter | None,
        budget: DailyBudget | None,
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

    def start_tasks(self) -> None:
        self._begin(self._watcher.membership.run)
        if self._submitter is not None:
            self._begin(self._submitter.run)

    def handle_command(self, command: Command) -> None:
        """Handle a command; its results are emitted as events."""
        if isinstance(command, WatchChain):
            self._start_watching(command)
        elif isinstance(command, Submit | Broadcast) and self._submitter is not None:
            self._submitter.handle_command(command)
        elif isinstance(command, Submit):
            reason = 'chain.sender is "none": this node follows the chain and submits nothing'
            self._emit(events.SubmissionRefused(command.submission, "follows-only", reason))
        else:
            self._emit(events.CommandFailed(command.id, "this is not a command for the chain worker"))

    def _start_watching(self, order: WatchChain) -> None:
        if self._budget is not None:
            self._budget.restore(order.spent_day, int(order.spent_wei))
        if self._watching:
            self._watcher.emit_chain_up_again()
        else:
            self._watching = True
            self._begin(partial(self._watcher.run, order))
