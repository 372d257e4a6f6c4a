"""This node's submissions to the chain, each made exactly once and in order: intended, prepared, sent, included,
confirmed.

An intention is in the state before anything leaves the node, and so is every attempt (a signed transaction) before it
is sent. After any interruption, the worker gets the earlier attempts and checks the chain before it tries again. Only
one submission at a time is on its way to the chain; the confirmation of earlier ones is tracked in parallel.
"""

import math

from msgspec.structs import replace

from swarmd.bounds import INTEGER_MAX, clamp_integer
from swarmd.core import events, workers
from swarmd.core.chart_types import SubmissionState
from swarmd.core.commands import Broadcast, Submit
from swarmd.core.ids import command_id, submission_id
from swarmd.core.state import OUTBOX_MAX, PREPARED_KEPT, SETTLED_KEPT, StateBase, Submission
from swarmd.core.turn import StepContext
from swarmd.core.values import SubmissionAttempt, SubmissionKind, utc_day_of
from swarmd.errors import ExitCode

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0
SETTLED: tuple[SubmissionState, ...] = ("confirmed", "refused")
ON_CHAIN: tuple[SubmissionState, ...] = ("included", "confirmed")
TURNS = 8  # delay slots of nodes that may advance the contract
REPEATABLE: tuple[SubmissionKind, ...] = ("register", "advance")  # may be submitted again after a refusal


# --- what is wanted ---


def submit_registration(turn: StepContext) -> None:
    """Submit the registration of this peer, ahead of all other submissions."""
    known = find_submission(turn.state, "register")
    if known is None or known.chart in SETTLED:
        add_submission(turn, Submission("register", "register"), first=True)


def on_register_due(turn: StepContext) -> None:
    """Register again, because a registration refused earlier may be allowed now."""
    if turn.is_chain_up and not turn.chain.registered:
        submit_registration(turn)


def submit_reward(turn: StepContext, round: int, stage: int, value: float) -> None:
    """Submit a stage's reward, as an integer."""
    scale = turn.chain_settings.reward_scale
    scaled = value * scale + 0.5
    amount = clamp_integer(math.floor(scaled), INTEGER_MAX, -INTEGER_MAX) if math.isfinite(scaled) else 0
    add_submission(
        turn, Submission(submission_id("reward", f"{round}/{stage}"), "reward", round=round, stage=stage, reward=amount)
    )


def submit_advance(turn: StepContext, round: int, stage: int) -> None:
    """Submit an advance of the contract from this stage."""
    add_submission(turn, Submission(submission_id("advance", f"{round}/{stage}"), "advance", round=round, stage=stage))


def add_submission(turn: StepContext, submission: Submission, first: bool = False) -> None:
    """Add a submission to the outbox, once."""
    known = find_submission(turn.state, submission.id)
    if known is not None and not (known.kind in REPEATABLE and known.chart in SETTLED):
        return
    submission = replace(submission, since=turn.at, intended_at=turn.at)
    if known is not None:  # unless it is mined for good, an earlier attempt may still be mined
        prepared = () if known.chart == "confirmed" else known.prepared
        submission = replace(submission, prepared=prepared, attempts=known.attempts)
    others = tuple(each for each in turn.state.submissions if each is not known)
    if sum(each.chart not in SETTLED for each in others) >= OUTBOX_MAX:
        reason = f"{OUTBOX_MAX} submissions wait for the chain"
        submission = replace(submission, chart="refused", code="outbox-full", reason=reason)
    turn.state.submissions = _trim_settled((submission, *others) if first else (*others, submission))
    send_next_submission(turn)


def _trim_settled(kept: tuple[Submission, ...]) -> tuple[Submission, ...]:
    """Drop the oldest settled submissions beyond the bound, by order: a clock may have been set back."""
    surplus = sum(each.chart in SETTLED for each in kept) - SETTLED_KEPT
    if surplus <= 0:
        return kept
    settled = [each for each in kept if each.chart in SETTLED]
    settled.sort(key=lambda each: each.kind == "register")  # registrations last: one is always first in the order
    gone = {each.id for each in settled[:surplus]}
    return tuple(each for each in kept if each.id not in gone)


# --- handing over ---


def find_submission(state: StateBase, submission_id: str) -> Submission | None:
    return next((each for each in state.submissions if each.id == submission_id), None)


def submissions_on_chain(state: StateBase, kind: SubmissionKind) -> list[Submission]:
    return [each for each in state.submissions if each.kind == kind and each.chart in ON_CHAIN]


def block_number_of(submission: Submission) -> int:
    """Return the number of the block that includes it, -1 for none."""
    return -1 if submission.block is None else submission.block.number


def next_submission(state: StateBase) -> Submission | None:
    """Return the first submission that is not settled and that the contract is ready for."""
    for each in state.submissions:
        if each.chart not in (*ON_CHAIN, "refused") and not _is_ahead_of_contract(state, each):
            return each
    return None


