"""TRL's `tools` and `environment_factory`: functions that a model may call in a rollout of several turns.

- The functions, or the environment's public methods, are described in the system message in the style of Qwen and
  Hermes chat templates; a call stands between <tool_call> and </tool_call>, its result between <tool_response> and
  </tool_response>. So chat templates need no tool support.
- They run in the sandbox, because a model, this node's or a peer's, chooses their arguments. There they have the
  standard library and the named modules, no network, and `random` seeded by the question: every node gives the same
  answers to the same turns.
- As in TRL, a tool's exception is shown to the model, a turn without a call ends the rollout, and `get_reward` counts
  beside the reward functions with weight 1.

`ToolEpisode` is one rollout, as the trainer's driver of conversations calls it: `reset`, `act` with each text of the
model, `reward`, `close`.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from swarmd.errors import SwarmError
from swarmd.sandbox import Isolation, Limits, Sandbox
from swarmd.sandbox.sandbox import MIB
from swarmd.sandbox.session import SandboxSession
from swarmd.swarms.packages import list_modules
from swarmd.swarms.plan import Message, Question, Score
from swarmd.swarms.rewards import RewardFunctions
from swarmd.swarms.trl_schemas import describe_tools

CODE_BYTES_MAX = 4 * MIB  # of the modules, which are sent to each rollout's sandbox
CALL_S = 30.0  # timeout of a request to the sandbox
LIMITS = Limits(cpu_s=30, output_bytes=MIB)  # for a whole rollout
CALLS_MAX = 16  # in one turn; further ones are dropped
PROGRAM = Path(__file__).with_name("trl_program.py")

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_INTRODUCTION = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{schemas}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML "
    'tags:\n<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


class ToolBox:
    """The tools or the environment of a swarm, its reward functions, and their sandbox.

    Args:
        tools: import paths of functions.
        environment: import path of a class; empty: none.
        rewards: import paths of the reward functions. Those that take `environments` run beside the environment.
        weights: of reward functions, by path.
        make_functions: makes a process for the other reward functions.
        home: the node's data directory.

    Raises:
        SwarmError: they cannot be imported or described, or nothing gives a reward.
        SandboxUnavailable: this machine cannot confine programs.
    """

    def __init__(
        self,
        tools: Sequence[str],
        environment: str,
        rewards: Mapping[str, float],
        make_functions: Callable[[Sequence[str], Sequence[float]], RewardFunctions],
        home: Path,
        isolation: Isolation = "auto",
    ) -> None:
        described = describe_tools(tools, environment, list(rewards), home)
        if not rewards and not described.has_reward:
            raise SwarmError(
                "nothing gives a reward: swarm.options.reward_funcs is empty, and there is no environment's get_reward",
                "Add one of them",
            )
        self.schemas = described.schemas
        outside = [path for path in rewards if path not in described.rewards]
        self.functions = make_functions(outside, [rewards[path] for path in outside]) if outside else None
        self.has_environment = bool(environment)
        self.weights = {path: rewards[path] for path in described.rewards}
        modules = list_modules([*tools, *([environment] if environment else []), *described.rewards])
        self.request = {
            "code": base64.b64encode(pack_modules(modules, home)).decode(),
            "tools": list(tools),
            "environment": environment,
            "rewards": list(described.rewards),
        }
        self.sandbox = Sandbox(LIMITS, isolation)

    def begin_stage(self, is_cancelled: Callable[[], bool]) -> None:
        self.sandbox.stop_when(is_cancelled)
        if self.functions is not None:
            self.functions.begin_stage(is_cancelled)

    def introduce(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Add the tools' descriptions to the system message."""
        schemas = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in self.schemas)
        told = _INTRODUCTION.format(schemas=schemas)
        if messages[0].role == "system":
            return (Message("system", f"{messages[0].content}\n\n{told}", trusted=True), *messages[1:])
        return (Message("system", told, trusted=True), *messages)


