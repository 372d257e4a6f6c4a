"""What a node keeps of how others behave: its coordinator's conduct, and whether peers' claims hold. Values only."""

from __future__ import annotations

from typing import Literal

from swarmd.core.values import Claim, Value

Fault = Literal["slow", "hasty", "skips"]
Verdict = Literal["", "slow", "hasty", "skips", "leaves-out"]


class StageAccount(Value, frozen=True):
    """One stage of a leaderboard, beside what this node itself could read of the stage while it was open."""

    stage: int
    reports: int = 0  # genuine ones among those that the leaderboard is made of
    expected: int = 0  # peers whom the stage waited for: credited a round before, and with a report of this stage
    read_at: float = 0.0  # when this node read the stage's reports, POSIX seconds; 0: it did not
    seen: tuple[str, ...] = ()  # whose reports it then found, of a bounded number of peers that are owed credit
    left_out: tuple[str, ...] = ()  # of these, whom the leaderboard does not credit


class StageSeen(Value, frozen=True):
    """A stage as the coordinator announced it."""

    round: int
    stage: int
    opened_at: float  # as announced
    deadline_at: float  # the latest announced
    heard_at: float  # by this node's clock, as is `next_heard_at`
    next_opened_at: float = 0.0  # when the next stage that was heard of opened, as announced; 0: none yet
    next_heard_at: float = 0.0
    followed: bool = False  # that one is the stage after this one
    again: bool = False  # it was announced more than once: the coordinator was down, or alone, meanwhile
    faults: tuple[Fault, ...] = ()


class Watched(Value, frozen=True):
    """Whether a peer's reports are credited.

    `left_out` has a bit for each of the latest stages that its report was there long before the end of, the latest
    lowest; 1: it was left out all the same. `judged` counts these stages, up to as many as there are bits.
    """

    peer: str
    judged: int = 0
    left_out: int = 0


class Conduct(Value, frozen=True):
    """What a follower has seen of its coordinator lately."""

    stages: tuple[StageSeen, ...] = ()  # oldest first
    peers: tuple[Watched, ...] = ()  # the latest judged last


class Claimant(Value, frozen=True):
    """A peer that claimed more than its rollouts give: a bit for each stage compared, the latest lowest; 1: it did."""

    peer: str
    judged: int = 0  # stages, at most as many as bits are kept
    gaps: int = 0
    claimed: float = 0.0  # the last time that it did
    backed: float = 0.0  # what there was room for then


class Claims(Value, frozen=True):
    """What peers claim of the stage whose rollouts were gathered last, and who claimed too much lately."""

    round: int = -1
    stage: int = -1
    claims: tuple[Claim, ...] = ()
    claimants: tuple[Claimant, ...] = ()
