"""Kinds of swarm by the name that `swarm.kind` in the configuration gives them: those of swarmd, and plug-ins.

A plug-in is an installed distribution with an entry point in the group `swarmd.swarms`; its name is the kind's, and it
leads to a subclass of `swarmd.plugin.Plan`. Nothing is imported but the kind that is asked for, and of swarmd's own
kinds not even that until a plan is made.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from swarmd.config import SwarmConfig, TaskConfig, TrainingConfig
from swarmd.errors import FOREIGN_ERRORS, SandboxUnavailable, SwarmdError, SwarmError
from swarmd.swarms.options import (
    CodeOptions,
    FileOptions,
    MathOptions,
    NoOptions,
    ProposerOptions,
    decode_options,
    describe_cuts,
)
from swarmd.swarms.plan import Plan
from swarmd.swarms.truths import check_truths

GROUP = "swarmd.swarms"
OWN = "swarmd"
Maker = Callable[[SwarmConfig, TrainingConfig, Path], Plan]
STAGES_MAX = 64  # a source of a question names its stage with no more

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TRAINING = TrainingConfig()
_HERE = Path()


class Kind(msgspec.Struct, frozen=True):
    """One kind of swarm: what is known without making its plan."""

    name: str
    summary: str  # one line
    stages: int  # of a round
    target: str  # "module:Class"
    origin: str = OWN  # the distribution that brings it, with its version
    fault: str = ""  # why it cannot be used; empty when it can


_OWN = (
    Kind("digits", "Four tasks on digits that the embedded model learns in minutes.", 1, "reasoning_gym:DigitsPlan"),
    Kind("reasoning-gym", "Any mixture of reasoning-gym's tasks.", 1, "reasoning_gym:ReasoningGymPlan"),
    Kind("gsm8k", "School mathematics: answer, judge the answers of others, agree.", 3, "math.plan:Gsm8kPlan"),
    Kind("math-hard", "Competition mathematics, in the same three stages.", 3, "math.plan:MathHardPlan"),
    Kind("code", "Problems solved with programs that run in a sandbox while the model writes.", 1, "code:CodePlan"),
    Kind(
        "proposer-solver",
        "Models set each other programming problems with tests, and solve them.",
        2,
        "proposer.plan:ProposerSolverPlan",
    ),
    Kind("file", "One's own questions and answers from a JSONL file, with named rewards.", 1, "file:FilePlan"),
)
_OPTIONS: Mapping[str, type[msgspec.Struct]] = {  # of swarmd's own kinds: checked without making a plan
    "digits": NoOptions,
    "reasoning-gym": NoOptions,
    "gsm8k": MathOptions,
    "math-hard": MathOptions,
    "code": CodeOptions,
    "proposer-solver": ProposerOptions,
    "file": FileOptions,
}
BUILT_IN = {kind.name: msgspec.structs.replace(kind, target=f"swarmd.swarms.{kind.target}") for kind in _OWN}


def list_kinds() -> tuple[Kind, ...]:
    """Every installed kind, swarmd's own first; a plug-in that cannot be used has its `fault`. Imports the plug-ins."""
    points = _plug_ins()
    return (*BUILT_IN.values(), *(_read_plug_in(point, points) for point in points))


def find_kind(name: str) -> Kind:
    """The kind of this name.

    Raises:
        SwarmError: there is none (names the nearest), or it is a plug-in that cannot be used (names its distribution).
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    points = _plug_ins()
    point = next((point for point in points if point.name == name), None)
    if point is None:
        known = (*BUILT_IN, *sorted({point.name for point in points}))
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known kinds: {', '.join(known)}"
        raise SwarmError(f"swarm.kind {name!r} is unknown", hint)
    kind = _read_plug_in(point, points)
    if kind.fault:
        raise SwarmError(f"the kind {name!r} of {kind.origin} cannot be used: {kind.fault}", f"Mend {kind.origin}")
    return kind


def check_kind(swarm: SwarmConfig) -> Kind:
    """The kind that a configuration asks for.

    Raises:
        SwarmError: there is none, it has other stages, or its options are wrong; a plug-in looks at its own when its
            plan is made.
    """
    kind = find_kind(swarm.kind)
    if swarm.stages != kind.stages:
        raise SwarmError(
            f"swarm.stages is {swarm.stages}, but a round of {kind.name!r} has {kind.stages}",
            f"Write stages = {kind.stages} in [swarm]",
        )
    _read_options(swarm)
    return kind


def _read_options(swarm: SwarmConfig) -> msgspec.Struct | None:
    """The options of one of swarmd's own kinds; None for a plug-in's. Raises SwarmError."""
    kind = _OPTIONS.get(swarm.kind)
    return decode_options(swarm.options, kind) if kind is not None else None


def find_cuts_of(swarm: SwarmConfig) -> list[str]:
    """A line for each thing that the settings ask of this machine for programs and that it does not give."""
    return describe_cuts(getattr(_read_options(swarm), "cuts", {}))


def spell_out(swarm: SwarmConfig) -> SwarmConfig:
    """The same with the kind's own mixture in `tasks` where none are named, for a manifest. Imports that kind."""
    if swarm.tasks or swarm.kind != "reasoning-gym":  # what an empty list means has changed there, and may change again
        return swarm
    from swarmd.swarms.reasoning_gym import MIXTURE

    return msgspec.structs.replace(swarm, tasks=tuple(TaskConfig(name) for name in MIXTURE))