def _is_ahead_of_contract(state: StateBase, submission: Submission) -> bool:
    """Return whether a reorganisation took the contract back to before this submission: it must advance first."""
    chain = state.chain
    if chain is None or submission.kind == "register":
        return False
    return (submission.round, submission.stage) > (chain.round, chain.stage)


def resume_submissions(turn: StepContext, everything: bool) -> None:
    """Send the next submission to the chain worker; to a new worker also those whose confirmation it must track."""
    if everything:
        for each in turn.state.submissions:
            if each.chart == "included":
                _send_submission(turn, each)
    send_next_submission(turn)


def send_next_submission(turn: StepContext) -> None:
    """Send the next submission to the chain worker, unless the worker has it."""
    if not turn.is_chain_up:
        return
    head = next_submission(turn.state)
    wanted = "" if head is None else head.id
    if turn.chain.handed != wanted:
        turn.update_chain(handed=wanted, failures=0)
        if head is not None:
            _send_submission(turn, head)
    _set_resend_deadline(turn)


def _send_submission(turn: StepContext, submission: Submission) -> None:
    if not turn.is_submitting:
        return
    turn.emit(
        Submit(
            id=command_id("submit", f"{submission.id}/{turn.seq}"),
            submission=submission.id,
            kind=submission.kind,
            round=submission.round,
            stage=submission.stage,
            reward=submission.reward,
            winners=submission.winners,
            prepared=submission.prepared,
            mark=_signing_mark_for(turn, submission),
        )
    )


def _signing_mark_for(turn: StepContext, submission: Submission) -> tuple[int, int]:
    """Return the (round, stage) up to which nothing new may be signed, if the chain has more of this node than its log.
    Submissions in this log set no mark: after a reorganisation the later of two may be mined first."""
    known = turn.chain
    if submission.kind == "reward":
        round, stage = known.reward_mark
        return (
            (-1, -1) if find_submission(turn.state, submission_id("reward", f"{round}/{stage}")) else known.reward_mark
        )
    if submission.kind == "winners" and not find_submission(turn.state, submission_id("winners", known.vote_mark)):
        return (known.vote_mark, 0)
    return (-1, -1)


def _set_resend_deadline(turn: StepContext) -> None:
    """Set a deadline for checking again, as long as a submission is not settled."""
    if turn.is_submitting and any(each.chart not in SETTLED for each in turn.state.submissions):
        turn.set_deadline_if_sooner("submission", turn.at + turn.chain_settings.resend_s)
    else:
        turn.clear_deadlines("submission")


def on_overdue(turn: StepContext) -> None:
    """Send everything again, after a failure or a time without news."""
    if turn.is_chain_up:
        head = next_submission(turn.state)
        turn.update_chain(handed="" if head is None else head.id)
        for each in turn.state.submissions:
            if each is head or each.chart == "included":
                _send_submission(turn, each)
        _set_resend_deadline(turn)


# --- news ---


def on_prepared(turn: StepContext, event: events.SubmissionPrepared) -> None:
    """Send the attempt, which is now in the log."""
    submission = find_submission(turn.state, event.submission)
    if submission is None:
        return
    attempts = submission.attempts + 1
    # signed again after a reorganisation, it has the bytes that were dropped
    others = tuple(each for each in submission.prepared if not each.hash or each.hash != event.prepared.hash)
    prepared = (*others, event.prepared)[-PREPARED_KEPT:]
    if turn.fire_submission_trigger(submission, "prepare", prepared=prepared, attempts=attempts, reason=""):
        _record_cost(turn, submission, event.prepared)
        turn.emit(Broadcast(command_id("broadcast", f"{submission.id}/{attempts}"), submission.id, event.prepared))
        _set_resend_deadline(turn)


def _record_cost(turn: StepContext, submission: Submission, attempt: SubmissionAttempt) -> None:
    """Add an attempt's possible cost to its day. Of each nonce the most expensive one counts."""
    counted = max((int(each.cost_wei) for each in submission.prepared if each.nonce == attempt.nonce), default=0)
    more_wei = int(attempt.cost_wei) - counted
    if more_wei <= 0:
        return
    day = max(utc_day_of(turn.at), turn.chain.spent_day)  # a clock that is set back opens no new day
    before_wei = int(turn.chain.spent_wei) if day == turn.chain.spent_day else 0
    turn.update_chain(spent_day=day, spent_wei=str(before_wei + more_wei))


def on_sent(turn: StepContext, event: events.SubmissionSent) -> None:
    submission = find_submission(turn.state, event.submission)
    if submission is not None and turn.fire_submission_trigger(submission, "send", hash=event.hash, reason=""):
        turn.update_chain(failures=0)
        _set_resend_deadline(turn)


