"""How a coordinator behaves, as a follower sees it: slow, hasty, skipping, or leaving honest reports out. Pure.

Judged by what only a coordinator that breaks its own rules can bring about, and only when it happens again and again:
one that is overloaded, killed, restored from a backup or parted from the others does each of these things at most now
and then (docs/adr/0028-what-a-coordinator-can-be-blamed-for.md). Facts are its signed clock and the leaderboards with
the signed reports they are made of.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from swarmd.core.events import LeaderboardSeen, RoundAnnounced
from swarmd.core.peers.observed import Conduct, Fault, StageAccount, StageSeen, Verdict, Watched
from swarmd.core.state import AnyState, State
from swarmd.core.turn import Turn
from swarmd.core.values import Promised

STAGES_KEPT = 12  # stages that faults are remembered of
FAULTS_MIN = 3  # of these, with the same fault, from which on it is the coordinator's conduct
PEERS_KEPT = 64  # peers of which it is known whether their reports are credited
BITS_KEPT = 8  # of each, the latest stages in which that could be told
LEFT_OUT_MIN = 5  # of these, from which on a peer counts as left out
EARLY_S = 1.0  # a stage that closes less than this before its deadline closed by it
LATE_S = 2.0  # one that closes later than this after it was held up: whose reports were in time is not known
PROMPT_S = 5.0  # an opening that is heard of later says nothing of what the coordinator could read
SLOW_S, SLOW_SHARE = 15.0, 0.25  # a stage that closes so long after its deadline, and that share of a stage, is slow
SHORT_SHARE = 0.5  # a stage's time is too short below that share of what was promised,
LONG_SHARE, LONG_S = 2.0, 60.0  # and too long above that many times as much, and so much more
IDLE_SHARE = 0.5  # one in which nobody was credited lasts its whole time: this much of it, with clocks that were set

_WORDS: dict[Verdict, str] = {
    "": "",
    "slow": "is slow: its clock comes late, stages stay open beyond their deadlines, or close without anybody's report",
    "hasty": "does not keep its deadlines: stages close before them without a quorum, or their time is far from what "
    "was promised",
    "skips": "skips rounds or stages: it passes over them sooner than they could have been held",
    "leaves-out": "leaves out reports that could be read in time",
}


def on_announced(turn: Turn, event: RoundAnnounced) -> None:
    """Take note of an announcement, and judge the stage that it ends."""
    promised = turn.settings.promised
    if promised is None:
        return
    kept = turn.state.conduct or Conduct()
    last = kept.stages[-1] if kept.stages else None
    if last is not None and (event.round, event.stage) <= (last.round, last.stage):
        if (event.round, event.stage) == (last.round, last.stage) and event.deadline_at > last.deadline_at:
            again = replace(last, deadline_at=event.deadline_at, again=True)
            _keep_stages(turn, kept, (*kept.stages[:-1], _with(again, _deadline_fault(turn, event, promised))))
        return
    stages = kept.stages
    if last is not None and not last.next_opened_at:
        stages = (*stages[:-1], _ended(turn, last, event, promised))
    if not event.final:
        stages = (*stages, _opened(turn, event, promised))
    _keep_stages(turn, kept, stages)


def _keep_stages(turn: Turn, kept: Conduct, stages: tuple[StageSeen, ...]) -> None:
    turn.state.conduct = replace(kept, stages=stages[-STAGES_KEPT:])


def _ended(turn: Turn, last: StageSeen, event: RoundAnnounced, promised: Promised) -> StageSeen:
    """The stage before the announced one."""
    followed = _number(event, turn) - _number(last, turn) == 1
    stage = replace(last, next_opened_at=event.opened_at, next_heard_at=turn.at, followed=followed)
    late_s = event.opened_at - last.deadline_at
    slow = followed and late_s > max(SLOW_S, SLOW_SHARE * promised.stage_s)
    return _with(stage, "slow" if slow else None)


def _opened(turn: Turn, event: RoundAnnounced, promised: Promised) -> StageSeen:
    stage = StageSeen(event.round, event.stage, event.opened_at, event.deadline_at, turn.at)
    stage = _with(stage, _deadline_fault(turn, event, promised))
    return _with(stage, "slow" if turn.at > event.deadline_at else None)


def _deadline_fault(turn: Turn, event: RoundAnnounced, promised: Promised) -> Fault | None:
    """Whether a stage is given a time that is far from the promised one."""
    if not promised.stage_s:
        return None
    open_s, left_s = event.deadline_at - event.opened_at, event.deadline_at - turn.at
    short = open_s < SHORT_SHARE * promised.stage_s
    long = min(open_s, left_s) > LONG_SHARE * promised.stage_s + LONG_S
    return "hasty" if short or long else None


def _number(place: StageSeen | RoundAnnounced, turn: Turn) -> int:
    """Stages are numbered through all rounds."""
    return place.round * turn.settings.stages + place.stage


def _with(stage: StageSeen, fault: Fault | None) -> StageSeen:
    if fault is None or fault in stage.faults:
        return stage
    return replace(stage, faults=(*stage.faults, fault))


def on_clock_set(turn: Turn) -> None:
    """This machine's clock was set: times before and after it cannot be compared."""
    kept = turn.state.conduct
    if kept is not None:
        turn.state.conduct = replace(kept, stages=())


