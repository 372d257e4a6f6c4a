"""`swarm.options` of the code swarm."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from swarmd.plugin import Isolation, Limits, Section
from swarmd.swarms.code import programs
from swarmd.swarms.code.prompts import Prompt
from swarmd.swarms.options import OwnLimits, find_cuts

Weight = Annotated[float, msgspec.Meta(ge=0, le=100)]


class CodeOptions(Section, frozen=True):
    """`swarm.options` of the kind."""

    data: Annotated[str, msgspec.Meta(max_length=255)] = ""  # JSONL of prompt and answer; empty: swarm.tasks
    digest: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""  # of its rows; empty: any
    compare: Literal["numeric", "exact"] = "numeric"  # how answers to questions of the file are compared
    prompt: Prompt = "zero-shot"
    rewards: Literal["fixed", "compat"] = "fixed"
    program_reward: Weight = 0.1  # for each program that ran and printed, by `rewards = "fixed"`
    programs_rewarded: Annotated[int, msgspec.Meta(ge=0, le=programs.EXECUTIONS_MAX)] = 1  # at most so many
    compat_weights: Literal["first", "later"] = "first"  # upstream's, before and after 16 weight updates
    output_characters: Annotated[int, msgspec.Meta(ge=16, le=programs.OUTPUT_CHARACTERS_MAX)] = 1000
    rerun_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0  # in a stage, to run peers' programs again
    sandbox: Isolation = "auto"
    limits: Limits = Limits()
    own_limits: OwnLimits = OwnLimits()  # each node's own; never more than that is given

    @property
    def cuts(self) -> dict[str, tuple[float, float]]:
        """See `find_cuts`."""
        return find_cuts(self.limits, self.own_limits, rerun_s=self.rerun_s)
