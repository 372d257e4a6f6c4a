"""The names of deadlines, commands and submissions in the log, made and told apart in one place.

A name is its kind, or its kind and what it is about: "gather", "ready/chain", "train/3/0". Names stand in logs: a kind
is never renamed.
"""

from typing import Literal, NewType, cast

from swarmd.core.values import SubmissionKind

# Deadlines of which a node has one at a time.
Timer = Literal[
    "cancel", "clock", "drive", "gather", "muster", "publish", "register", "stage", "submission", "train",
    "weights",
]  # fmt: skip
TimerAbout = Literal["ready", "restart", "retry"]  # of a worker, of a worker, of a command
TimerKind = Literal[Timer, TimerAbout]
TimerName = NewType("TimerName", str)  # made by `timer_name_of`, or read from the log

CommandKind = Literal[
    "admit", "announce", "broadcast", "cancel", "clock", "collect", "evidence", "gather", "kill", "leaderboard",
    "register", "report", "start", "stop", "submit", "train", "watch", "weights",
]  # fmt: skip


def timer_name_of(kind: TimerAbout, what: str) -> TimerName:
    """The deadline of a worker or a command, as "ready/chain"."""
    return f"{kind}/{what}"  # type: ignore[return-value]  # to call `TimerName` takes as long as to make the name


def kind_of_timer(name: str) -> TimerKind:
    """What a deadline waits for."""
    return cast(TimerKind, name.partition("/")[0])


def command_id(kind: CommandKind, about: int | str = "") -> str:
    """The id of a command, as "kill/trainer/9f3c/2"."""
    return kind if about == "" else f"{kind}/{about}"


def stage_command_id(kind: CommandKind, round: int, stage: int) -> str:
    """The id of a command about a stage, as "train/3/0"."""
    return f"{kind}/{round}/{stage}"


def is_command_of_kind(id: str, *kinds: CommandKind) -> bool:
    return id.partition("/")[0] in kinds


def submission_id(kind: SubmissionKind, about: int | str = "") -> str:
    """The id of a submission: "register", "winners/3", "reward/3/0"."""
    return kind if about == "" else f"{kind}/{about}"


def is_submission_of_kind(id: str, kind: SubmissionKind) -> bool:
    return id.partition("/")[0] == kind
