"""What peers wrote, as a question of a later stage shows it in `fixed` mode: all of it, or less where room is short."""

from __future__ import annotations

import msgspec

from swarmd.swarms.math.escaping import show_answer, show_opinion
from swarmd.swarms.math.prompts import agreement_prompt, comparison_prompt

SHOWN_BYTES_MIN = 8  # of a text: less is no text


class Shown(msgspec.Struct, frozen=True):
    """A question and the texts beside it. No text is longer than `bytes_max`, so short ones stay whole."""

    question: str
    bytes_max: int
    answers: tuple[tuple[str, str], ...]  # (id, what the student wrote)
    opinions: tuple[tuple[str, str, str | None], ...] = ()  # (id, what the critic wrote, for whom it counts)

    @property
    def prompt(self) -> str:
        """The user's message: of stage 2 where there are opinions, else of stage 1."""
        comparison = comparison_prompt(
            self.question, [(name, show_answer(text, self.bytes_max)) for name, text in self.answers]
        )
        opinions = [(name, show_opinion(text, choice, self.bytes_max)) for name, text, choice in self.opinions]
        return agreement_prompt(comparison, opinions) if opinions else comparison

    def shorten(self) -> Shown | None:
        """Half as much of each text at most; None where that is too little."""
        half = self.bytes_max // 2
        return msgspec.structs.replace(self, bytes_max=half) if half >= SHOWN_BYTES_MIN else None
