"""`swarmd swarm invite`: admit a peer to a swarm that asks for invitations."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from swarmd.cli.locate import RULE, locate
from swarmd.config import load_config
from swarmd.errors import ConfigError

DAY_S = 86400.0


def invite(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="The guest's, as `swarmd identity show` prints it.")],
    directory: Annotated[Path | None, typer.Option("--dir", help=RULE)] = None,
    days: Annotated[float, typer.Option(min=0, help="Days after which it is over; 0: never.")] = 0.0,
) -> None:
    """Print an invitation for a peer, signed by this node: the creator's, or one that the creator has invited.

    The guest joins with `swarmd join MANIFEST --identity KEY --invitation TEXT`.
    """
    from swarmd.dht.admission import invite as sign_invitation
    from swarmd.dht.admission import read_invitation, write_invitation
    from swarmd.dht.identity import load_identity

    place = locate(directory)
    if place.config is None:
        raise ConfigError("an invitation is a node's of the swarm, and here is none", "Name its directory: --dir DIR")
    config = load_config(place.config)
    identity = load_identity(place.data / config.dht.identity)
    creator = config.swarm.coordinator or identity.peer_id
    if config.dht.admission != "invitation":
        raise ConfigError(f'dht.admission is "{config.dht.admission}": nobody needs an invitation in this swarm')
    until = time.time() + days * DAY_S if days else 0.0
    own = read_invitation(config.dht.invitation)
    typer.echo(write_invitation(sign_invitation(identity, config.swarm.id, creator, peer, until, own)))
