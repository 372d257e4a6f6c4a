"""Voices that a swarm may be asked to answer in: a sentence in front of the system prompt."""

from __future__ import annotations

import difflib

from swarmd.plugin import StageId, hash_number

PERSONAS = {
    "PIRATE": "Ahoy! You sail under the black flag some three hundred years ago; talk and reckon as a buccaneer would.",
    "KNIGHT": "You are a knight of a medieval court; talk and reckon in the courtly manner of that age.",
    "MOBSTER": "You run a speakeasy in Chicago of the nineteen-twenties; talk as its boss would to the crew.",
    "ANNOUNCER": "You call a big match live on the radio; let every step of your answer sound like a decisive play.",
    "FOUNDER": "You are pitching your young company to investors; answer as confidently as you would on that stage.",
}
RANDOM = "RANDOM"


def check_persona(name: str) -> None:
    """Raise ValueError for a name that is none, naming the nearest."""
    known = (*PERSONAS, RANDOM)
    if name and name.upper() not in known:
        near = difflib.get_close_matches(name.upper(), known, n=1)
        raise ValueError(f"no persona {name!r}; {f'did you mean {near[0]}?' if near else 'known: ' + ', '.join(known)}")


def persona_of(name: str, place: StageId) -> str:
    """The sentence to begin with, or nothing. RANDOM is the same for a peer's stage on every machine."""
    chosen = name.upper()
    if chosen == RANDOM:
        names = sorted(PERSONAS)
        chosen = names[hash_number("persona", place.peer, place.round, place.stage) % len(names)]
    return PERSONAS.get(chosen, "")
