"""Two contestants over the same seeds: how far apart they are, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import fmean

from bench.measure import Sample

RESAMPLES = 10_000
COVERED = 0.95


def interval(ours: Sequence[float], theirs: Sequence[float]) -> Sample:
    """Ours less theirs, seed by seed: lower end, mean and upper end of a 95 % interval of the mean, from a bootstrap.

    Seeds are drawn with replacement, whole pairs, so that what a seed has in common cancels out.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    random = Random(0)
    means = sorted(fmean(random.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    cut = round((1 - COVERED) / 2 * RESAMPLES)
    return Sample((means[cut], fmean(differences), means[-cut - 1]))
