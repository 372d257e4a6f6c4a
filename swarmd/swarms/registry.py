"""The registry of kinds of swarm, by their names in `swarm.kind`: swarmd's own, and plug-ins.

A plug-in is an installed distribution with an entry point in the group `swarmd.swarms`: the name of the kind, and a
subclass of `swarmd.plugin.Plan`. Only the requested kind is imported, and swarmd's own kinds only when a plan is made.
"""

import contextlib
import difflib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import msgspec

from swarmd.config import SwarmConfig, TaskConfig, TrainingConfig
from swarmd.errors import FOREIGN_ERRORS, SwarmdError, SwarmError
from swarmd.swarms.jsonl import SUFFIX
from swarmd.swarms.options import (
    MIXTURE,
    CodeOptions,
    FileOptions,
    MathOptions,
    NoOptions,
    ProgramOptions,
    ProposerOptions,
    VerifiersOptions,
    decode_options,
)
from swarmd.swarms.packages import check_packages, list_function_paths
from swarmd.swarms.plan import Plan

GROUP = "swarmd.swarms"
OWN = "swarmd"
STAGES_MAX = 64  # bounded by what a `Source` can name

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TRAINING = TrainingConfig()
_HERE = Path()


class SwarmKind(msgspec.Struct, frozen=True):
    """What is known about a kind of swarm without making its plan."""

    name: str
    summary: str  # one line
    stages: int  # of a round
    target: str  # "module:Class"
    origin: str = OWN  # the distribution that provides it, with its version
    fault: str = ""  # why it cannot be used; empty if it can
    options: type[msgspec.Struct] | None = None  # of swarmd's own kinds, to check options without a plan


_OWN = (
    (
        "digits",
        1,
        "reasoning_gym:DigitsPlan",
        NoOptions,
        "Four tasks on digits that the embedded model learns in minutes.",
    ),
    ("reasoning-gym", 1, "reasoning_gym:ReasoningGymPlan", NoOptions, "Any mixture of reasoning-gym's tasks."),
    ("gsm8k", 3, "math.plan:Gsm8kPlan", MathOptions, "School mathematics: answer, judge the answers of others, agree."),
    ("math-hard", 3, "math.plan:MathHardPlan", MathOptions, "Competition mathematics, in the same three stages."),
    (
        "code",
        1,
        "code:CodePlan",
        CodeOptions,
        "Problems solved with programs that run in a sandbox while the model writes.",
    ),
    (
        "proposer-solver",
        2,
        "proposer.plan:ProposerSolverPlan",
        ProposerOptions,
        "Models set each other programming problems with tests, and solve them.",
    ),
    (
        "file",
        1,
        "file:make_file_plan",
        FileOptions,
        "One's own questions and answers from a JSONL file, with named rewards.",
    ),
    ("verifiers", 1, "verifiers:VerifiersPlan", VerifiersOptions, "A taskset of verifiers 0.4, as it is installed."),
)
BUILT_IN = {
    name: SwarmKind(name, summary, stages, f"swarmd.swarms.{target}", options=options)
    for name, stages, target, options, summary in _OWN
}


def list_kinds() -> tuple[SwarmKind, ...]:
    """All installed kinds, swarmd's own first; one that cannot be used has a `fault`. Imports the plug-ins."""
    points = _list_plug_ins()
    return (*BUILT_IN.values(), *(_load_plug_in(point, points) for point in points))


def find_kind(name: str) -> SwarmKind:
    """Find a kind by name. Raises SwarmError if there is none, or it is a plug-in that cannot be used."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    points = _list_plug_ins()
    point = next((point for point in points if point.name == name), None)
    if point is None:
        known = (*BUILT_IN, *sorted({point.name for point in points}))
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known kinds: {', '.join(known)}"
        raise SwarmError(f"swarm.kind {name!r} is unknown", hint)
    kind = _load_plug_in(point, points)
    if kind.fault:
        raise SwarmError(f"the kind {name!r} of {kind.origin} cannot be used: {kind.fault}", f"Correct {kind.origin}")
    return kind


def check_kind(swarm: SwarmConfig) -> SwarmKind:
    """Check a configuration's kind. Raises SwarmError if it is unknown, has another number of stages, or its options
    are wrong (a plug-in checks its own when its plan is made)."""
    kind = find_kind(swarm.kind)
    if swarm.stages != kind.stages:
        raise SwarmError(
            f"swarm.stages is {swarm.stages}, but a round of {kind.name!r} has {kind.stages}",
            f"Write stages = {kind.stages} in [swarm]",
        )
    read_options(swarm)
    return kind


def read_options(swarm: SwarmConfig) -> msgspec.Struct | None:
    """The decoded options of one of swarmd's own kinds; None for plug-ins. Raises SwarmError."""
    kind = BUILT_IN.get(swarm.kind)
    return decode_options(swarm.options, kind.options) if kind is not None and kind.options is not None else None


