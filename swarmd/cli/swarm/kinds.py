"""`swarmd swarm list`: every kind of swarm that is installed."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from swarmd.swarms.registry import Kind, list_kinds


def list_swarms(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: one array, an object a kind.")] = False,
) -> None:
    """Name every installed kind of swarm, with its stages, what it trains, and what brings it."""
    kinds = list_kinds()
    if as_json:
        typer.echo(json.dumps([_fields(kind) for kind in kinds], indent=2))
        return
    width = max(len(kind.name) for kind in kinds)
    for kind in kinds:
        typer.echo(f"{kind.name:{width}}  {_line(kind)}")


def _line(kind: Kind) -> str:
    if kind.fault:
        return f"cannot be used: {kind.fault} (from {kind.origin})"
    stages = f"{kind.stages} stage{'s' if kind.stages > 1 else ' '}"
    return f"{stages}  {kind.summary}" + (f" (from {kind.origin})" if kind.origin != "swarmd" else "")


def _fields(kind: Kind) -> dict[str, object]:
    return {
        "name": kind.name,
        "stages": kind.stages,
        "summary": kind.summary,
        "from": kind.origin,
        "usable": not kind.fault,
        "fault": kind.fault,
    }
