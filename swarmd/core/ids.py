"""Builds and parses the names of deadlines, commands and submissions in the log.

A name is a kind, or a kind and its subject: "gather", "ready/chain", "train/3/0". Names are in logs, so a kind is never
renamed.
"""

from typing import Literal, NewType, cast

from swarmd.core.values import SubmissionKind

# Deadlines that a node has at most one of.
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
    """Return the name of a worker's or a command's deadline, such as "ready/chain"."""
    return f"{kind}/{what}"  # type: ignore[return-value]  # calling `TimerName` takes as long as building the name


def kind_of_timer(name: str) -> TimerKind:
    return cast(TimerKind, name.partition("/")[0])


def command_id(kind: CommandKind, about: int | str = "") -> str:
    """Return the id of a command, such as "kill/trainer/9f3c/2"."""
    return kind if about == "" else f"{kind}/{about}"


def stage_command_id(kind: CommandKind, round: int, stage: int) -> str:
    """Return the id of a command about a stage, such as "train/3/0"."""
    return f"{kind}/{round}/{stage}"


def is_command_of_kind(id: str, *kinds: CommandKind) -> bool:
    return id.partition("/")[0] in kinds


def submission_id(kind: SubmissionKind, about: int | str = "") -> str:
    """Return the id of a submission: "register", "winners/3", "reward/3/0"."""
    return kind if about == "" else f"{kind}/{about}"


def is_submission_of_kind(id: str, kind: SubmissionKind) -> bool:
    return id.partition("/")[0] == kind
