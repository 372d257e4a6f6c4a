"""`swarmd swarm`: make a swarm, look at it, and see to it. Its verbs stand in modules of their own."""

from __future__ import annotations

import typer

from swarmd.cli import swarm_orders
from swarmd.cli.scaffold import scaffold
from swarmd.cli.swarm_invite import invite
from swarmd.cli.swarm_list import list_swarms
from swarmd.cli.swarm_new import new
from swarmd.cli.swarm_status import check, status

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Make a swarm of one's own, and see to it.")
app.command("list")(list_swarms)
app.command()(scaffold)
app.command()(new)
app.command()(invite)
app.command()(status)
app.command()(check)
swarm_orders.register(app)
