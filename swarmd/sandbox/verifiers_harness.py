"""Serves a taskset of verifiers 0.4: runs as a script under the interpreter of the environment it is installed in.

- One process serves all rollouts: verifiers' own `Env`, `Agent` and `Rollout` run unchanged, but where they would start
  a harness program, a tool server or a proxy, this process does the work itself.
- A rollout is a task of the event loop. When an agent calls the model, it waits until the other end of the pipe
  supplies the model's text. Tools run in threads, so that one that hangs blocks only its own rollout.
- The starting process confines it. It sets itself limits that its modules cannot raise.

Standard input and output carry JSON, one message a line. Arguments: the taskset's name, its configuration as JSON, the
most tasks to offer, and the most bytes of address space. Its first output line describes tasks and versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib.metadata
import inspect
import itertools
import json
import logging
import os
import re
import resource
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import verifiers.v1 as vf
from pydantic import create_model
from verifiers.v1 import graph, rollout
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.interception import Interception
from verifiers.v1.mcp import server as tool_servers
from verifiers.v1.types import content_text
from verifiers.v1.utils import loaders
from verifiers.v1.utils.decorators import discover_decorated

FILES_OPEN, FILE_BYTES = 256, 64 * 1024 * 1024
REASON_CHARACTERS_MAX = 300
TOOLS_AT_ONCE = 64  # concurrent tool threads, hanging ones included
TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
TOOLS = (
    "You can call these functions. Each line is one of them, as JSON:\n{tools}\n"
    'To call one, write <tool_call>{{"name": "its name", "arguments": {{...}}}}</tool_call> and end there. '
    "The result comes between <tool_response> and </tool_response>."
)

Shown = dict[str, str]  # a message: role and content


class RolloutEnded(Exception):
    """An error that ends a rollout."""


class Episode:
    """One rollout: an episode of the environment, as a conversation with one agent."""

    def __init__(self, env: Any, task: Any, context: Any) -> None:
        self._env = env
        self._task = task
        self._context = context
        self._messages: list[Shown] = []  # what the model has seen or written
        # The model's next text; None: it writes no more.
        self._text: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._asked: asyncio.Future[list[Shown] | None] = asyncio.get_running_loop().create_future()
        self._has_ended = False  # the model writes no more
        self.episode: Any = None  # verifiers' own record, once the episode is over
        self.running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        EPISODE.set(self)
        try:
            self.episode = await self._env.run_episode(self._task, self._context)
        finally:
            if not self._asked.done():
                self._asked.set_result(None)

    async def wait(self) -> list[Shown] | None:
        """The next messages for the model; None if the rollout is over. Raises RolloutEnded if it failed."""
        shown = await asyncio.shield(self._asked)
        if shown is None:
            await asyncio.wait([self.running])
            if self.running.cancelled() or self.running.exception():
                raise RolloutEnded("it was closed" if self.running.cancelled() else str(self.running.exception()))
            errors = [*self.episode.errors, *(error for trace in self.episode.traces for error in trace.errors)]
            if errors:
                raise RolloutEnded(f"{errors[0].type}: {errors[0].message}")
        return shown

    async def give(self, text: str | None) -> list[Shown] | None:
        """Pass the model's text to the waiting agent. Returns the same as `wait`."""
        self._asked = asyncio.get_running_loop().create_future()
        self._text.set_result(text)
        return await self.wait()

    async def end(self) -> None:
        """Tell the waiting agent that the model writes no more, and wait for the episode's end."""
        if not self._text.done():
            await self.give(None)
        await asyncio.wait([self.running])

    async def ask(self, messages: list[Shown]) -> str | None:
        """Return the model's next text. Raises RolloutEnded if the messages do not continue the conversation."""
        known = len(self._messages)
        if messages[:known] != self._messages:
            raise RolloutEnded("a second conversation began: one agent in one conversation can be trained")
        if self._has_ended:
            return None
        self._text = asyncio.get_running_loop().create_future()
        self._asked.set_result(messages[known:])
        text = await self._text
        if text is None:
            self._has_ended = True
            return None
        self._messages = [*messages, {"role": "assistant", "content": text}]
        return text

    def read_reward(self) -> dict[str, Any]:
        """The sum of the rewards, and each by name."""
        parts: dict[str, float] = {}
        for trace in self.episode.traces:
            for name, reward in trace.rewards.items():
                if reward is None:
                    raise RolloutEnded(f"the reward {name} was not computed")
                parts[name] = parts.get(name, 0.0) + float(reward.value)
        return {"reward": sum(parts.values()), "parts": parts}


