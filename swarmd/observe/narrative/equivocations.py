"""Two different records that somebody signed for one place, in words: who, what, and what follows. Pure."""

from __future__ import annotations

from swarmd.core.events import Equivocated
from swarmd.core.peers.evidence import BARRED_ROUNDS, in_force
from swarmd.core.state import Equivocation, State
from swarmd.core.values import EvidenceKind

TOLD_MAX = 8  # of those in force, in a status: the latest
HOW_TO_CHECK = "`swarmd explain --evidence` shows and checks both"
_RECORDS: dict[EvidenceKind, str] = {"report": "reports", "clock": "clock records", "leaderboard": "leaderboards"}


def equivocation_words(what: Equivocated | Equivocation, state: State) -> str:
    """One sentence without its full stop, from this node's side."""
    place = f"round {what.round}" + (f" stage {what.stage}" if what.kind != "leaderboard" else "")
    said = f"{_who(what, state)} signed two different {_RECORDS[what.kind]} of {place}"
    if bars_nobody(what):
        return f"{said}: nodes were told different things; this one goes by the later place and deadline"
    until = what.round + BARRED_ROUNDS
    return f"{said}: nothing of it counts until round {until}"


def _who(what: Equivocated | Equivocation, state: State) -> str:
    settings = state.settings
    if settings is not None and what.peer == settings.peer:
        return "this node's identity"
    if settings is not None and what.peer == settings.coordinator:
        return f"the coordinator {what.peer}"
    return what.peer


def bars_nobody(what: Equivocated | Equivocation) -> bool:
    """Whether it is the coordinator's, which cannot be left out."""
    return what.kind != "report"


def equivocation_notes(state: State) -> tuple[str, ...]:
    """What a status says of those that still count, the latest last."""
    told = in_force(state)[-TOLD_MAX:]
    return tuple(f"{equivocation_words(each, state)}; {HOW_TO_CHECK}" for each in told)


def coordinator_trouble(state: State) -> str:
    """Why what the coordinator says is to be doubted; empty where nothing is known."""
    told = [each for each in in_force(state) if bars_nobody(each)]
    return equivocation_words(told[-1], state) if told else ""