def check_code(swarm: SwarmConfig, home: Path, beside: Path | None = None) -> None:
    """Check that this node has the Python that the swarm's manifest names, see `swarmd.swarms.packages`.

    Raises EnvironmentMissing, SwarmError.
    """
    options = read_options(swarm)
    if isinstance(options, FileOptions) and (options.packages or beside is not None):
        check_packages(options.packages, list_function_paths(swarm.options), home, beside)


def find_reduced_limits(swarm: SwarmConfig) -> list[str]:
    """See `ProgramOptions.describe_reduced_limits`; empty for kinds that run no programs."""
    options = read_options(swarm)
    return options.describe_reduced_limits if isinstance(options, ProgramOptions) else []


def needs_sandbox(swarm: SwarmConfig) -> bool:
    """Whether a swarm uses the sandbox: for programs that models wrote, tools, or tasksets."""
    options = read_options(swarm)
    if isinstance(options, FileOptions):
        return bool(options.tools or options.environment_factory)
    return isinstance(options, ProgramOptions | VerifiersOptions)


def fill_in_default_tasks(swarm: SwarmConfig) -> SwarmConfig:
    """Fill empty `tasks` with reasoning-gym's default mixture, which may differ between versions."""
    if swarm.tasks or swarm.kind != "reasoning-gym":
        return swarm
    return msgspec.structs.replace(swarm, tasks=tuple(TaskConfig(name) for name in MIXTURE))


def make_plan(swarm: SwarmConfig, training: TrainingConfig = _TRAINING, home: Path = _HERE) -> Plan:
    """Make the plan of a configuration; imports only that kind's module. Raises SwarmError."""
    kind = check_kind(swarm)
    make: type[Plan] = EntryPoint(kind.name, kind.target, GROUP).load()
    if kind.origin == OWN:
        return make(swarm, training, home)
    try:
        return make(swarm, training, home)
    except (SwarmdError, MemoryError):
        raise
    except FOREIGN_ERRORS as error:  # third-party constructors may raise anything
        raise SwarmError(f"the kind {kind.name!r} of {kind.origin} failed: {_describe_error(error)}") from error


def _list_plug_ins() -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)))


def _load_plug_in(point: EntryPoint, points: Iterable[EntryPoint]) -> SwarmKind:
    """Load a plug-in; its kind has a fault if it cannot be used."""
    origin = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
    kind = SwarmKind(point.name, "", 0, point.value, origin)
    if point.name in BUILT_IN:
        return msgspec.structs.replace(kind, fault="swarmd has a kind of this name itself")
    if not _NAME.fullmatch(point.name):
        return msgspec.structs.replace(kind, fault="the name of a kind has up to 64 of A-Z a-z 0-9 . _ -")
    if Counter(other.name for other in points)[point.name] > 1:
        return msgspec.structs.replace(kind, fault="two installed distributions bring a kind of this name")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is reserved for the command
            plan = point.load()
    except FOREIGN_ERRORS as error:  # third-party modules may raise anything
        return msgspec.structs.replace(kind, fault=_describe_error(error))
    fault = _find_plan_fault(plan)
    if fault:
        return msgspec.structs.replace(kind, fault=f"{point.value}: {fault}")
    own_words = (plan.__dict__.get("__doc__") or "").strip() or "(no description)"  # not inherited ones
    return msgspec.structs.replace(kind, summary=own_words.splitlines()[0].strip(), stages=plan.stages)


def _find_plan_fault(plan: object) -> str:
    if not isinstance(plan, type) or not issubclass(plan, Plan):
        return "not a subclass of swarmd.plugin.Plan"
    if plan.__abstractmethods__:
        return f"does not define {', '.join(sorted(plan.__abstractmethods__))}"
    if type(plan.stages) is not int or not 1 <= plan.stages <= STAGES_MAX:
        return f"stages is {plan.stages!r}, not a number from 1 to {STAGES_MAX}"
    return ""


def _describe_error(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def has_system_message(swarm: SwarmConfig) -> bool:
    """Whether every question has a system message, as far as the kind and its options determine it."""
    if swarm.kind == "file":
        return swarm.options.get("system") != ""
    return swarm.kind in ("gsm8k", "math-hard", "proposer-solver")


def questions_file_of(options: Mapping[str, Any]) -> str:
    """The JSONL question file that a kind's options name; empty if none."""
    name = options.get("data")
    return name if isinstance(name, str) and name.endswith(SUFFIX) else ""
