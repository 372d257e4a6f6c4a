"""The coordinator: musters members, opens stages, closes them on quorum or deadline, keeps the leaderboard."""

from __future__ import annotations

import math

from msgspec.structs import replace

from swarmd.bounds import fit
from swarmd.core.chart_types import CoordinatorState, CoordinatorTrigger
from swarmd.core.commands import Announce, CollectReports
from swarmd.core.coordinator import patience, standings
from swarmd.core.coordinator.members import with_room, without_gone
from swarmd.core.coordinator.shards import place_records
from swarmd.core.events import (
    MemberLeft,
    MemberSeen,
    NodeStarted,
    Registered,
    ReportSeen,
    RoundPublished,
)
from swarmd.core.ids import command_id, stage_id
from swarmd.core.peers import evidence
from swarmd.core.state import NO_REPORTS, AnyCoordination, AnyState, Member, Report, Reports
from swarmd.core.turn import Turn
from swarmd.core.values import CoordinatorSettings, Value

COLLECTING: tuple[CoordinatorState, ...] = ("announcing", "open.collecting")
REPORT_BYTES_MAX = 2048  # of one signed report; a real one has some 350, with an RSA key 600
SILENT_ROUNDS = 64  # once in so many rounds every silent member is waited for
OWN_PACE_SINCE = 8  # rules under which no quorum closes a stage before this node itself has reported
OWN_SILENT_MAX = 3  # rounds in a row that may last to their deadlines for want of this node's own report


def settings_of(turn: Turn) -> CoordinatorSettings:
    """The coordinator's part of the settings."""
    settings = turn.settings.coordination
    assert settings is not None
    return settings


def on_node_started(turn: Turn, event: NodeStarted) -> None:
    """A swarm that had run its rounds goes on when it was given more."""
    coordination = turn.coordination
    if coordination.chart == "finished" and not _all_rounds_run(turn, coordination.round):
        _open(turn, "extend", coordination.round, 0)


def _all_rounds_run(turn: Turn, next_round: int) -> bool:
    rounds_max = settings_of(turn).rounds_max
    return rounds_max > 0 and next_round >= rounds_max


def on_linked(turn: Turn) -> None:
    """The DHT answers: begin the muster, or publish the clock again where it stood."""
    coordination = turn.coordination
    if turn.move_coordinator("linked"):
        turn.arm("muster", turn.at + settings_of(turn).start_s)
        _muster(turn)
    elif coordination.chart == "finished":
        _announce_end(turn)
    else:
        _resume(turn, coordination)


def _resume(turn: Turn, coordination: AnyCoordination) -> None:
    """The network lost the clock or nobody heard it: the same stage, open for a while longer."""
    turn.settle(_announce_id(coordination))
    rules, peers = settings_of(turn), turn.state.link.peers
    unseen = coordination.held_since is not None and peers > 0  # others may begin with it only now
    more_s = rules.stage_s if unseen else rules.resume_s
    longest_s = max(rules.stage_s, rules.resume_s)  # an earlier life's clock may have been ahead
    deadline_at = min(max(coordination.deadline_at, turn.at + more_s), turn.at + longest_s)
    if turn.move_coordinator("resume"):
        coordination.deadline_at = deadline_at
        coordination.openings += 1
        turn.disarm("stage")
        _announce(turn)


def on_peers_counted(turn: Turn, before: int) -> None:
    """A stage that was held is announced anew, with its whole time, when there is a peer again; `before` there were."""
    held = turn.coordination
    if held.held_since is None or before or not turn.state.link.peers:
        return
    _announce_anew(turn)


def _announce_anew(turn: Turn) -> None:
    """Announce the open stage with its whole time from now on."""
    opened = turn.coordination
    turn.settle(_announce_id(opened))
    deadline_at = max(opened.deadline_at, turn.at + settings_of(turn).stage_s)
    opened.deadline_at = deadline_at
    opened.openings += 1
    if opened.chart == "open.collecting":
        turn.arm("stage", deadline_at)
    _announce(turn)


def on_first_trainer(turn: Turn) -> None:
    """This node can train, for the first time in its life: the stage that it opened meanwhile has its whole time still.

    So has one that an earlier life opened, unless somebody has reported: then the others are at it.
    """
    opened = turn.coordination
    waits = opened.chart in COLLECTING and opened.held_since is None
    fresh = opened.opened_at >= turn.state.started_at or not opened.reports
    if waits and fresh and turn.at + settings_of(turn).stage_s > opened.deadline_at:
        _announce_anew(turn)