class ToolEpisode:
    """One rollout. Methods raise SwarmdError if the environment fails or exceeds its limits.

    Args:
        messages: the question's, without tools.
        columns: of the question's row, for `reset` and reward functions.
        seed: of `random` in the sandbox.
    """

    def __init__(self, box: ToolBox, messages: Sequence[Message], columns: Mapping[str, Any], seed: str) -> None:
        self._box, self._messages, self._columns, self._seed = box, messages, dict(columns), seed
        self._prompt: Sequence[Message] = messages  # including the first observation
        self._session: SandboxSession | None = None
        self._transcript: list[dict[str, Any]] = []  # the completion, as TRL passes it to reward functions

    def reset(self, question: Question | None = None) -> list[Message]:
        """The rollout's first messages: with the tools, and the environment's first observation."""
        self.close()
        self._transcript = []
        self._session = self._box.sandbox.open(PROGRAM.read_text(encoding="utf-8"))
        self._ask("begin", **self._box.request, seed=self._seed)
        observation = self._ask("reset", columns=self._columns) if self._box.has_environment else None
        *before, last = self._messages
        self._prompt = (*before, Message(last.role, last.content + (observation or ""), last.trusted))
        return list(self._box.introduce(self._prompt))

    def act(self, text: str) -> str | None:
        """Run the tool calls in a turn. Returns their results; None if there are none, which ends the rollout."""
        content, calls = parse_tool_calls(text)
        turn: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            turn["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        self._transcript.append(turn)
        if not calls:
            return None
        results = self._ask("call", calls=calls)
        for call, result in zip(calls, results, strict=True):
            self._transcript.append({"role": "tool", "name": call["name"], "content": result})
        return "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)

    def reward(self) -> Score:
        """The rollout's score: a weighted sum, as in TRL; failed if no reward applies."""
        prompt = [{"role": message.role, "content": message.content} for message in self._prompt]
        columns = {name: [value] for name, value in self._columns.items() if name not in ("prompt", "completion")}
        given = {"prompts": [prompt], "completions": [self._transcript], **columns}
        values = {name: value for name, value in self._ask("reward", given=given).items() if value is not None}
        weights = dict(self._box.weights)
        if functions := self._box.functions:
            values |= functions.score_completions(prompt, [self._transcript], self._columns)[0]
            weights |= functions.weights
        parts = {name.rpartition(":")[2]: weights.get(name, 1.0) * value for name, value in values.items()}
        total = sum(parts.values())
        if not parts or not math.isfinite(total):
            return Score(0.0, failed=True)
        accuracy = min(max(next(iter(values.values())), 0.0), 1.0)
        plain = {name.rpartition(":")[2]: value for name, value in values.items()}
        return Score(total, accuracy, 1.0, parts, values=plain, answered=None)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _ask(self, name: str, **arguments: Any) -> Any:
        assert self._session is not None
        answer = json.loads(self._session.ask(json.dumps([name, arguments]), CALL_S))
        if "error" in answer:
            raise SwarmError(f"the environment failed at {name}: {answer['error']}", "Correct it: docs/FROM-TRL.md")
        return answer["value"]


def parse_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Split a turn into its text without calls, and the calls, each with `name` and `arguments`.

    As in TRL, a turn with a malformed call has no calls.
    """
    calls = []
    for written in _CALL.findall(text)[:CALLS_MAX]:
        try:
            call = json.loads(written)
        except (ValueError, RecursionError):
            return text, []
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return text, []
        arguments = call.get("arguments")
        if arguments is not None and not isinstance(arguments, dict):
            return text, []
        calls.append({"name": call["name"], "arguments": arguments or {}})
    return _CALL.sub("", text).strip(), calls


def pack_modules(modules: Sequence[str], home: Path) -> bytes:
    """A zip file with the sources of modules, which may be packages. Raises SwarmError if one is missing or too
    large."""
    packed = io.BytesIO()
    size = 0
    with zipfile.ZipFile(packed, "w") as archive:
        for module in modules:
            spec = PathFinder.find_spec(module, [*sys.path, str(home.resolve())])
            if spec is None or not spec.origin or not spec.origin.endswith(".py"):
                raise SwarmError(f"there is no source of the module {module}", "Write it in Python")
            origin = Path(spec.origin)
            root = origin.parent if spec.submodule_search_locations else origin
            for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
                size += file.stat().st_size
                if size > CODE_BYTES_MAX:
                    raise SwarmError(
                        f"the module {module} has more than {CODE_BYTES_MAX} bytes of source",
                        "Put tools and environments into a module of their own",
                    )
                archive.writestr(zipfile.ZipInfo(file.relative_to(root.parent).as_posix()), file.read_bytes())
    return packed.getvalue()
