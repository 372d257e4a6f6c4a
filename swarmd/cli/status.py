"""`swarmd status`: how a node is, from its daemon or, when that is down, from its log."""

from __future__ import annotations

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


def status(
    directory: Annotated[
        Path | None, typer.Argument(help="The node's data directory; without it and --config, ./data.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The node's configuration file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole status as JSON.")] = False,
) -> int:
    """Say how a node is: process, network, training, round, and the chain where there is one.

    Exits with 0 when all is well, with 1 when it is not.
    """
    import msgspec
    from rich.console import Console

    from swarmd.observe.panel import panel_of

    current = read_status(DataPaths(pick_directory(directory, config)))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(current), indent=2))
    else:
        Console().print(panel_of(current))
    return ExitCode.OK if current.healthy else ExitCode.FAILURE


def pick_directory(directory: Path | None, config: Path | None) -> Path:
    """The data directory that is meant."""
    if directory is not None and config is not None:
        raise ConfigError("both a data directory and --config were given", "Give one of them")
    if config is not None:
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