EPISODE: contextvars.ContextVar[Episode] = contextvars.ContextVar("episode")


class Sessions(Interception):  # type: ignore[misc]
    """Replaces verifiers' proxy for the model: finds the session of each running rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.by_secret: dict[str, Any] = {}

    async def start(self) -> None:
        """Start nothing: there is no proxy."""

    @contextlib.asynccontextmanager
    async def acquire(self, session: Any) -> AsyncIterator[tuple[str, str, str]]:
        secret = session.trace.id
        self.by_secret[secret] = session
        try:
            yield "in-process:", secret, secret
        finally:
            del self.by_secret[secret]


SESSIONS = Sessions()


class RolloutTools:
    """The tools of one rollout, in place of verifiers' tool servers."""

    def __init__(self, servers: Iterable[Any]) -> None:
        self.servers = list(servers)
        self._functions: dict[str, Callable[..., Any]] = {}
        for server in self.servers:
            prefix = f"{server.server_name}_" if server.server_name else ""
            for function in discover_decorated(server, "tool"):
                self._functions[prefix + (getattr(function, "tool_name", None) or function.__name__)] = function
        self.described = [describe_tool(name, function) for name, function in self._functions.items()]

    async def call(self, state: Any, call: Any) -> str:
        """Call a tool. Returns its result, or its error, as shown to the model. Synchronous functions run in threads,
        so that one that hangs blocks only its own rollout."""
        function = self._functions.get(call.name)
        if function is None:
            return f"Error: there is no function {call.name!r}"
        token = tool_servers._call_state.set(state)
        try:
            arguments = json.loads(call.arguments)
            if inspect.iscoroutinefunction(function):
                result = await function(**arguments)
            else:
                result = await asyncio.to_thread(function, **arguments)
        except Exception as error:  # tools may raise anything
            return f"Error: {type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
        finally:
            tool_servers._call_state.reset(token)
        return result if isinstance(result, str) else json.dumps(result, default=str)


SHARED: list[Any] = []  # tool servers shared by the whole taskset
TOOLS_OF: dict[str, RolloutTools] = {}  # by trace id


@contextlib.asynccontextmanager
async def serve_tools(own: Sequence[Any], runtime: Any, *, state_route: str, **_: Any) -> AsyncIterator[dict[str, str]]:
    """Replaces verifiers' function of this name, which starts a server for each tool."""
    for server in own:
        await server.setup()
    TOOLS_OF[state_route] = RolloutTools([*SHARED, *own])
    try:
        yield {}
    finally:
        del TOOLS_OF[state_route]


