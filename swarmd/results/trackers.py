"""Trackers: where the figures of training go for people to look at, step by step. All of them write below the data
directory; none asks the network unless the operator's own environment says so.

The step of every figure is the optimiser step of the node's life, so curves go on where they were after a restart. A
stage that is trained again first takes back what was told of its steps (`rewind`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from swarmd.animals import animal_name
from swarmd.config import Config
from swarmd.errors import ConfigError
from swarmd.installed import extra_command, install_command
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory

PROJECT = "swarmd"
FILE_BYTES_MAX = 8 * 1024 * 1024  # of one TensorBoard event file; the next one is begun then
FILES_MAX = 512  # event files kept
TENSORBOARD_BYTES_MAX = 128 * 1024 * 1024  # event files kept, all together; the oldest go first
RUNS_MAX = 32  # directories of wandb runs kept
TRACKIO_BYTES_MAX = 256 * 1024 * 1024  # of trackio's database; then only figures of whole stages are added
STAGE_PREFIX = "stage/"
SIZE_CHECK_LOGS = 100  # between two looks at a file's size
MAKE_S = 40.0  # longest wait for a tracker that begins: wandb's server, say, where it is to be told, may not answer
TELL_S = 10.0  # and for one that takes figures: local disks alone are waited for, unless the environment says otherwise
CLOSE_S = 10.0  # and for one that writes out what it still holds

T = TypeVar("T")
log = get_logger(__name__)


class Tracker(Protocol):
    """One place that takes figures. Any method may raise: `Trackers` gives the tracker up then."""

    name: str

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of an optimiser step, by name."""

    def rewind(self, step: int) -> None:
        """What was told of steps after this one does not count: they come again."""

    def close(self) -> None:
        """Write out what is still held."""


class TensorBoard:
    """Event files in a directory.

    Args:
        directory: of the event files, those of earlier processes among them.
        step: the last optimiser step that counts.
    """

    name = "TensorBoard"

    def __init__(self, directory: Path, step: int) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._logs = 0
        self._open(step)

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        prune_files(self._directory)
        writer: Callable[..., Any] = SummaryWriter
        self._writer = writer(str(self._directory), purge_step=step + 1, max_queue=100, flush_secs=30)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._logs += 1
        if self._logs % SIZE_CHECK_LOGS == 0 and self._file_bytes() > FILE_BYTES_MAX:
            self.rewind(step)  # nothing comes after it yet: a new file, and nothing is taken back

    def _file_bytes(self) -> int:
        files = event_files(self._directory)
        return files[-1].stat().st_size if files else 0

    def rewind(self, step: int) -> None:
        self._writer.close()
        self._open(step)

    def close(self) -> None:
        self._writer.close()


def event_files(directory: Path) -> list[Path]:
    """The event files, oldest first."""
    return sorted(directory.glob("events.out.tfevents.*"), key=lambda path: (path.stat().st_mtime, path.name))


def prune_files(directory: Path, files_max: int = FILES_MAX, bytes_max: int = TENSORBOARD_BYTES_MAX) -> None:
    """Remove the oldest event files beyond either bound."""
    kept_bytes = 0
    for place, path in enumerate(reversed(event_files(directory))):
        kept_bytes += path.stat().st_size
        if place >= files_max or kept_bytes > bytes_max:
            path.unlink(missing_ok=True)


