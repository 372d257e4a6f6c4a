"""The coordinator: musters members, opens stages, closes them on quorum or deadline, keeps the leaderboard.

It tracks a bounded number of members; `find_member_slot` chooses which one is dropped for another. It decides into how
many shards the records of a stage are divided, and announces that with the clock.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile

from msgspec.structs import replace

from swarmd.bounds import add_bounded, clamp_integer
from swarmd.core import events, evidence, waiting
from swarmd.core.chart_types import CoordinatorState, CoordinatorTrigger
from swarmd.core.commands import Announce, CollectReports, PublishLeaderboard
from swarmd.core.ids import command_id, stage_command_id
from swarmd.core.state import MEMBERS_MAX, NO_REPORTS, CoordinationBase, Member, Report, StateBase
from swarmd.core.turn import StepContext
from swarmd.core.values import CoordinatorSettings, Standing

COLLECTING: tuple[CoordinatorState, ...] = ("announcing", "open.collecting")
TOO_HIGH = "reward-too-high"
ROUNDING = 1e-6  # relative error by which a mean reward may exceed the highest possible one
REPORT_BYTES_MAX = 2048  # bytes of one signed report; a real one has some 350, with an RSA key 600


def settings_of(turn: StepContext) -> CoordinatorSettings:
    settings = turn.settings.coordination
    assert settings is not None
    return settings


def on_node_started(turn: StepContext, event: events.NodeStarted) -> None:
    """Continue a finished swarm whose number of rounds was raised."""
    coordination = turn.coordination
    if coordination.chart == "finished" and not _are_all_rounds_run(turn, coordination.round):
        _open_stage(turn, "extend", coordination.round, 0)


def _are_all_rounds_run(turn: StepContext, next_round: int) -> bool:
    rounds_max = settings_of(turn).rounds_max
    return rounds_max > 0 and next_round >= rounds_max


def on_linked(turn: StepContext) -> None:
    """Begin the muster, or publish the clock again, when the DHT answers."""
    coordination = turn.coordination
    if turn.fire_coordinator_trigger("linked"):
        turn.set_deadline("muster", turn.at + settings_of(turn).start_s)
        _begin_if_mustered(turn)
    elif coordination.chart == "finished":
        _announce_end(turn)
    else:
        _resume_stage(turn, coordination)


def _resume_stage(turn: StepContext, coordination: CoordinationBase) -> None:
    """Announce the same stage again, open for a while longer: the network may have lost the clock."""
    turn.remove_pending(_announce_id(coordination))
    rules, peers = settings_of(turn), turn.state.link.peers
    unseen = coordination.held_since is not None and peers > 0  # other members can start it only now
    more_s = rules.stage_s if unseen else rules.resume_s
    longest_s = max(rules.stage_s, rules.resume_s)  # an earlier run's clock may have been ahead
    deadline_at = min(max(coordination.deadline_at, turn.at + more_s), turn.at + longest_s)
    if turn.fire_coordinator_trigger("resume"):
        coordination.deadline_at = deadline_at
        coordination.openings += 1
        turn.clear_deadlines("stage")
        _announce_stage(turn)


def on_peer_count_changed(turn: StepContext, before: int) -> None:
    """Announce a held stage again with its full time once there is a peer. `before`: number of peers before."""
    held = turn.coordination
    if held.held_since is None or before or not turn.state.link.peers:
        return
    _reannounce_stage(turn)


def _reannounce_stage(turn: StepContext) -> None:
    """Announce the open stage with its full time from now on."""
    opened = turn.coordination
    turn.remove_pending(_announce_id(opened))
    deadline_at = max(opened.deadline_at, turn.at + settings_of(turn).stage_s)
    opened.deadline_at = deadline_at
    opened.openings += 1
    if opened.chart == "open.collecting":
        waiting.on_stage_announced(turn)
    _announce_stage(turn)


def on_first_trainer_ready(turn: StepContext) -> None:
    """Give the open stage its full time when this node can train for the first time in this run. A stage opened by an
    earlier run gets it only if nobody has reported: otherwise the others are training it."""
    opened = turn.coordination
    waits = opened.chart in COLLECTING and opened.held_since is None
    fresh = opened.opened_at >= turn.state.started_at or not opened.reports
    if waits and fresh and turn.at + settings_of(turn).stage_s > opened.deadline_at:
        _reannounce_stage(turn)


def should_extend_for_trainer(state: StateBase) -> bool:
    """Return whether to extend the open stage: nobody has reported, and this node had no chance to, as it had no
    trainer."""
    coordination = state.coordination
    return coordination is not None and not coordination.reports and not has_had_trainer(state)


def has_had_trainer(state: StateBase) -> bool:
    """Return whether the trainer has been ready in this run."""
    return bool(state.trainer.device)


def is_alone(state: StateBase) -> bool:
    """Return whether the open stage must not close because this node is alone, which the settings forbid.

    It is alone if no peer is connected, and no other member has reported in the open stage, though there have been
    others. A swarm that may start with one member may continue with one.
    """
    coordination, settings = state.coordination, state.settings
    if coordination is None or settings is None or settings.coordination is None or state.link.peers:
        return False
    rules = settings.coordination
    holds = rules.when_alone == "hold" and rules.min_peers > 1
    had_others = any(member.peer != settings.peer for member in coordination.members)
    return holds and had_others and not _have_others_reported(coordination, settings.peer)


def _have_others_reported(coordination: CoordinationBase, peer: str) -> bool:
    return any(report.peer != peer for report in coordination.reports)


def _hold_stage_open(turn: StepContext) -> None:
    """Keep the stage open while this node is alone; check again after a full stage time."""
    coordination = turn.coordination
    if coordination.held_since is None:
        coordination.held_since = turn.at
    if "stage" not in turn.deadlines:
        turn.set_deadline("stage", turn.at + settings_of(turn).stage_s)


def on_registered(turn: StepContext, event: events.Registered) -> None:
    """Count the coordinator itself as a member."""
    on_member_seen(turn, events.MemberSeen(turn.settings.peer, turn.settings.name))


def on_member_seen(turn: StepContext, event: events.MemberSeen) -> None:
    """Count a member from the open or next round on. If it came back, it may complete the stage."""
    _record_member(turn, event)
    _close_if_complete(turn)


def _record_member(turn: StepContext, event: events.MemberSeen, reported: bool = False) -> None:
    coordination = turn.coordination
    known = coordination.members.get(event.peer)
    if known is None and not _make_room(turn, event, reported):
        turn.count_rejections("members-full", 1)
        return
    number = coordination.waiting.number
    member = Member(event.peer, event.name, coordination.round, worked=event.worked, heard=number)
    if known is not None:
        member = replace(known, left=False, worked=known.worked or event.worked)
    if known is not None and known.left:
        member = replace(member, since_round=coordination.round, heard=number)
    if member != known:
        _set_member(turn, known, member)
    _begin_if_mustered(turn)


def _make_room(turn: StepContext, newcomer: events.MemberSeen, reported: bool) -> bool:
    """Drop a member that is gone if another one needs its slot. Returns whether there is a slot."""
    there_is, gone = find_member_slot(turn.coordination, newcomer, reported)
    if gone is not None:
        _set_member(turn, gone, None)
    return there_is


def _set_member(turn: StepContext, before: Member | None, after: Member | None) -> None:
    """Replace a member's entry: `before` None adds one, `after` None removes it."""
    coordination = turn.coordination
    if after is not None:
        coordination.members = coordination.members.put_in_place(after)
    elif before is not None:
        coordination.members = coordination.members.without_peer(before.peer)
    waiting.on_member_changed(turn, before, after)


