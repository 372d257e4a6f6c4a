"""Trackers: per-step training metrics for TensorBoard, Weights & Biases and trackio.

- transformers' own integrations write them, so TRL's metrics have their usual names, below `train/`.
- All write below the data directory; none uses the network unless the operator's environment enables it.
- A tracker runs in a thread. One that fails or takes too long is disabled, with one warning, until the trainer
  restarts, and training continues.
- Steps are optimiser steps since the node's first start, so that curves continue after a restart. Before a stage is
  trained again, the metrics of its steps are removed (`rewind`).
"""

import importlib.util
import math
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from swarmd.animals import animal_name
from swarmd.config import Config
from swarmd.errors import ConfigError, SwarmdError
from swarmd.installed import extra_command, install_command
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory

PROJECT = "swarmd"
FILE_BYTES_MAX = 8 * 1024 * 1024  # of one TensorBoard event file before the next begins
FILES_MAX = 512  # event files kept
TENSORBOARD_BYTES_MAX = 128 * 1024 * 1024  # total of event files kept; the oldest are removed first
RUNS_MAX = 32  # directories of wandb runs kept
TRACKIO_BYTES_MAX = 256 * 1024 * 1024  # of trackio's database; then it gets no more metrics
SIZE_CHECK_LOGS = 100  # between two checks of a file's size
MAKE_S = 40.0  # timeout of a tracker's start: wandb's server, if used, may not answer
TELL_S = 10.0  # timeout for metrics: normally only local disks are involved
CLOSE_S = 10.0  # timeout for flushing

T = TypeVar("T")
log = get_logger(__name__)


class Tracker:
    """Wraps one of transformers' integrations. If a method raises, `Trackers` disables the tracker."""

    _arguments = SimpleNamespace(to_dict=dict, run_name=None)  # reveals none of the trainer's arguments

    def __init__(self, callback: Any) -> None:
        self._callback = callback

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the metrics of an optimiser step, by name."""
        from transformers import TrainerState

        self._callback.on_log(self._arguments, TrainerState(global_step=step), None, logs=figures)

    def rewind(self, step: int) -> None:
        """Remove the metrics of steps after `step`, which will be trained again."""

    def close(self) -> None:
        from transformers import TrainerState

        self._callback.on_train_end(self._arguments, TrainerState(), None)


def make_callback(name: str, *arguments: Any) -> Any:
    from transformers.integrations import integration_utils

    make: Callable[..., Any] = integration_utils.INTEGRATION_TO_CALLBACK[name]
    return make(*arguments)


class TensorBoard(Tracker):
    """Event files beside those of earlier processes, whose steps after `step` are purged."""

    def __init__(self, directory: Path, step: int) -> None:
        self._directory = directory
        self._logs = 0
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(self._open_writer(step))

    def _open_writer(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        prune(event_files(self._directory), FILES_MAX, TENSORBOARD_BYTES_MAX)
        writer: Callable[..., Any] = SummaryWriter
        opened = writer(str(self._directory), purge_step=step + 1, max_queue=100, flush_secs=30)
        return make_callback("tensorboard", opened)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        super().log(step, figures)
        self._logs += 1
        if self._logs % SIZE_CHECK_LOGS == 0 and event_files(self._directory)[-1].stat().st_size > FILE_BYTES_MAX:
            self.rewind(step)  # there are no later steps; this only starts a new file

    def rewind(self, step: int) -> None:
        self.close()
        self._callback = self._open_writer(step)


class Wandb(Tracker):
    """A run of Weights & Biases, in `wandb` below the directory; `wandb sync` uploads it later.

    Offline, unless WANDB_MODE says otherwise. Each process has its own run, in one group. Runs cannot remove metrics: a
    stage that was trained again appears twice.
    """

    def __init__(self, directory: Path, run: str, group: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        prune(oldest_first(directory / "wandb", "*run-*"), RUNS_MAX - 1)
        os.environ |= {"WANDB_LOG_MODEL": "false", "WANDB_WATCH": "false"}  # the callback gets no model
        import wandb

        self._run: Any = wandb.init(
            project=PROJECT,
            name=run,
            group=group,
            dir=str(directory),
            mode=os.environ.get("WANDB_MODE", "offline"),
            save_code=False,
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, x_disable_meta=True, x_disable_stats=True
            ),
        )
        super().__init__(make_callback("wandb"))

    def close(self) -> None:
        self._run.finish()


class Trackio(Tracker):
    """A run in trackio's local database, continued after a restart; a stage that is trained again appears twice."""

    def __init__(self, directory: Path, run: str, group: str) -> None:
        self._directory = directory
        self._logs = 0
        directory.mkdir(parents=True, exist_ok=True)
        os.environ["TRACKIO_DIR"] = str(directory)  # read by trackio on import
        import trackio

        trackio.init(
            project=PROJECT, name=run, group=group, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
        )
        super().__init__(make_callback("trackio"))
        self._callback._initialized = True  # otherwise it starts its own run, with system metrics

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        if self._logs % SIZE_CHECK_LOGS == 0:
            size_bytes = sum(path.stat().st_size for path in self._directory.glob("*.db"))
            if size_bytes > TRACKIO_BYTES_MAX:
                raise SwarmdError(f"its database is full, with {size_bytes} bytes", f"Move {self._directory} away")
        self._logs += 1
        super().log(step, figures)


