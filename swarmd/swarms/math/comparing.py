"""How alike two texts are by difflib's measure, within a bound on what finding out may take."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import Match, SequenceMatcher
from itertools import accumulate


def compare_within(steps_max: int, text: Sequence[str], model: Sequence[str], autojunk: bool = True) -> float:
    """SequenceMatcher's ratio of two texts, as characters or words; 0 where it would take more steps.

    Args:
        steps_max: a million take some 0.1 s.
        text: what is compared.
        model: with what.
        autojunk: leaves out what is frequent in a model of 200 and more.
    """
    matcher = _BoundedMatcher(steps_max, text, model, autojunk)
    ratio = matcher.ratio()
    return ratio if matcher.steps <= steps_max else 0.0


class _BoundedMatcher(SequenceMatcher[str]):
    """Finds nothing more once it has taken too many steps.

    For each part that both share it looks through all that is left of them. That is their product a few times where
    they share much, and once for each letter in texts that are made to share single ones.
    """

    def __init__(self, steps_max: int, text: Sequence[str], model: Sequence[str], autojunk: bool) -> None:
        super().__init__(None, text, model, autojunk)
        self.steps = 0
        self._steps_max = steps_max
        places: dict[str, list[int]] = self.b2j  # type: ignore[attr-defined]  # in the model, of what is not frequent
        self._until = list(accumulate((1 + len(places.get(each, ())) for each in text), initial=0))

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        self.steps += self._until[len(self._until) - 1 if ahi is None else ahi] - self._until[alo]
        return Match(alo, blo, 0) if self.steps > self._steps_max else super().find_longest_match(alo, ahi, blo, bhi)
