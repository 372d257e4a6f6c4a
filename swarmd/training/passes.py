"""How a step's completions are cut into forward and backward passes, and where activations are computed twice.

A step's `questions` times `generations` completions go through the model in equal parts, whose size follows from the
configuration and from that of the model. Where memory runs out, the parts are halved, for this process and, by a file
beside the checkpoints, for the next.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import TrainingConfig
from swarmd.files import replace_durably
from swarmd.logger import get_logger

LIGHT_PARAMETERS_MAX = 10_000_000  # up to here all groups go in one pass, and one torch thread is faster than several
CHECKPOINTING_PARAMETERS = 100_000_000  # from here on activations are computed twice to save memory
PARTS = "parts.json"

log = get_logger(__name__)


def split_questions(training: TrainingConfig, parameters: int) -> tuple[int, int]:
    """Questions in one pass and passes in a step; their product is `training.questions`.

    `training.micro_questions` is an upper bound: the largest divisor of `questions` that does not exceed it is taken.
    """
    light = parameters <= LIGHT_PARAMETERS_MAX
    wanted = training.micro_questions or (training.questions if light else 1)
    micro = max(size for size in range(1, min(wanted, training.questions) + 1) if training.questions % size == 0)
    return micro, training.questions // micro


def count_rows(training: TrainingConfig, parameters: int) -> int:
    """Completions in one forward and backward pass."""
    return split_questions(training, parameters)[0] * training.generations


def computes_twice(training: TrainingConfig, parameters: int) -> bool:
    """Whether activations are dropped in the forward pass and computed again in the backward pass."""
    if training.gradient_checkpointing == "auto":
        return parameters >= CHECKPOINTING_PARAMETERS
    return training.gradient_checkpointing == "on"


class MicroBatchSize(msgspec.Struct, frozen=True):
    """What `PARTS` holds: completions in one pass, those that a pass began with, and those in the batch."""

    rows: int
    first: int
    batch: int


def load_rows(directory: Path, first: int, batch: int) -> int:
    """Completions in a pass: what an earlier process of the same settings came to, or `first`."""
    try:
        parts = msgspec.json.decode((directory / PARTS).read_bytes(), type=MicroBatchSize)
    except (OSError, *DECODE_ERRORS):
        return first  # only a shortcut: without it memory runs out once more
    same = (parts.first, parts.batch) == (first, batch) and 0 < parts.rows <= first and batch % parts.rows == 0
    return parts.rows if same else first


def keep_rows(directory: Path, rows: int, first: int, batch: int) -> None:
    """Remember for the next process; several ranks may do so at once. What cannot be kept costs it a try."""
    try:
        replace_durably(directory / PARTS, msgspec.json.encode(MicroBatchSize(rows, first, batch)))
    except OSError as error:
        log.warning("into how small parts batches are cut is not kept", directory=str(directory), reason=str(error))


def halve_rows(rows: int) -> int:
    """The largest proper divisor that is at most half: what to try when memory ran out. 0 where there is none."""
    return next((count for count in range(rows // 2, 0, -1) if rows % count == 0), 0)
