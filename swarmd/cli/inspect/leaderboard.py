"""`swarmd leaderboard`: a swarm's standings, added up again from what its contract said or its members signed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmd.chain.standings import ORDERS, Order
from swarmd.cli.locate import RULE, log_of
from swarmd.core.values import Standing
from swarmd.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from swarmd.cli.inspect.standings import ChainBoard, Ranked

DEPTH = 2  # as chain.depth where a configuration says nothing
TOP_MAX = 10_000


def leaderboard(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help=f"{RULE} The coordinator's, or with a chain any node's."),
    ] = None,
    rpc: Annotated[
        str | None,
        typer.Option("--rpc", metavar="URL", help="Read the chain instead; or file:PATH, with the URL in it."),
    ] = None,
    contract: Annotated[str | None, typer.Option("--contract", metavar="ADDR", help="The swarm's contract.")] = None,
    from_block: Annotated[int, typer.Option(min=0, help="The block in which the contract was created.")] = 0,
    depth: Annotated[int, typer.Option(min=0, help="Blocks on top of one that is confirmed.")] = DEPTH,
    sort: Annotated[str, typer.Option(metavar="|".join(ORDERS), help="What comes first.")] = "reward",
    top: Annotated[int, typer.Option(min=1, help="Places to show.")] = TOP_MAX,
    as_json: Annotated[bool, typer.Option("--json", help="Print standings and problems as JSON.")] = False,
) -> int:
    """Print a swarm's standings and check them.

    With a chain they are added up from what the contract said and, read with --rpc, compared with its own sums. Without
    one they are checked against the signed reports of every round in the coordinator's log. Exits with 3 when they
    differ.
    """
    from swarmd.cli.inspect import standings

    order = order_of(sort)
    if rpc is not None:
        if directory is not None or contract is None:
            raise ConfigError("--rpc reads the chain, not a directory", "Give --contract with it, and no directory")
        return tell_board(standings.board_of_chain(rpc, contract, from_block, order, depth), top, as_json)
    log = log_of(directory)
    board = standings.board_of_log(log, order, depth)
    return tell_board(board, top, as_json) if board else tell_reports(log, order, top, as_json)


def order_of(sort: str) -> Order:
    """Raises ConfigError."""
    found = next((order for order in ORDERS if order == sort), None)
    if found is None:
        raise ConfigError(f"--sort: {sort!r} is no order", f"Choose one of {', '.join(ORDERS)}")
    return found


def tell_board(board: ChainBoard, top: int, as_json: bool) -> int:
    """Print standings out of the chain. Returns the exit code."""
    from swarmd.cli.inspect.standings import as_plain, print_whole, ranked_of, shown
    from swarmd.eventlog.export import to_json

    if as_json:
        tell_json(to_json(as_plain(board, top)))
    else:
        print_whole(ranked_of(board, top))
        for note in board.notes:
            typer.echo(note)
        for problem in board.differences:
            typer.echo(f"wrong: {shown(problem)}")
    return ExitCode.DIFFERENCE if board.differences else ExitCode.OK


NOT_ADMITTED = " (not admitted)"  # neither by proof of work nor by an invitation


def tell_reports(directory: Path, order: Order, top: int, as_json: bool) -> int:
    """Print the standings of a swarm without a chain, and what is wrong with them. Returns the exit code."""
    import msgspec

    from swarmd.cli.inspect.gathered_boards import read_boards
    from swarmd.cli.inspect.standings import print_whole

    if order in ("wins", "votes"):
        raise ConfigError(f"--sort {order}: a swarm without a chain has no votes", "Sort by reward or rounds")
    boards = read_boards(directory)
    problems = boards.problems
    ranked = sorted(boards.standings, key=lambda row: (not row.admitted, -getattr(row, order), row.peer))[:top]
    if as_json:
        told = {"swarm": boards.swarm, "round": boards.round, "standings": ranked}
        told |= {"problems": problems, "partial": boards.partial}
        tell_json(msgspec.json.encode(told))
    else:
        print_whole(ranked_reports(ranked, boards.round))
        for problem in problems:
            typer.echo(f"wrong: {problem}")
        if boards.partial:
            typer.echo(f"of {boards.partial} rounds not all reports found room: nothing was added up")
        if not problems:
            typer.echo(f"{boards.reports} signed reports of {boards.rounds} rounds add up to these standings")
    return ExitCode.DIFFERENCE if problems else ExitCode.OK


def tell_json(encoded: bytes) -> None:
    """Print JSON, indented."""
    import msgspec

    typer.echo(msgspec.json.format(encoded, indent=2))


def ranked_reports(standings: Sequence[Standing], round: int) -> Ranked:
    """The standings that signed reports add up to."""
    from swarmd.cli.inspect.standings import Ranked, shown

    rows = []
    for place, row in enumerate(standings, 1):
        name = shown(row.name) + ("" if row.admitted else NOT_ADMITTED)
        numbers = [str(place), f"{row.reward:.3f}", str(row.rounds), str(row.last_round)]
        rows.append((numbers, [name, shown(row.peer)]))
    return Ranked(f"leaderboard after round {round}", ("place", "reward", "rounds", "last"), ("name", "peer"), rows)
