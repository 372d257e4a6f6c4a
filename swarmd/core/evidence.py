"""What follows when somebody has signed two different records for one place: what is kept of it, and what it costs.

A member's reports are not counted, nor its rollouts trained on, from the round of the two records on, for
`BARRED_ROUNDS` rounds; anyone who learns of it later goes by the same rounds. A coordinator cannot be left out: it is
reported that it signed twice, and the node follows the later place and the later deadline of the two.
"""

from msgspec.structs import replace

from swarmd.core.commands import NoteEvidence
from swarmd.core.events import Equivocated
from swarmd.core.ids import command_id
from swarmd.core.state import CoordinationBase, Equivocation, StageWork, State, StateBase
from swarmd.core.turn import StepContext
from swarmd.core.values import KnownEvidence, RolloutsRef

BARRED_ROUNDS = 64  # from the round of the two records on: as far back as records are taken
APART_ROUNDS = 16  # further evidence of the same kind against a peer is kept if it is at least this many rounds later
EQUIVOCATIONS_KEPT = 256  # in all; the earliest round is forgotten first
REASON = "equivocated"  # reports that are refused for it are counted under


def is_new_evidence(
    known: tuple[Equivocation, ...] | tuple[KnownEvidence, ...], kind: str, peer: str, round: int
) -> bool:
    """Whether evidence is to be kept: the first of its kind against a peer, and then what is `APART_ROUNDS` later."""
    return not any(each.kind == kind and each.peer == peer and round < each.round + APART_ROUNDS for each in known)


def add_evidence(known: tuple[Equivocation, ...], event: Equivocated, at: float) -> tuple[Equivocation, ...]:
    """The known evidence with this event, by round; the same tuple if it is not news."""
    if not is_new_evidence(known, event.kind, event.peer, event.round):
        return known
    new = Equivocation(event.kind, event.peer, event.round, event.stage, at)
    return tuple(sorted((*known, new), key=lambda each: (each.round, each.at))[-EQUIVOCATIONS_KEPT:])


def on_equivocated(turn: StepContext, event: Equivocated) -> None:
    """Remember whom it concerns; that peer's report of the open stage no longer counts."""
    known = turn.state.equivocations
    kept = add_evidence(known, event, turn.at)
    if kept is known:
        return
    turn.state.equivocations = kept
    if turn.open_if_coordinating():
        _drop_banned_reports(turn, turn.coordination)


def _drop_banned_reports(turn: StepContext, coordination: CoordinationBase) -> None:
    """Count no report of the open stage of those that are barred now. What was credited before stays."""
    barred = banned_peers_in(turn.state, coordination.round)
    reports = coordination.reports
    for peer in barred:
        reports = reports.without_peer(peer)
    if len(reports) < len(coordination.reports):
        turn.count_rejections(REASON, len(coordination.reports) - len(reports))
    coordination.barred, coordination.reports = barred, reports


def banned_peers_in(state: StateBase, round: int) -> tuple[str, ...]:
    """Peers whose reports and rollouts of a round do not count, sorted."""
    if not state.equivocations:
        return ()
    return tuple(sorted({each.peer for each in state.equivocations if is_ban_in_force(each, round)}))


def banned_until(state: State) -> dict[str, int]:
    """The round from which each peer counts again whose reports do not now."""
    return {each.peer: each.round + BARRED_ROUNDS for each in current_equivocations(state) if each.kind == "report"}


def is_ban_in_force(known: Equivocation | KnownEvidence, round: int) -> bool:
    """Whether a peer's part in a round does not count. What a coordinator signed twice bars nobody."""
    return known.kind == "report" and known.round <= round < known.round + BARRED_ROUNDS


def is_banned_by(known: Equivocation | KnownEvidence, peer: str, round: int) -> bool:
    """Whether this peer's part in a round does not count."""
    return known.peer == peer and is_ban_in_force(known, round)


def current_equivocations(state: StateBase) -> tuple[Equivocation, ...]:
    """What is still told, the latest last: of rounds that are not `BARRED_ROUNDS` behind the swarm's."""
    round = -1 if state.clock is None else state.clock.round
    return tuple([each for each in state.equivocations if round < each.round + BARRED_ROUNDS])


def without_banned_peers(state: StateBase, rollouts: tuple[RolloutsRef, ...]) -> tuple[RolloutsRef, ...]:
    """Rollouts to train on: those of peers whose rounds count."""
    known = state.equivocations
    return tuple([ref for ref in rollouts if not any(is_banned_by(each, ref.peer, ref.round) for each in known)])


def work_with_rollouts(turn: StepContext, work: StageWork, rollouts: tuple[RolloutsRef, ...]) -> StageWork:
    """The stage with what it is trained on, which is settled now: its command may go out again, and is the same then.
    With it go all that are known to have signed two reports of one stage, for what the trainer has kept of theirs."""
    barred = work.barred
    if not work.gathered:
        barred = tuple([_to_known_evidence(each) for each in turn.state.equivocations if each.kind == "report"])
    return replace(work, gathered=True, rollouts=rollouts, barred=barred)


def _to_known_evidence(known: Equivocation) -> KnownEvidence:
    return KnownEvidence(known.kind, known.peer, known.round)


def send_known_evidence(turn: StepContext) -> None:
    """Tell a fresh network worker what is known: it neither tells it again nor fetches what does not count."""
    known = tuple([_to_known_evidence(each) for each in turn.state.equivocations])
    if known:
        turn.emit(NoteEvidence(command_id("evidence", turn.seq), known))
