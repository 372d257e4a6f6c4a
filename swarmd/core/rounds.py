"""How a node takes part in rounds and stages: join, gather, train, publish, settle, skip.

A node that was restored from a backup does not sign again what it may have signed since the backup was made. If a
contract keeps the rounds, it shows what was submitted. Nobody keeps the signed reports in the DHT, so a restored node
takes part only from the round after the first one that it saw open (`raise_round_floor`).
"""

from msgspec.structs import replace

from swarmd.bounds import add_bounded, clamp_integer
from swarmd.core import commands, events, evidence, group_costs, stage_times, submissions, token_ledger, votes, weights
from swarmd.core.chart_types import RoundState, RoundTrigger
from swarmd.core.ids import command_id, stage_command_id, timer_name_of
from swarmd.core.state import (
    FALLEN_KEPT,
    SKIPS_KEPT,
    Clock,
    FirstAccuracy,
    HeardRound,
    LearningStatus,
    SkippedRounds,
    StageResult,
    StageReward,
    StageWork,
    StateBase,
)
from swarmd.core.turn import StepContext
from swarmd.core.values import RolloutsRef, SetAside
from swarmd.core.workers import LEAVING

RETRY_S = 2.0  # delay before a failed network command is sent again
TRAIN_RETRY_S = 1.0
TRAIN_FAILURES_MAX = 3  # failures of one stage before the node gives it up
CANCEL_S = 30.0  # a trainer that has not stopped by then is killed
CLOCK_REPEAT_MAX_S = 60.0
# States in which the clock is not read: too early, or too late.
UNSYNCED: tuple[RoundState, ...] = ("stopped", "failed", "draining", "starting", "joining", "registering")
NOWHERE = (-1, -1, False)  # sorts before every announcement


def on_linked(turn: StepContext) -> None:
    """Register again, read the clock, and send pending commands, after the link came up."""
    turn.fire_round_trigger("linked")
    for command in turn.pending.values():
        if not isinstance(command, commands.Train):
            turn.clear_deadlines(timer_name_of("retry", command.id))
    turn.issue_until_answered(commands.Register("register"))
    if turn.state.chart not in ("registering", "starting") and not turn.is_chain_up:
        read_clock(turn)
    for command in list(turn.pending.values()):
        idle = isinstance(command, commands.Gather) and turn.state.low_space is not None
        if not idle and not isinstance(
            command, commands.Register | commands.Train | commands.Announce
        ):  # the coordinator announces by itself
            _resend_command(turn, command)
    _republish_report(turn)
    evidence.send_known_evidence(turn)


def _republish_report(turn: StepContext) -> None:
    """Send the current stage's report again, because a restarted network worker no longer renews it."""
    work = turn.state.work
    if work is not None and work.published and work.result is not None:
        turn.emit(make_report_command(work, work.result))


def read_clock(turn: StepContext) -> None:
    """Request the coordinator's clock, and set a deadline to read it again."""
    if turn.state.link.chart == "up":
        turn.emit(commands.ReadClock(command_id("clock", turn.seq)))
    turn.set_deadline("clock", turn.at + min(turn.settings.clock_s, CLOCK_REPEAT_MAX_S))


def on_registered(turn: StepContext, event: events.Registered) -> None:
    """Find out where the swarm is, now that this node is registered."""
    turn.remove_pending(event.command)
    if not turn.fire_round_trigger("registered"):
        return
    if turn.is_chain_up:
        follow_clock(turn, moved=False)
    else:
        read_clock(turn)


def on_no_round_yet(turn: StepContext, event: events.NoRoundYet) -> None:
    """Wait for a first announcement. If a round is known to be open, its announcement is only missing."""
    clock = turn.state.clock
    if turn.state.chain is None and (clock is None or clock.final):
        turn.fire_round_trigger("no_round")


def on_round_announced(turn: StepContext, event: events.RoundAnnounced) -> None:
    """Follow the coordinator's announcement, unless the contract can be read, which takes precedence."""
    if not turn.is_chain_up:
        apply_announcement(turn, event)


