"""Reward functions of this node's own, in a process of their own: `python -m swarmd.swarms.reward_process DESCRIPTOR`.

- They run in its main thread, where libraries expect to be: Math-Verify sets an alarm, which no other thread may.
- A call has a time limit. One that takes longer, or ends the process, fails; the next call begins a new process.
- What they print goes to the trainer's standard error and so into the node's log, with the tracebacks of failures.

The two ends speak over a pipe: the modules to import, then for each call the function's name and its arguments.
"""

import ast
import asyncio
import difflib
import importlib
import inspect
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from swarmd.errors import FOREIGN_ERRORS, SwarmError
from swarmd.installed import install_command

IMPORT_S = 300.0  # for all of the functions' modules
CALL_S = 120.0  # of one call, for all completions to one question
POLL_S = 0.2  # how often it is asked whether the stage was cancelled
REASON_CHARACTERS_MAX = 2000  # of an error
TRACEBACKS_MAX = 16  # in the log, of one process
NO_REWARDS = (str, bytes, Mapping, Set)  # iterables, but not of what a function means to give

MODULE = "swarmd.swarms.reward_process"

RewardFunction = Callable[..., Any]

_OF_THE_TRAINER = ("trainer_state", "log_extra", "log_metric")  # arguments that TRL gives besides the columns

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class RewardFailed(Exception):
    """A call of a reward function gave no rewards; its text says why, in the function's own words."""


class RewardProcess:
    """The functions, as the trainer sees them. Safe to use from several threads, which take turns.

    Args:
        paths: as `package.module:function`.
        home: the node's data directory: modules in it are found as well, behind those that Python finds by itself.

    Raises:
        SwarmError: a path has another form, its module cannot be imported, or has no such function.
    """

    def __init__(self, paths: Sequence[str], home: Path) -> None:
        self._paths, self._home = tuple(paths), str(home.resolve())
        self._lock = threading.Lock()
        self.is_cancelled: Callable[[], bool] = lambda: False
        self._start_process()

    def stop_when(self, is_cancelled: Callable[[], bool]) -> None:
        """From now on give calls up as soon as this is true."""
        self.is_cancelled = is_cancelled

    def call_function(self, path: str, given: Mapping[str, Any], count: int) -> list[float | None]:
        """What a function gives for `count` completions. Raises RewardFailed."""
        with self._lock:
            if self._process.poll() is not None:
                self._end()
                try:
                    self._start_process()
                except SwarmError as error:
                    raise RewardFailed(str(error)) from error
            values, failure = self._request_answer((path, dict(given), count), CALL_S)
        if failure:
            raise RewardFailed(failure)
        return values  # type: ignore[no-any-return]

    def _start_process(self) -> None:
        ours, theirs = Pipe()
        command = [sys.executable, "-u", "-m", MODULE, str(theirs.fileno())]
        # The trainer's standard output is its pipe to the daemon.
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()])
        theirs.close()
        self._connection = ours
        self._end = weakref.finalize(self, _end_process, self._process, ours)
        try:
            fault = self._request_answer(([*sys.path, self._home], self._paths), IMPORT_S)
        except RewardFailed as error:
            raise SwarmError(
                f"swarm.options.reward_funcs cannot be imported: {error}",
                "Let its module load quickly, and start no program when it is imported",
            ) from error
        if fault is not None:
            self._end()
            raise SwarmError(*fault)

    def _request_answer(self, question: Any, limit_s: float) -> Any:
        """The answer of the process, which is ended if none comes. Raises RewardFailed."""
        due = time.monotonic() + limit_s
        try:
            self._connection.send(question)
            while not self._connection.poll(POLL_S):
                if time.monotonic() >= due or self.is_cancelled():
                    self._end()
                    raise RewardFailed(f"it took longer than {limit_s:g} s")
            return self._connection.recv()
        except (EOFError, OSError) as error:
            self._end()
            raise RewardFailed(f"its process ended with code {self._process.returncode}") from error


def _end_process(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(POLL_S)  # one whose pipe is closed ends by itself, unless it is in a call
    process.kill()
    process.wait()


def check_function_path(path: str) -> str:
    """The key and path, for errors. Raises SwarmError if it is not an import path of a function."""
    key = f"swarm.options.reward_funcs: {path!r}"
    module, _, name = path.partition(":")
    if module.endswith(".py") or not _PATH.fullmatch(path):
        if module.endswith(".py"):
            module, name = module.removesuffix(".py"), name or "function"
        elif not name:
            module, _, name = module.rpartition(".")
        fix = f"{module}:{name}" if _PATH.fullmatch(f"{module}:{name}") else "package.module:function"
        raise SwarmError(f"{key} is not an import path of a function", f'Write it as "{fix}"')
    return key


def check_source(path: str, home: Path, columns: Iterable[str] | None = None, is_reward: bool = True) -> None:
    """Check what can be told of a function without running its module, which may need what is not installed yet.

    Args:
        path: the import path.
        home: modules below it are read.
        columns: what the function is given besides what every function is; None if that is not known.
        is_reward: it is called as reward functions are; else it may be a class, or take anything.

    Raises:
        SwarmError: the path has another form, or a module below `home` has no such function, or one that cannot be
            called as it will be.
    """
    key = check_function_path(path)
    module, _, name = path.partition(":")
    file = home / f"{module.replace('.', '/')}.py"
    if not file.is_file():
        return
    try:
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError) as error:
        raise SwarmError(f"{key}: {file} cannot be read as Python: {error}", f"Correct {file.name}") from error
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if is_reward and any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        raise _not_a_function(key)
    if not re.search(rf"\b{name}\b|\bimport \*", source):
        near = difflib.get_close_matches(name, defined, n=1)
        fix = f"Did you mean {module}:{near[0]}?" if near else f"It has: {', '.join(defined) or 'no function'}"
        raise SwarmError(f"{key}: {file} has no function {name!r}", fix)
    if is_reward and name in defined and not defined[name].decorator_list:
        _check_signature(f"{key} ({file.name}, line {defined[name].lineno})", defined[name].args, columns)


