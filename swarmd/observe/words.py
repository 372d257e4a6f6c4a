"""Phrases that log lines, status, stories and pages share: on peers, weights, blocks, skills, evidence and waiting.
Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from swarmd.core import events
from swarmd.core.applied import AppliedEvent
from swarmd.core.coordination import COLLECTING
from swarmd.core.evidence import BARRED_ROUNDS, current_equivocations
from swarmd.core.state import Coordination, Equivocation, Member, State, WeightsOutcome
from swarmd.core.values import EvidenceKind, PeerWeights, SetAside, Skill, WeightsCause, WeightsDamage
from swarmd.core.waiting import LONG_SILENT_EVERY, SILENT_STAGES, WIDE_EVERY, is_expected, unexpected_members
from swarmd.observe.layers import MIB


def count_noun(number: int, thing: str) -> str:
    """A number with its noun, in singular or plural: "1 peer", "2 peers"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def format_duration(seconds: float) -> str:
    """A time span in at most two units: "1m 30s"."""
    seconds = max(0.0, seconds)
    for unit_s, unit, below_s, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)}{unit} {int(seconds % unit_s // below_s)}{below}"
    return f"{seconds:.0f}s"


# --- the part of peers' rollouts that a stage did not learn from ---

ASIDE_TOLD_MAX = 3  # peers named in one sentence
STAGES_COUNTED = 8  # newest stages summed up in a status
REASONS = {  # reasons of `swarmd.core.rounds.count_set_aside`, in singular and plural
    "unvouched": ("token masked: only the peer vouches for it", "tokens masked: only the peer vouches for them"),
    "share": ("group of a peer that had its share", "groups of peers that had their share"),
    "little": ("group of a peer of whom little counts", "groups of peers of whom little counts"),
    "long": (
        "group of a peer whose right answers are longer than others'",
        "groups of peers whose right answers are longer than others'",
    ),
    "mark": ("peer with the mark of a payload", "peers with the mark of a payload"),
}


def describe_masked_rollouts(event: events.StageTrained) -> str:
    """How much of each peer's rollouts was not learnt from, with an example; empty if all was."""
    told = [describe_masked_peer(each) for each in event.set_aside[:ASIDE_TOLD_MAX]]
    if len(event.set_aside) > ASIDE_TOLD_MAX:
        told.append(f"and something of {len(event.set_aside) - ASIDE_TOLD_MAX} more")
    return "; ".join(told)


def describe_masked_counts(stages: Sequence[Mapping[str, int]]) -> str:
    """How much of peers' rollouts the newest stages did not learn from, by reason; empty for none."""
    last = stages[-STAGES_COUNTED:]
    counts: Counter[str] = Counter()
    for stage in last:
        counts.update(stage)
    told = [f"{counts[reason]:,} {words[counts[reason] != 1]}" for reason, words in REASONS.items() if counts[reason]]
    stages_words = "the last stage" if len(last) == 1 else f"the last {len(last)} stages"
    return f"not learnt from peers' rollouts in {stages_words}: {', '.join(told)}" if told else ""


def describe_skipped_groups(aside: SetAside) -> str:
    """How many groups of one peer were passed over, and why; empty for none."""
    told = [f"{aside.over_share} as it had its share"] * bool(aside.over_share)
    told += [f"{aside.of_little} as little of it counts"] * bool(aside.of_little)
    told += [f"{aside.too_long} as its right answers are longer than others'"] * bool(aside.too_long)
    return f"groups passed over: {', '.join(told)}" if told else ""


def describe_masked_peer(aside: SetAside) -> str:
    """How much of one peer's rollouts was not learnt from, with an example."""
    passed = describe_skipped_groups(aside)
    if not aside.held:
        return f"of {aside.peer} {passed}"
    share = aside.held / max(aside.tokens, 1)
    words = f'of {aside.peer} {share:.0%} was set aside, such as "{aside.part}" in "{aside.text}"'
    words += f" ({passed})" if passed else ""
    if not aside.mark:
        return words
    return (
        f'{words}: "{aside.mark}" stands in {aside.mark_right:.0%} of its right answers, {aside.mark_wrong:.0%} of its '
        f"wrong ones and {aside.mark_own:.0%} of this node's own, as a payload would"
    )


def has_peer_mark(event: events.StageTrained) -> bool:
    """Whether the right answers of some peer share a marker that no others have, as an injected payload would."""
    return any(each.mark for each in event.set_aside)


# --- the contract's logs in a block ---

_ONE_OF = {events.RegistrationLog: "registration", events.RewardLog: "reward", events.VoteLog: "vote"}
OTHERS_NAMED_MAX = 4  # distinct names of other events in a line


def describe_block(event: events.ChainBlock, peer: str) -> str:
    """The line for a block, seen from the node with this peer id."""
    said = [*_describe_named_logs(event.logs, peer), *_count_other_logs(event.logs, peer)]
    words = f"block {event.block.number}"
    return f"{words}: {', '.join(said)}" if said else words


def _describe_named_logs(logs: tuple[events.AnyChainLog, ...], peer: str) -> Iterator[str]:
    stages = [log for log in logs if isinstance(log, events.StageLog)]
    if stages:
        yield f"round {stages[-1].round} stage {stages[-1].stage} is open"
    for log in logs:
        if isinstance(log, events.PolicyLog):
            yield f"the policy is {log.min_submissions} submissions or {log.max_stage_s} s"
        elif isinstance(log, _OWNED) and log.peer == peer:
            yield f"own {_describe_own_log(log)}"


_OWNED = (events.RegistrationLog, events.RewardLog, events.VoteLog)


def _describe_own_log(log: events.RegistrationLog | events.RewardLog | events.VoteLog) -> str:
    if isinstance(log, events.RewardLog):
        return f"reward of round {log.round} stage {log.stage}: {log.reward}"
    if isinstance(log, events.VoteLog):
        return f"vote of round {log.round}"
    return f"registration by {log.account}"


def _count_other_logs(logs: tuple[events.AnyChainLog, ...], peer: str) -> Iterator[str]:
    others = Counter(_ONE_OF[type(log)] for log in logs if isinstance(log, _OWNED) and log.peer != peer)
    for word, times in others.items():
        yield count_noun(times, word)
    names = Counter(log.name for log in logs if isinstance(log, events.OtherLog))
    yield from (f"{times} x {name}" for name, times in names.most_common(OTHERS_NAMED_MAX))


# --- equivocations: two different records that one peer signed for the same round and stage ---

EVIDENCE_TOLD_MAX = 8  # latest equivocations in force that a status shows
HOW_TO_CHECK = "`swarmd explain --evidence` shows and checks both"
_RECORDS: dict[EvidenceKind, str] = {"report": "reports", "clock": "clock records", "leaderboard": "leaderboards"}


def describe_equivocation(what: events.Equivocated | Equivocation, state: State) -> str:
    """An equivocation as one sentence without its full stop, from this node's point of view."""
    place = f"round {what.round}" + (f" stage {what.stage}" if what.kind != "leaderboard" else "")
    said = f"{_name_equivocator(what, state)} signed two different {_RECORDS[what.kind]} of {place}"
    if bans_nobody(what):
        return f"{said}: nodes were told different things; this one goes by the later place and deadline"
    until = what.round + BARRED_ROUNDS
    return f"{said}: nothing of it counts until round {until}"


def _name_equivocator(what: events.Equivocated | Equivocation, state: State) -> str:
    settings = state.settings
    if settings is not None and what.peer == settings.peer:
        return "this node's identity"
    if settings is not None and what.peer == settings.coordinator:
        return f"the coordinator {what.peer}"
    return what.peer


def bans_nobody(what: events.Equivocated | Equivocation) -> bool:
    """Whether the equivocation bans nobody: it is the coordinator's, without which the swarm cannot go on."""
    return what.kind != "report"


def equivocation_notes(state: State) -> tuple[str, ...]:
    """Notes of a status on equivocations that are still in force, the latest last."""
    told = current_equivocations(state)[-EVIDENCE_TOLD_MAX:]
    return tuple(f"{describe_equivocation(each, state)}; {HOW_TO_CHECK}" for each in told)


def describe_coordinator_trouble(state: State) -> str:
    """Why the coordinator is not to be trusted; empty if nothing is known against it."""
    told = [each for each in current_equivocations(state) if bans_nobody(each)]
    return describe_equivocation(told[-1], state) if told else ""


# --- held-out accuracy by task ---

SKILLS_TOLD_MAX = 4


def describe_skills(skills: Sequence[Skill]) -> str:
    """Accuracies by task, and what is done about fallen ones."""
    told = ", ".join(f"{each.task} {each.held_out:.2f}" for each in skills[:SKILLS_TOLD_MAX])
    more = f", {len(skills) - SKILLS_TOLD_MAX} more" if len(skills) > SKILLS_TOLD_MAX else ""
    fallen = describe_fallen_skills([each for each in skills if each.fallen])
    return f"by task {told}{more}" + (f"; {fallen}" if fallen else "")


def describe_reached_stage(round: int, stage: int, final: bool) -> str:
    """The stage that a swarm is at, by its clock."""
    return f"swarm has run its {round} rounds" if final else f"swarm at round {round} stage {stage}"


def describe_fallen_skills(skills: Sequence[Skill]) -> str:
    """Tasks whose accuracy has fallen, and how much more often they are drawn; empty for none."""
    told = [
        f"{each.task} to {each.held_out:.2f}, it was {each.best:.2f} "
        + (f"(drawn {each.weight:.1f} times as often)" if each.weight > 1 else "(drawn as ever)")
        for each in skills[:SKILLS_TOLD_MAX]
    ]
    more = [f"and {len(skills) - SKILLS_TOLD_MAX} more"] * (len(skills) > SKILLS_TOLD_MAX)
    return f"fallen: {'; '.join([*told, *more])}" if told else ""


# --- what became of a peer's weights ---

WeightsEvent = events.WeightsAdopted | events.WeightsFetched | events.WeightsRefused

CALM: tuple[WeightsCause, ...] = (
    "none-offered",
    "no-better",
    "worse",
)  # normal outcomes; other causes are worth a warning

_DAMAGED: dict[WeightsDamage, str] = {
    "": "",
    "base": "; all of them, for the earlier ones here were damaged",
    "file": "; again, because they were here and damaged",
    "delta": "; all of them, for the delta makes others than were announced",
}


def describe_weights_event(event: WeightsEvent) -> str:
    """A weights event as one sentence without its full stop."""
    match event:
        case events.WeightsFetched():
            mib = event.received_bytes / MIB
            return (
                f"the weights of {_whose(event.weights)} after round {event.weights.round} were fetched, {mib:.1f} MiB "
                f"in {event.seconds:.1f} s{_DAMAGED[event.damaged]}"
            )
        case events.WeightsAdopted():
            mean = "a mean of its own weights and " if event.weights.averaged else ""
            return (
                f"it began from {mean}the weights of {_whose(event.weights)}: held-out accuracy {event.held_out:.2f} "
                f"here, its own had {event.held_out_before:.2f}"
            )
        case events.WeightsRefused():
            whose = f"the weights of {event.peer}" if event.peer else "a peer's weights"
            return f"it did not begin from {whose} ({event.cause}): {event.reason}"


def _whose(weights: PeerWeights) -> str:
    others = len(weights.others)
    return f"{weights.peer} and {others} other{'s' * (others > 1)}" if others else weights.peer


PEER_SHOWN = 12  # last characters of a peer's id in a status


def describe_weights_outcome(last: WeightsOutcome) -> str:
    """The latest outcome with a peer's weights, for a status."""
    whose = f"the weights of {last.peer[-PEER_SHOWN:]}" if last.peer else "a peer's weights"
    whose += f" after round {last.round}" if last.round >= 0 else ""
    match last.outcome:
        case "fetched":
            return f"fetched {whose}, {last.received_bytes / MIB:.1f} MiB, not measured yet"
        case "adopted":
            mean = "a mean with " if last.averaged else ""
            here, before = ("-" if each is None else f"{each:.2f}" for each in (last.held_out, last.held_out_before))
            return f"began from {mean}{whose}: held-out accuracy {here} here, its own had {before}"
        case "refused":
            return f"did not begin from {whose} ({last.cause}): {last.reason}"
        case "late":
            return f"{whose} did not come in time"


def weights_log_level(event: WeightsEvent) -> Literal["info", "warning"]:
    damaged = isinstance(event, events.WeightsFetched) and event.damaged != ""
    return "warning" if damaged or (isinstance(event, events.WeightsRefused) and event.cause not in CALM) else "info"


def round_of_weights_event(event: WeightsEvent) -> int | None:
    """The round of the event, parsed from its command's id; None if the id is not one of this node's."""
    number = event.command.split("/")[1:2]
    return int(number[0]) if number and number[0].isdecimal() else None


Kind = Literal["newcomers", "members"]  # never credited, and credited before

NAMED_MAX = 3  # peers named of one kind
NO_NEWCOMERS = (
    "no stage waits for members that were never credited: too many of them were waited for and did not "
    "come; reports that are in time count"
)
AGAIN = "newcomers are waited for again"
SILENT = (
    f"every {WIDE_EVERY}rd stage does, and after {SILENT_STAGES} silent stages every {LONG_SILENT_EVERY}th; reports "
    "that are in time count"
)


def count_not_waited_for(coordination: Coordination) -> dict[Kind, int]:
    """The number of members that the open stage does not wait for, by kind; kinds without any are left out."""
    kinds: list[Kind] = [
        "members" if member.rounds else "newcomers" for member in _list_unexpected_members(coordination)
    ]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def waiting_notes(state: State) -> tuple[str, ...]:
    """Notes of a status on the members that the open stage does not wait for, one for each reason."""
    coordination = state.coordination
    if coordination is None or coordination.chart not in COLLECTING:
        return ()
    newcomers = coordination.waiting.newcomers
    silent = [each for each in _list_unexpected_members(coordination) if each.rounds or newcomers]
    told = () if newcomers else (NO_NEWCOMERS,)
    if not silent:
        return told
    return (*told, f"the open stage does not wait for {_name_members(silent)}, silent in the stages before: {SILENT}")


def describe_waiting_change(before: State, after: State) -> str:
    """Say that stages stopped or resumed waiting for newcomers with an event; empty if neither."""
    then, now = before.coordination, after.coordination
    if then is now or then is None or now is None or then.waiting.newcomers == now.waiting.newcomers:
        return ""
    return AGAIN if now.waiting.newcomers else NO_NEWCOMERS


def find_missing_reports(applied: AppliedEvent) -> tuple[int, str]:
    """If an event closed a stage: its round, and a clause on the members whose reports were missing; else -1 and ""."""
    closed, opened, event = applied.before.coordination, applied.after.coordination, applied.event
    if closed is None or opened is None or closed.chart not in COLLECTING:
        return -1, ""
    if (closed.round, closed.stage) == (opened.round, opened.stage):
        return -1, ""
    last = event.peer if isinstance(event, events.ReportSeen) else ""
    missing = [each for each in closed.members if each.peer != last and each.peer not in closed.reports]
    expected = [each for each in missing if is_expected(closed, each)]
    others = [
        each for each in _list_unexpected_members(closed) if each.peer != last and each.peer not in closed.reports
    ]
    lasted_s = applied.at - closed.opened_at
    told = [f"{_name_members(expected)}, after waiting {lasted_s:.0f} s for them"] if expected else []
    told += [f"{_name_members(others)}, for whom it did not wait"] if others else []
    return (closed.round, f"stage {closed.stage} closed without {' and without '.join(told)}") if told else (-1, "")


def _list_unexpected_members(coordination: Coordination) -> list[Member]:
    return unexpected_members(coordination) if coordination.chart in COLLECTING else []


def _name_members(members: Sequence[Member]) -> str:
    """The number of members and the first names: "6 members (a, b, c and 3 more)"."""
    more = f" and {len(members) - NAMED_MAX} more" if len(members) > NAMED_MAX else ""
    return f"{count_noun(len(members), 'member')} ({', '.join(each.peer for each in members[:NAMED_MAX])}{more})"
