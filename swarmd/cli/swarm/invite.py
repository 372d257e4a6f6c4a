"""`swarmd swarm invite`: admit a peer to a swarm that asks for invitations, list those made, and withdraw one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmd.cli.locate import RULE, locate
from swarmd.config import Config, load_config
from swarmd.errors import ConfigError
from swarmd.paths import NodeDirectory

if TYPE_CHECKING:
    from swarmd.dht.identity.identity import Identity
    from swarmd.dht.invitations import IssuedInvitation, OwnInvitations

DAY_S = 86400.0
DAYS_MAX = 36_500


def invite(
    peer: Annotated[
        str | None, typer.Argument(metavar="[PEER]", help="The guest's, as `swarmd identity show` prints it.")
    ] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help=RULE)] = None,
    days: Annotated[float, typer.Option(min=0, help="Days after which it is over; 0: never.")] = 0.0,
    withdraw: Annotated[
        str, typer.Option(metavar="ID", help="Withdraw an invitation: its id, or all of its text.")
    ] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the invitations made here.")] = False,
) -> None:
    """Print an invitation for a peer, signed by this node: the creator's, or one that the creator has invited.

    The guest joins with `swarmd join MANIFEST --identity KEY --invitation TEXT`. `--withdraw ID` takes one back, and
    all that its guest made: nodes that hear it refuse their records. The creator may withdraw any, others what they
    made.
    """
    from swarmd.dht.identity.identity import load_identity
    from swarmd.dht.invitations import OwnInvitations

    if (peer is not None) + bool(withdraw) + listed != 1:
        fix = "swarmd swarm invite PEER, --list or --withdraw ID"
        raise ConfigError("name the peer to invite, or the invitation to withdraw, or ask for the list", fix)
    place = locate(directory)
    if place.config is None:
        raise ConfigError("an invitation is a node's of the swarm, and here is none", "Name its directory: --dir DIR")
    config = load_config(place.config)
    made = OwnInvitations(NodeDirectory(place.data).invitations)
    if listed:
        _list(made.read(), time.time())
        return
    if config.dht.admission != "invitation":
        raise ConfigError(f'dht.admission is "{config.dht.admission}": nobody needs an invitation in this swarm')
    identity = load_identity(place.data / config.dht.identity)
    if withdraw:
        _withdraw(made, withdraw, config.swarm.coordinator in ("", identity.peer_id))
    elif peer is not None:
        _invite(made, config, identity, peer, days)


def _invite(made: OwnInvitations, config: Config, identity: Identity, peer: str, days: float) -> None:
    from swarmd.dht.invitations import invite as sign_invitation
    from swarmd.dht.invitations import read_invitation, write_invitation

    if days > DAYS_MAX:
        raise ConfigError(f"--days {days:g}: {DAYS_MAX} at most", "Leave it out for an invitation without an end")
    now = time.time()
    until = now + days * DAY_S if days else 0.0
    own = read_invitation(config.dht.invitation)
    creator = config.swarm.coordinator or identity.peer_id
    encoded = sign_invitation(identity, config.swarm.id, creator, peer, until, own)
    id_ = made.note(encoded, peer, until, now)
    typer.echo(write_invitation(encoded))
    typer.echo(f"`swarmd swarm invite --withdraw {id_}` takes it back", err=True)


def _withdraw(made: OwnInvitations, named: str, everybodys: bool) -> None:
    from swarmd.dht.invitations import ID_BYTES, id_of_text, read_id, read_invitation

    id_ = read_id(named) if len(named) <= 2 * ID_BYTES else id_of_text(read_invitation(named))
    withdrawn = made.withdraw(id_, everybodys, time.time())
    whose = f"the invitation of {withdrawn.guest}" if withdrawn.guest else "the invitation"
    typer.echo(f"{withdrawn.id}: {whose} is withdrawn; this node tells the others while it runs")


def _list(made: tuple[IssuedInvitation, ...], now: float) -> None:
    for each in made:
        state = "withdrawn" if each.withdrawn_at is not None else "over" if each.is_over(now) else "holds"
        until = f"until {day_of(each.until)}" if each.until else "without an end"
        when = f"made {day_of(each.made_at)}" if each.made_at is not None else "made elsewhere"
        typer.echo(f"{each.id}  {state:9}  {each.guest or '-'}  {when}, {until}")
    if not made:
        typer.echo("no invitation was made here", err=True)


def day_of(at: float) -> str:
    """A time for people; `at` in POSIX seconds."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
