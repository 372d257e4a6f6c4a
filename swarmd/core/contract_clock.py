"""Rounds kept by a contract: where the contract is, what it says about this node, and who advances it.

The contract's round and stage take precedence over everything else. While the chain cannot be reached, the node follows
the clock that the coordinator mirrors into the DHT, continues to train, and keeps its submissions (submissions.py).
"""

import zlib
from collections.abc import Callable
from typing import Any

from swarmd.core import events, rounds, submissions, votes, workers
from swarmd.core.commands import AdmitPeers, Announce
from swarmd.core.ids import command_id, timer_name_of
from swarmd.core.state import BLOCKS_KEPT, ONCHAIN_PEERS_MAX, ChainState
from swarmd.core.turn import StepContext
from swarmd.core.values import BlockRef
from swarmd.errors import ExitCode

# --- the connection ---


def on_chain_up(turn: StepContext, event: events.ChainUp) -> None:
    """Follow the contract and resume submissions, after the chain has been read up to its head."""
    turn.clear_deadlines(timer_name_of("ready", "chain"))
    if not _check_contract(turn, event):
        return
    fresh = turn.fire_chain_trigger("linked", reason="", handed="", failures=0)
    if turn.chain.chart != "up":
        return
    turn.update_chain(
        chain_id=event.chain_id,
        contract=event.contract,
        genesis=event.genesis,
        stages=event.stages,
        account=event.account or turn.chain.account,
        registered=bool(event.registered_to),
        extensions=event.extensions,
        min_submissions=event.min_submissions,
        max_stage_s=event.max_stage_s,
        base_fee=turn.chain.base_fee or event.base_fee,
        recent=_append_block(turn.chain.recent, event.head),
    )
    _set_round_and_stage(turn, event.round, event.stage, event.opened_at)
    if turn.is_submitting and not event.registered_to:
        submissions.submit_registration(turn)
    _follow_contract(turn)
    submissions.resume_submissions(turn, everything=fresh)


def _check_contract(turn: StepContext, event: events.ChainUp) -> bool:
    """Stop the node if the contract or account differs from the log's. Returns whether both match."""
    known = turn.chain
    if known.contract and known.contract.lower() != event.contract.lower():
        reason = (
            f"the log belongs to a swarm of the contract {known.contract}, the configuration names {event.contract}"
        )
        workers.stop_node(turn, reason, ExitCode.CHAIN_CONFLICT)
        return False
    return _check_account(turn, event.registered_to, event.account)


def _check_account(turn: StepContext, owner: str, account: str) -> bool:
    if turn.is_submitting and owner and account and owner.lower() != account.lower():
        reason = f"the contract knows this peer under the account {owner}, this node submits from {account}"
        workers.stop_node(turn, reason, ExitCode.CHAIN_CONFLICT)
        return False
    return True


def on_chain_degraded(turn: StepContext, event: events.ChainDegraded) -> None:
    """Follow the DHT's clock while no endpoint answers."""
    turn.clear_deadlines(timer_name_of("ready", "chain"))
    if turn.fire_chain_trigger("isolated", reason=event.reason, handed=""):
        turn.mark_faulted()
        _follow_dht_clock(turn)


def on_chain_worker_exited(turn: StepContext, event: events.WorkerExited) -> None:
    """Follow the DHT's clock until the chain worker is back."""
    turn.fire_chain_trigger("exited", reason=event.reason, handed="")
    if turn.state.chart not in workers.LEAVING:
        _follow_dht_clock(turn)


def _follow_dht_clock(turn: StepContext) -> None:
    turn.clear_deadlines("submission", "drive")
    turn.set_deadline("clock", turn.at + turn.settings.clock_s)


# --- what the contract says ---


def on_chain_block(turn: StepContext, event: events.ChainBlock) -> None:
    """Apply a block's log entries. While the chain is still being read, blocks do not move the clock."""
    for entry in event.logs:
        rule = _LOGS.get(type(entry))
        if rule is not None:
            rule(turn, entry, event.block)
    turn.update_chain(recent=_append_block(turn.chain.recent, event.block))
    if turn.chain.chart == "connecting":
        # there is much to read, but it makes progress
        turn.set_deadline(timer_name_of("ready", "chain"), turn.at + turn.settings.ready_s)
    if turn.is_chain_up and event.logs:
        _follow_contract(turn)


