"""Consequences of equivocation, two different signed records for one place: what is kept, and who is banned.

For `BARRED_ROUNDS` rounds, from the records' round on, a member's reports are not counted and its rollouts are not
trained on; a node that learns of it later applies the same rounds. A coordinator cannot be excluded: its equivocation
is reported, and the node follows the later stage and the later deadline of the two.
"""

from msgspec.structs import replace

from swarmd.core.commands import NoteEvidence
from swarmd.core.events import Equivocated
from swarmd.core.ids import command_id
from swarmd.core.state import CoordinationBase, Equivocation, StageWork, State, StateBase
from swarmd.core.turn import StepContext
from swarmd.core.values import KnownEvidence, RolloutsRef

BARRED_ROUNDS = 64  # rounds, from the round of the two records on; as many as old records are accepted for
APART_ROUNDS = 16  # further evidence of the same kind against a peer is kept if it is at least this many rounds later
EQUIVOCATIONS_KEPT = 256  # in total; the earliest round is dropped first
REASON = "equivocated"  # the reason under which refused reports are counted


def is_new_evidence(
    known: tuple[Equivocation, ...] | tuple[KnownEvidence, ...], kind: str, peer: str, round: int
) -> bool:
    """Return whether to keep evidence: the first of its kind against a peer, and then again `APART_ROUNDS` later."""
    return not any(each.kind == kind and each.peer == peer and round < each.round + APART_ROUNDS for each in known)


def add_evidence(known: tuple[Equivocation, ...], event: Equivocated, at: float) -> tuple[Equivocation, ...]:
    """Return the known evidence with this event, sorted by round; the same tuple if the event adds nothing."""
    if not is_new_evidence(known, event.kind, event.peer, event.round):
        return known
    new = Equivocation(event.kind, event.peer, event.round, event.stage, at)
    return tuple(sorted((*known, new), key=lambda each: (each.round, each.at))[-EQUIVOCATIONS_KEPT:])


def on_equivocated(turn: StepContext, event: Equivocated) -> None:
    """Keep the evidence; the peer's report of the open stage no longer counts."""
    known = turn.state.equivocations
    kept = add_evidence(known, event, turn.at)
    if kept is known:
        return
    turn.state.equivocations = kept
    if turn.open_if_coordinating():
        _drop_banned_reports(turn, turn.coordination)


def _drop_banned_reports(turn: StepContext, coordination: CoordinationBase) -> None:
    """Drop banned peers' reports of the open stage. Earlier credit stays."""
    barred = banned_peers_in(turn.state, coordination.round)
    reports = coordination.reports
    for peer in barred:
        reports = reports.without_peer(peer)
    if len(reports) < len(coordination.reports):
        turn.count_rejections(REASON, len(coordination.reports) - len(reports))
    coordination.barred, coordination.reports = barred, reports


def banned_peers_in(state: StateBase, round: int) -> tuple[str, ...]:
    """Return the peers whose reports and rollouts of a round do not count, sorted."""
    if not state.equivocations:
        return ()
    return tuple(sorted({each.peer for each in state.equivocations if is_ban_in_force(each, round)}))


def banned_until(state: State) -> dict[str, int]:
    """Return banned peer → the round from which it counts again."""
    return {each.peer: each.round + BARRED_ROUNDS for each in current_equivocations(state) if each.kind == "report"}


def is_ban_in_force(known: Equivocation | KnownEvidence, round: int) -> bool:
    """Return whether a peer's part in a round does not count. A coordinator's equivocation bans nobody."""
    return known.kind == "report" and known.round <= round < known.round + BARRED_ROUNDS


def is_banned_by(known: Equivocation | KnownEvidence, peer: str, round: int) -> bool:
    """Return whether this peer's part in a round does not count."""
    return known.peer == peer and is_ban_in_force(known, round)


def current_equivocations(state: StateBase) -> tuple[Equivocation, ...]:
    """Return evidence that is still reported, the latest last: less than `BARRED_ROUNDS` behind the swarm's round."""
    round = -1 if state.clock is None else state.clock.round
    return tuple([each for each in state.equivocations if round < each.round + BARRED_ROUNDS])


def without_banned_peers(state: StateBase, rollouts: tuple[RolloutsRef, ...]) -> tuple[RolloutsRef, ...]:
    known = state.equivocations
    return tuple([ref for ref in rollouts if not any(is_banned_by(each, ref.peer, ref.round) for each in known)])


def work_with_rollouts(turn: StepContext, work: StageWork, rollouts: tuple[RolloutsRef, ...]) -> StageWork:
    """Return the stage with its final rollouts, so that its command is the same if it is issued again. It also lists
    all peers known to have signed two reports of one stage, so that the trainer drops their earlier rollouts."""
    barred = work.barred
    if not work.gathered:
        barred = tuple([_to_known_evidence(each) for each in turn.state.equivocations if each.kind == "report"])
    return replace(work, gathered=True, rollouts=rollouts, barred=barred)


def _to_known_evidence(known: Equivocation) -> KnownEvidence:
    return KnownEvidence(known.kind, known.peer, known.round)


def send_known_evidence(turn: StepContext) -> None:
    """Send a new network worker the known evidence, so that it neither reports it again nor fetches banned rollouts."""
    known = tuple([_to_known_evidence(each) for each in turn.state.equivocations])
    if known:
        turn.emit(NoteEvidence(command_id("evidence", turn.seq), known))