def make_plan(swarm: SwarmConfig, training: TrainingConfig = _TRAINING, home: Path = _HERE) -> Plan:
    """The plan that a configuration asks for; imports only that kind's module.

    Raises:
        SwarmError: as `check_kind`, or the settings of the kind are wrong.
    """
    kind = check_kind(swarm)
    make: Maker = EntryPoint(kind.name, kind.target, GROUP).load()
    if kind.origin == OWN:
        return make(swarm, training, home)
    try:
        return make(swarm, training, home)
    except (SwarmdError, MemoryError):
        raise
    except FOREIGN_ERRORS as error:  # whatever somebody else's constructor does
        raise SwarmError(f"the kind {kind.name!r} of {kind.origin} failed: {_told(error)}") from error


def _plug_ins() -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)))


def _read_plug_in(point: EntryPoint, points: Iterable[EntryPoint]) -> Kind:
    """What a plug-in says of itself, or why it cannot be used."""
    origin = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
    kind = Kind(point.name, "", 0, point.value, origin)
    if point.name in BUILT_IN:
        return msgspec.structs.replace(kind, fault="swarmd has a kind of this name itself")
    if not _NAME.fullmatch(point.name):
        return msgspec.structs.replace(kind, fault="the name of a kind has up to 64 of A-Z a-z 0-9 . _ -")
    if Counter(other.name for other in points)[point.name] > 1:
        return msgspec.structs.replace(kind, fault="two installed distributions bring a kind of this name")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it prints is no part of what a verb prints
            plan = point.load()
    except FOREIGN_ERRORS as error:  # whatever somebody else's module does
        return msgspec.structs.replace(kind, fault=_told(error))
    fault = _fault_of(plan)
    if fault:
        return msgspec.structs.replace(kind, fault=f"{point.value}: {fault}")
    return msgspec.structs.replace(kind, summary=_first_line(plan), stages=plan.stages)


def _fault_of(plan: object) -> str:
    if not isinstance(plan, type) or not issubclass(plan, Plan):
        return "no subclass of swarmd.plugin.Plan"
    if plan.__abstractmethods__:
        return f"does not define {', '.join(sorted(plan.__abstractmethods__))}"
    if type(plan.stages) is not int or not 1 <= plan.stages <= STAGES_MAX:
        return f"stages is {plan.stages!r}, not a number from 1 to {STAGES_MAX}"
    return ""


def _first_line(plan: type[Plan]) -> str:
    lines = (plan.__dict__.get("__doc__") or "").strip().splitlines()
    return lines[0].strip() if lines else "(no description)"


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())  # it stands in one line of a list


SUFFIX = ".jsonl"


def questions_of(options: Mapping[str, Any]) -> str:
    """The file of questions that the options name; empty where they name none."""
    name = options.get("data")
    return name if isinstance(name, str) and name.endswith(SUFFIX) else ""


def check_questions(swarm: SwarmConfig, training: TrainingConfig, home: Path) -> str:
    """See that the kind can train on its tasks or on the file that its options name, and pays for right answers to the
    latter, as its trainers do.

    A file that is still to be made of a data set on this machine is made elsewhere for it. One of the Hub is not asked
    for, nor are plug-ins, and whoever brings reward functions of their own: their code may need what is not here yet.

    Returns:
        Why right answers were not tried; empty if they were, or if no file is named.

    Raises:
        SwarmError: the file is not sound, or its right answers are not paid.
    """
    named = swarm.options.get("data", "") if swarm.kind == "file" else questions_of(swarm.options)
    name = named if isinstance(named, str) else ""
    if swarm.kind not in BUILT_IN:
        return ""
    if not name:
        if swarm.tasks:  # whose names and settings only their kind knows
            make_plan(swarm, training, home)
        return ""
    functions, source = swarm.options.get("reward_funcs"), swarm.options.get("dataset")
    if functions:
        from swarmd.swarms.rewards import check_functions

        check_functions(functions, swarm.options.get("reward_weights", ()))
        return f"the reward functions {', '.join(functions)} decide"
    with suppress(SandboxUnavailable), TemporaryDirectory() as elsewhere:  # a lack of sandbox is no fault of the file
        if source and not (home / name).exists():
            from swarmd.swarms.file import is_hub_id

            if is_hub_id(source) and not (home / source).exists():
                return f"{name} is still to be made of {source}"
            found = source if source.startswith("~") else str(home.resolve() / source)
            options = {**swarm.options, "dataset": found, "data": Path(name).name}
            swarm, home = msgspec.structs.replace(swarm, options=options), Path(elsewhere)
        return check_truths(make_plan(swarm, training, home))
    return ""
