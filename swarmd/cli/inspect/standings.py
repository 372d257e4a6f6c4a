"""A leaderboard made from what a contract said: out of a node's log, or from the chain; and how it is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from swarmd.chain.standings import ChainStandings, Order, PeerStanding, rank
from swarmd.errors import ConfigError, NotFoundError
from swarmd.eventlog.segment import find_log, first_seq_of, list_segments
from swarmd.observe.layers import printable

COLUMNS_MAX = 4096  # of a printed table
INDENT = 7 * " "  # of names below their figures
CHARACTERS_SHOWN_MAX = 256  # of a peer id; one of a node has 52
ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")


class ContractHead(NamedTuple):
    """A contract as of the newest block that was read."""

    contract: str
    chain_id: int
    block: int


class ChainBoard(msgspec.Struct, frozen=True):
    """Standings up to a block, and what there is to say about them."""

    contract: str
    chain_id: int
    block: int  # the newest that was read
    confirmed_block: int  # the newest that counts as confirmed
    standings: tuple[PeerStanding, ...]  # ranked
    confirmed: dict[str, PeerStanding]
    notes: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


def board_of_log(directory: Path, by: Order, depth: int) -> ChainBoard | None:
    """The standings that a node's log holds; None for a node without a chain.

    Raises:
        NotFoundError: there is no log, or nothing of the chain in it yet.
        LogDamaged: the log cannot be read.
        ChainError: its blocks cannot be put in order.
    """
    from swarmd.cli.inspect.gathered_boards import read_chain

    log = find_log(directory)
    read = read_chain(log)
    up = read.found.up
    if not read.found.chained:
        return None
    if up is None:
        raise NotFoundError(
            f"the log in {log} holds nothing of the chain yet", "The node has not reached the chain so far"
        )
    notes = _notes_of_log(read.standings, up.contract) if first_seq_of(list_segments(log)[0]) else ()
    return _board(read.standings, ContractHead(up.contract, up.chain_id, read.found.head), by, depth, notes)


def _notes_of_log(standings: ChainStandings, contract: str) -> tuple[str, ...]:
    since = f"block {standings.first.number}" if standings.first else "its first block"
    return (
        f"counted from {since} on: the log no longer holds what the contract said before",
        f"all of it: swarmd leaderboard --rpc URL --contract {contract}",
    )


def check_address(contract: str) -> None:
    """Raises ConfigError for what is no address of a contract."""
    if not ADDRESS.fullmatch(contract):
        raise ConfigError(f"--contract: {contract!r} is no address", "Write it as 0x and 40 hex digits")


def board_of_chain(rpc: str, contract: str, from_block: int, by: Order, depth: int) -> ChainBoard:
    """The standings read from the chain, compared with the contract's own sums.

    Raises:
        ConfigError: the URL or the address is none, or the chain has no such block yet.
        ChainMismatch: there is no contract at the address.
        ChainError: no endpoint answers.
    """
    from swarmd.chain.coordinator import read_out
    from swarmd.chain.endpoints import read_urls

    check_address(contract)
    read = anyio.run(read_out, read_urls([rpc], Path()), contract, from_block)
    if from_block > read.head.number:
        raise ConfigError(
            f"--from-block {from_block} does not exist yet: the newest block is {read.head.number}",
            "Give the block in which the contract was created",
        )
    notes = [f"{count} log entries were left out: {reason}" for reason, count in sorted(read.rejected.items())]
    if not read.whole:
        notes.append(f"counted from block {from_block} on; the contract is older, so its own sums were not compared")
    elif read.differences is None:
        notes.append("the contract keeps no sums of its own to compare with")
    elif not read.differences:
        notes.append("the contract's own sums say the same")
    head = ContractHead(contract, read.chain_id, read.head.number)
    board = _board(read.standings, head, by, depth, tuple(notes))
    return msgspec.structs.replace(board, differences=read.differences or ())


def _board(standings: ChainStandings, of: ContractHead, by: Order, depth: int, notes: tuple[str, ...]) -> ChainBoard:
    confirmed = max(of.block - depth, -1)
    ranked = tuple(rank(standings.standings().values(), by))
    return ChainBoard(*of, confirmed, ranked, standings.standings(confirmed), notes)


def as_plain(board: ChainBoard, top: int) -> dict[str, Any]:
    """For JSON; rewards are decimal strings, because they have up to 256 bits and more."""
    return {
        "contract": board.contract,
        "chain_id": board.chain_id,
        "block": board.block,
        "confirmed_block": board.confirmed_block,
        "standings": [
            {"place": place, **_figures(row), "confirmed": _figures(_confirmed(board, row))}
            for place, row in enumerate(board.standings[:top], 1)
        ],
        "notes": board.notes,
        "problems": board.differences,
    }


def _figures(row: PeerStanding) -> dict[str, Any]:
    return msgspec.structs.asdict(row) | {"reward": str(row.reward)}


def _confirmed(board: ChainBoard, row: PeerStanding) -> PeerStanding:
    return board.confirmed.get(row.peer, PeerStanding(row.peer))


class Ranked(NamedTuple):
    """Standings to print: figures by column, and who has them."""

    title: str
    columns: tuple[str, ...]
    names: tuple[str, ...]  # of the columns of whose text may be long
    rows: list[tuple[list[str], list[Text]]]  # as columns, as names


def ranked_of(board: ChainBoard, top: int) -> Ranked:
    """The standings in a contract; rewards that are not confirmed yet stand beside the sum."""
    title = f"leaderboard of {board.contract} on chain {board.chain_id}, up to block {board.block}"
    pending = any(_confirmed(board, row).reward != row.reward for row in board.standings[:top])
    columns = ("place", "reward", *(["unconfirmed"] if pending else []), "rounds", "stages", "wins", "votes")
    rows = []
    for place, row in enumerate(board.standings[:top], 1):
        open_reward = [str(row.reward - _confirmed(board, row).reward)] if pending else []
        counts = [str(count) for count in (row.rounds, row.stages, row.wins, row.votes)]
        rows.append(([str(place), str(row.reward), *open_reward, *counts], [shown(row.peer), Text(row.account or "-")]))
    return Ranked(title, columns, ("peer", "account"), rows)


def shown(text: str) -> Text:
    """Text from outside: whole, on one line, and unable to command the terminal."""
    cut = text[:CHARACTERS_SHOWN_MAX]
    return Text(printable(cut) + (f"... ({len(text)} characters)" if len(text) > len(cut) else ""))


def print_whole(ranked: Ranked) -> None:
    """Print standings with nothing cut: in a terminal that is too narrow for a table, names have lines of their own."""
    console = Console()
    table = Table(title=ranked.title, title_justify="left")
    for heading in (*ranked.columns, *ranked.names):
        table.add_column(heading, justify="right" if heading in ranked.columns else "left", no_wrap=True)
    for figures, names in ranked.rows:
        table.add_row(*figures, *names)
    needed = Measurement.get(console, console.options.update(width=COLUMNS_MAX), table).maximum
    if console.is_terminal and needed > console.width:
        for line in narrow_lines(ranked, console.width):
            console.print(line, overflow="fold", highlight=False)
    else:
        Console(width=max(console.width, needed)).print(table)


def narrow_lines(ranked: Ranked, columns: int) -> Iterator[Text]:
    """The figures of a row in one line, and below it its names, in one line where they fit."""
    heads = [ranked.columns, *(figures for figures, _ in ranked.rows)]
    widths = [max(map(len, column)) for column in zip(*heads, strict=True)]

    def line(cells: Sequence[str], style: str = "") -> Text:
        return Text("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), style)

    yield Text(ranked.title, "italic")
    yield line(ranked.columns, "bold")
    for figures, names in ranked.rows:
        yield line(figures)
        together = Text("  ").join(names)
        for name in [together] if len(together) <= columns - len(INDENT) else names:
            yield Text(INDENT) + name
