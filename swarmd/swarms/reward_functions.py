"""Reward functions as TRL takes them: `function(prompts, completions, **columns) -> list[float | None]`.

They are named by import path in this node's own configuration; no manifest and no peer can name one.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from swarmd.errors import FOREIGN_ERRORS, SwarmError
from swarmd.logger import get_logger

FUNCTIONS_MAX = 16
REASON_CHARACTERS_MAX = 200  # of an error
NO_REWARDS = (str, bytes, Mapping, Set)  # what could be gone through, and gives other numbers than were meant

RewardFunction = Callable[..., Any]
Inputs = Literal["text", "messages"]

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_BESIDES = ("prompt", "completion", "completion_ids")  # columns that TRL does not pass by these names
log = get_logger(__name__)


def load_function(path: str, home: Path) -> RewardFunction:
    """The function under `package.module:function`.

    Modules in the data directory are found as well, behind those that Python finds by itself.

    Args:
        home: the node's data directory.

    Raises:
        SwarmError: it is no such path, the module cannot be imported, or has no such function.
    """
    key = f"swarm.options.reward_funcs: {path!r}"
    if not _PATH.fullmatch(path):
        raise SwarmError(f"{key} is no import path", 'Write it as "package.module:function"')
    module, _, name = path.partition(":")
    place = str(home.resolve())
    if place not in sys.path:
        sys.path.append(place)
    try:
        found = getattr(importlib.import_module(module), name)
    except FOREIGN_ERRORS as error:  # whatever somebody's module does
        raise SwarmError(
            f"{key} cannot be imported: {type(error).__name__}: {error}",
            f"Put {module.partition('.')[0]}.py into {place}, install it beside swarmd, or set PYTHONPATH",
        ) from error
    if not callable(found) or inspect.isclass(found):
        raise SwarmError(f"{key} is no function", "Name a function; models as rewards are not supported")
    return found  # type: ignore[no-any-return]


class RewardFunctions:
    """Reward functions with their weights.

    Args:
        paths: import paths, as `load_function` takes them.
        weights: as many; empty: 1.0 each, as with TRL.
        inputs: whether they get texts or, as TRL gives them for conversational data sets, lists of messages.
        home: the node's data directory.

    Raises:
        SwarmError: as `load_function`, there are more or fewer weights than functions, or one is no finite number.
    """

    def __init__(self, paths: Sequence[str], weights: Sequence[float], inputs: Inputs, home: Path) -> None:
        if weights and len(weights) != len(paths):
            raise SwarmError(
                f"swarm.options.reward_weights has {len(weights)} values for {len(paths)} of reward_funcs",
                "Give one weight for each function, or none",
            )
        if not all(map(math.isfinite, weights)):
            raise SwarmError("swarm.options.reward_weights has what is no number", "Give each function a finite weight")
        self._functions = [(path.rpartition(":")[2], load_function(path, home)) for path in paths]
        self.weights = dict(zip((name for name, _ in self._functions), weights or [1.0] * len(paths), strict=True))
        if len(self.weights) < len(paths):
            raise SwarmError("swarm.options.reward_funcs: two functions have one name", "Give them names of their own")
        self._inputs = inputs

    def __bool__(self) -> bool:
        return bool(self._functions)

    def score(self, prompt: Any, completions: Sequence[str], columns: Mapping[str, Any]) -> list[dict[str, float]]:
        """The value of each function, by its name, for each completion to one question.

        A function that gives None for a completion has no part in it. One that raises, or gives other than a number
        for each completion, gives no number (NaN) for all of them, and the log says so.

        Args:
            prompt: text or messages, as the functions take them.
            columns: of the data set; each is repeated for every completion.
        """
        count = len(completions)
        given = {
            "prompts": [prompt] * count,
            "completions": self._shape(completions),
            **{name: [value] * count for name, value in columns.items() if name not in _BESIDES},
            "trainer_state": None,
            "log_extra": _drop,
            "log_metric": _drop,
        }
        values: list[dict[str, float]] = [{} for _ in completions]
        for name, function in self._functions:
            for place, value in enumerate(_call(name, function, given, count)):
                if value is not None:
                    values[place][name] = value
        return values

    def _shape(self, completions: Sequence[str]) -> list[Any]:
        if self._inputs == "text":
            return list(completions)
        return [[{"role": "assistant", "content": completion}] for completion in completions]


def _call(name: str, function: RewardFunction, given: Mapping[str, Any], count: int) -> list[float | None]:
    try:
        answer = function(**copy.deepcopy(given))  # what it changes is its own: others score by what the row says
        if inspect.isawaitable(answer):
            answer = asyncio.run(_wait(answer))
        if isinstance(answer, NO_REWARDS):
            raise TypeError(f"{type(answer).__name__}, not a list of a reward for each completion")
        values = [None if value is None else float(value) for value in islice(answer, count + 1)]
        if len(values) != count:
            raise ValueError(f"{'more' if len(values) > count else len(values)} rewards for {count} completions")
    except MemoryError:
        raise
    except FOREIGN_ERRORS as error:  # whatever somebody's function does
        reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
        log.warning("a reward function failed; its completions count as 0", function=name, reason=reason)
        return [math.nan] * count
    return values


async def _wait(answer: Any) -> Any:
    return await answer


def _drop(*_: Any, **__: Any) -> None:
    """In the place of TRL's `log_extra` and `log_metric`."""
