"""Runs a node's reward functions in a separate process: `python -m swarmd.swarms.reward_process DESCRIPTOR`.

- They run in its main thread, as libraries expect: Math-Verify sets an alarm, which other threads cannot.
- A call has a time limit. One that exceeds it, or ends the process, fails; the next call starts a new process.
- Their output, and tracebacks of failures, go to the trainer's standard error and so into the node's log.

The two ends speak over a pipe: first the modules to import, then for each call the function's name and arguments.
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

IMPORT_S = 300.0  # for importing all modules
CALL_S = 120.0  # for one call, with all completions of a question
POLL_S = 0.2  # interval of polling for cancellation
REASON_CHARACTERS_MAX = 2000  # of an error
TRACEBACKS_MAX = 16  # logged by one process
NO_REWARDS = (str, bytes, Mapping, Set)  # iterables that are not lists of rewards

MODULE = "swarmd.swarms.reward_process"

RewardFunction = Callable[..., Any]

_OF_THE_TRAINER = ("trainer_state", "log_extra", "log_metric")  # arguments that TRL passes besides the columns

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class RewardFailed(Exception):
    """A reward function failed; the text says why, in the function's words."""


class RewardProcess:
    """The trainer's side of the reward functions. Thread-safe; calls are serialized.

    Args:
        paths: as `package.module:function`.
        home: the node's data directory, which is added at the end of Python's path.

    Raises:
        SwarmError: a path is malformed, its module cannot be imported, or has no such function.
    """

    def __init__(self, paths: Sequence[str], home: Path) -> None:
        self._paths, self._home = tuple(paths), str(home.resolve())
        self._lock = threading.Lock()
        self.is_cancelled: Callable[[], bool] = lambda: False
        self._start_process()

    def stop_when(self, is_cancelled: Callable[[], bool]) -> None:
        """Abort calls from now on when this becomes true."""
        self.is_cancelled = is_cancelled

    def call_function(self, path: str, given: Mapping[str, Any], count: int) -> list[float | None]:
        """Call a function for `count` completions. Raises RewardFailed."""
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
        # Not to standard output: the trainer's is its pipe to the daemon.
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
        """Send a request and return the answer; the process is killed if none comes. Raises RewardFailed."""
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
        process.wait(POLL_S)  # the closed pipe ends it, unless it is in a call
    process.kill()
    process.wait()


def check_function_path(path: str) -> str:
    """Describe key and path for errors. Raises SwarmError unless it is the import path of a function."""
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
    """Check a function statically, without running its module, whose imports may not be installed yet.

    Args:
        path: the import path.
        home: modules below it are read.
        columns: arguments passed besides the standard ones; None if unknown.
        is_reward: it is called like a reward function; else it may be a class, or take any arguments.

    Raises:
        SwarmError: the path is malformed, or a module below `home` has no such function, or it cannot be called as it
        will be.
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
    """Raise SwarmError for a function that cannot be called as it will be: by keyword, with extra arguments."""
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
    """Import `package.module:function`. Raises SwarmError if the path is malformed, or module or function is
    missing."""
    key = check_function_path(path)
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except FOREIGN_ERRORS as error:  # third-party modules may raise anything
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
    """Call a function. Raises whatever it raises, or TypeError or ValueError if it returns anything but rewards."""
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
    """Describe an exception and where in the function's own code it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX] + where


def serve_calls(connection: Connection) -> None:
    """Import the requested modules, then answer calls until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the trainer, which ends this process
    sys.path[:], paths = connection.recv()
    try:
        functions = {path: load_reward_function(path) for path in paths}
    except SwarmError as error:
        connection.send((error.message, error.fix))
        return
    connection.send(None)
    printed: set[str] = set()  # failures logged already
    while True:
        path, given, count = connection.recv()
        values: list[float | None] = []
        failure = ""
        try:
            values = _call_function(functions[path], given, count)
        except FOREIGN_ERRORS as error:  # third-party functions may raise anything
            failure = _describe_error(error)
            if failure not in printed and len(printed) < TRACEBACKS_MAX:
                printed.add(failure)
                traceback.print_exc()
        connection.send((values, failure))


if __name__ == "__main__":
    with suppress(EOFError, BrokenPipeError):
        serve_calls(Connection(int(sys.argv[1])))