class ModelLoop(vf.Harness):  # type: ignore[misc]
    """Replaces every harness: passes an agent's conversation to the model, and runs the tools that it calls."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = SUPPORTS_RESUME = SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        """See `Harness.launch`: run turns of the model until one calls no tool or the rollout must stop."""
        session, tools = SESSIONS.by_secret[secret], TOOLS_OF[trace.id]
        for server in tools.servers:
            if server not in SHARED:
                await server.setup_task(data)
        system, prompt = self.resolve_prompt(data)
        messages = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or [])
        if system is not None:
            messages.insert(0, vf.SystemMessage(content=system))
        while True:
            message = await take_turn(session, messages, tools.described)
            if message is None or not message.tool_calls:
                return vf.ProgramResult(exit_code=0, stdout="", stderr="")
            messages.append(message)
            for call in message.tool_calls:
                messages.append(await run_tool(session, tools, call))


async def take_turn(session: Any, messages: list[Any], tools: list[Any]) -> Any:
    """The model's next message, in the form of verifiers' proxy; None if the rollout must stop."""
    if await session.refused():
        return None
    request, rewrites, stopped = await session.rewrite_request(vf.Request(messages=messages, tools=tools or None))
    session.trace.request_rewrites.extend(rewrites)
    messages[:] = request.messages
    turn = graph.prepare_turn(session.trace, messages, tools)
    if stopped is not None:
        turn.commit_prompt()
        session.trace.stop(stopped)
        return None
    text = await EPISODE.get().ask(render_messages(messages, tools))
    if text is None:
        turn.abandon()
        session.trace.stop("max_total_tokens")
        return None
    message = vf.AssistantMessage(content=text, tool_calls=read_tool_calls(text, len(messages)) or None)
    reason = "tool_calls" if message.tool_calls else "stop"
    response = vf.Response(id=str(len(messages)), created=0, model="policy", message=message, finish_reason=reason)
    response, rewrites, stopped = await session.rewrite_response(response)
    session.trace.response_rewrites.extend(rewrites)
    node = turn.commit(response)
    session.consume_prepared(turn.tail)
    stopped = stopped or await session.gate_tool_calls(node)
    if stopped is not None:
        session.trace.stop(stopped)
        return None
    return response.message


async def run_tool(session: Any, tools: RolloutTools, call: Any) -> Any:
    """The message with a tool call's result, or an interceptor's replacement."""
    verdict = await session.decide_tool(call.id, call.name) if session.request_interceptors else {}
    if verdict.get("action") == "deny":
        return vf.ToolMessage.model_validate(verdict["message"])
    content = await tools.call(session.trace.state, call)
    return vf.ToolMessage(tool_call_id=call.id, content=content, name=call.name)


def describe_tool(name: str, function: Callable[..., Any]) -> Any:
    """A tool's name, description and parameters, as JSON Schema."""
    parameters = inspect.signature(function, eval_str=True).parameters
    fields: dict[str, Any] = {
        each.name: (
            str if each.annotation is each.empty else each.annotation,
            ... if each.default is each.empty else each.default,
        )
        for each in parameters.values()
    }
    schema = create_model(name, **fields).model_json_schema()
    return vf.Tool(name=name, description=(function.__doc__ or "").strip(), parameters=schema)


def read_tool_calls(text: str, number: int) -> list[Any]:
    """Parse tool calls from the model's text. Invalid JSON calls nothing."""
    calls: list[Any] = []
    for match in TOOL_CALL.finditer(text):
        try:
            asked = json.loads(match[1])
            name, arguments = str(asked["name"]), json.dumps(asked.get("arguments") or {})
        except (ValueError, KeyError, TypeError):
            continue
        calls.append(vf.ToolCall(id=f"call-{number}-{len(calls)}", name=name, arguments=arguments))
    return calls


def render_messages(messages: Sequence[Any], tools: Sequence[Any]) -> list[Shown]:
    """Flatten messages for a chat template without support for tools."""
    shown: list[Shown] = []
    for message in messages:
        text = message.content if isinstance(message.content, str) else content_text(message.content)
        if message.role == "tool":
            shown.append({"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"})
        else:
            shown.append({"role": message.role, "content": text or ""})
    if tools:
        listed = "\n".join(json.dumps(tool.model_dump(include={"name", "description", "parameters"})) for tool in tools)
        words = TOOLS.format(tools=listed)
        if shown and shown[0]["role"] == "system":
            shown[0]["content"] += f"\n\n{words}"
        else:
            shown.insert(0, {"role": "system", "content": words})
    return shown


