"""Rows of the data sets that RL Swarm v0.4 trained on, from the Hub, a copy, or a JSONL file of the same shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from swarmd.errors import DatasetRefused
from swarmd.plugin import SwarmError, check_digest, read_rows
from swarmd.swarms.data.dataset import DOWNLOAD_BYTES_MAX, load_from_hub

ROWS_MAX = 200_000
MARK = "####"  # gsm8k's: what follows is the answer
COMPAT_ROWS = 100  # of DAPO's, which upstream shuffled and cut
COMPAT_SEED = 42


class DatasetShape(msgspec.Struct, frozen=True):
    """How a data set lies on the Hub."""

    repo: str
    config: str
    question: str  # column
    answer: str  # column
    marked: bool = False  # the answer stands behind `MARK` at the end of a worked solution
    sample: bool = False  # upstream took `COMPAT_ROWS` of the rows


GSM8K = DatasetShape("openai/gsm8k", "main", "question", "answer", marked=True)
DAPO = DatasetShape("open-r1/DAPO-Math-17k-Processed", "en", "prompt", "solution", sample=True)


def load_rows(
    shape: DatasetShape, data: str, home: Path, rewards: Literal["fixed", "compat"], digest: str = ""
) -> list[tuple[str, str]]:
    """Questions and true answers.

    Args:
        data: "hub", or the path of a JSONL file or of a directory with a copy of the data set, relative to `home`.
        rewards: in `compat` mode the same part of the rows is taken as upstream took.
        digest: that a JSONL file must have (`swarmd.swarms.jsonl`); empty where any will do.

    Raises:
        SwarmError: the data cannot be loaded, have other columns, or hold no row with an answer.
    """
    try:
        path = home / Path(data).expanduser()
        is_copy = path.is_dir()
    except (RuntimeError, OSError) as error:  # ~somebody whom this machine does not know; no name, or not to be seen
        raise SwarmError(f"swarm.options.data: {data!r} leads nowhere: {error}", "Write the path out") from error
    sample = shape.sample and rewards == "compat"
    if data == "hub":
        found: Iterable[Mapping[str, Any]] = _load_dataset(shape.repo, shape, sample)
    elif is_copy:
        found = _load_dataset(str(path), shape, sample)
    else:
        read = read_rows(path, (shape.question, shape.answer), rows_max=ROWS_MAX)
        check_digest(path, read, digest)
        found = read
    rows = [(str(row[shape.question]), answer) for row in found if (answer := read_answer(shape, row[shape.answer]))]
    if not rows:
        where = shape.repo if data == "hub" else str(path)
        hint = f"Each {shape.answer!r} ends with {MARK} and the answer" if shape.marked else "See docs/swarms"
        raise SwarmError(f"no row of {where} has an answer", hint)
    return rows


def read_answer(shape: DatasetShape, cell: object) -> str:
    """The true answer in a row; empty where there is none."""
    if not isinstance(cell, str):
        return ""
    parts = cell.split(MARK)
    if shape.marked:
        return parts[1].strip() if len(parts) > 1 else ""
    return cell.strip()


def _load_dataset(name: str, shape: DatasetShape, sample: bool) -> Iterable[Mapping[str, Any]]:
    """The training split, from the cache where the Hub is not reached."""
    try:
        if name == shape.repo:
            found = load_from_hub(name, shape.config, "train", "", DOWNLOAD_BYTES_MAX)
        else:
            import datasets

            found = datasets.load_dataset(name, shape.config, split="train")
    except DatasetRefused:
        raise
    except Exception as error:  # datasets raises what its many back-ends raise
        raise SwarmError(
            f"the data set {name} ({shape.config}) cannot be loaded: {type(error).__name__}: {error}",
            'Load it once with a network, name a copy of it or a JSONL file in swarm.options.data, or take "generated"',
        ) from error
    missing = {shape.question, shape.answer} - set(found.column_names)
    if missing:
        raise SwarmError(
            f"the data set {name} has no column {min(missing)!r}",
            f"It needs {shape.question!r} and {shape.answer!r}, and has: {', '.join(found.column_names)}",
        )
    if sample:
        found = found.shuffle(seed=COMPAT_SEED).select(range(min(COMPAT_ROWS, len(found))))
    if len(found) > ROWS_MAX:
        raise SwarmError(f"the data set {name} has {len(found)} rows, the limit is {ROWS_MAX}", "Name a part of it")
    rows: Iterable[Mapping[str, Any]] = found.select_columns([shape.question, shape.answer])
    return rows