def on_leaderboard_seen(turn: Turn, event: LeaderboardSeen) -> None:
    """Compare a leaderboard with what was announced, and with what this node could read itself."""
    kept, promised = turn.state.conduct, turn.settings.promised
    if kept is None or promised is None or not event.whole:
        return
    places = {(stage.round, stage.stage): place for place, stage in enumerate(kept.stages)}
    stages, peers = list(kept.stages), kept.peers
    for account in (_without_barred(turn.state, each) for each in event.stages):
        place = places.get((event.round, account.stage))
        if place is None:
            continue
        stage = stages[place]
        if _closed_hastily(stage, account, promised):
            stages[place] = _with(stage, "hasty")
        if _seen_before_s(kept, stage, account) <= promised.seen_s:
            continue
        if account.reports:
            peers = _count_credit(peers, account)
        elif account.left_out:
            stages[place] = _with(stages[place], "slow")  # it heard nobody at all
    turn.state.conduct = Conduct(tuple(_mark_skips(turn, event, stages, promised)), peers)


def _without_barred(state: AnyState, account: StageAccount) -> StageAccount:
    """Peers that have signed two reports for one place are owed nothing, and no stage waits for them."""
    barred = frozenset([each.peer for each in state.equivocations if each.kind == "report"])
    if not barred.intersection(account.seen):
        return account
    seen = tuple([peer for peer in account.seen if peer not in barred])
    left_out = tuple([peer for peer in account.left_out if peer not in barred])
    expected = account.expected - (len(account.left_out) - len(left_out))
    return replace(account, seen=seen, left_out=left_out, expected=max(expected, 0))


def _closed_hastily(stage: StageSeen, account: StageAccount, promised: Promised) -> bool:
    """Before its deadline, with fewer reports than a quorum of those whom it certainly waited for."""
    return _is_early(stage) and account.reports < max(1, math.ceil(promised.quorum * account.expected))


def _is_early(stage: StageSeen) -> bool:
    return 0.0 < stage.next_opened_at < stage.deadline_at - EARLY_S


def _seen_before_s(kept: Conduct, stage: StageSeen, account: StageAccount) -> float:
    """How long before the stage closed, in order, this node read its reports; 0 where that cannot be told."""
    late = stage.next_opened_at > stage.deadline_at + LATE_S
    if not account.read_at or not stage.followed or stage.again or late:
        return 0.0
    behind_s = min([each.heard_at - each.opened_at for each in kept.stages])  # this clock's, against the coordinator's
    closed_at = stage.next_opened_at + behind_s
    prompt = stage.next_heard_at - closed_at <= PROMPT_S
    return closed_at - account.read_at if prompt else 0.0