def awaits_trainer(state: AnyState) -> bool:
    """Whether the open stage goes on beyond its deadline: nobody has reported, and this node could not yet have."""
    coordination = state.coordination
    return coordination is not None and not coordination.reports and not had_trainer(state)


def had_trainer(state: AnyState) -> bool:
    """Whether the trainer has been ready in this life."""
    return bool(state.trainer.device)


def is_alone(state: AnyState) -> bool:
    """Whether a stage that closes now would close without the others of the swarm, which the settings forbid.

    No peer is connected, and no other member has reported in the open stage, though there have been others. A swarm
    that may begin with one member may go on with one.
    """
    coordination, settings = state.coordination, state.settings
    if coordination is None or settings is None or settings.coordination is None or state.link.peers:
        return False
    rules = settings.coordination
    holds = rules.when_alone == "hold" and rules.min_peers > 1
    had_others = any(member.peer != settings.peer for member in coordination.members)
    return holds and had_others and not _others_reported(coordination, settings.peer)


def _others_reported(coordination: AnyCoordination, peer: str) -> bool:
    return any(report.peer != peer for report in coordination.reports)


def _hold(turn: Turn) -> None:
    """Keep the stage open for as long as this node is alone; look again after another stage's time."""
    coordination = turn.coordination
    if coordination.held_since is None:
        coordination.held_since = turn.at
    if "stage" not in turn.deadlines:
        turn.arm("stage", turn.at + settings_of(turn).stage_s)


def on_registered(turn: Turn, event: Registered) -> None:
    """The coordinator is a member too."""
    on_member_seen(turn, MemberSeen(turn.settings.peer, turn.settings.name))


def on_member_seen(turn: Turn, event: MemberSeen) -> None:
    """Count a member from the round that is open or comes next; one that came back may complete the stage."""
    _note_member(turn, event)
    _close_on_quorum(turn)


def _note_member(turn: Turn, event: MemberSeen, reported: bool = False) -> None:
    coordination = turn.coordination
    known = coordination.members.get(event.peer)
    if known is None and not _make_room(turn, event, reported):
        turn.count_rejections("members-full", 1)
        return
    member = Member(event.peer, event.name, coordination.round, worked=event.worked)
    if known is not None:
        member = replace(known, left=False, worked=known.worked or event.worked)
    if known is None or known.left:
        member = replace(member, since_round=coordination.round)
    if member != known:
        coordination.members = coordination.members.grow(member)
    _muster(turn)


def _make_room(turn: Turn, newcomer: MemberSeen, reported: bool) -> bool:
    """Let members who are gone make room for one more. Returns whether there is room."""
    coordination = turn.coordination
    members = with_room(coordination, newcomer, reported)
    if members is None:
        return False
    coordination.members = members
    return True


def on_member_left(turn: Turn, event: MemberLeft) -> None:
    """Expect nothing more from it; the stage may be complete without it."""
    coordination = turn.coordination
    member = coordination.members.get(event.peer)
    if member is not None and not member.left:
        left = without_gone(coordination, member)
        if left is None:
            left = coordination.members.grow(replace(member, left=True))
        coordination.members = left
        _close_on_quorum(turn)


def _muster(turn: Turn) -> None:
    coordination = turn.coordination
    enough = (
        coordination.members.present >= settings_of(turn).min_peers and not turn.state.restored
    )  # then the clock may still be heard
    if coordination.chart == "mustering" and enough:
        begin(turn)


def begin(turn: Turn) -> None:
    """Open the first round of this life: the muster is complete or its time is over."""
    if turn.coordination.chart != "mustering":
        return
    turn.disarm("muster")
    round = _first_round(turn)
    if _all_rounds_run(turn, round):
        _finish(turn, round)
    else:
        _open(turn, "mustered", round, 0)


def _first_round(turn: Turn) -> int:
    """The round to open first. After a restore it is one that this node never opened, as far as anybody can tell."""
    round = turn.coordination.round
    if turn.state.restored:
        heard = turn.state.first_heard >= 0 or turn.state.heard is not None  # which may be old by one
        turn.state.restored = False
        turn.state.floor = fit(max(turn.state.floor + heard, round + 1))
    return max(round, turn.state.floor)


def _open(turn: Turn, trigger: CoordinatorTrigger, round: int, stage: int) -> None:
    if not turn.move_coordinator(trigger):
        return
    coordination, rules = turn.coordination, settings_of(turn)
    coordination.round, coordination.stage = fit(round), stage
    if stage == 0:
        place_records(coordination, rules.shard_members)
        coordination.round_reports = ()
    else:
        coordination.round_reports = (*coordination.round_reports, *coordination.reports)
    coordination.opened_at, coordination.deadline_at = turn.at, turn.at + rules.stage_s
    coordination.reports, coordination.barred = NO_REPORTS, evidence.barred_in(turn.state, round)
    coordination.openings += 1
    coordination.held_since = None
    patience.on_open(turn)
    _announce(turn)