def on_member_left(turn: StepContext, event: events.MemberLeft) -> None:
    """Wait no longer for a member that left; the stage may be complete without it."""
    coordination = turn.coordination
    member = coordination.members.get(event.peer)
    if member is not None and not member.left:
        forgotten = should_forget(coordination, member)
        _set_member(turn, member, None if forgotten else replace(member, left=True))
        _close_if_complete(turn)


def _begin_if_mustered(turn: StepContext) -> None:
    coordination = turn.coordination
    enough = (
        coordination.members.present >= settings_of(turn).min_peers and not turn.state.restored
    )  # if restored, the clock may still arrive
    if coordination.chart == "mustering" and enough:
        open_first_round(turn)


def open_first_round(turn: StepContext) -> None:
    """Open this run's first round, once the muster is complete or its time is over."""
    if turn.coordination.chart != "mustering":
        return
    turn.clear_deadlines("muster")
    round = _first_round(turn)
    if _are_all_rounds_run(turn, round):
        _finish_rounds(turn, round)
    else:
        _open_stage(turn, "mustered", round, 0)


def _first_round(turn: StepContext) -> int:
    """Return the round to open first. After a restore, it is one never opened by this node, as far as is known."""
    round = turn.coordination.round
    if turn.state.restored:
        heard = turn.state.first_heard >= 0 or turn.state.heard is not None  # the round heard may be one behind
        turn.state.restored = False
        turn.state.floor = clamp_integer(max(turn.state.floor + heard, round + 1))
    return max(round, turn.state.floor)