def apply_announcement(turn: StepContext, event: events.RoundAnnounced) -> None:
    """Apply an announcement to the swarm's clock, which never goes back."""
    clock = turn.state.clock
    # Sort key: a swarm that continues after its final mark announces the same round, not final.
    place = (event.round, event.stage, not event.final)
    before = NOWHERE if clock is None else (clock.round, clock.stage, not clock.final)
    if place < before:
        return
    if clock is not None and place == before and event.deadline_at < clock.deadline_at:
        raise_round_floor(turn, event, clock.round)
        follow_clock(turn, moved=False)  # an older record of the same stage: its place counts, its deadline does not
        return
    turn.state.clock = Clock(event.round, event.stage, event.opened_at, event.deadline_at, event.final)
    raise_round_floor(turn, event, event.round)
    if event.final or turn.is_chain_up:
        turn.clear_deadlines("clock")
    else:
        turn.set_deadline("clock", max(event.deadline_at, turn.at) + turn.settings.clock_s)
    follow_clock(turn, moved=place > before)


def follow_clock(turn: StepContext, moved: bool) -> None:
    """Act on the clock according to the present state."""
    clock = turn.state.clock
    if clock is None:
        return
    if turn.state.chart == "syncing":
        if turn.state.low_space is None:
            _resume_or_enter_stage(turn, clock)
    elif not moved:
        return
    elif turn.state.chart == "round.training":
        if turn.settings.behind == "abandon":
            _abandon_stage(turn)
    elif turn.state.chart != "skipping":
        enter_stage(turn, clock)


def _resume_or_enter_stage(turn: StepContext, clock: Clock) -> None:
    """After a start, resume the unfinished stage if the swarm is still at it, else join the open stage."""
    weights.resume_deadline(turn)
    work = turn.state.work
    elsewhere = work is None or (work.round, work.stage) != (clock.round, clock.stage)
    if work is None or elsewhere or clock.final or may_have_signed(turn.state, clock.round):
        enter_stage(turn, clock)
    elif work.published or (work.result is None and turn.state.done >= (work.round, work.stage)):
        awaited = submissions.is_reward_pending(turn.state, work.round, work.stage)
        turn.fire_round_trigger("resume_submitting" if awaited else "resume_settling")
    elif work.result is not None:
        turn.fire_round_trigger("resume_publishing")
        turn.set_deadline("publish", turn.at + turn.settings.publish_s)
    elif work.gathered and not weights.is_awaiting_weights(turn.state, work.round):
        turn.fire_round_trigger("resume_training")
        _issue_train(turn, work)
    else:
        turn.fire_round_trigger("resume_gathering")
        if not work.gathered:
            turn.set_deadline("gather", turn.at + turn.settings.gather_s)


def enter_stage(turn: StepContext, clock: Clock) -> None:
    """Start the announced stage, unless it was trained already; wait if the swarm has ended."""
    if turn.state.chart == "round.settling" and is_trainer_still_busy(turn):
        return
    if clock.final:
        if turn.fire_round_trigger("closed"):
            stage_times.end_stage(turn.state)
            _drop_gathering(turn)
        return
    if may_have_signed(turn.state, clock.round):
        turn.fire_round_trigger("no_round")
        return
    if turn.state.low_space is not None:
        turn.fire_round_trigger("pause")  # `pause_for_low_space` does the rest
        return
    place = (clock.round, clock.stage)
    if place <= turn.state.done or place <= last_rewarded_stage(turn):
        turn.fire_round_trigger("resume_settling")
        return
    trigger: RoundTrigger = "abandoned" if turn.state.chart == "skipping" else "announced"
    if not turn.fire_round_trigger(trigger):
        return
    stage_times.begin_stage(turn.state, clock.round, clock.stage)
    _drop_gathering(turn)
    before = turn.state.work
    joined = before is None or before.round != clock.round
    work = StageWork(clock.round, clock.stage, joined_at=turn.at, context=context_for_round(turn, before, clock.round))
    turn.state.work = work
    turn.state.rounds_joined += joined
    if turn.settings.chain is not None:
        votes.begin_tally(turn, work.round, work.stage)
    weights.begin_catch_up(turn, work.round)
    _start_gathering(turn, work)


