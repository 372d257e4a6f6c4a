"""`swarmd status`: a node's state, from its daemon or, if that does not run, from its log."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from swarmd.cli.options import RULE, ConfigFile, LocatedNode, locate_node, print_json, require_node
from swarmd.config import load_config
from swarmd.core.state import State
from swarmd.daemon.directory import check_layout
from swarmd.errors import ConfigError, ExitCode, SwarmdError
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.reader import read_commits
from swarmd.eventlog.segment import list_segments
from swarmd.observe.control import ask_status
from swarmd.observe.panel import panel_of
from swarmd.observe.status import LogStatus, Status, measure_log, status_from_log, status_of
from swarmd.paths import NodeDirectory

NEVER_STARTED = "never started"  # state of the process, as swarmd.observe.status has it
WATCH_EVERY_S = 1.0
PAUSE = threading.Event()  # never set: used for waits that Ctrl-C interrupts


def status(
    directory: Annotated[Path | None, typer.Argument(metavar="[DIR]", help=RULE, show_default=False)] = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole status as JSON.")] = False,
    watched: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second, until Ctrl-C.")] = False,
) -> int:
    """Show a node's state: process, network, training, round, and the chain if there is one.

    Exits with 0 if all is well, with 1 if it is not, with 4 for a node that was made and never started.
    """
    node = locate_node(directory, config)
    if not node.data.is_dir():
        require_node(node, directory is None and config is None)
    check_layout(NodeDirectory(node.data))
    if watched:
        if as_json:
            raise ConfigError("--watch and --json exclude each other", "Call `swarmd status --json` as often as needed")
        watch(node)
        return ExitCode.OK
    current = read_status(NodeDirectory(node.data), node.config)
    if as_json:
        print_json(current)
    else:
        Console().print(panel_of(current))
    if current.process.state == NEVER_STARTED:
        return ExitCode.NEVER_STARTED
    return ExitCode.OK if current.healthy else ExitCode.FAILURE


def watch(node: LocatedNode) -> None:
    """Show the status until Ctrl-C; without a terminal, print a line for each change."""
    console, data, said = Console(), NodeDirectory(node.data), ""
    current = read_status(data, node.config)
    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal:
            with Live(panel_of(current), console=console, auto_refresh=False) as live:
                while True:
                    PAUSE.wait(WATCH_EVERY_S)
                    live.update(panel_of(read_status(data, node.config)), refresh=True)
        while True:
            if (line := status_line(current)) != said:
                typer.echo(f"{time.strftime('%H:%M:%S')} {line}")
                said = line
            PAUSE.wait(WATCH_EVERY_S)
            current = read_status(data, node.config)


def status_line(status: Status) -> str:
    """All layers in one line, without values that change all the time."""
    words = [
        f"{name.replace('submissions', 'on chain')} {layer.state}{'' if layer.healthy else ' (!)'}"
        for name, layer in status.layers.items()
    ]
    return f"round {status.round.round} stage {status.round.stage}: {', '.join(words)}"


def read_status(paths: NodeDirectory, config: Path | None = None) -> Status:
    """The status from the daemon, else from the log, else that of a node that was never started. `config`:
    configuration to read if there is no log. Raises NotFoundError if there is no node; LogDamaged if the daemon does
    not run and the log cannot be read."""
    reply = ask_status(paths.control)
    if reply.status is not None:
        return reply.status
    if not paths.events.is_dir() or not list_segments(paths.events):
        return _status_before_start(LocatedNode(config, paths.root), reply.mute)
    state, next_seq = load_state(paths.events)
    last_at = next((commit.at for commit in read_commits(paths.events, next_seq - 1)), None) if next_seq else None
    loaded = None
    with contextlib.suppress(SwarmdError):  # only needed to explain why nothing is credited
        loaded = load_config(config) if config is not None else None
    return status_from_log(paths, state, measure_log(paths.events, next_seq, last_at), reply.mute, loaded)


def _status_before_start(node: LocatedNode, mute: str) -> Status:
    """The status of a node without a log; `mute`: why its daemon does not answer. Raises NotFoundError."""
    require_node(node)
    status = status_of(State(), time.time(), LogStatus(str(NodeDirectory(node.data).events.resolve()), 0, 0), mute=mute)
    if not mute:
        reason = f"made, and never started: `{node.start_command}` starts it"
        status = msgspec.structs.replace(status, process=msgspec.structs.replace(status.process, reason=reason))
    if node.config is None:
        return status
    config = load_config(node.config)
    return msgspec.structs.replace(
        status, peer=config.dht.peer, name=config.name, swarm=config.swarm.id, role=config.role
    )