def _open_stage(turn: StepContext, trigger: CoordinatorTrigger, round: int, stage: int) -> None:
    if not turn.fire_coordinator_trigger(trigger):
        return
    coordination, rules = turn.coordination, settings_of(turn)
    coordination.round, coordination.stage = clamp_integer(round), stage
    if stage == 0:
        decide_shards(coordination, rules.shard_members)
        coordination.round_reports = ()
    else:
        coordination.round_reports = (*coordination.round_reports, *coordination.reports)
    coordination.opened_at, coordination.deadline_at = turn.at, turn.at + rules.stage_s
    coordination.reports, coordination.barred = NO_REPORTS, evidence.banned_peers_in(turn.state, round)
    coordination.openings += 1
    coordination.held_since = None
    waiting.on_stage_opened(turn)
    _announce_stage(turn)


def _announce_id(coordination: CoordinationBase) -> str:
    return command_id("announce", f"{coordination.round}/{coordination.stage}/{coordination.openings}")


def _announce_stage(turn: StepContext) -> None:
    _announce_as(turn, _announce_id(turn.coordination), final=False)


def _announce_as(turn: StepContext, name: str, final: bool) -> None:
    clock = turn.coordination
    turn.issue_until_answered(
        Announce(
            name,
            clock.round,
            clock.stage,
            clock.opened_at,
            clock.deadline_at,
            final,
            clock.shards,
            clock.sharded_since,
            clock.shards_before,
        )
    )


def _finish_rounds(turn: StepContext, rounds: int) -> None:
    """Announce the end after all rounds."""
    if not turn.fire_coordinator_trigger("finish"):
        return
    coordination = turn.coordination
    coordination.round, coordination.stage = rounds, 0
    coordination.reports, coordination.round_reports = NO_REPORTS, ()
    coordination.opened_at = coordination.deadline_at = turn.at
    coordination.held_since = None
    _announce_end(turn)


def _announce_end(turn: StepContext) -> None:
    _announce_as(turn, command_id("announce", f"final/{turn.coordination.round}"), final=True)


def on_round_published(turn: StepContext, event: events.RoundPublished) -> None:
    """Collect the stage's reports, now that all members can read its announcement."""
    command = turn.remove_pending(event.command)
    coordination = turn.coordination
    if not isinstance(command, Announce) or command.id != _announce_id(coordination):
        return
    if turn.fire_coordinator_trigger("announced"):
        waiting.on_stage_announced(turn)
        turn.emit(CollectReports(stage_command_id("collect", event.round, event.stage), event.round, event.stage))
        _close_if_complete(turn)


def on_report_seen(turn: StepContext, event: events.ReportSeen) -> None:
    """Count a member's report of the open stage, once."""
    coordination = turn.coordination
    current = event.round == coordination.round and event.stage == coordination.stage
    if not current or coordination.chart not in COLLECTING or coordination.reports.get(event.peer):
        return
    if event.peer in coordination.barred:
        turn.count_rejections(evidence.REASON, 1)
        return
    if len(event.record) > REPORT_BYTES_MAX:
        turn.count_rejections("oversized", 1)
        return
    if is_reward_too_high(turn.state, event.reward):
        turn.count_rejections(TOO_HIGH, 1)
        return
    if coordination.members.get(event.peer) is None:
        _record_member(turn, events.MemberSeen(event.peer, worked=event.worked), reported=True)
        if coordination.members.get(event.peer) is None:
            return
    report = Report(event.peer, event.reward, event.record, waiting.report_delay_s(turn))
    coordination.reports = coordination.reports.put_in_place(report)
    waiting.on_report_counted(turn, coordination.members.get(event.peer))
    _close_if_complete(turn)


def is_reward_too_high(state: StateBase, reward: float) -> bool:
    """Return whether a reward exceeds the maximum of this swarm's recipe, by this node's trainer."""
    most = state.trainer.reward_max
    return most is not None and reward > most + ROUNDING * abs(most)


