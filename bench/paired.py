"""Two contestants over the same seeds: how far apart they are, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from statistics import fmean

from bench.measure import Sample

RESAMPLES = 10_000
SEEDS_MIN = 3  # pairs, with fewer of which an interval says nothing
COVERED = 0.95


def interval(ours: Sequence[float], theirs: Sequence[float]) -> Sample:
    """Ours less theirs, seed by seed: lower end, mean and upper end of a 95 % interval of the mean."""
    return _resample(list(zip(ours, theirs, strict=True)), lambda pairs: fmean(a - b for a, b in pairs))


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Sample:
    """Mean of the first of each pair over the mean of the second: lower end, ratio, upper end of a 95 % interval.

    All second values are above zero.
    """
    return _resample(pairs, lambda drawn: fmean(a for a, _ in drawn) / fmean(b for _, b in drawn))


def _resample(pairs: Sequence[tuple[float, float]], figure: Callable[[Sequence[tuple[float, float]]], float]) -> Sample:
    """A bootstrap: seeds are drawn with replacement, whole pairs, so that what a seed has in common cancels out."""
    random = Random(0)
    drawn = sorted(figure(random.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    cut = round((1 - COVERED) / 2 * RESAMPLES)
    return Sample((drawn[cut], figure(pairs), drawn[-cut - 1]))
