"""The states and triggers of `statecharts/*.yaml`, as types. Written by `make charts`: change the charts."""

from typing import Literal

RoundState = Literal[
    "stopped",
    "starting",
    "joining",
    "registering",
    "syncing",
    "waiting",
    "round.gathering",
    "round.training",
    "round.publishing",
    "round.submitting",
    "round.settling",
    "skipping",
    "paused",
    "draining",
    "failed",
]

RoundTrigger = Literal[
    "start",
    "network_started",
    "linked",
    "registered",
    "no_round",
    "resume_gathering",
    "resume_training",
    "resume_publishing",
    "resume_submitting",
    "resume_settling",
    "announced",
    "gathered",
    "trained",
    "training_failed",
    "published",
    "submitted",
    "closed",
    "abandon",
    "abandoned",
    "pause",
    "freed",
    "drain",
    "drained",
    "broke",
]

LinkState = Literal[
    "down",
    "connecting",
    "up",
    "degraded",
]

LinkTrigger = Literal[
    "started",
    "linked",
    "isolated",
    "lost",
    "exited",
]

TrainerState = Literal[
    "down",
    "loading",
    "idle",
    "busy",
]

TrainerTrigger = Literal[
    "started",
    "ready",
    "train",
    "done",
    "exited",
]

CoordinatorState = Literal[
    "idle",
    "mustering",
    "announcing",
    "open.collecting",
    "closing",
    "finished",
]

CoordinatorTrigger = Literal[
    "restart",
    "linked",
    "mustered",
    "resume",
    "announced",
    "quorum",
    "deadline",
    "next",
    "finish",
    "extend",
]

SubmissionState = Literal[
    "intended",
    "prepared",
    "sent",
    "included",
    "confirmed",
    "lost",
    "refused",
]

SubmissionTrigger = Literal[
    "prepare",
    "send",
    "include",
    "confirm",
    "lose",
    "drop",
    "refuse",
]
