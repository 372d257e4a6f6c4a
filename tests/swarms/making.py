"""What tests of all kinds of swarm ask of a plan."""

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.errors import RecordRejected
from swarmd.swarms.plan import NO_MATERIAL, Material, Plan, Question, StageId
from swarmd.swarms.rollouts import Reference

HERE = StageId("a", 3, 0)


def take(plan: Plan, count: int, place: StageId = HERE, material: Material = NO_MATERIAL) -> list[Question]:
    """The first questions that a node draws."""
    return list(islice(plan.draw(place, material), count))


def text_of(question: Question) -> str:
    return question.messages[-1].content


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def refusal(
    plan: Plan, reference: Reference, place: StageId = HERE, material: Material = NO_MATERIAL, **changes: Any
) -> str:
    """Why a plan refuses a peer's question, once its reference has these changes."""
    with pytest.raises(RecordRejected) as caught:
        plan.regenerate(msgspec.structs.replace(reference, **changes), place, material)
    return caught.value.reason