def _count_credit(peers: tuple[Watched, ...], account: StageAccount) -> tuple[Watched, ...]:
    known = {watched.peer: watched for watched in peers}
    for peer in account.seen:
        before = known.pop(peer, None) or Watched(peer)
        bits = (before.left_out << 1 | (peer in account.left_out)) & ((1 << BITS_KEPT) - 1)
        known[peer] = Watched(peer, min(before.judged + 1, BITS_KEPT), bits)
    return tuple(known.values())[-PEERS_KEPT:]


def _mark_skips(turn: Turn, event: LeaderboardSeen, stages: list[StageSeen], promised: Promised) -> list[StageSeen]:
    """Mark the stage before which others were passed over in which nobody was credited, in less than their time."""
    before = None
    for place, stage in enumerate(stages):
        if before is not None and stage.round == event.round:
            passed = _idle_between(turn, event, before, stage)
            lasted_s = stage.opened_at - before.opened_at
            stage_s = min(promised.stage_s or math.inf, before.deadline_at - before.opened_at)
            if passed and lasted_s < IDLE_SHARE * passed * stage_s:
                stages[place] = _with(stage, "skips")
        before = stage
    return stages


def _idle_between(turn: Turn, event: LeaderboardSeen, before: StageSeen, after: StageSeen) -> int:
    """How many stages between two that were heard of are known to have credited nobody."""
    own = [account.stage for account in event.stages if not account.reports]
    first = before.stage + 1 if before.round == event.round else 0
    idle = sum(first <= stage < after.stage for stage in own)
    if before.round < event.round and event.idle:
        idle += (event.round - max(before.round, event.since) - 1) * turn.settings.stages
    return idle


# --- what it comes to ---


def verdict_of(state: State) -> Verdict:
    """What this node's coordinator is to be blamed for; empty for nothing."""
    kept = state.conduct
    if kept is None:
        return ""
    if left_out(state):
        return "leaves-out"
    faults = [fault for stage in kept.stages for fault in stage.faults]
    kinds: tuple[Fault, ...] = ("hasty", "skips", "slow")
    return next((kind for kind in kinds if faults.count(kind) >= FAULTS_MIN), "")


def left_out(state: State) -> tuple[str, ...]:
    """Peers, this node perhaps among them, whose reports are left out again and again."""
    peers = state.conduct.peers if state.conduct is not None else ()
    barred = [each.peer for each in state.equivocations if each.kind == "report"]
    return tuple([watched.peer for watched in peers if _is_left_out(watched) and watched.peer not in barred])


def _is_left_out(watched: Watched) -> bool:
    return watched.left_out.bit_count() >= LEFT_OUT_MIN


def words_of(state: State) -> str:
    """The verdict in words, with what it rests on; empty for nothing."""
    verdict, kept = verdict_of(state), state.conduct
    if not verdict or kept is None or state.settings is None:
        return ""
    words = f"the coordinator {_WORDS[verdict]}"
    if verdict == "leaves-out":
        return f"{words}: {_left_out_words(kept, left_out(state), state.settings.peer)}"
    count = sum(verdict in stage.faults for stage in kept.stages)
    return f"{words}; {count} of the last {len(kept.stages)} stages"


def _left_out_words(kept: Conduct, peers: tuple[str, ...], own: str) -> str:
    found = [watched for watched in kept.peers if watched.peer in peers]
    found.sort(key=lambda watched: watched.peer != own)
    first, further = found[0], len(found) - 1
    whose = "this node's own" if first.peer == own else f"those of {first.peer}"
    words = f"{whose}, {first.left_out.bit_count()} of the last {first.judged} that could be judged"
    return f"{words}, and those of {further} more" if further else words