def _check_signature(which: str, takes: ast.arguments, columns: Iterable[str] | None) -> None:
    """Raise SwarmError for a function that cannot be called as it will be: by name, with more than most need."""
    names = {each.arg for each in (*takes.args, *takes.kwonlyargs)}
    optional = {each.arg for each in takes.args[len(takes.args) - len(takes.defaults) :]}
    optional |= {each.arg for each, default in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if default}
    given = {"prompts", "completions", "completion_ids", *_OF_THE_TRAINER, *(columns or ())}
    fix = "Write it as `def reward(completions, answer, **kwargs)`: columns come by name, and what is left in kwargs"
    if not takes.kwarg and given - names:
        raise SwarmError(f"{which} does not take {', '.join(sorted(given - names))}, which it is given", fix)
    if columns is not None and (lacking := sorted(names - optional - given)):
        raise SwarmError(f"{which} asks for {', '.join(lacking)}, and is given {', '.join(sorted(given))}", fix)


def _not_a_function(key: str) -> SwarmError:
    return SwarmError(f"{key} is not a function", "Name a function; models as rewards are not supported")


def load_reward_function(path: str) -> RewardFunction:
    """The function under `package.module:function`. Raises SwarmError: another form, no module, or no function."""
    key = check_function_path(path)
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except FOREIGN_ERRORS as error:  # whatever somebody's module does
        traceback.print_exc()
        fix = f"Correct {module}, or name another function in it"
        if isinstance(error, ModuleNotFoundError) and module.startswith(error.name or module):
            file = module.replace(".", "/") + ".py"
            fix = f"Put {file} into {sys.path[-1]}, install it beside swarmd, or set PYTHONPATH"
        elif isinstance(error, ModuleNotFoundError):
            fix = f"Install {error.name} beside swarmd: {install_command(error.name or '')}"
        raise SwarmError(f"{key} cannot be imported: {type(error).__name__}: {error}", fix) from error
    if not callable(found) or inspect.isclass(found):
        raise _not_a_function(key)
    return found  # type: ignore[no-any-return]


_RETURN = "It has to return a list with a number, or None, for each completion"


def _call_function(function: RewardFunction, given: Mapping[str, Any], count: int) -> list[float | None]:
    """What a function gives. Raises whatever it raises, or TypeError or ValueError if it gives other than rewards."""
    answer = function(**given, trainer_state=None, log_extra=_ignore_log_call, log_metric=_ignore_log_call)
    if inspect.iscoroutine(answer):
        answer = asyncio.run(answer)
    if isinstance(answer, NO_REWARDS) or not isinstance(answer, Iterable):
        raise TypeError(f"it returned {answer!r:.100}, a {type(answer).__name__}. {_RETURN}")
    returned = list(islice(answer, count + 1))
    try:
        values = [None if value is None else float(value) for value in returned]
    except (TypeError, ValueError) as error:
        raise TypeError(f"it returned {returned!r:.100}: {error}. {_RETURN}") from error
    if len(values) != count:
        size = f"longer than {count}" if len(values) > count else f"of length {len(values)}"
        raise ValueError(f"it returned a list {size} for {count} completions. {_RETURN}")
    return values


def _ignore_log_call(*_: Any, **__: Any) -> None:
    """Stand in for TRL's `log_extra` and `log_metric`."""


def _describe_error(error: BaseException) -> str:
    """What a function raised, and where in its own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX] + where


def serve_calls(connection: Connection) -> None:
    """Import what the other end names, then answer its calls until it has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the trainer as well, which ends this process
    sys.path[:], paths = connection.recv()
    try:
        functions = {path: load_reward_function(path) for path in paths}
    except SwarmError as error:
        connection.send((error.message, error.fix))
        return
    connection.send(None)
    printed: set[str] = set()  # failures, each once
    while True:
        path, given, count = connection.recv()
        values: list[float | None] = []
        failure = ""
        try:
            values = _call_function(functions[path], given, count)
        except FOREIGN_ERRORS as error:  # whatever somebody's function does
            failure = _describe_error(error)
            if failure not in printed and len(printed) < TRACEBACKS_MAX:
                printed.add(failure)
                traceback.print_exc()
        connection.send((values, failure))


if __name__ == "__main__":
    with suppress(EOFError, BrokenPipeError):
        serve_calls(Connection(int(sys.argv[1])))
