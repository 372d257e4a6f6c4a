"""`swarmd swarm`: make a swarm, look at it, and see to it. Its verbs stand in modules of their own."""

from __future__ import annotations

import typer

from swarmd.cli.swarm import orders
from swarmd.cli.swarm.invite import invite
from swarmd.cli.swarm.kinds import list_swarms
from swarmd.cli.swarm.new import new
from swarmd.cli.swarm.scaffold import scaffold
from swarmd.cli.swarm.status import check, status

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Make a swarm of one's own, and see to it.")
app.command("list")(list_swarms)
app.command()(scaffold)
app.command()(new)
app.command()(invite)
app.command()(status)
app.command()(check)
orders.register(app)
