"""How a node takes part in rounds and stages: join, gather, train, publish, settle, skip.

A node that was brought back from a backup signs nothing again that it may have signed since the backup was made. Where
a contract keeps the rounds it knows what was submitted. The signed reports in the DHT nobody keeps, so a restored node
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

RETRY_S = 2.0  # before a failed network command is sent again
TRAIN_RETRY_S = 1.0
TRAIN_FAILURES_MAX = 3  # failures of one stage before it is given up
CANCEL_S = 30.0  # a trainer that has not stopped by then is killed
CLOCK_REPEAT_MAX_S = 60.0
# States in which the clock is not read: too early for it, or too late.
UNSYNCED: tuple[RoundState, ...] = ("stopped", "failed", "draining", "starting", "joining", "registering")
NOWHERE = (-1, -1, False)  # before every announcement


def on_linked(turn: StepContext) -> None:
    """The link has just come up: register again, look at the clock, send what waits for an answer."""
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
    """A network worker that was restarted no longer keeps this stage's report alive: hand it over once more."""
    work = turn.state.work
    if work is not None and work.published and work.result is not None:
        turn.emit(make_report_command(work, work.result))


def read_clock(turn: StepContext) -> None:
    """Have the coordinator's clock read, and look again later."""
    if turn.state.link.chart == "up":
        turn.emit(commands.ReadClock(command_id("clock", turn.seq)))
    turn.set_deadline("clock", turn.at + min(turn.settings.clock_s, CLOCK_REPEAT_MAX_S))


def on_registered(turn: StepContext, event: events.Registered) -> None:
    """The swarm knows this node; now find out where the swarm is."""
    turn.remove_pending(event.command)
    if not turn.fire_round_trigger("registered"):
        return
    if turn.is_chain_up:
        follow_clock(turn, moved=False)
    else:
        read_clock(turn)


def on_no_round_yet(turn: StepContext, event: events.NoRoundYet) -> None:
    """Nothing was announced so far. If a round is known to be open, its announcement is only lost for a while."""
    clock = turn.state.clock
    if turn.state.chain is None and (clock is None or clock.final):
        turn.fire_round_trigger("no_round")


def on_round_announced(turn: StepContext, event: events.RoundAnnounced) -> None:
    """The coordinator tells where the swarm is; a contract that can be read knows better."""
    if not turn.is_chain_up:
        apply_announcement(turn, event)


def apply_announcement(turn: StepContext, event: events.RoundAnnounced) -> None:
    """Follow the swarm's clock, which never goes back."""
    clock = turn.state.clock
    # Order of announcements: a swarm that goes on after its final mark announces the same round, not final.
    place = (event.round, event.stage, not event.final)
    before = NOWHERE if clock is None else (clock.round, clock.stage, not clock.final)
    if place < before:
        return
    if clock is not None and place == before and event.deadline_at < clock.deadline_at:
        raise_round_floor(turn, event, clock.round)
        follow_clock(turn, moved=False)  # an older record of the same stage: it tells where the swarm is, not how long
        return
    turn.state.clock = Clock(event.round, event.stage, event.opened_at, event.deadline_at, event.final)
    raise_round_floor(turn, event, event.round)
    if event.final or turn.is_chain_up:
        turn.clear_deadlines("clock")
    else:
        turn.set_deadline("clock", max(event.deadline_at, turn.at) + turn.settings.clock_s)
    follow_clock(turn, moved=place > before)


def follow_clock(turn: StepContext, moved: bool) -> None:
    """Act on the clock in the present state."""
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
    """After a start: resume the unfinished stage if the swarm is still at it, else join the stage that is open."""
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
    """Begin the announced stage: one trained already is left alone, the end of the swarm leads to waiting."""
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
        turn.fire_round_trigger("pause")  # `machine.hold` does the rest
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
    """Drop gathering and training of an earlier stage; its report stays pending, and nobody waits for it."""
    turn.drop_pending(commands.Gather, commands.Train)
    turn.clear_deadlines("gather", "train", "publish")


def _start_gathering(turn: StepContext, work: StageWork) -> None:
    """Fetch what peers published at the preceding stage; at the very first there is nothing to fetch."""
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
    """Peers' rollouts are in the blob store."""
    if turn.remove_pending(event.command) is None:
        return
    stage_times.record_gathering(turn.state, event)
    work, rollouts = turn.state.work, evidence.without_banned_peers(turn.state, event.rollouts)
    if turn.state.chart == "round.gathering":
        _begin_training(turn, rollouts)
    elif work is not None and (work.round, work.stage) == (event.round, event.stage):
        turn.state.work = evidence.work_with_rollouts(turn, work, rollouts)  # after a start, before the clock was read


