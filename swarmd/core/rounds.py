"""How a node takes part in rounds and stages: join, gather, train, publish, settle, skip.

A node that was brought back from a backup signs nothing again that it may have signed since the backup was made. Where
a contract keeps the rounds it knows what was submitted. The signed reports in the DHT nobody keeps, so a restored node
takes part only from the round after the first one that it saw open (`raise_floor`).
"""

from __future__ import annotations

from msgspec.structs import replace

from swarmd.bounds import add_real, fit
from swarmd.core import evidence, stage_times, submissions, votes, weights
from swarmd.core.chart_types import RoundState, RoundTrigger
from swarmd.core.commands import (
    Announce,
    CancelTraining,
    Command,
    Gather,
    KillWorker,
    PublishReport,
    ReadClock,
    Register,
    Train,
)
from swarmd.core.events import (
    CommandFailed,
    NoRoundYet,
    Registered,
    ReportPublished,
    RolloutsGathered,
    RoundAnnounced,
    RoundsSkipped,
    StageTrained,
    TrainingCancelled,
)
from swarmd.core.ids import command_id, stage_id, timer_about
from swarmd.core.state import (
    FALLEN_KEPT,
    SKIPS_KEPT,
    AnyState,
    Clock,
    FirstAccuracy,
    Heard,
    Learning,
    Result,
    Skip,
    StageReward,
    Work,
)
from swarmd.core.turn import Turn
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


def on_linked(turn: Turn) -> None:
    """The link has just come up: register again, look at the clock, send what waits for an answer."""
    turn.move_round("linked")
    for command in turn.pending.values():
        if not isinstance(command, Train):
            turn.disarm(timer_about("retry", command.id))
    turn.issue(Register("register"))
    if turn.state.chart not in ("registering", "starting") and not turn.chain_is_up:
        read_clock(turn)
    for command in list(turn.pending.values()):
        idle = isinstance(command, Gather) and turn.state.low_space is not None
        if not idle and not isinstance(command, Register | Train | Announce):  # the coordinator announces by itself
            _send_again(turn, command)
    _publish_again(turn)
    evidence.note_to_network(turn)


def _publish_again(turn: Turn) -> None:
    """A network worker that was restarted no longer keeps this stage's report alive: hand it over once more."""
    work = turn.state.work
    if work is not None and work.published and work.result is not None:
        turn.emit(report_of(work, work.result))


def read_clock(turn: Turn) -> None:
    """Have the coordinator's clock read, and look again later."""
    if turn.state.link.chart == "up":
        turn.emit(ReadClock(command_id("clock", turn.seq)))
    turn.arm("clock", turn.at + min(turn.settings.clock_s, CLOCK_REPEAT_MAX_S))


def on_registered(turn: Turn, event: Registered) -> None:
    """The swarm knows this node; now find out where the swarm is."""
    turn.settle(event.command)
    if not turn.move_round("registered"):
        return
    if turn.chain_is_up:
        follow_clock(turn, moved=False)
    else:
        read_clock(turn)


def on_no_round_yet(turn: Turn, event: NoRoundYet) -> None:
    """Nothing was announced so far. If a round is known to be open, its announcement is only lost for a while."""
    clock = turn.state.clock
    if turn.state.chain is None and (clock is None or clock.final):
        turn.move_round("no_round")


def on_round_announced(turn: Turn, event: RoundAnnounced) -> None:
    """The coordinator tells where the swarm is; a contract that can be read knows better."""
    if not turn.chain_is_up:
        heed_clock(turn, event)


def heed_clock(turn: Turn, event: RoundAnnounced) -> None:
    """Follow the swarm's clock, which never goes back."""
    clock = turn.state.clock
    # Order of announcements: a swarm that goes on after its final mark announces the same round, not final.
    place = (event.round, event.stage, not event.final)
    before = NOWHERE if clock is None else (clock.round, clock.stage, not clock.final)
    if place < before:
        return
    if clock is not None and place == before and event.deadline_at < clock.deadline_at:
        raise_floor(turn, event, clock.round)
        follow_clock(turn, moved=False)  # an older record of the same stage: it tells where the swarm is, not how long
        return
    turn.state.clock = Clock(event.round, event.stage, event.opened_at, event.deadline_at, event.final)
    raise_floor(turn, event, event.round)
    if event.final or turn.chain_is_up:
        turn.disarm("clock")
    else:
        turn.arm("clock", max(event.deadline_at, turn.at) + turn.settings.clock_s)
    follow_clock(turn, moved=place > before)


