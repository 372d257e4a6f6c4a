"""Optimiser steps a second where half of the groups teach nothing, against bare TRL on the same groups.

Both sides get the questions and rewards of `bench.half_flat`, so the same groups are flat. A step is a whole one,
generation included. The second row leaves swarmd nothing but dropping flat groups; the first has all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench import half_flat
from bench.measure import Sample, ratios
from bench.stage import PEER, bare_side, race, swarmd_side
from bench.table import Row
from swarmd.config import Config, SwarmConfig, TrainingConfig

STEPS = 8
ROUNDS = 3
GOAL = 1.3


def run(directory: Path) -> Iterable[Row]:
    training = TrainingConfig(device="cpu", threads=1, steps=STEPS, peer_questions=0, held_out_questions=0)
    swarm = SwarmConfig(id="bench", coordinator=PEER, kind=half_flat.NAME)
    config = Config(swarm=swarm, training=training)
    with (
        swarmd_side(config, directory, "swarmd") as ours,
        swarmd_side(config, directory, "dropping", ("shared-prompts",)) as dropping,
        bare_side(config, directory) as theirs,
    ):
        race({"swarmd": ours, "dropping": dropping, "trl": theirs}, ROUNDS)
    for what, side in (("half of the groups flat", ours), ("the same, nothing but dropping them", dropping)):
        yield compare_rates(f"{what}, processor time", rates(side.processor_s), rates(theirs.processor_s))


def rates(seconds: Sample) -> Sample:
    """Steps a second."""
    return Sample(tuple(STEPS / value for value in seconds.values))


def compare_rates(what: str, ours: Sample, theirs: Sample) -> Row:
    ratio = ratios(ours, theirs)
    return Row(what, "steps/s", ours, "bare TRL", theirs, ratio, f">= {GOAL:g}x", ratio.median >= GOAL)