def _drop_gathering(turn: StepContext) -> None:
    """Drop gathering and training of an earlier stage. Its report stays pending, but nothing waits for it."""
    turn.drop_pending(commands.Gather, commands.Train)
    turn.clear_deadlines("gather", "train", "publish")


def _start_gathering(turn: StepContext, work: StageWork) -> None:
    """Fetch peers' rollouts of the preceding stage; the very first stage has none."""
    source = preceding_stage(work.round, work.stage, turn.settings.stages)
    if source is None:
        _begin_training(turn, ())
        return
    until_at = turn.at + turn.settings.gather_s
    round, stage = work.round, work.stage
    turn.issue_until_answered(
        commands.Gather(stage_command_id("gather", round, stage), round, stage, source[0], source[1], until_at)
    )
    turn.set_deadline("gather", until_at)


def on_rollouts_gathered(turn: StepContext, event: events.RolloutsGathered) -> None:
    """Train with the rollouts that are now in the blob store."""
    if turn.remove_pending(event.command) is None:
        return
    stage_times.record_gathering(turn.state, event)
    work, rollouts = turn.state.work, evidence.without_banned_peers(turn.state, event.rollouts)
    if turn.state.chart == "round.gathering":
        _begin_training(turn, rollouts)
    elif work is not None and (work.round, work.stage) == (event.round, event.stage):
        turn.state.work = evidence.work_with_rollouts(turn, work, rollouts)  # after a start, before the clock was read


def on_gather_overdue(turn: StepContext) -> None:
    """Train without the rollouts that have not arrived."""
    work = turn.state.work
    if work is not None and turn.state.chart == "round.gathering":
        turn.remove_pending(stage_command_id("gather", work.round, work.stage))
        _begin_training(turn, ())


def _begin_training(turn: StepContext, rollouts: tuple[RolloutsRef, ...]) -> None:
    turn.clear_deadlines("gather")
    work = turn.state.work
    if work is not None and weights.is_awaiting_weights(turn.state, work.round):
        turn.state.work = evidence.work_with_rollouts(turn, work, rollouts)
    elif turn.fire_round_trigger("gathered"):
        assert work is not None, "rollouts are gathered for a stage"
        turn.state.work = evidence.work_with_rollouts(turn, work, rollouts)
        _issue_train(turn, turn.state.work)


def train_if_gathered(turn: StepContext) -> None:
    """Train the current stage if it no longer waits for anything."""
    work = turn.state.work
    if work is not None and work.gathered and turn.state.chart == "round.gathering":
        _begin_training(turn, work.rollouts)


def train_command_id(round: int, stage: int) -> str:
    return stage_command_id("train", round, stage)


def _issue_train(turn: StepContext, work: StageWork) -> None:
    if turn.state.catch_up is not None and not work.begun:
        work = turn.state.work = replace(work, begun=True, weights=weights.give_to_trainer(turn))
    name = train_command_id(work.round, work.stage)
    chosen = group_costs.choose_for_stage(turn.state, turn.settings.peer_slots)
    turn.issue_until_answered(
        commands.Train(name, work.round, work.stage, work.rollouts, work.context, work.weights, work.barred, chosen)
    )
    turn.set_deadline("train", turn.at + turn.settings.train_s)


def on_stage_trained(turn: StepContext, event: events.StageTrained) -> None:
    """Keep the result in any case, and publish it if the node is still at that stage."""
    freed = _free_trainer(turn, train_command_id(event.round, event.stage))
    work = turn.state.work
    if turn.state.done >= (event.round, event.stage):
        turn.remove_pending(event.command)
    else:
        record_result(turn, event)
        stage_times.record_training(turn.state, event)
        group_costs.count_stage(turn.state, event)
        weights.on_stage_trained(turn)
        if work is not None and (work.round, work.stage) == (event.round, event.stage):
            _publish_result(turn, event, work)
            return
    if freed:
        continue_after_training(turn)


