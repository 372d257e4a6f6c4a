"""Units that are there: what is in force, what each line is for, and how it differs from what swarmd would write."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from swarmd.units import plan as planning
from swarmd.units import writing
from swarmd.units.files import Planned, read, unmark
from swarmd.units.plan import ServicePaths
from swarmd.units.program import find_command
from swarmd.units.settings import CPU, HARDENING, LIFE, ORDER, PROGRAMS, Setting

ADDED_UP = ("After", "Wants", "Environment", "EnvironmentFile", "LoadCredential", "SystemCallFilter", "WantedBy")


class UnitLine(NamedTuple):
    """A setting that stands in a file."""

    key: str
    value: str
    file: Path


class UnitDifference(msgspec.Struct, frozen=True):
    """Where an installed unit is not what this swarmd would write."""

    file: str
    setting: str  # a key; empty where the whole file is meant
    installed: str  # its value there; empty where it is not
    expected: str  # likewise
    fix: str


def lines_of(path: Path, text: str) -> list[UnitLine]:
    """The settings of a unit file, continued lines put together."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", ";", "[")):
            found.append(UnitLine(key.strip(), value.strip(), path))
    return found


def installed_files(place: ServicePaths) -> list[Path]:
    """The unit's file and its drop-ins, in the order in which systemd reads them."""
    names = dict.fromkeys((place.template, place.unit))
    drop_ins = {path.name: path for name in names for path in (place.units / f"{name}.d").glob("*.conf")}
    main = place.units / place.template
    return [path for path in (main, *(drop_ins[name] for name in sorted(drop_ins))) if path.is_file()]


def effective(place: ServicePaths) -> list[UnitLine]:
    """What is in force: of a setting that stands in several files, the last, or all where they add up."""
    lines = [line for path in installed_files(place) for line in lines_of(path, read(path) or "")]
    kept: list[UnitLine] = []
    for line in lines:
        if line.key not in ADDED_UP or not line.value:
            kept = [other for other in kept if other.key != line.key]
        kept.append(line)
    return kept


def reasons() -> dict[tuple[str, str], str]:
    """What each setting that swarmd writes is for, by key and value; by key alone where only the value differs."""
    told: dict[tuple[str, str], str] = {}
    units = (writing.node_unit(writing.Form()), writing.failure_unit(writing.Form()))
    groups: list[Sequence[Setting]] = [settings for unit in units for _, settings in unit.sections]
    for settings in (*groups, ORDER, LIFE, HARDENING, CPU, PROGRAMS):
        why = ""
        for setting in settings:
            why = setting.why or why
            told.setdefault((setting.key, setting.value), why)
            told.setdefault((setting.key, ""), why)
    return told


def drift(place: ServicePaths | None = None, command: str = "") -> list[UnitDifference]:
    """How an installed service differs from what this swarmd would write for it; drop-ins of others are left alone.

    Args:
        place: of the node; by default the one node of the machine.
        command: how swarmd is called; by default as this process was.

    Raises:
        ConfigError: the node's configuration is wrong.
        UnitError: a unit cannot be read.
    """
    where = place or ServicePaths()
    if not (where.units / where.template).exists():
        return []
    running = command or find_command(sys.executable, user=True)
    config = planning.read_config(where.config)
    gpu = not where.drop_in("10-cpu.conf").exists()
    programs = where.drop_in("20-programs.conf").exists() or planning.runs_programs(config)
    expected = planning.plan(where, running, config, gpu, programs)
    fix = f"Run `swarmd service install{_options(where)}`; --force replaces a changed file and keeps a copy"
    return [difference for planned in expected for difference in _differences(planned, fix)]


def _options(place: ServicePaths) -> str:
    named = f" --instance {place.instance}" if place.instance else ""
    return named + (" --user" if place.user else "")


def _differences(planned: Planned, fix: str) -> list[UnitDifference]:
    text = read(planned.path)
    if text is None:
        return [UnitDifference(str(planned.path), "", "", planned.why, fix)]
    there = _values(planned.path, unmark(text)[0])
    wanted = _values(planned.path, planned.text)
    return [
        UnitDifference(str(planned.path), key, there.get(key, ""), wanted.get(key, ""), fix)
        for key in dict.fromkeys((*wanted, *there))
        if there.get(key) != wanted.get(key)
    ]


def _values(path: Path, text: str) -> dict[str, str]:
    values: dict[str, list[str]] = {}
    for line in lines_of(path, text):
        values.setdefault(line.key, []).append(line.value)
    return {key: " | ".join(several) for key, several in values.items()}