def follow_clock(turn: Turn, moved: bool) -> None:
    """Act on the clock in the present state."""
    clock = turn.state.clock
    if clock is None:
        return
    if turn.state.chart == "syncing":
        if turn.state.low_space is None:
            _resume_or_enter(turn, clock)
    elif not moved:
        return
    elif turn.state.chart == "round.training":
        if turn.settings.behind == "abandon":
            _abandon(turn)
    elif turn.state.chart != "skipping":
        enter_stage(turn, clock)


def _resume_or_enter(turn: Turn, clock: Clock) -> None:
    """After a start: resume the unfinished stage if the swarm is still at it, else join the stage that is open."""
    weights.resume(turn)
    work = turn.state.work
    elsewhere = work is None or (work.round, work.stage) != (clock.round, clock.stage)
    if work is None or elsewhere or clock.final or is_barred(turn.state, clock.round):
        enter_stage(turn, clock)
    elif work.published or (work.result is None and turn.state.done >= (work.round, work.stage)):
        awaited = submissions.awaited(turn.state, work.round, work.stage)
        turn.move_round("resume_submitting" if awaited else "resume_settling")
    elif work.result is not None:
        turn.move_round("resume_publishing")
        turn.arm("publish", turn.at + turn.settings.publish_s)
    elif work.gathered and not weights.are_awaited(turn.state, work.round):
        turn.move_round("resume_training")
        _train(turn, work)
    else:
        turn.move_round("resume_gathering")
        if not work.gathered:
            turn.arm("gather", turn.at + turn.settings.gather_s)


def enter_stage(turn: Turn, clock: Clock) -> None:
    """Begin the announced stage: one trained already is left alone, the end of the swarm leads to waiting."""
    if turn.state.chart == "round.settling" and awaits_trainer(turn):
        return
    if clock.final:
        if turn.move_round("closed"):
            stage_times.end_stage(turn.state)
            _drop_gathering(turn)
        return
    if is_barred(turn.state, clock.round):
        turn.move_round("no_round")
        return
    if turn.state.low_space is not None:
        turn.move_round("pause")  # `machine.hold` does the rest
        return
    place = (clock.round, clock.stage)
    if place <= turn.state.done or place <= rewarded(turn):
        turn.move_round("resume_settling")
        return
    trigger: RoundTrigger = "abandoned" if turn.state.chart == "skipping" else "announced"
    if not turn.move_round(trigger):
        return
    stage_times.begin_stage(turn.state, clock.round, clock.stage)
    _drop_gathering(turn)
    before = turn.state.work
    joined = before is None or before.round != clock.round
    work = Work(clock.round, clock.stage, joined_at=turn.at, context=context_after(turn, before, clock.round))
    turn.state.work = work
    turn.state.rounds_joined += joined
    if turn.settings.chain is not None:
        votes.begin_tally(turn, work.round, work.stage)
    weights.begin(turn, work.round)
    _gather(turn, work)


def _drop_gathering(turn: Turn) -> None:
    """Drop gathering and training of an earlier stage; its report stays pending, and nobody waits for it."""
    turn.drop_pending(Gather, Train)
    turn.disarm("gather", "train", "publish")


def _gather(turn: Turn, work: Work) -> None:
    """Fetch what peers published at the preceding stage; at the very first there is nothing to fetch."""
    source = preceding(work.round, work.stage, turn.settings.stages)
    if source is None:
        _begin_training(turn, ())
        return
    until_at = turn.at + turn.settings.gather_s
    round, stage = work.round, work.stage
    turn.issue(Gather(stage_id("gather", round, stage), round, stage, source[0], source[1], until_at))
    turn.arm("gather", until_at)