def _publish_result(turn: StepContext, event: events.StageTrained, work: StageWork) -> None:
    turn.clear_deadlines("train")
    result = StageResult(event.reward, event.rollouts, event.seconds, event.steps, event.held_out)
    turn.state.work = replace(work, result=result)
    turn.issue_until_answered(make_report_command(work, result))
    if turn.fire_round_trigger("trained"):
        turn.set_deadline("publish", turn.at + turn.settings.publish_s)
    elif turn.state.chart == "skipping" and turn.state.clock is not None:
        enter_stage(turn, turn.state.clock)
    elif turn.state.chart == "round.settling":
        settle_stage(turn)  # it was cancelled, but finished all the same


def on_report_published(turn: StepContext, event: events.ReportPublished) -> None:
    """Record that the report is published; with a chain, the stage also waits for its reward to be on the chain."""
    turn.remove_pending(event.command)
    work = turn.state.work
    if work is None or (work.round, work.stage) != (event.round, event.stage):
        return
    turn.state.work = replace(work, published=True)
    if turn.fire_round_trigger("published"):
        turn.clear_deadlines("publish")
        on_submission_settled(turn)


def on_submission_settled(turn: StepContext) -> None:
    """End the stage for this node once none of its submissions is pending."""
    work = turn.state.work
    if work is None or submissions.is_reward_pending(turn.state, work.round, work.stage):
        return
    if turn.fire_round_trigger("submitted"):
        settle_stage(turn)


def settle_stage(turn: StepContext) -> None:
    """End the stage for this node, and enter the next one if the swarm has moved on."""
    clock, work = turn.state.clock, turn.state.work
    if clock is None or work is None:
        return
    if clock.final or (clock.round, clock.stage) > (work.round, work.stage):
        enter_stage(turn, clock)


def on_publish_overdue(turn: StepContext) -> None:
    """Send the report again, because it was not acknowledged."""
    work = turn.state.work
    command = turn.pending.get(stage_command_id("report", work.round, work.stage)) if work else None
    if command is not None:
        if turn.is_worker_free(command):
            turn.send_pending(command)
            turn.clear_deadlines(timer_name_of("retry", command.id))
        turn.set_deadline("publish", turn.at + turn.settings.publish_s)


def _abandon_stage(turn: StepContext) -> None:
    """Stop training the current stage, because a newer one opened."""
    if turn.fire_round_trigger("abandon"):
        cancel_training(turn)
        if turn.state.trainer.chart != "busy" and turn.state.clock is not None:
            enter_stage(turn, turn.state.clock)


def cancel_training(turn: StepContext) -> None:
    """Ask the trainer to stop between two steps."""
    work = turn.state.work
    assert work is not None
    turn.clear_deadlines("train")
    train = train_command_id(work.round, work.stage)
    turn.remove_pending(train)
    if is_training(turn, train) and "cancel" not in turn.deadlines:  # a pause may end before the trainer has answered
        turn.emit(commands.CancelTraining(stage_command_id("cancel", work.round, work.stage), train))
        turn.set_deadline("cancel", turn.at + CANCEL_S)


def on_train_overdue(turn: StepContext) -> None:
    """Give the stage up, because its training time on this node is over."""
    if turn.state.chart == "round.training":
        cancel_training(turn)
        _give_up_stage(turn)


def on_cancel_overdue(turn: StepContext) -> None:
    """Kill the trainer, because it has not stopped in time."""
    life = turn.state.training
    turn.emit(
        commands.KillWorker(
            command_id("kill", f"trainer/{turn.state.run}/{life.attempt}"), "trainer", "did not stop training when told"
        )
    )


