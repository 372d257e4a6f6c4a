"""`swarmd restore`: make a node's directory of a backup."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from swarmd.cli.options import BackupPassphraseFile


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup that `swarmd backup` made.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory to make; new or empty.")],
    passphrase_file: BackupPassphraseFile = None,
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Leave the sealed part closed; keys come from elsewhere.")
    ] = False,
    moved: Annotated[
        bool, typer.Option("--moved", help="The backup was made with --for-move: the node goes on where it was.")
    ] = False,
    from_round: Annotated[
        int, typer.Option(min=0, metavar="ROUND", help="First round to take part in or open, if it is known.")
    ] = 0,
) -> None:
    """Make a node's data directory of a backup. First see that the old node runs nowhere any more."""
    from swarmd.backup.restore import check_backup, restore_backup
    from swarmd.cli.node.passphrase import take_passphrase

    sealed = check_backup(file).sealed and not without_keys
    secret = take_passphrase(passphrase_file, "Passphrase of the backup") if sealed else None
    manifest, verified = restore_backup(file, directory, secret, moved, from_round)
    typer.echo(f"{directory}: {manifest.peer}, {verified.events} events replayed, all commands as they were")
    _tell_other_swarm(directory)
    if secret is None:
        typer.echo("keys and configuration are to be put there: `swarmd identity restore` for the key", err=True)
    if not moved:
        days = (time.time() - manifest.made_at) / 86400
        typer.echo(
            f"the backup is {days:.1f} days old. What this node signed since is not in it: it will take part from the "
            "round after the first one that it sees opening",
            err=True,
        )


def _tell_other_swarm(directory: Path) -> None:
    """Say so where the configuration in the backup is not of the swarm of the log in it: no node starts like that."""
    from swarmd.config import load_config
    from swarmd.daemon.swarm_check import refuse_other_swarm, swarm_of_config
    from swarmd.errors import OtherSwarm, SwarmdError
    from swarmd.paths import NodeDirectory

    try:
        data = NodeDirectory(directory)
        refuse_other_swarm(data, swarm_of_config(load_config(data.config)))
    except OtherSwarm as error:
        typer.echo(f"note: no node starts with this configuration: {error}", err=True)
    except SwarmdError:
        return  # there is none, or its first use says what is wrong with it