def on_rollouts_gathered(turn: Turn, event: RolloutsGathered) -> None:
    """Peers' rollouts are in the blob store."""
    if turn.settle(event.command) is None:
        return
    stage_times.note_gathered(turn.state, event)
    work, rollouts = turn.state.work, evidence.without_barred(turn.state, event.rollouts)
    if turn.state.chart == "round.gathering":
        _begin_training(turn, rollouts)
    elif work is not None and (work.round, work.stage) == (event.round, event.stage):
        turn.state.work = evidence.with_rollouts(turn, work, rollouts)  # after a start, before the clock was read


def on_gather_overdue(turn: Turn) -> None:
    """Train without what has not come."""
    work = turn.state.work
    if work is not None and turn.state.chart == "round.gathering":
        turn.settle(stage_id("gather", work.round, work.stage))
        _begin_training(turn, ())


def _begin_training(turn: Turn, rollouts: tuple[RolloutsRef, ...]) -> None:
    turn.disarm("gather")
    work = turn.state.work
    if work is not None and weights.are_awaited(turn.state, work.round):
        turn.state.work = evidence.with_rollouts(turn, work, rollouts)
    elif turn.move_round("gathered"):
        assert work is not None, "rollouts are gathered for a stage"
        turn.state.work = evidence.with_rollouts(turn, work, rollouts)
        _train(turn, turn.state.work)


def begin_if_gathered(turn: Turn) -> None:
    """Train the stage that waits for nothing any more."""
    work = turn.state.work
    if work is not None and work.gathered and turn.state.chart == "round.gathering":
        _begin_training(turn, work.rollouts)


def train_id(round: int, stage: int) -> str:
    return stage_id("train", round, stage)


def _train(turn: Turn, work: Work) -> None:
    if turn.state.catch_up is not None and not work.begun:
        work = turn.state.work = replace(work, begun=True, weights=weights.give(turn))
    name = train_id(work.round, work.stage)
    turn.issue(Train(name, work.round, work.stage, work.rollouts, work.context, work.weights, work.barred))
    turn.arm("train", turn.at + turn.settings.train_s)


def on_stage_trained(turn: Turn, event: StageTrained) -> None:
    """Keep the result, whatever else has happened meanwhile, and publish it if the node is still at that stage."""
    freed = _free_trainer(turn, train_id(event.round, event.stage))
    work = turn.state.work
    if turn.state.done >= (event.round, event.stage):
        turn.settle(event.command)
    else:
        note_result(turn, event)
        stage_times.note_trained(turn.state, event)
        weights.on_stage_trained(turn)
        if work is not None and (work.round, work.stage) == (event.round, event.stage):
            _publish_result(turn, event, work)
            return
    if freed:
        go_on_training(turn)


def _publish_result(turn: Turn, event: StageTrained, work: Work) -> None:
    turn.disarm("train")
    result = Result(event.reward, event.rollouts, event.seconds, event.steps, event.held_out)
    turn.state.work = replace(work, result=result)
    turn.issue(report_of(work, result))
    if turn.move_round("trained"):
        turn.arm("publish", turn.at + turn.settings.publish_s)
    elif turn.state.chart == "skipping" and turn.state.clock is not None:
        enter_stage(turn, turn.state.clock)
    elif turn.state.chart == "round.settling":
        settle_stage(turn)  # it was given up, and came to its end all the same


def on_report_published(turn: Turn, event: ReportPublished) -> None:
    """The report is out; with a chain, the stage also waits for its reward to be on it."""
    turn.settle(event.command)
    work = turn.state.work
    if work is None or (work.round, work.stage) != (event.round, event.stage):
        return
    turn.state.work = replace(work, published=True)
    if turn.move_round("published"):
        turn.disarm("publish")
        on_submission_settled(turn)


def on_submission_settled(turn: Turn) -> None:
    """The stage is over for this node once nothing of it is on its way to the chain."""
    work = turn.state.work
    if work is None or submissions.awaited(turn.state, work.round, work.stage):
        return
    if turn.move_round("submitted"):
        settle_stage(turn)


def settle_stage(turn: Turn) -> None:
    """The stage is over for this node: go on at once if the swarm has moved on meanwhile."""
    clock, work = turn.state.clock, turn.state.work
    if clock is None or work is None:
        return
    if clock.final or (clock.round, clock.stage) > (work.round, work.stage):
        enter_stage(turn, clock)