def on_equivocated(turn: StepContext) -> None:
    """Recount after evidence of equivocation: fewer reports count, and the stage waits for fewer members."""
    waiting.recount_expected(turn)
    _close_if_complete(turn)


def _close_if_complete(turn: StepContext) -> None:
    coordination = turn.coordination
    if coordination.held_since is not None and not _have_others_reported(coordination, turn.settings.peer):
        return  # the stage was held for other members, who may take part now
    if waiting.is_complete(turn, settings_of(turn).quorum):
        _close_stage(turn, "quorum")


def on_stage_overdue(turn: StepContext) -> None:
    """Close the stage after its waiting time or deadline, or extend it if nobody could report yet. A trainer that never
    gets ready is killed and restarted, so extensions end unless nobody can train."""
    waiting.recount_expected(turn)
    if turn.at < turn.coordination.deadline_at and not waiting.is_complete(turn, settings_of(turn).quorum):
        waiting.set_stage_deadline(turn)
    elif should_extend_for_trainer(turn.state):
        turn.set_deadline("stage", turn.at + settings_of(turn).stage_s)
    else:
        _close_stage(turn, "deadline")


def _close_stage(turn: StepContext, trigger: CoordinatorTrigger) -> None:
    """Credit members and open the next stage; hold the stage open instead if no other member could take part."""
    closed = turn.coordination
    round, stage = closed.round, closed.stage
    if closed.chart == "open.collecting" and is_alone(turn.state):
        _hold_stage_open(turn)
        return
    if not turn.fire_coordinator_trigger(trigger):
        return
    turn.remove_pending(_announce_id(closed))  # a held stage is announced again, and nobody needs that any more
    turn.clear_deadlines("stage")
    waiting.on_stage_closed(turn)
    credit_members(turn)
    if stage + 1 < turn.settings.stages:
        _open_stage(turn, "next", round, stage + 1)
        return
    publish_leaderboard(turn)
    if _are_all_rounds_run(turn, round + 1):
        _finish_rounds(turn, round + 1)
    else:
        _open_stage(turn, "next", round + 1, 0)


GONE_KEPT = 256  # number of members up to which those without credit are kept after they leave
SILENT_ROUNDS_MAX = 64  # a credited member that is silent for longer may be dropped, too
IDLE_MEMBERS_MAX = 256  # members without proof of work, of `MEMBERS_MAX`


def should_forget(coordination: CoordinationBase, member: Member) -> bool:
    """Return whether to drop a member that has just left: it has no credit or report, and there are many members."""
    owed = member.rounds > 0 or member.peer in coordination.reports
    return not owed and len(coordination.members) > GONE_KEPT


def find_member_slot(
    coordination: CoordinationBase, newcomer: events.MemberSeen, reported: bool
) -> tuple[bool, Member | None]:
    """Return whether there is a slot for a newcomer, and the member to drop for it, if any.

    Members that never had credit are dropped first, and those that left before silent ones; credited members only if
    they left or were silent for long. Members without proof of work share `IDLE_MEMBERS_MAX` slots. `reported`: whether
    the newcomer has reported; then it comes before members that have not done so yet.
    """
    members = coordination.members
    if not newcomer.worked and len(members.idle) >= IDLE_MEMBERS_MAX:
        among: Iterable[Member] = members.idle
    elif len(members) < MEMBERS_MAX:
        return True, None
    else:
        among = members
    gone = [
        member
        for member in among
        if member.peer not in coordination.reports and _is_displaceable(member, coordination.round, reported)
    ]
    return (True, min(gone, key=_retention_order)) if gone else (False, None)


def _is_displaceable(member: Member, round: int, reported: bool) -> bool:
    """Return whether a member may be dropped: it left, or was silent for more rounds than it has credit."""
    if member.left:
        return True
    if not member.rounds:
        return reported or member.since_round < round - 1
    return round - member.last_round > min(member.rounds, SILENT_ROUNDS_MAX)


def _retention_order(member: Member) -> tuple[bool, bool, int, int, str]:
    return (member.rounds > 0, not member.left, member.last_round, member.since_round, member.peer)


SHARDS_MAX = 1024
ROUNDS_KEPT = 16  # rounds before the number of shards may shrink


def shard_count_for(members: int, each: int) -> int:
    """Return the number of shards, a power of two, for about `each` members per shard; 0 if they all fit into one."""
    if not each or members <= each:
        return 0
    exponent = max(1, round(math.log2(members / each)))
    return min(1 << exponent, SHARDS_MAX)