class Server:
    """Serves the requests of the other end of the pipe.

    Raises whatever a taskset raises when it is loaded.
    """

    def __init__(self, taskset: str, config: dict[str, Any], tasks_max: int, output: Any) -> None:
        roles = agent_config_fields(loaders.env_config_type(taskset)())
        seats = {name: {"runtime": {"type": "subprocess"}, "network_notice": False} for name in roles}
        settings = {"taskset": {**config, "id": taskset}, **seats}
        self._env = loaders.load_environment(loaders.resolve_env_config(settings))
        self._env._interception = SESSIONS
        self._context = vf.ModelContext(model="policy", client=vf.EvalClientConfig(base_url="http://localhost"))
        self._output, self._writing = output, threading.Lock()
        self._episodes: dict[int, Episode] = {}
        self._tasks: dict[str, Any] = {}
        for task in itertools.islice(iter(self._env.taskset), tasks_max):
            self._tasks.setdefault(task.key, task)
        origin = loaders.import_taskset(taskset).__name__
        self._hello = {
            "tasks": list(self._tasks),
            "agents": list(roles),
            "versions": {name: find_version(name) for name in ("verifiers", origin)},
        }

    async def start(self) -> None:
        """Start what all rollouts share, and send the first line."""
        SHARED.extend(self._env.taskset.toolsets(self._env.taskset.config))
        for server in SHARED:
            await server.setup()
        await self._env.start()
        self.write(self._hello)

    def write(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._writing:
            self._output.write(line)
            self._output.flush()

    async def answer(self, request: dict[str, Any]) -> None:
        """Handle a request, and write the result."""
        try:
            result = await self._do(request)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # tasksets may raise anything
            told = str(error) if isinstance(error, RolloutEnded) else f"{type(error).__name__}: {error}"
            if not isinstance(error, RolloutEnded):
                traceback.print_exc()
            self.write({"id": request["id"], "error": told[:REASON_CHARACTERS_MAX]})
        else:
            self.write({"id": request["id"], "result": result})

    async def _do(self, request: dict[str, Any]) -> Any:
        what, number = str(request["do"]), int(request["rollout"])
        if what == "open":
            self._episodes[number] = Episode(self._env, self._tasks[request["key"]], self._context)
            shown = await self._episodes[number].wait()
            if shown is None:
                raise RolloutEnded("the environment ended before the model wrote anything")
            return shown
        if what == "act":
            shown = await self._episodes[number].give(request["text"])
            return None if shown is None else "\n".join(message["content"] for message in shown)
        if what == "reward":
            episode = self._episodes[number]
            await episode.end()
            return episode.read_reward()
        if number in self._episodes:
            self._episodes.pop(number).running.cancel()
        return None


def find_version(module: str) -> str:
    """The version of the distribution that contains a module; empty if none does."""
    name = module.partition(".")[0]
    owners = importlib.metadata.packages_distributions().get(name, [name])
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(owners[0])
    return ""


async def serve(server: Server) -> None:
    """Answer requests until the other end closes."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(TOOLS_AT_ONCE))
    running: set[asyncio.Task[None]] = set()
    requests: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(requests.put_nowait, line)
        os._exit(0)  # exit at once, even if something still runs

    await server.start()
    threading.Thread(target=read, daemon=True).start()
    while True:
        task = asyncio.create_task(server.answer(json.loads(await requests.get())))
        running.add(task)
        task.add_done_callback(running.discard)


def limit_resources(memory_bytes: int) -> None:
    limits = {"AS": memory_bytes, "FSIZE": FILE_BYTES, "NOFILE": FILES_OPEN, "CORE": 0}
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def main() -> None:
    taskset, config, tasks_max, memory_bytes = sys.argv[1:]
    limit_resources(int(memory_bytes))
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what tasksets print goes to the log
    logging.disable(logging.WARNING)
    rollout.serve_tools = serve_tools
    loaders.load_harness = ModelLoop
    try:
        server = Server(taskset, json.loads(config), int(tasks_max), output)
    except BaseException as error:
        traceback.print_exc()
        output.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]}).encode() + b"\n")
        output.flush()
        os._exit(1)
    asyncio.run(serve(server))


if __name__ == "__main__":
    main()
