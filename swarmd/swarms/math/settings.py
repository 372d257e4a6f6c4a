"""`swarm.options` of gsm8k and math-hard."""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

import msgspec

from swarmd.plugin import StageId, hash_number

STUDENTS_MAX = 15  # as many as upstream showed before v0.4.1
POOL_MAX = 256  # what one body of rollouts can hold


class MathOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of both swarms. All but `persona`, `brief` and `shown_bytes` must be alike on all nodes."""

    rewards: Literal["fixed", "compat"] = "fixed"  # compat: upstream's numbers with their quirks
    data: Annotated[str, msgspec.Meta(min_length=1)] = "generated"  # "generated", "hub", or a path of JSONL or a copy
    digest: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""  # of a JSONL file's rows; empty: any
    persona: str = ""  # PIRATE, KNIGHT, MOBSTER, ANNOUNCER, FOUNDER, RANDOM, or none
    students: Annotated[int, msgspec.Meta(ge=1, le=STUDENTS_MAX)] = 5  # peers shown in a question, and critics
    questions: Annotated[int, msgspec.Meta(ge=1, le=POOL_MAX)] = 16  # in a round, the same on every node
    question_characters: Annotated[int, msgspec.Meta(ge=16, le=4000)] = 4000  # longer ones are left out
    shown_bytes: Annotated[int, msgspec.Meta(ge=8, le=3000)] = 2000  # of each text of a peer, in `fixed` mode
    brief: bool = False  # system prompts of one line, for models that read few tokens

    def __post_init__(self) -> None:
        check_persona(self.persona)


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
