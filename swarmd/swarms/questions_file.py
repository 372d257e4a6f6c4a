"""The file of questions that a swarm's options name: which it is, and whether its kind can use it.

Of every kind, an option `data` that ends in .jsonl is such a file, relative to the node's data directory, and the
option `digest` is that of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import SandboxUnavailable
from swarmd.swarms.registry import BUILT_IN, make_plan

SUFFIX = ".jsonl"


def questions_of(options: Mapping[str, Any]) -> str:
    """The file of questions that the options name; empty where they name none."""
    name = options.get("data")
    return name if isinstance(name, str) and name.endswith(SUFFIX) else ""


def check_questions(swarm: SwarmConfig, training: TrainingConfig, home: Path) -> None:
    """Raise SwarmError where the kind can make nothing of the file that its options name, as its trainers would.

    What is still to be made of a data set is not asked for. Nor are plug-ins, and whoever brings reward functions of
    their own: their code may need what is not here yet.

    Args:
        home: the node's data directory.
    """
    name = questions_of(swarm.options)
    if not name or swarm.kind not in BUILT_IN or swarm.options.get("reward_funcs"):
        return
    if swarm.options.get("dataset") and not (home / name).exists():
        return
    with suppress(SandboxUnavailable):  # is no fault of the file
        make_plan(swarm, training, home)