def _announce_id(coordination: AnyCoordination) -> str:
    return command_id("announce", f"{coordination.round}/{coordination.stage}/{coordination.openings}")


def _announce(turn: Turn) -> None:
    _announce_as(turn, _announce_id(turn.coordination), final=False)


def _announce_as(turn: Turn, name: str, final: bool) -> None:
    clock = turn.coordination
    turn.issue(
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
            clock.steady_min,
        )
    )


def _finish(turn: Turn, rounds: int) -> None:
    """All rounds have been run."""
    if not turn.move_coordinator("finish"):
        return
    coordination = turn.coordination
    coordination.round, coordination.stage = rounds, 0
    coordination.reports, coordination.round_reports = NO_REPORTS, ()
    coordination.opened_at = coordination.deadline_at = turn.at
    coordination.held_since = None
    _announce_end(turn)


def _announce_end(turn: Turn) -> None:
    _announce_as(turn, command_id("announce", f"final/{turn.coordination.round}"), final=True)


def on_round_published(turn: Turn, event: RoundPublished) -> None:
    """Everybody can read it: collect the reports."""
    command = turn.settle(event.command)
    coordination = turn.coordination
    if not isinstance(command, Announce) or command.id != _announce_id(coordination):
        return
    if turn.move_coordinator("announced"):
        turn.arm("stage", coordination.deadline_at)
        turn.emit(CollectReports(stage_id("collect", event.round, event.stage), event.round, event.stage))
        _close_on_quorum(turn)


def on_report_seen(turn: Turn, event: ReportSeen) -> None:
    """Count a member's report of the open stage once."""
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
    if coordination.members.get(event.peer) is None:
        _note_member(turn, MemberSeen(event.peer, worked=event.worked), reported=True)
        if coordination.members.get(event.peer) is None:
            return
    coordination.reports = coordination.reports.grow(Report(event.peer, event.reward, event.record))
    _close_on_quorum(turn)


class Waiting(Value, frozen=True):
    """How many reports the open stage waits for, and of what that was counted.

    It goes with the members whom it counts (`ByPeer.keep_memo`), and names them by their size alone.
    """

    round: int
    barred: tuple[str, ...]
    members_size: int
    reports: Reports  # or one that has grown since
    reports_size: int
    awaited: int  # members whose reports the stage waits for
    reported: int  # those of them whose reports have come


def waiting_of(coordination: AnyCoordination) -> Waiting:
    """How many reports the open stage waits for, and how many of these have come.

    Asked at every report and every member: what was counted last is counted on from, by what has changed since.
    """
    members, reports = coordination.members, coordination.reports
    known: Waiting | None = members.memo()
    usable = known is not None and known.round == coordination.round and known.barred == coordination.barred
    if known is None or not usable or known.members_size > members.size or not reports.follows(known.reports):
        waiting = _count_waiting(coordination)
    elif known.members_size == members.size and known.reports_size == reports.size:
        return known
    else:
        waiting = _count_on(coordination, known)
    if members.size:  # there is one object for no members, whoever has none
        members.keep_memo(waiting)
    return waiting


def _awaited(coordination: AnyCoordination) -> int:
    """How many reports the open stage waits for, whichever have come."""
    known: Waiting | None = coordination.members.memo()
    if known is None or known.members_size != coordination.members.size:
        return waiting_of(coordination).awaited
    usable = known.round == coordination.round and known.barred == coordination.barred
    return known.awaited if usable else waiting_of(coordination).awaited


def _count_waiting(coordination: AnyCoordination) -> Waiting:
    members, reports = coordination.members, coordination.reports
    peers = {member.peer for member in members if is_awaited(coordination, member)}
    reported = sum([report.peer in peers for report in reports])
    return Waiting(coordination.round, coordination.barred, members.size, reports, reports.size, len(peers), reported)


def _count_on(coordination: AnyCoordination, known: Waiting) -> Waiting:
    """Count the members that changed, before and after, each once; then the reports that came."""
    members, reports, awaited, reported = coordination.members, coordination.reports, known.awaited, known.reported
    for peer, before, after in members.changes_since(known.members_size):
        change = is_awaited(coordination, after) - is_awaited(coordination, before)
        awaited += change
        reported += change * (reports.get_before(peer, known.reports_size) is not None)
    for peer, earlier, report in reports.changes_since(known.reports_size):
        change = (report is not None) - (earlier is not None)
        reported += change * is_awaited(coordination, members.get(peer))
    return Waiting(known.round, known.barred, members.size, reports, reports.size, awaited, reported)


