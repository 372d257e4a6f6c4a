"""Options and arguments that several verbs have, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarmd.cli.locate import RULE

NodeDir = Annotated[Path | None, typer.Argument(metavar="[DIR]", help=RULE)]
LogDir = Annotated[
    Path | None, typer.Argument(metavar="[DIR]", help=f"{RULE} A copy will do, and an events directory alone.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The node's configuration file.")
]
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Data directory in place of the configuration's, as of `run`.")
]
PrintJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
KeyPassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", metavar="FILE", help="A private file that holds it; else it is asked for."),
]
BackupPassphraseFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A private file with the passphrase; otherwise it is asked for.")
]
ListenAt = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 for any.")]
RequestToken = Annotated[
    str, typer.Option(metavar="FILE", help="The bearer token that requests must carry, or credential:NAME.")
]