def event_files(directory: Path) -> list[Path]:
    """TensorBoard's files, oldest first."""
    return oldest_first(directory, "events.out.tfevents.*")


def oldest_first(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.glob(pattern), key=lambda path: (path.lstat().st_mtime, path.name))


def prune(paths: list[Path], count_max: int, bytes_max: float = math.inf) -> None:
    """Remove the first of these files and directories until the rest is within both bounds."""
    kept_bytes = 0
    for place, path in enumerate(reversed(paths)):
        kept_bytes += path.lstat().st_size
        if place < count_max and kept_bytes <= bytes_max:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class Trackers:
    """The configured trackers. One that fails or takes too long is disabled with one warning.

    Starting each may take up to `MAKE_S`.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Tracker]] | None = None) -> None:
        self._trackers: dict[str, tuple[Tracker, Context]] = {}
        for name, make in (makers or {}).items():
            context = copy_context()  # trackio keeps its current run in a context variable
            try:
                self._trackers[name] = run_with_timeout(make, MAKE_S, context), context
            except Exception as error:
                _warn(name, error)

    def log(self, step: int, figures: Mapping[str, float | None]) -> None:
        """Write the metrics of an optimiser step, by name; values that are not finite are dropped."""
        told = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
        self._call_trackers(lambda tracker: tracker.log(step, told), TELL_S)

    def rewind(self, step: int) -> None:
        """Remove the metrics of steps after `step`, which will be trained again."""
        self._call_trackers(lambda tracker: tracker.rewind(step), TELL_S)

    def close(self) -> None:
        """Flush all trackers."""
        self._call_trackers(lambda tracker: tracker.close(), CLOSE_S)
        self._trackers.clear()

    def _call_trackers(self, tell: Callable[[Tracker], None], limit_s: float) -> None:
        for name, (tracker, context) in tuple(self._trackers.items()):
            try:
                run_with_timeout(partial(tell, tracker), limit_s, context)
            except Exception as error:
                del self._trackers[name]
                _warn(name, error)


def run_with_timeout(call: Callable[[], T], limit_s: float, context: Context) -> T:
    """Run a call in its own thread; return its result or raise its error. Raises TimeoutError after `limit_s`."""
    outcome: Future[T] = Future()

    def run_call() -> None:
        try:
            outcome.set_result(context.run(call))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run_call, name="tracker", daemon=True).start()  # does not delay the process's end
    try:
        return outcome.result(limit_s)
    except TimeoutError as error:
        if outcome.done():
            raise
        raise TimeoutError(f"not done within {limit_s:g} s") from error


def _warn(name: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {error}"[:500]
    log.warning("a tracker failed and is given up until the trainer starts again", tracker=name, reason=reason)


def check_trackers(config: Config) -> None:
    """Raise ConfigError if a configured tracker's package is missing. Imports nothing."""
    for name in ("wandb", "trackio"):
        if name in config.results.trackers and not is_installed(name):
            raise ConfigError(
                f"results.trackers names {name}, but the package {name} is not installed",
                f"Install it with `{extra_command(name)}`, or take {name} out of results.trackers",
            )


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def make_trackers(config: Config, paths: NodeDirectory, peer: str, step: int) -> Trackers:
    """Make the configured trackers, which continue after optimiser step `step`.

    Without the tensorboard package, training goes on and the log says once that there are no event files. Raises
    ConfigError if wandb or trackio is configured but not installed.
    """
    check_trackers(config)
    run = config.name or animal_name(peer, "_")
    group = f"{config.swarm.id}-{peer}"
    makers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(paths.results / "tensorboard", step),
        "wandb": lambda: Wandb(paths.results, run, group),
        "trackio": lambda: Trackio(paths.results / "trackio", run, group),
    }
    if "tensorboard" in config.results.trackers and not is_installed("tensorboard"):
        log.info("no event files: the package tensorboard is not installed", fix=install_command("tensorboard"))
        del makers["tensorboard"]
    return Trackers({name: make for name, make in makers.items() if name in config.results.trackers})
