"""`swarmd leaderboard`: a swarm's standings, added up again from the signed reports in the coordinator's log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmd.core.events import Standing
from swarmd.errors import ExitCode, NotFoundError

if TYPE_CHECKING:
    from rich.table import Table

    from swarmd.dht.leaderboard import Board


def leaderboard(
    directory: Annotated[Path, typer.Argument(help="The coordinator's data directory, or a copy of it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print standings and problems as JSON.")] = False,
) -> int:
    """Print the standings after the last round and check them against the signed reports of every round."""
    import msgspec
    from rich.console import Console

    from swarmd.dht.leaderboard import verify_leaderboard

    swarm, before, boards = read_boards(directory)
    problems = verify_leaderboard(boards, swarm, before)
    standings = boards[-1].standings
    reports = sum(len(board.reports) for board in boards)
    if as_json:
        told = {"swarm": swarm, "round": boards[-1].round, "standings": standings, "problems": problems}
        typer.echo(msgspec.json.format(msgspec.json.encode(told), indent=2))
    else:
        Console().print(standings_table(standings, boards[-1].round))
        for problem in problems:
            typer.echo(f"wrong: {problem}")
        if not problems:
            typer.echo(f"{reports} signed reports of {len(boards)} rounds add up to these standings")
    return ExitCode.DIFFERENCE if problems else ExitCode.OK


def read_boards(directory: Path) -> tuple[str, tuple[Standing, ...], list[Board]]:
    """The swarm id, the standings that the log begins with, and the leaderboards that it led to.

    Raises:
        NotFoundError: there is no log, or it is no coordinator's, or it has closed no round.
        LogDamaged: the log cannot be read.
    """
    from swarmd.core.commands import PublishLeaderboard
    from swarmd.dht.leaderboard import Board
    from swarmd.eventlog.fold import commits_from, fold, oldest_base
    from swarmd.eventlog.segment import find_log

    log = find_log(directory)
    base = oldest_base(log)
    swarm = ""
    boards: list[Board] = []
    for applied in fold(commits_from(log, base), base.state):
        if applied.after.settings is not None:
            swarm = applied.after.settings.swarm
        for command in applied.commands:
            if isinstance(command, PublishLeaderboard) and command.round not in {board.round for board in boards[-1:]}:
                boards.append(Board(command.round, command.standings, command.reports))
    if not boards:
        raise NotFoundError(f"the log in {log} closes no round", "Name the data directory of the swarm's coordinator")
    before = base.state.coordination
    return swarm, before.standings if before else (), boards


def standings_table(standings: tuple[Standing, ...], round: int) -> Table:
    """The standings as a table."""
    from rich.table import Table

    table = Table(title=f"leaderboard after round {round}", title_justify="left")
    for heading in ("place", "name", "peer", "reward", "rounds", "last"):
        table.add_column(heading, justify="left" if heading in ("name", "peer") else "right")
    for place, row in enumerate(standings, 1):
        table.add_row(str(place), row.name, row.peer, f"{row.reward:.3f}", str(row.rounds), str(row.last_round))
    return table
