"""A further rank of the trainer worker: `python -m swarmd.training.distributed.rank`, started by rank 0
(`swarmd.training.distributed.ranks`).

It is told the same first message, then stage after stage, and ends at the end of its input or at any error: then rank 0
ends too, and all start anew from the checkpoint.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from swarmd.config import decode
from swarmd.core.commands import Train
from swarmd.training.cancellation import Cancellation
from swarmd.training.distributed.ranks import Ranks
from swarmd.training.footprint import set_aside_loaded
from swarmd.worker.child import log_lines
from swarmd.worker.messages import FrameReader, Perform, Start, ToWorker


def read_messages() -> Iterator[ToWorker]:
    """Messages on standard input, to its end."""
    reader: FrameReader[ToWorker] = FrameReader(ToWorker)  # type: ignore[arg-type]
    while chunk := os.read(sys.stdin.fileno(), 65536):
        yield from reader.feed(chunk)


def main() -> None:
    """Load what rank 0 loads, and assist it."""
    messages = read_messages()
    start = next(messages)
    assert isinstance(start, Start)
    config = decode(start.config)
    log_lines(config.logs.level)
    from swarmd.training.worker import load_engine

    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    engine = load_engine(start, config, ranks)
    set_aside_loaded()
    for message in messages:
        if isinstance(message, Perform) and isinstance(message.command, Train):
            engine.assist(message.command, Cancellation())


if __name__ == "__main__":
    main()