def on_publish_overdue(turn: Turn) -> None:
    """No answer to the report: send it again."""
    work = turn.state.work
    command = turn.pending.get(stage_id("report", work.round, work.stage)) if work else None
    if command is not None:
        if turn.port_is_up(command):
            turn.send(command)
            turn.disarm(timer_about("retry", command.id))
        turn.arm("publish", turn.at + turn.settings.publish_s)


def _abandon(turn: Turn) -> None:
    """Leave the stage in training for the newer one that opened."""
    if turn.move_round("abandon"):
        cancel(turn)
        if turn.state.trainer.chart != "busy" and turn.state.clock is not None:
            enter_stage(turn, turn.state.clock)


def cancel(turn: Turn) -> None:
    """Ask the trainer to stop between two steps."""
    work = turn.state.work
    assert work is not None
    turn.disarm("train")
    train = train_id(work.round, work.stage)
    turn.settle(train)
    if is_training(turn, train) and "cancel" not in turn.deadlines:  # a pause may end before it has answered
        turn.emit(CancelTraining(stage_id("cancel", work.round, work.stage), train))
        turn.arm("cancel", turn.at + CANCEL_S)


def on_train_overdue(turn: Turn) -> None:
    """The stage has had its time on this node: give it up."""
    if turn.state.chart == "round.training":
        cancel(turn)
        _give_up_stage(turn)


def on_cancel_overdue(turn: Turn) -> None:
    """The trainer has not stopped in time: have it killed."""
    life = turn.state.training
    turn.emit(
        KillWorker(
            command_id("kill", f"trainer/{turn.state.run}/{life.attempt}"), "trainer", "did not stop training when told"
        )
    )


def on_training_cancelled(turn: Turn, event: TrainingCancelled) -> None:
    """The trainer is free. While leaving, the command stays pending: the next life trains the stage."""
    leaving = turn.state.chart in LEAVING  # then nothing is waited for
    if not leaving and "cancel" not in turn.deadlines:
        return  # an answer that comes late: the stage failed meanwhile, and is being trained once more
    if _free_trainer(turn, train_id(event.round, event.stage)):
        go_on_training(turn)


def is_training(turn: Turn, train: str) -> bool:
    """Whether the trainer is at this `Train`."""
    return turn.state.trainer.chart == "busy" and turn.state.trainer.train == train


def _free_trainer(turn: Turn, train: str) -> bool:
    """The trainer is done with a `Train`. False if it was not at it: the answer came late."""
    if not is_training(turn, train):
        return False
    turn.move_trainer("done")
    turn.disarm("cancel")
    return True


def awaits_trainer(turn: Turn) -> bool:
    """Whether the trainer is still at the stage in hand, though it was given up: its answer says what becomes of it.

    It is told to stop, and killed if it does not, so this ends; and no other stage could be trained meanwhile.
    """
    work = turn.state.work
    if work is None or turn.state.trainer.chart != "busy":
        return False
    return is_training(turn, train_id(work.round, work.stage))


def go_on_training(turn: Turn) -> None:
    """Nothing is training any more: a node that waited for that goes on, a stage that waits is begun."""
    if turn.state.chart == "skipping" and turn.state.clock is not None:
        enter_stage(turn, turn.state.clock)
    elif turn.state.chart == "round.settling":
        settle_stage(turn)
    elif turn.state.chart == "paused" and turn.state.low_space is None:
        rejoin(turn)
    elif turn.state.chart == "round.training" and turn.state.low_space is None:
        for command in list(turn.pending.values()):
            if isinstance(command, Train) and turn.port_is_up(command):
                turn.send(command)


def on_command_failed(turn: Turn, event: CommandFailed) -> None:
    """Send it again after a while; a stage that keeps failing is given up."""
    command = turn.pending.get(event.command)
    freed = _free_trainer(turn, event.command)
    if isinstance(command, Train):
        if freed:
            _retry_training(turn, command)
    elif freed:
        go_on_training(turn)
    elif command is not None:
        turn.arm(timer_about("retry", command.id), turn.at + RETRY_S)