def on_training_cancelled(turn: StepContext, event: events.TrainingCancelled) -> None:
    """Continue with a free trainer. While leaving, the command stays pending, so that the next run trains the stage."""
    turn.state.tokens = token_ledger.count_given_up(turn.state.tokens, event.drawn)
    leaving = turn.state.chart in LEAVING  # then nothing is waited for
    if not leaving and "cancel" not in turn.deadlines:
        return  # a late answer: the stage failed meanwhile, and is being trained again
    if _free_trainer(turn, train_command_id(event.round, event.stage)):
        continue_after_training(turn)


def is_training(turn: StepContext, train: str) -> bool:
    return turn.state.trainer.chart == "busy" and turn.state.trainer.train == train


def _free_trainer(turn: StepContext, train: str) -> bool:
    """Mark the trainer as free after a `Train`. Returns False if it was not at that command: the answer came late."""
    if not is_training(turn, train):
        return False
    turn.fire_trainer_trigger("done")
    turn.clear_deadlines("cancel")
    return True


def is_trainer_still_busy(turn: StepContext) -> bool:
    """Return whether the trainer is still at the current stage, although it was cancelled. Its answer decides how the
    stage continues. It is told to stop, and killed if it does not, so this ends; no other stage could be trained
    meanwhile."""
    work = turn.state.work
    if work is None or turn.state.trainer.chart != "busy":
        return False
    return is_training(turn, train_command_id(work.round, work.stage))


def continue_after_training(turn: StepContext) -> None:
    """Continue what waited for the trainer: enter a stage, settle, rejoin, or send a pending `Train`."""
    if turn.state.chart == "skipping" and turn.state.clock is not None:
        enter_stage(turn, turn.state.clock)
    elif turn.state.chart == "round.settling":
        settle_stage(turn)
    elif turn.state.chart == "paused" and turn.state.low_space is None:
        rejoin_swarm(turn)
    elif turn.state.chart == "round.training" and turn.state.low_space is None:
        for command in list(turn.pending.values()):
            if isinstance(command, commands.Train) and turn.is_worker_free(command):
                turn.send_pending(command)


def on_command_failed(turn: StepContext, event: events.CommandFailed) -> None:
    """Schedule a retry of the command; a stage that keeps failing is given up."""
    command = turn.pending.get(event.command)
    freed = _free_trainer(turn, event.command)
    if isinstance(command, commands.Train):
        if freed:
            _retry_training(turn, command)
    elif freed:
        continue_after_training(turn)
    elif command is not None:
        turn.set_deadline(timer_name_of("retry", command.id), turn.at + RETRY_S)


def _retry_training(turn: StepContext, command: commands.Train) -> None:
    turn.state.faulted = True
    work = turn.state.work
    if work is None or turn.state.chart != "round.training":
        return
    turn.state.work = replace(work, failures=work.failures + 1)
    if work.failures + 1 >= TRAIN_FAILURES_MAX:
        turn.remove_pending(command.id)
        _give_up_stage(turn)
    else:
        turn.set_deadline(timer_name_of("retry", command.id), turn.at + TRAIN_RETRY_S)


def _give_up_stage(turn: StepContext) -> None:
    turn.state.faulted = True
    turn.clear_deadlines("train")
    if turn.fire_round_trigger("training_failed"):
        settle_stage(turn)


def on_retry_due(turn: StepContext, command_id: str) -> None:
    """Send a failed command again."""
    command = turn.pending.get(command_id)
    idle = isinstance(command, commands.Gather) and turn.state.low_space is not None
    if command is not None and not idle and turn.is_worker_free(command):
        _resend_command(turn, command)


def _resend_command(turn: StepContext, command: commands.Command) -> None:
    """Send a pending command; for a report, restart the wait for its acknowledgement."""
    turn.clear_deadlines(timer_name_of("retry", command.id))
    turn.send_pending(command)
    if isinstance(command, commands.PublishReport) and turn.state.chart == "round.publishing":
        turn.set_deadline("publish", turn.at + turn.settings.publish_s)