def on_gather_overdue(turn: StepContext) -> None:
    """Train without what has not come."""
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
    """Train the stage that waits for nothing any more."""
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
    """Keep the result, whatever else has happened meanwhile, and publish it if the node is still at that stage."""
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
        settle_stage(turn)  # it was given up, and came to its end all the same


def on_report_published(turn: StepContext, event: events.ReportPublished) -> None:
    """The report is out; with a chain, the stage also waits for its reward to be on it."""
    turn.remove_pending(event.command)
    work = turn.state.work
    if work is None or (work.round, work.stage) != (event.round, event.stage):
        return
    turn.state.work = replace(work, published=True)
    if turn.fire_round_trigger("published"):
        turn.clear_deadlines("publish")
        on_submission_settled(turn)


def on_submission_settled(turn: StepContext) -> None:
    """The stage is over for this node once nothing of it is on its way to the chain."""
    work = turn.state.work
    if work is None or submissions.is_reward_pending(turn.state, work.round, work.stage):
        return
    if turn.fire_round_trigger("submitted"):
        settle_stage(turn)


def settle_stage(turn: StepContext) -> None:
    """The stage is over for this node: go on at once if the swarm has moved on meanwhile."""
    clock, work = turn.state.clock, turn.state.work
    if clock is None or work is None:
        return
    if clock.final or (clock.round, clock.stage) > (work.round, work.stage):
        enter_stage(turn, clock)


def on_publish_overdue(turn: StepContext) -> None:
    """No answer to the report: send it again."""
    work = turn.state.work
    command = turn.pending.get(stage_command_id("report", work.round, work.stage)) if work else None
    if command is not None:
        if turn.is_worker_free(command):
            turn.send_pending(command)
            turn.clear_deadlines(timer_name_of("retry", command.id))
        turn.set_deadline("publish", turn.at + turn.settings.publish_s)


def _abandon_stage(turn: StepContext) -> None:
    """Leave the stage in training for the newer one that opened."""
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
    if is_training(turn, train) and "cancel" not in turn.deadlines:  # a pause may end before it has answered
        turn.emit(commands.CancelTraining(stage_command_id("cancel", work.round, work.stage), train))
        turn.set_deadline("cancel", turn.at + CANCEL_S)


def on_train_overdue(turn: StepContext) -> None:
    """The stage has had its time on this node: give it up."""
    if turn.state.chart == "round.training":
        cancel_training(turn)
        _give_up_stage(turn)


def on_cancel_overdue(turn: StepContext) -> None:
    """The trainer has not stopped in time: have it killed."""
    life = turn.state.training
    turn.emit(
        commands.KillWorker(
            command_id("kill", f"trainer/{turn.state.run}/{life.attempt}"), "trainer", "did not stop training when told"
        )
    )


def on_training_cancelled(turn: StepContext, event: events.TrainingCancelled) -> None:
    """The trainer is free. While leaving, the command stays pending: the next life trains the stage."""
    turn.state.tokens = token_ledger.count_given_up(turn.state.tokens, event.drawn)
    leaving = turn.state.chart in LEAVING  # then nothing is waited for
    if not leaving and "cancel" not in turn.deadlines:
        return  # an answer that comes late: the stage failed meanwhile, and is being trained once more
    if _free_trainer(turn, train_command_id(event.round, event.stage)):
        continue_after_training(turn)


def is_training(turn: StepContext, train: str) -> bool:
    return turn.state.trainer.chart == "busy" and turn.state.trainer.train == train


def _free_trainer(turn: StepContext, train: str) -> bool:
    """The trainer is done with a `Train`. False if it was not at it: the answer came late."""
    if not is_training(turn, train):
        return False
    turn.fire_trainer_trigger("done")
    turn.clear_deadlines("cancel")
    return True


def is_trainer_still_busy(turn: StepContext) -> bool:
    """Whether the trainer is still at the stage in hand, though it was given up: its answer says what becomes of it. It
    is told to stop, and killed if it does not, so this ends; and no other stage could be trained meanwhile."""
    work = turn.state.work
    if work is None or turn.state.trainer.chart != "busy":
        return False
    return is_training(turn, train_command_id(work.round, work.stage))


def continue_after_training(turn: StepContext) -> None:
    """Nothing is training any more: a node that waited for that goes on, a stage that waits is begun."""
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
    """Send it again after a while; a stage that keeps failing is given up."""
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
    """Send a command again that failed a while ago."""
    command = turn.pending.get(command_id)
    idle = isinstance(command, commands.Gather) and turn.state.low_space is not None
    if command is not None and not idle and turn.is_worker_free(command):
        _resend_command(turn, command)


