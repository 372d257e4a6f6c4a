"""The benchmark `sharing` once more, with answers that are worked out in plain text before they stand in their tags.

Of `1234 <answer>1234</answer>` the truth vouches for what stands between the tags and for nothing else, though the
skill is in the first four digits: the rest is copied. So this is where it costs most to let count only what nobody
could have made up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench import sharing
from bench.sharing import LONER, ROUNDS, Outcome
from bench.specialists import WORKED, WORKED_TOKENS, build_specialists
from bench.table import Row

__all__ = ["Outcome", "run"]


def run(
    directory: Path,
    arms: Sequence[str] = (LONER, "4/4", "4/4 all tokens"),
    seeds: Sequence[int] = (0, 1, 2),
    rounds: int = ROUNDS,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    known: Sequence[Outcome] = (),
) -> Iterable[Row]:
    """See `bench.sharing.run`."""
    return sharing.run(directory, arms, seeds, rounds, tell, known, _build, WORKED_TOKENS)


def _build(place: Path, seed: int) -> Sequence[Path]:
    return build_specialists(place / "specialists-worked", seed, form=WORKED)