def rejoin_swarm(turn: StepContext) -> None:
    """Rejoin the swarm where it is now, after a pause."""
    if is_trainer_still_busy(turn) or not turn.fire_round_trigger("freed"):
        return
    if turn.state.clock is None:
        read_clock(turn)
    else:
        follow_clock(turn, moved=False)


def on_clock_overdue(turn: StepContext) -> None:
    """Read the clock again, because a due announcement has not arrived."""
    if turn.state.chart not in UNSYNCED and not turn.is_chain_up:
        read_clock(turn)


def preceding_stage(round: int, stage: int, stages: int) -> tuple[int, int] | None:
    """Return (round, stage) of the preceding stage, possibly of the round before; None for the first."""
    if stage > 0:
        return (round, stage - 1)
    return (round - 1, stages - 1) if round > 0 else None


def last_rewarded_stage(turn: StepContext) -> tuple[int, int]:
    """Return the last (round, stage) with a reward of this node on the chain, even if the log does not contain it."""
    return (-1, -1) if turn.state.chain is None else turn.chain.reward_mark


def record_result(turn: StepContext, event: events.StageTrained) -> None:
    """Record a stage's result: it is done, its reward counts, peers' refused rollouts are counted."""
    turn.remove_pending(event.command)
    # tasks whose accuracy has fallen, those that fell most first
    fallen = tuple([skill for skill in event.skills if skill.fallen][:FALLEN_KEPT])
    reward = StageReward(
        event.round, event.stage, event.reward, event.held_out, count_set_aside(event.set_aside), fallen
    )
    turn.state.done = (event.round, event.stage)
    turn.state.faulted = False
    turn.state.stopped = False
    turn.add_reward(reward)
    turn.state.learning = update_learning(turn.state.learning, event, turn.at)
    if event.held_out_before is not None:
        turn.state.first_accuracy = FirstAccuracy(event.held_out_before, untrained=True)
    elif event.held_out is not None and turn.state.first_accuracy is None:
        turn.state.first_accuracy = FirstAccuracy(event.held_out, untrained=False)
    turn.state.reward_total = add_bounded(turn.state.reward_total, event.reward)
    if event.ledger is not None:
        turn.state.tokens = token_ledger.count_stage(turn.state.tokens, turn.state.done, event.ledger)
    for reason, count in event.rejected:
        turn.count_rejections(reason, count)
    if turn.is_submitting:
        submissions.submit_reward(turn, event.round, event.stage, event.reward)
        votes.count_report(turn, turn.settings.peer, event.round, event.stage, event.reward)
        votes.count_judgements(turn, event.judged, preceding_stage(event.round, event.stage, turn.settings.stages))


def update_learning(before: LearningStatus | None, event: events.StageTrained, at: float) -> LearningStatus:
    """Return the learning status after one more stage, trained at `at`."""
    same = before is not None and (before.flat is None) == (event.flat is None)
    since, stages = (before.since, before.stages) if before is not None and same else (at, 0)
    return LearningStatus(since, clamp_integer(stages + 1), event.round, event.stage, event.reward, event.flat)


def count_set_aside(set_aside: tuple[SetAside, ...]) -> tuple[tuple[str, int], ...]:
    """Return how much of peers' rollouts a stage did not train on, by reason: `unvouched` tokens, `share`, `little` and
    `long` groups, and peers with a `mark`. Reasons that did not occur are omitted."""
    if not set_aside:
        return ()
    counts = {
        "unvouched": sum(each.held for each in set_aside),
        "share": sum(each.over_share for each in set_aside),
        "little": sum(each.of_little for each in set_aside),
        "long": sum(each.too_long for each in set_aside),
        "mark": sum(bool(each.mark) for each in set_aside),
    }
    return tuple((reason, clamp_integer(count)) for reason, count in counts.items() if count > 0)