def _append_block(recent: tuple[BlockRef, ...], block: BlockRef) -> tuple[BlockRef, ...]:
    kept = tuple([known for known in recent if known.number < block.number])
    return (*kept[1 - BLOCKS_KEPT :], block)


def _on_stage_log(turn: StepContext, entry: events.StageLog, block: BlockRef) -> None:
    _set_round_and_stage(turn, entry.round, entry.stage, block.at)


def _set_round_and_stage(turn: StepContext, round: int, stage: int, opened_at: float) -> None:
    chain = turn.chain
    if (chain.round, chain.stage) != (round, stage):
        turn.clear_deadlines("drive")
        turn.update_chain(reporters=(), counted=0)
    turn.update_chain(round=round, stage=stage, opened_at=opened_at)


def _on_registration_log(turn: StepContext, entry: events.RegistrationLog, block: BlockRef) -> None:
    if entry.peer == turn.settings.peer and _check_account(turn, entry.account, turn.chain.account):
        turn.update_chain(registered=True, account=turn.chain.account or entry.account)


def _on_reward_log(turn: StepContext, entry: events.RewardLog, block: BlockRef) -> None:
    chain = turn.chain
    place = (entry.round, entry.stage)
    if entry.peer == turn.settings.peer and place >= chain.reward_mark:
        turn.update_chain(reward_mark=place, reward_block=block.number)
    has_room = len(chain.reporters) < ONCHAIN_PEERS_MAX
    if place == (chain.round, chain.stage) and entry.peer not in chain.reporters and has_room:
        turn.update_chain(reporters=(*chain.reporters, entry.peer))


def _on_vote_log(turn: StepContext, entry: events.VoteLog, block: BlockRef) -> None:
    if entry.peer == turn.settings.peer and entry.round >= turn.chain.vote_mark:
        turn.update_chain(vote_mark=entry.round, vote_block=block.number)


def _on_policy_log(turn: StepContext, entry: events.PolicyLog, block: BlockRef) -> None:
    turn.update_chain(min_submissions=entry.min_submissions, max_stage_s=entry.max_stage_s)


_LOGS: dict[type, Callable[[StepContext, Any, BlockRef], None]] = {
    events.StageLog: _on_stage_log,
    events.RegistrationLog: _on_registration_log,
    events.RewardLog: _on_reward_log,
    events.VoteLog: _on_vote_log,
    events.PolicyLog: _on_policy_log,
}


def on_chain_reorged(turn: StepContext, event: events.ChainReorged) -> None:
    """Undo what this node had in replaced blocks. The node's clock does not go back."""
    fork = event.fork.number
    submissions.drop_above_fork(turn, fork)
    chain = turn.chain
    turn.update_chain(recent=_append_block(chain.recent, event.fork), **_marks_up_to_fork(turn, chain, fork))


def _marks_up_to_fork(turn: StepContext, chain: ChainState, fork: int) -> dict[str, Any]:
    """Return the marks (latest reward and vote on the chain) without blocks above the fork."""
    marks: dict[str, Any] = {}
    if chain.reward_block > fork:
        held = submissions.submissions_on_chain(turn.state, "reward")
        last = max(held, key=lambda each: (each.round, each.stage), default=None)
        place = (-1, -1) if last is None else (last.round, last.stage)
        marks |= {"reward_mark": place, "reward_block": -1 if last is None else submissions.block_number_of(last)}
    if chain.vote_block > fork:
        held = submissions.submissions_on_chain(turn.state, "winners")
        last = max(held, key=lambda each: each.round, default=None)
        marks |= {"vote_mark": -1 if last is None else last.round}
        marks |= {"vote_block": -1 if last is None else submissions.block_number_of(last)}
    return marks


# --- the clock ---


def _follow_contract(turn: StepContext) -> None:
    """Set the swarm's clock to the contract's stage, and schedule when this node advances the contract."""
    submissions.drop_advances(turn)
    chain = turn.chain
    place = turn.state.clock
    before = None if place is None else (place.round, place.stage, place.deadline_at)
    deadline_at = _stage_deadline_of(turn)
    rounds.apply_announcement(turn, events.RoundAnnounced(chain.round, chain.stage, chain.opened_at, deadline_at))
    rounds.follow_clock(turn, moved=False)  # the contract may be behind the clock for a while
    clock = turn.state.clock
    assert clock is not None
    votes.vote_on_reports(turn, clock.round)
    if before != (clock.round, clock.stage, clock.deadline_at):
        mirror_clock(turn)
    _schedule_advance(turn, deadline_at)


