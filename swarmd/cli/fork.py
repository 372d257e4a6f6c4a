"""`swarmd fork`: a node of another identity from the log of one, up to an event."""

from pathlib import Path
from typing import Annotated

import typer

from swarmd.backup.fork import fork_node
from swarmd.cli.options import find_log_of_node, locate_node, warn
from swarmd.errors import ConfigError
from swarmd.paths import NodeDirectory, quote_for_shell


def fork(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The first node's directory, which is only read.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The directory to make; new or empty.")],
    at: Annotated[
        int | None, typer.Option(min=0, metavar="EVENT", help="The last event to keep; by default the newest.")
    ] = None,
    round: Annotated[
        int | None, typer.Option(min=0, metavar="ROUND", help="Instead: keep all up to the end of training this round.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Other settings; else the first node's.")
    ] = None,
) -> None:
    """Make a node with a new identity from another's log up to an event, for experiments.

    It begins with the weights that the first node had trained by then, and takes part from the next round on. It can
    never sign as the first one: a new key is made, and no account, passphrase, token or invitation is copied. Of the
    settings, those are left out that are the first node's own, and are named. The first node may be running.
    """
    node = locate_node(directory)
    find_log_of_node(node)
    if at is not None and round is not None:
        raise ConfigError("--at and --round exclude each other", "Give one of them")
    settings = config or node.config
    if settings is None:
        raise ConfigError(f"{directory} has no configuration beside its log", "Name one with --config FILE")
    made = fork_node(NodeDirectory(node.data), settings, new, at, round)
    typer.echo(f"{new}: {made.peer}, a fork of {made.parent} after its event {made.event}")
    typer.echo(f"it begins with checkpoint {made.checkpoint}" if made.checkpoint else "nothing was trained by then")
    if made.left_out:
        typer.echo(f"left out of its settings: {', '.join(made.left_out)}")
    if made.role == "coordinator":
        typer.echo("as a coordinator it opens rounds of a swarm of its own")
    else:
        warn("it joins the swarm that its settings name, beside the first node")
    typer.echo(f"next: `swarmd run {quote_for_shell(new)}`")
