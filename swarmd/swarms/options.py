"""`swarm.options`: the settings of a kind, checked as strictly as the rest of the configuration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec

from swarmd.config import Section
from swarmd.errors import SwarmError
from swarmd.logger import get_logger
from swarmd.sandbox import Limits
from swarmd.sandbox.sandbox import MIB, Bytes, Seconds

WHERE = "swarm.options"

Options = TypeVar("Options", bound=msgspec.Struct)


class NoOptions(Section, frozen=True):
    """Options of a kind that has none, as its mixture stands in `swarm.tasks`: every key is refused."""


def decode_options(options: Mapping[str, Any], kind: type[Options]) -> Options:
    """The options as the struct that a kind declares for them.

    Bounds stand in the struct's annotations; a ValueError of its `__post_init__` counts as a wrong value.

    Raises:
        SwarmError: a key is unknown or missing, or a value is of the wrong type or out of range; names the key.
    """
    _refuse_unknown_keys(options, kind, WHERE)
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        raise SwarmError(_named(str(error)), _fix(kind)) from error


def _refuse_unknown_keys(table: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    hints = get_type_hints(kind)
    for key, value in table.items():
        if key not in hints:
            near = difflib.get_close_matches(str(key), hints, n=1)
            raise SwarmError(f"unknown key {f'{where}.{key}'!r}", f"Did you mean {near[0]}?" if near else _fix(kind))
        inner = _struct_in(hints[key])
        if inner is not None and isinstance(value, Mapping):
            _refuse_unknown_keys(value, inner, f"{where}.{key}")
        elif inner is not None and isinstance(value, list | tuple):
            for index, entry in enumerate(value):
                if isinstance(entry, Mapping):
                    _refuse_unknown_keys(entry, inner, f"{where}.{key}[{index}]")


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The one struct that a value of this type is, holds or may be."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    structs = [found for part in get_args(hint) if (found := _struct_in(part)) is not None]
    return structs[0] if len(structs) == 1 and not _is_table(hint) else None


def _is_table(hint: Any) -> bool:
    """A table of free keys: its keys are not the struct's."""
    origin = getattr(hint, "__origin__", None)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _named(message: str) -> str:
    """msgspec's message with the key in front: "swarm.options.rows: Expected `int` >= 1"."""
    what, _, path = message.partition(" - at `$")
    where = f"{WHERE}{path.removesuffix('`')}"
    missing = re.search(r"missing required field `(.*)`", what)
    return f"{where}.{missing[1]} is missing" if missing else f"{where}: {what}"


def _fix(kind: type[msgspec.Struct]) -> str:
    names = ", ".join(sorted(get_type_hints(kind)))
    return f"It takes: {names}" if names else "This kind takes no options"


log = get_logger(__name__)


class OwnLimits(Limits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`swarm.options.own_limits`: bounds on one run, as in `Limits`, and on a stage."""

    wall_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    cpu_s: Seconds = 10
    memory_bytes: Annotated[int, msgspec.Meta(ge=64 * MIB, le=2**40)] = 1024 * MIB
    scratch_bytes: Bytes = 64 * MIB
    file_bytes: Bytes = 64 * MIB
    files_open: Annotated[int, msgspec.Meta(ge=8, le=1024)] = 64
    program_bytes: Bytes = 256 * 1024
    input_bytes: Bytes = 4 * MIB
    output_bytes: Bytes = MIB
    stage_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 300.0  # of each of the kind's seconds for a stage


def find_cuts(limits: Limits, own: OwnLimits, **stage: float) -> dict[str, tuple[float, float]]:
    """What is asked for and not given: name of the setting → (asked for, given).

    Args:
        stage: the kind's seconds for a stage, by the option that sets them.
    """
    asked = {f"limits.{name}": (getattr(limits, name), getattr(own, name)) for name in Limits.__struct_fields__}
    asked |= {name: (seconds, own.stage_s) for name, seconds in stage.items()}
    return {name: (wanted, given) for name, (wanted, given) in asked.items() if wanted > given}


def narrow(limits: Limits, own: OwnLimits) -> Limits:
    """The smaller of both, setting by setting."""
    return Limits(**{name: min(getattr(limits, name), getattr(own, name)) for name in Limits.__struct_fields__})


def describe_cuts(cuts: dict[str, tuple[float, float]]) -> list[str]:
    """A line for each setting that this node does not give in full, with where to change that."""
    return [
        f"the swarm asks for {name} = {asked:g}, this node gives programs {given:g} "
        f"(swarm.options.own_limits.{'stage_s' if not name.startswith('limits.') else name.removeprefix('limits.')})"
        for name, (asked, given) in cuts.items()
    ]


def tell_cuts(cuts: dict[str, tuple[float, float]]) -> None:
    """Log them: what runs elsewhere may fail here."""
    for line in describe_cuts(cuts):
        log.warning("%s; programs that need more fail here", line)