def context_for_round(turn: StepContext, before: StageWork | None, round: int) -> tuple[RolloutsRef, ...]:
    """Return the rollouts for later questions: those of earlier stages, down to the preceding round."""
    if before is None or turn.settings.stages == 1:
        return ()
    own = () if before.result is None else (before.result.rollouts,)
    known = (*before.context, *before.rollouts, *own)
    return tuple([ref for ref in known if ref.round >= round - 1])


def make_report_command(work: StageWork, result: StageResult) -> commands.PublishReport:
    return commands.PublishReport(
        stage_command_id("report", work.round, work.stage), work.round, work.stage, result.reward, result.rollouts
    )


def on_rounds_skipped(turn: StepContext, event: events.RoundsSkipped) -> None:
    """Record rounds in which this node takes no part."""
    skip = SkippedRounds(event.first, event.last, event.cause, turn.at)
    state, work = turn.state, turn.state.work
    in_vain = work is not None and event.first <= work.round <= event.last  # joined, but nothing was trained
    state.rounds_joined -= in_vain
    state.skipped_to = event.last
    state.skips = (*state.skips, skip)[-SKIPS_KEPT:]
    state.rounds_skipped = clamp_integer(state.rounds_skipped + event.last - event.first + 1)


PACE_S = 5.0  # tolerance in the time between two rounds: clocks are set, and messages are delayed


def raise_round_floor(turn: StepContext, event: events.RoundAnnounced, round: int) -> None:
    """Raise the first round in which a restored node may sign, given that the swarm is at `round`.

    The first announcements may be old: a DHT returns such records now and then, or half of a split swarm does. A round
    that opens later, while this node listens, is new, and everything it signed before is of that round at the latest.
    The contract's state is never old. An announcement past its deadline by this node's clock proves nothing by itself,
    since that clock may be ahead; but if rounds arrive at the pace of the coordinator's clock, they are new.
    """
    state = turn.state
    if not state.restored:
        return
    certain = event.final or turn.is_chain_up
    in_time, in_pace = event.deadline_at > turn.at, False
    if not certain:
        in_pace = _is_in_pace(turn, event, round)
        state.heard = _update_heard(turn, event, round)
        state.floor = clamp_integer(max(state.floor, round + 1))
    if not (certain or in_time or in_pace):
        return
    settled = certain or in_pace or 0 <= state.first_heard < round
    state.restored, state.heard = not settled, None if settled else state.heard
    state.first_heard = round if state.first_heard < 0 else state.first_heard
    state.floor = clamp_integer(max(state.floor, round + (not event.final)))


def _is_in_pace(turn: StepContext, event: events.RoundAnnounced, round: int) -> bool:
    """Return whether a round arrived as long after its opening as an earlier round did.

    Both were delayed equally, so the later one opened while this node listened, unless everything it receives is old by
    the same time. A record that was stored somewhere for a while arrives too late, and the next one then too early.
    """
    heard = turn.state.heard
    if heard is None or round <= heard.round:
        return False
    early = turn.at - event.opened_at < heard.after_s - PACE_S
    return not early and _is_stage_open(turn, event, heard)


def _is_stage_open(turn: StepContext, event: events.RoundAnnounced, heard: HeardRound) -> bool:
    """Return whether a stage is not over, by the delay of the coordinator's announcements so far."""
    return event.deadline_at + heard.after_s > turn.at


def _update_heard(turn: StepContext, event: events.RoundAnnounced, round: int) -> HeardRound:
    """Return the shortest delay between a round's opening and its arrival here; only each round's first announcement
    counts. A round that is over by that measure restarts it, because a clock may have been set."""
    heard, after_s = turn.state.heard, turn.at - event.opened_at
    if heard is None or (round > heard.round and not _is_stage_open(turn, event, heard)):
        return HeardRound(round, after_s)
    return HeardRound(round, min(after_s, heard.after_s)) if round > heard.round else heard


def may_have_signed(state: StateBase, round: int) -> bool:
    """Return whether this node may have signed a record of the round before it was restored."""
    return state.restored or round < state.floor
