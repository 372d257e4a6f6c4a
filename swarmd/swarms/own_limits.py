"""What a node itself gives the programs that it runs, whatever the swarm's settings say.

A manifest says how much one program may use (`limits`) and how long a stage may run programs, so that nodes agree on
what passes. Whoever made it thereby asks for processor time and memory of others; each node gives at most `own_limits`.
"""

from __future__ import annotations

import logging
from typing import Annotated

import msgspec

from swarmd.sandbox import Limits
from swarmd.sandbox.limits import MIB, Bytes, Seconds

log = logging.getLogger(__name__)


class OwnLimits(Limits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`swarm.options.own_limits`: bounds on one run, as in `Limits`, and on a stage."""

    wall_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    cpu_s: Seconds = 10
    memory_bytes: Annotated[int, msgspec.Meta(ge=64 * MIB, le=2**40)] = 1024 * MIB
    scratch_bytes: Bytes = 64 * MIB
    file_bytes: Bytes = 64 * MIB
    files_open: Annotated[int, msgspec.Meta(ge=8, le=1024)] = 64
    program_bytes: Bytes = 256 * 1024
    input_bytes: Bytes = 4 * MIB
    output_bytes: Bytes = MIB
    stage_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 300.0  # of each of the kind's seconds for a stage


def find_cuts(limits: Limits, own: OwnLimits, **stage: float) -> dict[str, tuple[float, float]]:
    """What is asked for and not given: name of the setting → (asked for, given).

    Args:
        stage: the kind's seconds for a stage, by the option that sets them.
    """
    asked = {f"limits.{name}": (getattr(limits, name), getattr(own, name)) for name in Limits.__struct_fields__}
    asked |= {name: (seconds, own.stage_s) for name, seconds in stage.items()}
    return {name: (wanted, given) for name, (wanted, given) in asked.items() if wanted > given}


def narrow(limits: Limits, own: OwnLimits) -> Limits:
    """The smaller of both, setting by setting."""
    return Limits(**{name: min(getattr(limits, name), getattr(own, name)) for name in Limits.__struct_fields__})


def describe_cuts(cuts: dict[str, tuple[float, float]]) -> list[str]:
    """A line for each setting that this node does not give in full, with where to change that."""
    return [
        f"the swarm asks for {name} = {asked:g}, this node gives programs {given:g} "
        f"(swarm.options.own_limits.{'stage_s' if not name.startswith('limits.') else name.removeprefix('limits.')})"
        for name, (asked, given) in cuts.items()
    ]


def tell_cuts(cuts: dict[str, tuple[float, float]]) -> None:
    """Log them: what runs elsewhere may fail here."""
    for line in describe_cuts(cuts):
        log.warning("%s; programs that need more fail here", line)
