"""`swarmd run`: run a node in the foreground, as systemd or a person starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmd.cli.locate import config_of_node, locate
from swarmd.cli.options import NodeDir
from swarmd.config import load_config
from swarmd.errors import ExitCode, SwarmdError
from swarmd.paths import NodeDirectory

PROGRESS_S = 10.0  # between two lines about what the trainer is at, for a person who watches


def run(
    directory: NodeDir = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="The node's configuration; DIR is then its data directory."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="The data directory, in place of the one the file names.")
    ] = None,
) -> int:
    """Run a node until it is told to stop. SIGTERM or Ctrl-C stops it in order, a second one at once."""
    import structlog

    from swarmd.daemon.service import run_node
    from swarmd.files import refusal
    from swarmd.observe.logs import configure, tell_fatal
    from swarmd.observe.redaction import known_secrets
    from swarmd.swarms.registry import check_kind

    file = config_of_node(directory, config)
    loaded = load_config(file)
    check_kind(loaded.swarm)
    paths = NodeDirectory(data or locate(directory, config).data)
    secrets = known_secrets(loaded, paths.root, signing=True)
    is_watched = configure(loaded.logs.level, loaded.logs.format, secrets=secrets)
    try:
        return run_node(loaded, paths, progress_s=PROGRESS_S if is_watched else 0.0)
    except SwarmdError as error:
        tell_fatal(error)
        return error.exit_code
    except Exception as error:  # told as a line of the log, which covers what its words and those of libraries may hold
        refused = refusal(error)
        if refused is not None:
            tell_fatal(refused)
        else:
            structlog.get_logger("swarmd").exception("the daemon met an error it does not know; please report it")
        return ExitCode.FAILURE