def is_awaited(coordination: AnyCoordination, member: Member | None) -> bool:
    """Whether the open stage waits for a member's report."""
    if member is None or member.left or not member.worked:
        return False
    if member.peer in coordination.barred:
        return False
    if not patience.may_wait_for(coordination, member):
        return False
    lately = coordination.round - 1
    certain = member.last_round >= lately or member.since_round > lately
    return certain or is_expected(member, coordination.round)


def is_expected(member: Member, round: int) -> bool:
    """Whether a stage waits for a member: it is present, and new or heard of in the round before.

    For an identity that has cost nothing none waits: any number of them would have each stage last to its deadline.

    One that is silent is waited for again after 3, 7, 15, ... rounds, later together with all others that are silent: a
    node that has fallen behind the others' pace comes back into step when they wait for it, and would otherwise report
    too late for ever; and many that never come back cost one stage's time in `SILENT_ROUNDS` rounds, not in each.
    """
    if member.left or not member.worked:
        return False
    silent = round - max(member.last_round, member.since_round - 1)
    again = silent < SILENT_ROUNDS and silent & (silent + 1) == 0
    return silent <= 1 or again or round % SILENT_ROUNDS == SILENT_ROUNDS - 1


def on_equivocated(turn: Turn) -> None:
    """Fewer reports count, and fewer are waited for."""
    _close_on_quorum(turn)


def _close_on_quorum(turn: Turn) -> None:
    coordination = turn.coordination
    if coordination.held_since is not None and not _others_reported(coordination, turn.settings.peer):
        return  # whom it was held for may take part now
    if not coordination.reports.count:
        return  # a quorum has one at least
    awaited = _awaited(coordination)
    needed = max(1, math.ceil(settings_of(turn).quorum * awaited))
    if coordination.reports.count < needed or waiting_of(coordination).reported < min(needed, awaited):
        return
    if not awaits_own(turn):
        _close(turn, "quorum")


def awaits_own(turn: Turn) -> bool:
    """Whether the open stage waits for this node's own report, whatever the quorum: it is the one sure to train.

    Peers that report at once, trained or not, would otherwise fill a quorum below 1 before anybody else is through, and
    again in each stage after. A node that cannot train, or does not come to its end in `OWN_SILENT_MAX` rounds, is
    waited for like any other member.
    """
    coordination, state, peer = turn.coordination, turn.state, turn.settings.peer
    if turn.rules < OWN_PACE_SINCE or peer in coordination.reports or peer in coordination.barred:
        return False
    own = coordination.members.get(peer)
    trains = state.trainer.chart in ("idle", "busy") and state.low_space is None
    if own is None or not trains:
        return False
    silent = coordination.round - max(own.last_round, own.since_round - 1)
    return silent <= OWN_SILENT_MAX or is_expected(own, coordination.round)


def on_stage_overdue(turn: Turn) -> None:
    """The stage's time is over, whoever has reported; where nobody could yet, there is more time.

    A trainer that never gets ready is killed and started again, so this ends, or goes on while nobody could train.
    """
    if awaits_trainer(turn.state):
        turn.arm("stage", turn.at + settings_of(turn).stage_s)
        return
    _close(turn, "deadline")


def _remember_waiting(turn: Turn, trigger: CoordinatorTrigger) -> None:
    """Remember whether the stage that closes has waited in vain, and for whom."""
    closed = turn.coordination
    if trigger == "quorum":
        patience.on_quorum(turn)
    else:
        awaited = [member for member in closed.members if is_awaited(closed, member)]
        patience.on_deadline(turn, [member for member in awaited if member.peer not in closed.reports])


def _close(turn: Turn, trigger: CoordinatorTrigger) -> None:
    """Settle accounts and open what comes next, unless nobody else could take part in either."""
    closed = turn.coordination
    round, stage = closed.round, closed.stage
    if closed.chart == "open.collecting" and is_alone(turn.state):
        _hold(turn)
        return
    if not turn.move_coordinator(trigger):
        return
    turn.settle(_announce_id(closed))  # announced anew after a hold, and nobody needs it any more
    turn.disarm("stage")
    if turn.rules >= patience.PATIENCE_SINCE:
        _remember_waiting(turn, trigger)
    standings.credit(turn)
    if stage + 1 < turn.settings.stages:
        _open(turn, "next", round, stage + 1)
        return
    standings.publish(turn)
    if _all_rounds_run(turn, round + 1):
        _finish(turn, round + 1)
    else:
        _open(turn, "next", round + 1, 0)