def decide_shards(coordination: CoordinationBase, shard_members: int) -> None:
    """Decide the number of shards from the current round on. It grows at once but shrinks only after `ROUNDS_KEPT`
    rounds, so that a few members more or less do not change it in each round."""
    placed, since, round = coordination.shards, coordination.sharded_since, coordination.round
    wanted = shard_count_for(coordination.members.present, shard_members)
    rests = round < since + ROUNDS_KEPT and wanted < placed
    if wanted != placed and not rests and round >= since:
        coordination.shards, coordination.sharded_since, coordination.shards_before = wanted, round, placed


REPORTS_BYTES_MAX = 3 * 1024 * 1024  # bytes of all reports with a leaderboard; a frame to a worker has 4 MiB
BOARD_BYTES_MAX = 4 * 1024 * 1024 - 64 * 1024  # of a leaderboard's rows and reports together
NAMES_BYTES_MAX = 1024 * 1024  # bytes of all names in it; those at the top have priority
ROW_BYTES = 128  # bytes of a row without its name


def credit_members(turn: StepContext) -> None:
    """Add the stage's rewards to the members' totals."""
    coordination = turn.coordination
    reports = {report.peer: report for report in coordination.reports}
    coordination.members = coordination.members.with_new_values(
        [
            _credit_member(coordination, member, reports[member.peer]) if member.peer in reports else member
            for member in coordination.members
        ]
    )


def _credit_member(coordination: CoordinationBase, member: Member, report: Report) -> Member:
    return replace(
        waiting.member_with_report(member, report, coordination.waiting.number),
        reward=add_bounded(member.reward, report.reward),
        rounds=member.rounds + (member.last_round != coordination.round),
        last_round=coordination.round,
    )


def publish_leaderboard(turn: StepContext) -> None:
    """Publish the standings after a round: members with proof of work first."""
    coordination = turn.coordination
    rows = [
        Standing(member.peer, member.name, member.reward, member.rounds, member.last_round, member.worked)
        for member in sorted(coordination.members, key=lambda member: (not member.worked, -member.reward, member.peer))
        if member.rounds
    ]
    standings = tuple(_drop_excess_names(rows))
    coordination.standings = standings
    records = _reports_that_fit(turn, standings, (*coordination.round_reports, *coordination.reports))
    for command in list(turn.pending.values()):
        if isinstance(command, PublishLeaderboard):
            turn.remove_pending(command.id)
    turn.issue_until_answered(
        PublishLeaderboard(command_id("leaderboard", coordination.round), coordination.round, standings, records)
    )


def _drop_excess_names(rows: list[Standing]) -> list[Standing]:
    """Return the rows; without names from the first one on that exceeds `NAMES_BYTES_MAX`."""
    if _names_bytes(rows) <= NAMES_BYTES_MAX:
        return rows
    sizes = accumulate(len(row.name.encode()) for row in rows)
    named = sum(1 for _ in takewhile(lambda size_bytes: size_bytes <= NAMES_BYTES_MAX, sizes))
    return [*rows[:named], *(replace(row, name="") for row in rows[named:])]


def _names_bytes(rows: Sequence[Standing]) -> int:
    return len("".join([row.name for row in rows]).encode())


def reports_bytes_max(standings: Sequence[Standing]) -> int:
    """Return how many bytes of reports fit into a leaderboard with these rows."""
    rows_bytes = ROW_BYTES * len(standings) + _names_bytes(standings)
    return min(REPORTS_BYTES_MAX, BOARD_BYTES_MAX - rows_bytes)


def _reports_that_fit(
    turn: StepContext, standings: Sequence[Standing], reports: tuple[Report, ...]
) -> tuple[bytes, ...]:
    """Return the signed reports behind the standings, as many as fit into one command to the network worker."""
    records = tuple([report.record for report in reports])
    bytes_max = reports_bytes_max(standings)
    if sum(map(len, records)) <= bytes_max:
        return records
    room = takewhile(lambda size_bytes: size_bytes <= bytes_max, accumulate(map(len, records)))
    kept = records[: sum(1 for _ in room)]
    turn.count_rejections("leaderboard-full", len(records) - len(kept))
    return kept


def on_leaderboard_published(turn: StepContext, event: events.LeaderboardPublished) -> None:
    turn.remove_pending(event.command)
