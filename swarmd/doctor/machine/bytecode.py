"""Is what Python compiles kept? Where it cannot be, each start of a trainer compiles torch anew."""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.installed import compile_command

LOOKED_AT = ("torch/__init__.py", "torch/nn/functional.py", "transformers/__init__.py", "trl/__init__.py")

NEVER = FindingKind(
    "bytecode.never",
    "warning",
    "torch is compiled anew with each start",
    "Python finds no compiled form of what the trainer loads and may not keep one, so each start of a trainer costs "
    "three times the processor time: some 21 s rather than 7 s.",
)
FIRST = FindingKind(
    "bytecode.missing",
    "note",
    "torch is not compiled yet",
    "Python compiles it at the first start and keeps that. A service may not write where swarmd is installed: it would "
    "compile with each start.",
)


async def check_bytecode(subject: Subject) -> list[Finding]:
    """The compiled forms of what the trainer loads."""
    return await in_thread(_examine)


def _examine() -> list[Finding]:
    bare = [file for file in find_sources() if not Path(cache_from_source(str(file))).is_file()]
    if not bare:
        return [well("bytecode", "Compiled packages", "what the trainer loads is compiled")]
    fix = f"Run `{compile_command(bare[0].parent.parent)}`, as whoever installed it"
    shown = f"{bare[0]} has no compiled form"
    if sys.dont_write_bytecode:
        return [
            NEVER.found(f"{shown}, and PYTHONDONTWRITEBYTECODE is set", f"Unset PYTHONDONTWRITEBYTECODE; or: {fix}")
        ]
    place = Path(cache_from_source(str(bare[0]))).parent
    if not may_write(place):
        return [NEVER.found(f"{shown}, and this user may not write {place}", fix)]
    return [FIRST.found(shown, fix)]


def find_sources() -> list[Path]:
    """Those of the files looked at that are installed."""
    found = []
    for name in LOOKED_AT:
        package, _, rest = name.partition("/")
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found.append(Path(spec.origin).parent / rest)
    return [file for file in found if file.is_file()]


def may_write(place: Path) -> bool:
    """Whether this user may write a directory, which it may have to make."""
    there = next(each for each in (place, *place.parents) if each.exists())
    return os.access(there, os.W_OK | os.X_OK)