def _retry_training(turn: Turn, command: Train) -> None:
    turn.state.faulted = True
    work = turn.state.work
    if work is None or turn.state.chart != "round.training":
        return
    turn.state.work = replace(work, failures=work.failures + 1)
    if work.failures + 1 >= TRAIN_FAILURES_MAX:
        turn.settle(command.id)
        _give_up_stage(turn)
    else:
        turn.arm(timer_about("retry", command.id), turn.at + TRAIN_RETRY_S)


def _give_up_stage(turn: Turn) -> None:
    turn.state.faulted = True
    turn.disarm("train")
    if turn.move_round("training_failed"):
        settle_stage(turn)


def on_retry_due(turn: Turn, command_id: str) -> None:
    """Send a command again that failed a while ago."""
    command = turn.pending.get(command_id)
    idle = isinstance(command, Gather) and turn.state.low_space is not None
    if command is not None and not idle and turn.port_is_up(command):
        _send_again(turn, command)


def _send_again(turn: Turn, command: Command) -> None:
    """Send a pending command; the wait for a report's acknowledgement begins again."""
    turn.disarm(timer_about("retry", command.id))
    turn.send(command)
    if isinstance(command, PublishReport) and turn.state.chart == "round.publishing":
        turn.arm("publish", turn.at + turn.settings.publish_s)


def rejoin(turn: Turn) -> None:
    """The pause is over: find out where the swarm is, and join there."""
    if awaits_trainer(turn) or not turn.move_round("freed"):
        return
    if turn.state.clock is None:
        read_clock(turn)
    else:
        follow_clock(turn, moved=False)


def on_clock_overdue(turn: Turn) -> None:
    """No announcement although one was due: read the clock again."""
    if turn.state.chart not in UNSYNCED and not turn.chain_is_up:
        read_clock(turn)


def preceding(round: int, stage: int, stages: int) -> tuple[int, int] | None:
    """The stage before: in the same round, or the last one of the round before."""
    if stage > 0:
        return (round, stage - 1)
    return (round - 1, stages - 1) if round > 0 else None


def rewarded(turn: Turn) -> tuple[int, int]:
    """The last (round, stage) that the chain has a reward of this node for, which the log need not know of."""
    return (-1, -1) if turn.state.chain is None else turn.chain.reward_mark


def note_result(turn: Turn, event: StageTrained) -> None:
    """Keep what a stage gave: it is done, its reward counts, peers' refused rollouts are counted."""
    turn.settle(event.command)
    # the tasks that have fallen, those that have most first
    fallen = tuple([skill for skill in event.skills if skill.fallen][:FALLEN_KEPT])
    reward = StageReward(event.round, event.stage, event.reward, event.held_out, count_aside(event.set_aside), fallen)
    turn.state.done = (event.round, event.stage)
    turn.state.faulted = False
    turn.state.stopped = False
    turn.keep_reward(reward)
    turn.state.learning = go_on_learning(turn.state.learning, event, turn.at)
    if event.held_out_before is not None:
        turn.state.first_accuracy = FirstAccuracy(event.held_out_before, untrained=True)
    elif event.held_out is not None and turn.state.first_accuracy is None:
        turn.state.first_accuracy = FirstAccuracy(event.held_out, untrained=False)
    turn.state.reward_total = add_real(turn.state.reward_total, event.reward)
    for reason, count in event.rejected:
        turn.count_rejections(reason, count)
    if turn.submits:
        submissions.reward(turn, event.round, event.stage, event.reward)
        votes.count_report(turn, turn.settings.peer, event.round, event.stage, event.reward)
        votes.judge(turn, event.judged, preceding(event.round, event.stage, turn.settings.stages))


def go_on_learning(before: Learning | None, event: StageTrained, at: float) -> Learning:
    """What is known of the stages trained last after one more, which was trained at `at`."""
    same = before is not None and (before.flat is None) == (event.flat is None)
    since, stages = (before.since, before.stages) if before is not None and same else (at, 0)
    return Learning(since, fit(stages + 1), event.round, event.stage, event.reward, event.flat)


def count_aside(set_aside: tuple[SetAside, ...]) -> tuple[tuple[str, int], ...]:
    """What a stage set aside of peers' rollouts, by reason: `unvouched` tokens, `share` and `little` groups, and peers
    with a `mark`. Reasons that did not occur are left out."""
    if not set_aside:
        return ()
    counts = {
        "unvouched": sum(each.held for each in set_aside),
        "share": sum(each.over_share for each in set_aside),
        "little": sum(each.of_little for each in set_aside),
        "mark": sum(bool(each.mark) for each in set_aside),
    }
    return tuple((reason, fit(count)) for reason, count in counts.items() if count > 0)