def mirror_clock(turn: StepContext) -> None:
    """Announce the contract's stage in the DHT, as coordinator, for nodes that cannot read the chain."""
    clock = turn.state.clock
    if turn.settings.role != "coordinator" or clock is None:
        return
    for command in list(turn.pending.values()):
        if isinstance(command, Announce):
            turn.remove_pending(command.id)
    place = f"{clock.round}/{clock.stage}/{turn.seq}"
    turn.issue_until_answered(
        Announce(command_id("announce", place), clock.round, clock.stage, clock.opened_at, clock.deadline_at)
    )


def _schedule_advance(turn: StepContext, deadline_at: float) -> None:
    """Schedule this node's attempt to advance the contract. Nodes try one after another, in a different order for each
    stage, so that usually only one pays for it."""
    settings, chain = turn.chain_settings, turn.chain
    if settings.drive == "never" or (settings.drive == "policy" and not _has_policy(chain)):
        return
    wait_s = _advance_order_of(turn, chain) * settings.stagger_s
    if 0 < chain.min_submissions <= submission_count_of(chain):
        turn.set_deadline_if_sooner("drive", turn.at + wait_s)
    elif settings.drive == "manager" or chain.max_stage_s:
        turn.set_deadline_if_sooner("drive", max(deadline_at, turn.at) + wait_s)
    else:
        turn.clear_deadlines("drive")


def submission_count_of(chain: ChainState) -> int:
    """Return how many peers are known to have a reward for the current stage on the chain."""
    return max(chain.counted, len(chain.reporters))


def on_submissions_counted(turn: StepContext, event: events.SubmissionsCounted) -> None:
    """Use the contract's own count of a stage's reports."""
    chain = turn.chain
    if (event.round, event.stage) == (chain.round, chain.stage):
        turn.update_chain(counted=event.count)
        if turn.is_chain_up:
            _schedule_advance(turn, _stage_deadline_of(turn))


def reschedule_advance(turn: StepContext) -> None:
    """Schedule the advance again after the machine's clock was set."""
    if turn.is_chain_up:
        turn.clear_deadlines("drive")
        _schedule_advance(turn, _stage_deadline_of(turn))


def _stage_deadline_of(turn: StepContext) -> float:
    """Return the end of the contract's stage, POSIX seconds."""
    return turn.chain.opened_at + (turn.chain.max_stage_s or turn.chain_settings.stage_s)


def _has_policy(chain: ChainState) -> bool:
    return chain.extensions > 0 and (chain.min_submissions > 0 or chain.max_stage_s > 0)


def _advance_order_of(turn: StepContext, chain: ChainState) -> int:
    if turn.chain_settings.drive == "manager":
        return 0
    return zlib.crc32(f"{turn.settings.peer}/{chain.round}/{chain.stage}".encode()) % submissions.TURNS


def on_advance_due(turn: StepContext) -> None:
    """Submit an advance, because the stage could be over and nobody has advanced the contract. Try again after a while,
    whatever the outcome."""
    if turn.is_chain_up:
        submissions.submit_advance(turn, turn.chain.round, turn.chain.stage)
        turn.set_deadline("drive", turn.at + max(1.0, submissions.TURNS * turn.chain_settings.stagger_s))


# --- membership ---


def on_membership_read(turn: StepContext, event: events.MembershipRead) -> None:
    """Apply the contract's word on whose records count in the DHT."""
    turn.state.members = None if event.open else event.peers[:ONCHAIN_PEERS_MAX]
    if len(event.peers) > ONCHAIN_PEERS_MAX:
        turn.count_rejections("members-full", len(event.peers) - ONCHAIN_PEERS_MAX)
    if turn.state.link.chart == "up":
        admit_peers(turn)


def admit_peers(turn: StepContext) -> None:
    """Send the network worker the allow-list."""
    members = turn.state.members
    turn.emit(AdmitPeers(command_id("admit", turn.seq), members is None, members or ()))


def on_linked(turn: StepContext) -> None:
    """Send the network worker the allow-list, the clock and the stage to collect, after the link came up."""
    work = turn.state.work
    if turn.state.members is not None:
        admit_peers(turn)
    if turn.is_chain_up:
        mirror_clock(turn)
    if work is not None:
        votes.collect_reports(turn, work.round, work.stage)