class Wandb:
    """A run of Weights & Biases, in `wandb` below the directory; `wandb sync` sends it later.

    Offline, unless WANDB_MODE says otherwise.
    Every process has a run of its own, in one group. Runs cannot take back what they were told: a stage that was
    trained again stands there twice.
    """

    name = "wandb"

    def __init__(self, directory: Path, run: str, group: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        prune_runs(directory / "wandb")
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
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({"step": step, **figures})

    def rewind(self, step: int) -> None:
        """Not possible; the figures carry their step."""

    def close(self) -> None:
        self._run.finish()


def prune_runs(directory: Path, runs_max: int = RUNS_MAX) -> None:
    """Remove the oldest runs, so that one more makes `runs_max`."""
    runs = sorted(path for path in directory.glob("*run-*") if path.is_dir() and not path.is_symlink())
    for path in sorted(runs, key=lambda path: path.stat().st_mtime)[: max(len(runs) - runs_max + 1, 0)]:
        shutil.rmtree(path, ignore_errors=True)


class Trackio:
    """A run in trackio's local database, the same one over restarts; a stage trained again stands there twice."""

    name = "trackio"

    def __init__(self, directory: Path, run: str, group: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._full = False
        self._logs = 0
        os.environ["TRACKIO_DIR"] = str(directory)  # read when it is imported
        import trackio

        self._run: Any = trackio.init(
            project=PROJECT,
            name=run,
            group=group,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._logs += 1
        if self._logs % SIZE_CHECK_LOGS == 1 and not self._full:
            self._look_at_size()
        if not self._full or any(name.startswith(STAGE_PREFIX) for name in figures):
            self._run.log(dict(figures), step=step)

    def _look_at_size(self) -> None:
        size_bytes = sum(path.stat().st_size for path in self._directory.glob("*.db"))
        self._full = size_bytes > TRACKIO_BYTES_MAX
        if self._full:
            log.warning("trackio's database is full, single steps are no longer added", size_bytes=size_bytes)

    def rewind(self, step: int) -> None:
        """Not possible; the figures carry their step."""

    def close(self) -> None:
        self._run.finish()


class TrackerThread:
    """A tracker and the thread in which everything of it happens: whoever waits for it waits so long, and no longer.

    Raises what `make` raises, and TimeoutError where it takes more than `MAKE_S`.
    """

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self.name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=f"tracker {name}", daemon=True).start()
        try:
            self._tracker = self._wait_for(make, MAKE_S)
        except BaseException:
            self.leave()
            raise

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._wait_for(lambda: self._tracker.log(step, figures), TELL_S)

    def rewind(self, step: int) -> None:
        self._wait_for(lambda: self._tracker.rewind(step), TELL_S)

    def close(self) -> None:
        self._wait_for(lambda: self._tracker.close(), CLOSE_S)
        self.leave()

    def leave(self) -> None:
        """Ask for nothing more: the thread ends, once what it is at does."""
        self._calls.put(None)

    def _run(self) -> None:
        while call := self._calls.get():
            call()

    def _wait_for(self, call: Callable[[], T], limit_s: float) -> T:
        """What a call returns or raises. Raises TimeoutError beyond the limit."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:
                outcome.set_exception(error)

        self._calls.put(run)
        try:
            return outcome.result(limit_s)
        except TimeoutError as error:
            if outcome.done():
                raise
            raise TimeoutError(f"not done within {limit_s:g} s") from error


class Trackers:
    """All that are configured. One that fails, or takes too long for anything, is given up with one warning.

    Making them may take `MAKE_S` each.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Tracker]] | None = None) -> None:
        self._trackers: list[TrackerThread] = []
        for name, make in (makers or {}).items():
            try:
                self._trackers.append(TrackerThread(name, make))
            except Exception as error:
                _warn(name, error)

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that still take figures."""
        return tuple(tracker.name for tracker in self._trackers)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._tell(lambda tracker: tracker.log(step, figures))

    def rewind(self, step: int) -> None:
        self._tell(lambda tracker: tracker.rewind(step))

    def close(self) -> None:
        self._tell(lambda tracker: tracker.close())
        self._trackers.clear()

    def _tell(self, tell: Callable[[TrackerThread], None]) -> None:
        for tracker in tuple(self._trackers):
            try:
                tell(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                tracker.leave()
                _warn(tracker.name, error)


def _warn(name: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {error}"[:500]
    log.warning("a tracker failed and is given up until the trainer starts again", tracker=name, reason=reason)


def check_trackers(config: Config) -> None:
    """Raise ConfigError when a tracker is asked for whose package is not installed. Imports nothing."""
    for name in ("wandb", "trackio"):
        if name in config.results.trackers and not is_installed(name):
            raise ConfigError(
                f"results.trackers names {name}, but the package {name} is not installed",
                f"Install it with `{extra_command(name)}`, or take {name} out of results.trackers",
            )


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def make_trackers(config: Config, paths: NodeDirectory, peer: str, step: int) -> Trackers:
    """The trackers that the configuration asks for, going on after optimiser step `step`.

    Without the tensorboard package the node trains on, and the log says once that there are no event files.

    Raises:
        ConfigError: wandb or trackio is asked for and not installed.
    """
    check_trackers(config)
    run = config.name or animal_name(peer, "_")
    group = f"{config.swarm.id}-{peer}"
    makers: dict[str, Callable[[], Tracker]] = {}
    chosen = config.results.trackers
    if "tensorboard" in chosen and not is_installed("tensorboard"):
        log.info("no event files: the package tensorboard is not installed", fix=install_command("tensorboard"))
    elif "tensorboard" in chosen:
        makers["TensorBoard"] = lambda: TensorBoard(paths.results / "tensorboard", step)
    if "wandb" in chosen:
        makers["wandb"] = lambda: Wandb(paths.results, run, group)
    if "trackio" in chosen:
        makers["trackio"] = lambda: Trackio(paths.results / "trackio", run, group)
    return Trackers(makers)
