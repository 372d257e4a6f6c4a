"""`swarmd run`: run a node in the foreground, as systemd or a person starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmd.config import load_config
from swarmd.errors import ExitCode, SwarmdError
from swarmd.paths import DataPaths

PROGRESS_S = 10.0  # between two lines about what the trainer is at, for a person who watches


def run(
    config: Annotated[Path, typer.Option("--config", "-c", help="The node's configuration, a TOML file.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="The data directory, in place of the one the file names.")
    ] = None,
) -> int:
    """Run a node until it is told to stop. SIGTERM or Ctrl-C stops it in order, a second one at once."""
    import structlog

    from swarmd.daemon.service import run_node
    from swarmd.observe.logs import configure, tell_fatal
    from swarmd.observe.slots import known_secrets
    from swarmd.swarms.registry import check_kind

    loaded = load_config(config)
    check_kind(loaded.swarm)
    paths = DataPaths(data or data_directory(config, loaded.data))
    secrets = known_secrets(loaded, paths.root, signing=True)
    is_watched = configure(loaded.logs.level, loaded.logs.format, secrets=secrets)
    try:
        return run_node(loaded, paths, progress_s=PROGRESS_S if is_watched else 0.0)
    except SwarmdError as error:
        tell_fatal(error)
        return error.exit_code
    except Exception:  # told as a line of the log, which covers what its words and those of libraries may hold
        structlog.get_logger("swarmd").exception("the daemon met an error it does not know; please report it")
        return ExitCode.FAILURE


def data_directory(config: Path, named: str) -> Path:
    """The data directory that a configuration file names, relative to the file."""
    return config.parent / named
