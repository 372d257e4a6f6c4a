"""Describes TRL's tools, environments and reward functions: `python -m swarmd.swarms.trl_schemas HOME REQUEST`.

It is a separate process, because it imports modules that may print or hang. Prints a `ToolDescription` in JSON as the
last line of its standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import FOREIGN_ERRORS, SwarmError
from swarmd.swarms.reward_process import IMPORT_S
from swarmd.swarms.trl_program import NO_TOOLS

MODULE = "swarmd.swarms.trl_schemas"
FIX = (
    "A tool has types for its arguments and a docstring in Google's style; an environment is a class with `reset`: "
    "docs/FROM-TRL.md"
)


class ToolDescription(msgspec.Struct, frozen=True):
    """What is known about tools and environment without calling them."""

    schemas: tuple[dict[str, Any], ...] = ()  # of the tools, as from transformers' `get_json_schema`
    has_reward: bool = False  # the environment has `get_reward`
    rewards: tuple[str, ...] = ()  # paths of the reward functions that take `environments`
    fault: str = ""  # the error, if they cannot be described


def describe_tools(tools: Sequence[str], environment: str, rewards: Sequence[str], home: Path) -> ToolDescription:
    """Import these paths in a separate process, and describe them. Raises SwarmError."""
    request = json.dumps([list(tools), environment, list(rewards), sys.path])
    command = [sys.executable, "-m", MODULE, str(home.resolve()), request]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=IMPORT_S, check=True)
        described = msgspec.json.decode(ended.stdout.rpartition(b"\n")[2], type=ToolDescription)
    except (OSError, subprocess.SubprocessError, *DECODE_ERRORS) as error:
        raise SwarmError(f"swarm.options: the tools cannot be described: {error}", FIX) from error
    if described.fault:
        raise SwarmError(f"swarm.options: {described.fault}", FIX)
    return described


def _describe_here(tools: Sequence[str], environment: str, rewards: Sequence[str]) -> ToolDescription:
    """See `describe_tools`. Raises ValueError, and whatever the modules raise."""
    from transformers.utils.chat_template_utils import get_json_schema

    functions = [_load(path) for path in tools]
    has_reward = False
    if environment:
        made = _load(environment)
        methods = dict(inspect.getmembers(made, predicate=inspect.isfunction))
        if "reset" not in methods:
            raise ValueError(f"{environment} has no method `reset`")
        has_reward = "get_reward" in methods
        public = [name for name in methods if not name.startswith("_") and name not in NO_TOOLS]
        functions += [MethodType(methods[name], made) for name in public]  # bound: without `self`
    if not functions:
        raise ValueError(f"{environment} has no public method that could be a tool")
    inside = [path for path in rewards if "environments" in inspect.signature(_load(path)).parameters]
    return ToolDescription(tuple(get_json_schema(each) for each in functions), has_reward, tuple(inside))


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    home, request = sys.argv[1:]
    tools, environment, rewards, paths = json.loads(request)
    sys.path[:] = [*paths, home]
    with contextlib.redirect_stdout(sys.stderr):
        try:
            described = _describe_here(tools, environment, rewards)
        except FOREIGN_ERRORS as error:  # third-party modules may raise anything
            described = ToolDescription(fault=f"{type(error).__name__}: {error}")
    sys.stdout.write("\n" + msgspec.json.encode(described).decode())


if __name__ == "__main__":
    main()