def _resend_command(turn: StepContext, command: commands.Command) -> None:
    """Send a pending command; the wait for a report's acknowledgement begins again."""
    turn.clear_deadlines(timer_name_of("retry", command.id))
    turn.send_pending(command)
    if isinstance(command, commands.PublishReport) and turn.state.chart == "round.publishing":
        turn.set_deadline("publish", turn.at + turn.settings.publish_s)


def rejoin_swarm(turn: StepContext) -> None:
    """The pause is over: find out where the swarm is, and join there."""
    if is_trainer_still_busy(turn) or not turn.fire_round_trigger("freed"):
        return
    if turn.state.clock is None:
        read_clock(turn)
    else:
        follow_clock(turn, moved=False)


def on_clock_overdue(turn: StepContext) -> None:
    """No announcement although one was due: read the clock again."""
    if turn.state.chart not in UNSYNCED and not turn.is_chain_up:
        read_clock(turn)


def preceding_stage(round: int, stage: int, stages: int) -> tuple[int, int] | None:
    """The stage before: in the same round, or the last one of the round before."""
    if stage > 0:
        return (round, stage - 1)
    return (round - 1, stages - 1) if round > 0 else None


def last_rewarded_stage(turn: StepContext) -> tuple[int, int]:
    """The last (round, stage) that the chain has a reward of this node for, which the log need not know of."""
    return (-1, -1) if turn.state.chain is None else turn.chain.reward_mark


def record_result(turn: StepContext, event: events.StageTrained) -> None:
    """Keep what a stage gave: it is done, its reward counts, peers' refused rollouts are counted."""
    turn.remove_pending(event.command)
    # the tasks that have fallen, those that have most first
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
    """What is known of the stages trained last after one more, which was trained at `at`."""
    same = before is not None and (before.flat is None) == (event.flat is None)
    since, stages = (before.since, before.stages) if before is not None and same else (at, 0)
    return LearningStatus(since, clamp_integer(stages + 1), event.round, event.stage, event.reward, event.flat)


def count_set_aside(set_aside: tuple[SetAside, ...]) -> tuple[tuple[str, int], ...]:
    """What a stage set aside of peers' rollouts, by reason: `unvouched` tokens, `share`, `little` and `long` groups,
    and peers with a `mark`. Reasons that did not occur are left out."""
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
    """What later questions may be made of: rollouts of the stages that came before, down to the preceding round."""
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
    """Take note of rounds that this node has no part in."""
    skip = SkippedRounds(event.first, event.last, event.cause, turn.at)
    state, work = turn.state, turn.state.work
    in_vain = work is not None and event.first <= work.round <= event.last  # joined, but nothing was trained
    state.rounds_joined -= in_vain
    state.skipped_to = event.last
    state.skips = (*state.skips, skip)[-SKIPS_KEPT:]
    state.rounds_skipped = clamp_integer(state.rounds_skipped + event.last - event.first + 1)


PACE_S = 5.0  # clocks are set, and messages take their time: the time between two rounds may differ by this


def raise_round_floor(turn: StepContext, event: events.RoundAnnounced, round: int) -> None:
    """The swarm is at `round`, as far as this node hears.

    What it hears first may be old: a DHT gives such records now and then, or half of a parted swarm does. A later
    round that opens while it listens is new, and whatever it signed before is of that round at the latest. The
    contract's word is never old; an announcement whose time has passed by this node's clock says nothing by itself, but
    that clock may be ahead: where rounds follow each other here as they do by the coordinator's clock, they are new.
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
    """Whether a round is heard of as long after its opening as an earlier one was, which was opened before it.

    Both waited equally long for this node to hear of them, so the later one was opened while it listened, unless all
    that it hears is old by the same time. What lay somewhere for a while comes too late, and what follows such a record
    too early.
    """
    heard = turn.state.heard
    if heard is None or round <= heard.round:
        return False
    early = turn.at - event.opened_at < heard.after_s - PACE_S
    return not early and _is_stage_open(turn, event, heard)


def _is_stage_open(turn: StepContext, event: events.RoundAnnounced, heard: HeardRound) -> bool:
    """Whether a stage's time is not over, by what this node has heard of the coordinator's clock."""
    return event.deadline_at + heard.after_s > turn.at


def _update_heard(turn: StepContext, event: events.RoundAnnounced, round: int) -> HeardRound:
    """How long after its opening a round was heard of at the earliest; of each round the first announcement tells. A
    round that is over by that measure starts the measure again: a clock may have been set."""
    heard, after_s = turn.state.heard, turn.at - event.opened_at
    if heard is None or (round > heard.round and not _is_stage_open(turn, event, heard)):
        return HeardRound(round, after_s)
    return HeardRound(round, min(after_s, heard.after_s)) if round > heard.round else heard


def may_have_signed(state: StateBase, round: int) -> bool:
    """Whether this node may have signed something of the round before it was restored."""
    return state.restored or round < state.floor
