"""`swarmd status`: how a node is, from its daemon or, when that is down, from its log."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmd.config import load_config
from swarmd.errors import ConfigError, ControlError, ExitCode, NotFoundError
from swarmd.paths import DataPaths

if TYPE_CHECKING:
    from swarmd.observe.status import Status

DEFAULT_DIRECTORY = Path("data")
WATCH_EVERY_S = 1.0
PAUSE = threading.Event()  # never set: a wait that Ctrl-C ends


def status(
    directory: Annotated[
        Path | None, typer.Argument(help="The node's data directory; else --config's, or ./data.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The node's configuration file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole status as JSON.")] = False,
    watched: Annotated[bool, typer.Option("--watch", "-w", help="Show it anew every second, until Ctrl-C.")] = False,
) -> int:
    """Say how a node is: process, network, training, round, and the chain where there is one.

    Exits with 0 when all is well, with 1 when it is not.
    """
    import msgspec
    from rich.console import Console

    from swarmd.observe.panel import panel_of

    paths = DataPaths(pick_directory(directory, config))
    if watched:
        if as_json:
            raise ConfigError("--watch and --json exclude each other", "Call `swarmd status --json` as often as needed")
        watch(paths)
        return ExitCode.OK
    current = read_status(paths)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(current), indent=2))
    else:
        Console().print(panel_of(current))
    return ExitCode.OK if current.healthy else ExitCode.FAILURE


def watch(paths: DataPaths) -> None:
    """Show the status until Ctrl-C; a line a change where nobody looks at a terminal."""
    from rich.console import Console
    from rich.live import Live

    from swarmd.observe.panel import panel_of

    console = Console()
    current = read_status(paths)
    if not console.is_terminal:
        _watch_lines(paths, current)
        return
    with contextlib.suppress(KeyboardInterrupt), Live(panel_of(current), console=console, auto_refresh=False) as live:
        while True:
            PAUSE.wait(WATCH_EVERY_S)
            live.update(panel_of(read_status(paths)), refresh=True)


def _watch_lines(paths: DataPaths, current: Status) -> None:
    said = ""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            if (line := line_of(current)) != said:
                typer.echo(f"{time.strftime('%H:%M:%S')} {line}")
                said = line
            PAUSE.wait(WATCH_EVERY_S)
            current = read_status(paths)


def line_of(status: Status) -> str:
    """All layers in one line; it changes only when one of them does."""
    layers = {
        "process": status.process,
        "network": status.network,
        "training": status.training,
        "round": status.round,
        "chain": status.chain,
        "on chain": status.submissions,
    }
    words = [f"{name} {layer.state}{'' if layer.healthy else ' (!)'}" for name, layer in layers.items() if layer]
    return f"round {status.round.round} stage {status.round.stage}: {', '.join(words)}"


def pick_directory(directory: Path | None, config: Path | None) -> Path:
    """The data directory that is meant: one that is named comes before the configuration's, as a service has it."""
    if directory is None and config is not None:
        return config.parent / load_config(config).data
    return directory or DEFAULT_DIRECTORY


def read_status(paths: DataPaths) -> Status:
    """The status from the daemon, or from the log when no daemon answers.

    Raises:
        NotFoundError: there is neither.
        LogDamaged: the daemon is down and the log cannot be read.
    """
    import msgspec

    from swarmd.daemon.control import NoDaemon, ask
    from swarmd.observe.status import Status

    try:
        return msgspec.json.decode(ask(paths.control, "status"), type=Status)
    except NoDaemon:
        return status_from_log(paths)
    except ControlError as error:
        return status_from_log(paths, error.message)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        mute = f"the daemon's answer is not understood, is it another version of swarmd? ({error})"
        return status_from_log(paths, mute)


def status_from_log(paths: DataPaths, mute: str = "") -> Status:
    """The status that the log alone gives. `mute` says why a daemon that is there does not answer."""
    from swarmd.eventlog.fold import load
    from swarmd.eventlog.retention import log_bytes
    from swarmd.observe.status import LogStatus, status_of

    if not paths.events.is_dir():
        raise NotFoundError(
            f"there is no node in {paths.root}", "Name its data directory, or its configuration file with --config"
        )
    state, next_seq = load(paths.events)
    log = LogStatus(str(paths.events), next_seq, log_bytes(paths.events))
    return status_of(state, time.time(), log, mute=mute)