def context_after(turn: Turn, before: Work | None, round: int) -> tuple[RolloutsRef, ...]:
    """What later questions may be made of: rollouts of the stages that came before, down to the preceding round."""
    if before is None or turn.settings.stages == 1:
        return ()
    own = () if before.result is None else (before.result.rollouts,)
    known = (*before.context, *before.rollouts, *own)
    return tuple([ref for ref in known if ref.round >= round - 1])


def report_of(work: Work, result: Result) -> PublishReport:
    """The command that publishes a stage's result."""
    return PublishReport(
        stage_id("report", work.round, work.stage), work.round, work.stage, result.reward, result.rollouts
    )


def on_rounds_skipped(turn: Turn, event: RoundsSkipped) -> None:
    """Take note of rounds that this node has no part in."""
    skip = Skip(event.first, event.last, event.cause, turn.at)
    state, work = turn.state, turn.state.work
    in_vain = work is not None and event.first <= work.round <= event.last  # joined, but nothing was trained
    state.rounds_joined -= in_vain
    state.skipped_to = event.last
    state.skips = (*state.skips, skip)[-SKIPS_KEPT:]
    state.rounds_skipped = fit(state.rounds_skipped + event.last - event.first + 1)


PACE_S = 5.0  # clocks are set, and messages take their time: the time between two rounds may differ by this


def raise_floor(turn: Turn, event: RoundAnnounced, round: int) -> None:
    """The swarm is at `round`, as far as this node hears.

    What it hears first may be old: a DHT gives such records now and then, or half of a parted swarm does. A later
    round that opens while it listens is new, and whatever it signed before is of that round at the latest. The
    contract's word is never old; an announcement whose time has passed by this node's clock says nothing by itself, but
    that clock may be ahead: where rounds follow each other here as they do by the coordinator's clock, they are new.
    """
    state = turn.state
    if not state.restored:
        return
    certain = event.final or turn.chain_is_up
    in_time, in_pace = event.deadline_at > turn.at, False
    if not certain:
        in_pace = _is_in_pace(turn, event, round)
        state.heard = _heard_after(turn, event, round)
        state.floor = fit(max(state.floor, round + 1))
    if not (certain or in_time or in_pace):
        return
    settled = certain or in_pace or 0 <= state.first_heard < round
    state.restored, state.heard = not settled, None if settled else state.heard
    state.first_heard = round if state.first_heard < 0 else state.first_heard
    state.floor = fit(max(state.floor, round + (not event.final)))


def _is_in_pace(turn: Turn, event: RoundAnnounced, round: int) -> bool:
    """Whether a round is heard of as long after its opening as an earlier one was, which was opened before it.

    Both waited equally long for this node to hear of them, so the later one was opened while it listened, unless all
    that it hears is old by the same time. What lay somewhere for a while comes too late, and what follows such a record
    too early.
    """
    heard = turn.state.heard
    if heard is None or round <= heard.round:
        return False
    early = turn.at - event.opened_at < heard.after_s - PACE_S
    return not early and _is_open(turn, event, heard)


def _is_open(turn: Turn, event: RoundAnnounced, heard: Heard) -> bool:
    """Whether a stage's time is not over, by what this node has heard of the coordinator's clock."""
    return event.deadline_at + heard.after_s > turn.at


def _heard_after(turn: Turn, event: RoundAnnounced, round: int) -> Heard:
    """How long after its opening a round was heard of at the earliest; of each round the first announcement tells.

    A round that is over by that measure starts the measure again: a clock may have been set.
    """
    heard, after_s = turn.state.heard, turn.at - event.opened_at
    if heard is None or (round > heard.round and not _is_open(turn, event, heard)):
        return Heard(round, after_s)
    return Heard(round, min(after_s, heard.after_s)) if round > heard.round else heard


def is_barred(state: AnyState, round: int) -> bool:
    """Whether this node may have signed something of the round before it was restored."""
    return state.restored or round < state.floor
