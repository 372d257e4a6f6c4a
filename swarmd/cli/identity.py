"""`swarmd identity`: make a node's key, or show the peer id of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmd.dht.identity import create_identity, load_identity

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Make a node's identity or show its peer id.")

File = Annotated[Path, typer.Argument(help="The key file, usually DATA/identity.key.")]


@app.command()
def new(path: File) -> None:
    """Make a new key (Ed25519, mode 0600) and print its peer id. An existing file is never overwritten."""
    typer.echo(create_identity(path).peer_id)


@app.command()
def show(path: File) -> None:
    """Check a key file and print its peer id, the node's fingerprint."""
    typer.echo(load_identity(path).peer_id)
