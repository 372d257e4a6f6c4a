"""`swarm.options` of proposer-solver."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from swarmd.plugin import Isolation, Limits, Section
from swarmd.swarms.options import OwnLimits, find_cuts

LEVELS = 5
MIB = 1024 * 1024
PROGRAM_LIMITS = Limits(wall_s=5.0, cpu_s=1, memory_bytes=256 * MIB, scratch_bytes=MIB, file_bytes=MIB)

Weight = Annotated[float, msgspec.Meta(ge=0, le=100)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class ProposerOptions(Section, frozen=True):
    """Settings of the kind. Those of the first block must be alike on all nodes."""

    rewards: Literal["fixed", "compat"] = "fixed"  # compat: CodeZero's numbers
    problem_bytes: Annotated[int, msgspec.Meta(ge=32, le=8000)] = 2000  # of a problem's text; a longer one is not valid
    test_bytes: Annotated[int, msgspec.Meta(ge=32, le=1000)] = 200  # of one test
    solution_bytes: Annotated[int, msgspec.Meta(ge=32, le=16_000)] = 4000  # of a program
    limits: Limits = PROGRAM_LIMITS  # of one run

    level: Annotated[int, msgspec.Meta(ge=1, le=LEVELS)] = 2  # to begin with
    valid_reward: Weight = 0.5  # of a proposal that passes its checks, by `rewards = "fixed"`
    difficulty_reward: Weight = 0.5  # at most, of a valid proposal, for how few solved it
    own_s: Seconds = 300.0  # in a stage, to run what this node wrote
    peer_s: Seconds = 30.0  # in a stage, to run what one peer wrote
    sandbox: Isolation = "auto"
    own_limits: OwnLimits = OwnLimits()  # each node's own; never more than that is given
    judge: Annotated[str, msgspec.Meta(max_length=1000)] = ""  # an OpenAI-compatible endpoint, up to /v1; empty: none
    judge_model: Annotated[str, msgspec.Meta(max_length=200)] = ""  # as the endpoint names it
    judge_reward: Weight = 0.2  # of a program that the judge holds to be right
    judge_s: Seconds = 20.0  # longest wait for one answer

    @property
    def cuts(self) -> dict[str, tuple[float, float]]:
        """See `find_cuts`."""
        return find_cuts(self.limits, self.own_limits, own_s=self.own_s, peer_s=self.peer_s)

    def __post_init__(self) -> None:
        if self.judge:
            check_url(self.judge)


def check_url(url: str) -> None:
    """Raise ValueError for what is no plain HTTP address."""
    parts = urlsplit(url)
    plain = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
    if not plain or parts.username or parts.port == 0:
        raise ValueError(f"judge: {url!r} is no HTTP address, for example http://127.0.0.1:11434/v1")