def on_included(turn: StepContext, event: events.SubmissionIncluded) -> None:
    """Record that the chain has the submission, and send the next one."""
    submission = find_submission(turn.state, event.submission)
    if submission is None:
        return
    if turn.fire_submission_trigger(
        submission, "include", block=event.block, hash=event.hash or submission.hash, reason=""
    ):
        _record_mark(turn, submission, event.block.number)
        send_next_submission(turn)


def _record_mark(turn: StepContext, submission: Submission, block: int) -> None:
    known = turn.chain
    if submission.kind == "register":
        turn.update_chain(registered=True)
    elif submission.kind == "reward" and (submission.round, submission.stage) >= known.reward_mark:
        turn.update_chain(reward_mark=(submission.round, submission.stage), reward_block=block)
    elif submission.kind == "winners" and submission.round >= known.vote_mark:
        turn.update_chain(vote_mark=submission.round, vote_block=block)


def on_confirmed(turn: StepContext, event: events.SubmissionConfirmed) -> None:
    """Drop the signed bytes of a confirmed submission; its hashes stay."""
    submission = find_submission(turn.state, event.submission)
    if submission is None:
        return
    prepared = tuple(replace(each, raw=b"") for each in submission.prepared)
    if turn.fire_submission_trigger(submission, "confirm", block=event.block, prepared=prepared):
        turn.state.submissions = _trim_settled(turn.state.submissions)
        _set_resend_deadline(turn)


def on_lost(turn: StepContext, event: events.SubmissionLost) -> None:
    """Schedule a new attempt in place of the lost ones."""
    submission = find_submission(turn.state, event.submission)
    if submission is not None and turn.fire_submission_trigger(submission, "lose", reason=event.reason, block=None):
        _schedule_retry(turn)


def on_failed(turn: StepContext, event: events.CommandFailed) -> None:
    """Schedule a retry. An advance is dropped instead until its next turn, so that it blocks nothing."""
    submission = find_submission(turn.state, event.command.partition("/")[2].rpartition("/")[0])
    if submission is None or submission.chart in SETTLED:
        return
    if submission.kind == "advance" and submission.chart == "intended":
        turn.fire_submission_trigger(submission, "refuse", code="not-yet", reason=event.reason)
        turn.state.submissions = _trim_settled(turn.state.submissions)
        send_next_submission(turn)
        return
    place = turn.state.submissions.index(submission)
    noted = replace(submission, reason=event.reason)
    turn.state.submissions = (*turn.state.submissions[:place], noted, *turn.state.submissions[place + 1 :])
    _schedule_retry(turn)


def _schedule_retry(turn: StepContext) -> None:
    wait_s = min(RETRY_FIRST_S * 2.0 ** min(turn.chain.failures, 10), RETRY_MAX_S)
    turn.update_chain(failures=turn.chain.failures + 1)
    turn.set_deadline_if_sooner("submission", turn.at + wait_s)


def on_refused(turn: StepContext, event: events.SubmissionRefused) -> None:
    """Record a refusal and continue; stop the node if the contract will never accept any submission of it."""
    submission = find_submission(turn.state, event.submission)
    if submission is None or not turn.fire_submission_trigger(
        submission, "refuse", code=event.code, reason=event.reason
    ):
        return
    turn.state.submissions = _trim_settled(turn.state.submissions)
    if event.permanent:
        workers.stop_node(turn, f"the contract refuses this node: {event.reason}", ExitCode.CHAIN_CONFLICT)
        return
    if submission.kind == "register":
        turn.set_deadline("register", turn.at + turn.chain_settings.resend_s)
    send_next_submission(turn)


def drop_above_fork(turn: StepContext, fork: int) -> None:
    """Mark submissions included in blocks above `fork` as not included, so that they are sent again."""
    for each in turn.state.submissions:
        if each.chart in ON_CHAIN and block_number_of(each) > fork:
            turn.fire_submission_trigger(each, "drop", block=None)
    turn.update_chain(handed="")
    if turn.is_chain_up:
        _set_resend_deadline(turn)


def drop_advances(turn: StepContext) -> None:
    """Drop pending steps of the contract that others have taken."""
    place = (turn.chain.round, turn.chain.stage)
    for each in turn.state.submissions:
        if each.kind == "advance" and each.chart in ("intended", "lost") and (each.round, each.stage) < place:
            turn.fire_submission_trigger(each, "refuse", code="moved-on", reason="the contract is at a later stage")
    turn.state.submissions = _trim_settled(turn.state.submissions)
    send_next_submission(turn)


def is_reward_pending(state: StateBase, round: int, stage: int) -> bool:
    """Return whether a stage's reward is still on its way to the chain."""
    if not state.submissions:
        return False
    submission = find_submission(state, submission_id("reward", f"{round}/{stage}"))
    return submission is not None and submission.chart not in (*ON_CHAIN, "refused")
