"""Asks torch about this machine, in a process of its own: `python -m swarmd.doctor.machine.probe` < questions >
answers.

torch takes seconds and hundreds of megabytes to load, and a broken driver may end the process that loads it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import TrainingConfig
from swarmd.doctor.waiting import ChildFailed, ask_child
from swarmd.errors import SwarmdError


class ProbeQuestion(msgspec.Struct, frozen=True):
    """What is asked."""

    training: TrainingConfig
    kept: str = ""  # the model that `auto` settled on earlier


class ModelFit(msgspec.Struct, frozen=True):
    """A model, what it takes, and whether it fits. Sizes in bytes."""

    model: str
    need: int
    checkpoint: int  # weights and optimiser, as they are written
    fits: bool
    why: str = ""


class ProbeAnswer(msgspec.Struct, frozen=True):
    """What torch says."""

    torch: str
    cuda: str  # that torch was built for, empty without
    device: str = ""  # chosen; empty where the wanted one is not there
    fault: str = ""  # why it is not
    fix: str = ""
    names: tuple[str, ...] = ()  # of the accelerators
    bfloat16: bool = False
    numbers: str = ""
    weights: str = ""  # torch's name of the numbers that weights are held in
    free: int = 0
    total: int = 0
    limit: str = ""
    absent: str = ""  # a model on the Hub that is not in the cache
    weighed: tuple[ModelFit, ...] = ()  # the configured model, or the pool of `auto`
    unknown: str = ""  # why the model cannot be weighed


def main() -> int:
    """Answer all questions on standard output, whatever the libraries print there."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    questions = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[ProbeQuestion])
    with out:
        out.write(msgspec.json.encode([answer(question) for question in questions]))
    return 0


def answer(question: ProbeQuestion) -> ProbeAnswer:
    """Look at the devices, then weigh the model."""
    import torch

    from swarmd.training.library_logging import quieten
    from swarmd.training.models.device import choose_device, choose_precision, computes_bfloat16
    from swarmd.training.models.memory import measure_room

    quieten()
    training = question.training
    cuda = str(getattr(torch.version, "cuda", None) or "")
    names = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    try:
        device = choose_device(training.device)
        numbers, room = choose_precision(training, device), measure_room(device)
    except (SwarmdError, RuntimeError) as error:
        fix = error.fix if isinstance(error, SwarmdError) else ""
        return ProbeAnswer(
            str(torch.__version__), cuda, fault=str(getattr(error, "message", error)), fix=fix, names=names
        )
    found = ProbeAnswer(
        torch=str(torch.__version__),
        cuda=cuda,
        device=device,
        names=names,
        bfloat16=computes_bfloat16(device),
        numbers=numbers.text,
        weights=numbers.weights,
        free=room.free,
        total=room.total,
        limit=room.limit,
    )
    try:
        weighed, absent = _weigh(question, numbers, room)
    except SwarmdError as error:
        return msgspec.structs.replace(found, unknown=error.message, fix=error.fix)
    return msgspec.structs.replace(found, weighed=weighed, absent=absent)


def _weigh(question: ProbeQuestion, numbers: Any, room: Any) -> tuple[tuple[ModelFit, ...], str]:
    from swarmd.training.models.model import inspect_model
    from swarmd.training.models.pool import list_pool, weigh
    from swarmd.training.models.source import AUTO

    training = question.training
    if training.model != AUTO or question.kept:
        training = msgspec.structs.replace(training, pool=(question.kept or training.model,))
    rows = list_pool(training, lambda source: inspect_model(source, source))
    fits = [weigh(row, training, numbers, room) for row in rows]
    weighed = tuple(
        ModelFit(fit.model.name, fit.need.total, fit.need.weights + fit.need.optimizer, fit.fits, fit.why)
        for fit in fits
    )
    absent = [row.name for row in rows if not _is_here(row.name, training.revision)] if len(rows) == 1 else []
    return weighed, "".join(absent)


def _is_here(name: str, revision: str) -> bool:
    """A directory, or in the Hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    from swarmd.training.models.source import locate_model

    located = locate_model(name)
    if Path(located).is_dir():
        return True  # a path is no id, which the cache would refuse
    return isinstance(try_to_load_from_cache(located, "config.json", revision=revision or None), str)


async def ask_torch(questions: Sequence[ProbeQuestion]) -> list[ProbeAnswer]:
    """The answers of a process of its own, in order. Raises ChildFailed."""
    said = await ask_child("swarmd.doctor.machine.probe", msgspec.msgpack.encode(list(questions)))
    try:
        return msgspec.json.decode(said, type=list[ProbeAnswer])
    except DECODE_ERRORS as error:
        raise ChildFailed(f"torch was asked, and something else answered: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
