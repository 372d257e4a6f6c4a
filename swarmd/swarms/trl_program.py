"""Runs in the sandbox: TRL's tools, or one of its environments, for one rollout. It imports only the standard library.

Each line of standard input is a request in JSON, each line of standard output its answer, `{"value": ...}` or
`{"error": "..."}`. The first request is `begin`; then `reset`, `call` and `reward`, which call the methods of
`Rollout`.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import os
import random
import sys

TYPE_CHECKING = False  # avoids importing typing, which is slow
if TYPE_CHECKING:
    from typing import Any

CODE = "code.zip"  # in the scratch directory
NO_TOOLS = ("reset", "get_reward")  # public methods of an environment that are not tools


def load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def finish(result: Any) -> Any:
    """A function's result, awaited if it is a coroutine."""
    if not inspect.iscoroutine(result):
        return result
    import asyncio

    return asyncio.run(result)


class Rollout:
    """The tools by name, and the environment, if there is one."""

    def begin(self, code: str, tools: list[str], environment: str, rewards: list[str], seed: str) -> None:
        """Import what is named, from a zip file in base64, and seed `random`, so that all nodes get the same
        answers."""
        with open(CODE, "wb") as file:  # noqa: PTH123
            file.write(base64.b64decode(code))
        sys.path.insert(0, CODE)
        random.seed(seed)
        self.environment: Any = load(environment)() if environment else None
        methods = inspect.getmembers(type(self.environment), predicate=inspect.isfunction) if environment else []
        public = [name for name, _ in methods if not name.startswith("_") and name not in NO_TOOLS]
        given = [load(path) for path in tools] + [getattr(self.environment, name) for name in public]
        self.tools = {tool.__name__: tool for tool in given}
        self.rewards = {path: load(path) for path in rewards}

    def reset(self, columns: dict[str, Any]) -> str | None:
        observation = self.environment.reset(**columns)
        return observation if observation is None else str(observation)

    def call(self, calls: list[dict[str, Any]]) -> list[str]:
        """The result of each tool call as text; an exception becomes text, too."""
        return [self.call_tool(**each) for each in calls]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        try:
            if name not in self.tools:
                raise ValueError(f"Tool {name} not found.")
            return str(finish(self.tools[name](**arguments)))
        except Exception as error:
            return str({"error": str(error)})

    def reward(self, given: dict[str, Any]) -> dict[str, float | None]:
        """The environment's own reward, and those of functions that inspect environments; None: not applicable."""
        values = {}
        if hasattr(self.environment, "get_reward"):
            values[type(self.environment).__name__] = finish(self.environment.get_reward())
        for path, function in self.rewards.items():
            (values[path],) = finish(function(**given, environments=[self.environment], **TRAINER))
        return {name: None if value is None else float(value) for name, value in values.items()}


def ignore(*_: Any, **__: Any) -> None:
    """Stand in for TRL's `log_extra` and `log_metric`."""


TRAINER = {"trainer_state": None, "log_extra": ignore, "log_metric": ignore}


def serve_requests() -> None:
    """Answer requests until the input ends. Output of the tools is discarded."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout = sys.stderr
    rollout = Rollout()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": getattr(rollout, name)(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve_requests()
