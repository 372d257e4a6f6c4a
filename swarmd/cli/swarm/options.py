"""Options that several verbs about a swarm share, and who pays for what they order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from swarmd.config import NUMBER_MAX, FeesConfig
from swarmd.errors import ConfigError

MAX_GWEI = FeesConfig().max_gwei

ManifestFile = Annotated[Path, typer.Argument(metavar="MANIFEST", help="The swarm's manifest.")]
Announce = Annotated[
    list[str] | None, typer.Option(metavar="ADDRESS", help="Address that others reach this node under.")
]
Endpoints = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="Endpoint of the chain, best first; file:PATH for a file of them."),
]
Account = Annotated[Path | None, typer.Option(metavar="KEYSTORE", help="The account that pays; else this node's own.")]
PassphraseFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The account's passphrase; else beside the keystore, *.pass.")
]
MaxGwei = Annotated[
    float, typer.Option(help="Highest price of a unit of gas. A chain without a base fee (EIP-1559) needs it given.")
]


class Payer(NamedTuple):
    """How an order reaches the chain, and whose coins it costs."""

    rpc: tuple[str, ...]  # URLs
    account: Path | None
    passphrase: Path | None
    fees: FeesConfig


def payer(rpc: list[str] | None, account: Path | None, passphrase: Path | None, max_gwei: float) -> Payer:
    """The options as they were given, with the URLs of files. Raises ConfigError for what is no URL or no price."""
    from swarmd.chain.endpoints import read_urls

    if not 0 < max_gwei <= NUMBER_MAX:
        raise ConfigError(f"--max-gwei {max_gwei:g} is no price")
    # Where a price is paid in full, the bound must be of somebody's choosing: an endpoint goes up to it.
    fees = FeesConfig(max_gwei=max_gwei, legacy=max_gwei != MAX_GWEI)
    return Payer(tuple(read_urls(rpc, Path())) if rpc else (), account, passphrase, fees)
