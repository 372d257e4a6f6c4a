"""`swarmd leaderboard`: a swarm's standings, recomputed from the contract's events or the members' signed reports.

- Without a chain, a coordinator's log is folded, and each leaderboard is verified against the reports in it. Another
  node's directory only has the leaderboard that it read last, unverified.
- With a chain, the contract's events are summed, from a node's log or an endpoint; the latter's sums are compared with
  the contract's own.
- Sums over a log are cached beside it (swarmd.eventlog.summaries), so that the next call reads only what is new.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import msgspec
import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from swarmd.chain.standings import ChainStandings, Order, PeerStanding, rank_standings
from swarmd.cli.options import RULE, check_address, find_log_directory, print_json
from swarmd.core.commands import PublishLeaderboard
from swarmd.core.events import ChainBlock, ChainReorged, ChainUp
from swarmd.core.step import RULES, StateFold
from swarmd.core.values import Standing
from swarmd.dht.wire.bodies import LeaderboardBody, LeaderboardCheck, read_standings
from swarmd.errors import ConfigError, ExitCode, NotFoundError
from swarmd.eventlog.export import to_json
from swarmd.eventlog.fold import FoldBase, apply_commit
from swarmd.eventlog.frame import Commit
from swarmd.eventlog.segment import find_segment_directory, first_seq_of, list_segments
from swarmd.eventlog.snapshot import decode_state, encode_state
from swarmd.eventlog.summaries import SummaryKind, update_summary
from swarmd.observe.layers import escape_control_characters
from swarmd.observe.words import count_noun
from swarmd.paths import NodeDirectory

BOARDS = SummaryKind("leaderboard", RULES * 1000 + 2)  # version includes RULES, because it folds states
CHAIN = SummaryKind("chain", 2, needs_state=False)


class VerifiedBoards(msgspec.Struct, frozen=True, array_like=True):
    """All leaderboards in a coordinator's log, verified: the last one, and the problems of all."""

    swarm: str = ""
    round: int = -1  # round of the last leaderboard; -1 for none
    standings: tuple[Standing, ...] = ()  # of the last leaderboard
    rounds: int = 0  # number of leaderboards
    reports: int = 0  # signed reports in all of them
    problems: tuple[str, ...] = ()  # one sentence each
    partial: int = 0  # rounds not summed, because not all their reports fitted into the record


class _LeaderboardsSnapshot(msgspec.Struct, array_like=True):
    """On-disk form of `LeaderboardSummary`. `state`: encoded; `counted`: sums over the reports."""

    state: bytes
    counted: tuple[Standing, ...]
    boards: VerifiedBoards


class LeaderboardSummary:
    """Folds a coordinator's log and verifies each leaderboard that it produced."""

    def __init__(self) -> None:
        self._fold = StateFold()
        self._check = LeaderboardCheck()
        self._boards = VerifiedBoards()

    def restart(self, base: FoldBase) -> None:
        state = base.state
        self._fold = StateFold(state)
        self._check = LeaderboardCheck(state.coordination.standings if state.coordination else ())
        self._boards = VerifiedBoards(state.settings.swarm if state.settings else "")

    def restore(self, kept: bytes | memoryview) -> None:
        read = msgspec.msgpack.decode(kept, type=_LeaderboardsSnapshot)
        self._fold = StateFold(decode_state(read.state))
        self._check = LeaderboardCheck(read.counted)
        self._check.problems += read.boards.problems
        self._check.partial = read.boards.partial
        self._boards = read.boards

    def encode(self) -> bytes:
        state = encode_state(self._fold.state)
        return msgspec.msgpack.encode(
            _LeaderboardsSnapshot(state, tuple(self._check.standings.values()), self.boards())
        )

    def add_commit(self, commit: Commit) -> None:
        for command in apply_commit(self._fold, commit):
            if isinstance(command, PublishLeaderboard) and command.round != self._boards.round:
                self._verify(command)

    def _verify(self, command: PublishLeaderboard) -> None:
        boards = self._boards
        settings = self._fold.state.settings
        swarm = boards.swarm or (settings.swarm if settings else "")
        self._check.add_leaderboard(LeaderboardBody(command.round, command.standings, command.reports), swarm)
        reports = boards.reports + len(command.reports)
        self._boards = VerifiedBoards(swarm, command.round, command.standings, boards.rounds + 1, reports)

    @property
    def is_coordinator(self) -> bool:
        return self._fold.state.coordination is not None

    @property
    def swarm_id(self) -> str:
        """The swarm's id; empty if the node never started."""
        settings = self._fold.state.settings
        return settings.swarm if settings else ""

    def boards(self) -> VerifiedBoards:
        return msgspec.structs.replace(self._boards, problems=tuple(self._check.problems), partial=self._check.partial)


def read_boards(directory: Path) -> VerifiedBoards:
    """The verified leaderboards of a coordinator's log; for another node, the last one it read, with `rounds` 0. Raises
    NotFoundError if there are none; LogDamaged."""
    log = find_segment_directory(directory)
    gathering = LeaderboardSummary()
    update_summary(log, BOARDS, gathering)
    boards = gathering.boards()
    if boards.rounds == 0:
        if gathering.is_coordinator:
            raise NotFoundError(f"no round has been closed yet in {log}", "Ask again when the first is over")
        kept = read_standings(NodeDirectory(log.parent).standings, gathering.swarm_id)
        if kept is None:
            raise NotFoundError(f"the node of the log in {log} has read no leaderboard yet", "Ask when a round is over")
        return VerifiedBoards(kept.swarm, kept.round, kept.standings)
    return boards


# --- a swarm with a chain ---


class ChainSnapshot(msgspec.Struct, array_like=True):
    """On-disk form of `ChainSummary`. `head`: the newest block read, -1 for none."""

    chained: bool = False
    up: ChainUp | None = None
    head: int = -1
    standings: ChainStandings = msgspec.field(default_factory=ChainStandings)


class ChainSummary:
    """Sums a contract's events block by block; `found`: whether the log has a chain, and how far it was read."""

    def __init__(self) -> None:
        self.found = ChainSnapshot()

    def restart(self, base: FoldBase) -> None:
        self.found = ChainSnapshot()

    def restore(self, kept: bytes | memoryview) -> None:
        self.found = msgspec.msgpack.decode(kept, type=ChainSnapshot)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self.found)

    def add_commit(self, commit: Commit) -> None:
        found = self.found
        for event in commit.events:
            if isinstance(event, ChainBlock | ChainReorged):
                found.standings.apply_event(event)
                found.head = event.block.number if isinstance(event, ChainBlock) else event.fork.number
            elif isinstance(event, ChainUp):
                found.up, found.head = event, event.head.number
            settings = getattr(event, "settings", None)
            of_chain = (
                isinstance(event, ChainBlock | ChainReorged | ChainUp) or getattr(settings, "chain", None) is not None
            )
            found.chained = found.chained or of_chain


COLUMNS_MAX = 4096  # width of a printed table
CHARACTERS_SHOWN_MAX = 256  # of a peer id; a valid one has about 52


class ChainBoard(msgspec.Struct, frozen=True):
    """Standings up to a block, with notes, and differences from the contract's own sums."""

    contract: str
    chain_id: int
    block: int  # newest block read
    confirmed_block: int  # newest confirmed block
    standings: tuple[PeerStanding, ...]  # ranked
    confirmed: dict[str, PeerStanding]
    notes: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


def board_of_log(directory: Path, by: Order, depth: int) -> ChainBoard | None:
    """The standings in a node's log; None for a node without a chain. Raises NotFoundError if the node has not reached
    the chain yet; LogDamaged; ChainError if its blocks do not follow one another."""
    log = find_segment_directory(directory)
    read = ChainSummary()
    update_summary(log, CHAIN, read)
    up = read.found.up
    if not read.found.chained:
        return None
    if up is None:
        raise NotFoundError(
            f"the log in {log} holds nothing of the chain yet", "The node has not reached the chain so far"
        )
    notes: tuple[str, ...] = ()
    if first_seq_of(list_segments(log)[0]):
        first = read.found.standings.first
        notes = (
            f"counted from {f'block {first.number}' if first else 'its first block'} on: the log no longer holds what "
            "the contract said before",
            f"all of it: swarmd leaderboard --rpc URL --contract {up.contract}",
        )
    return _make_board(read.found.standings, up.contract, up.chain_id, read.found.head, by, depth, notes)


def board_of_chain(rpc: str, contract: str, from_block: int, by: Order, depth: int) -> ChainBoard:
    """The standings read from the chain, compared with the contract's own sums. Raises ConfigError for a wrong URL,
    address or block; ChainMismatch if there is no contract; ChainError if no endpoint answers."""
    from swarmd.chain.coordinator import read_onchain_standings
    from swarmd.chain.endpoints import read_endpoint_urls

    check_address(contract)
    read = anyio.run(read_onchain_standings, read_endpoint_urls([rpc], Path()), contract, from_block)
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
    board = _make_board(read.standings, contract, read.chain_id, read.head.number, by, depth, tuple(notes))
    return msgspec.structs.replace(board, differences=read.differences or ())


def _make_board(
    standings: ChainStandings, contract: str, chain_id: int, block: int, by: Order, depth: int, notes: tuple[str, ...]
) -> ChainBoard:
    confirmed = max(block - depth, -1)
    ranked = tuple(rank_standings(standings.standings_by_peer().values(), by))
    return ChainBoard(contract, chain_id, block, confirmed, ranked, standings.standings_by_peer(confirmed), notes)


def to_json_dict(board: ChainBoard, top: int) -> dict[str, Any]:
    """Standings for JSON; rewards are decimal strings, since they can exceed 256 bits."""

    def row_to_dict(row: PeerStanding) -> dict[str, Any]:
        return msgspec.structs.asdict(row) | {"reward": str(row.reward)}

    return {
        "contract": board.contract,
        "chain_id": board.chain_id,
        "block": board.block,
        "confirmed_block": board.confirmed_block,
        "standings": [
            {"place": place, **row_to_dict(row), "confirmed": row_to_dict(_confirmed_standing(board, row))}
            for place, row in enumerate(board.standings[:top], 1)
        ],
        "notes": board.notes,
        "problems": board.differences,
    }


def _confirmed_standing(board: ChainBoard, row: PeerStanding) -> PeerStanding:
    return board.confirmed.get(row.peer, PeerStanding(row.peer))


def print_standings(title: str, columns: Sequence[str], names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table without truncation: figures first, so that a narrow terminal wraps only the names. `columns`:
    headings of figures. `names`: headings of columns that may hold long, untrusted text. `rows`: all cells, figures
    first."""
    table = Table(title=title, title_justify="left", box=None)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*(printable_text(cell) for cell in row))
    console = Console()
    needed = Measurement.get(console, console.options.update(width=COLUMNS_MAX), table).maximum
    Console(width=max(console.width, needed)).print(table)


def printable_text(text: str) -> Text:
    """Untrusted text on one line, with control characters made harmless."""
    cut = text[:CHARACTERS_SHOWN_MAX]
    return Text(escape_control_characters(cut) + (f"... ({len(text)} characters)" if len(text) > len(cut) else ""))


DEPTH = 2  # default of chain.depth
TOP_MAX = 10_000


def leaderboard(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help=f"{RULE} With a chain any node, else the coordinator."),
    ] = None,
    rpc: Annotated[
        str | None,
        typer.Option("--rpc", metavar="URL", help="Read the chain instead; or file:PATH, with the URL in it."),
    ] = None,
    contract: Annotated[str | None, typer.Option("--contract", metavar="ADDR", help="The swarm's contract.")] = None,
    from_block: Annotated[int, typer.Option(min=0, help="The block in which the contract was created.")] = 0,
    depth: Annotated[int, typer.Option(min=0, help="Blocks on top of one that is confirmed.")] = DEPTH,
    sort: Annotated[Order, typer.Option(help="What comes first.")] = "reward",
    top: Annotated[int, typer.Option(min=1, help="Places to show.")] = TOP_MAX,
    as_json: Annotated[bool, typer.Option("--json", help="Print standings and problems as JSON.")] = False,
) -> int:
    """Print a swarm's standings and check them.

    With a chain they are added up from the contract's events and, with --rpc, compared with its own sums. Without one
    they are checked against the signed reports of every round in the coordinator's log; another node's directory has
    those that its coordinator published last. Exits with 3 if they differ.
    """
    if rpc is not None:
        if directory is not None or contract is None:
            raise ConfigError("--rpc reads the chain, not a directory", "Give --contract with it, and no directory")
        return show_board(board_of_chain(rpc, contract, from_block, sort, depth), top, as_json)
    if contract is not None:
        raise ConfigError("--contract needs --rpc", "Give --rpc URL with it, or leave it out")
    log = find_log_directory(directory)
    board = board_of_log(log, sort, depth)
    return show_board(board, top, as_json) if board else show_reports(log, sort, top, as_json)


def show_board(board: ChainBoard, top: int, as_json: bool) -> int:
    """Print a chain's standings. Returns the exit code."""
    if as_json:
        typer.echo(msgspec.json.format(to_json(to_json_dict(board, top)), indent=2))
    else:
        print_board(board, top)
        for note in board.notes:
            typer.echo(note)
        for problem in board.differences:
            typer.echo(f"wrong: {printable_text(problem)}")
    return ExitCode.DIFFERENCE if board.differences else ExitCode.OK


def print_board(board: ChainBoard, top: int) -> None:
    """Print a contract's standings, with unconfirmed rewards beside the sum."""
    listed = board.standings[:top]
    pending = any(_confirmed_standing(board, row).reward != row.reward for row in listed)
    rows = []
    for place, row in enumerate(listed, 1):
        unconfirmed = [row.reward - _confirmed_standing(board, row).reward] if pending else []
        figures = (place, row.reward, *unconfirmed, row.rounds, row.stages, row.wins, row.votes)
        rows.append([*map(str, figures), row.peer, row.account or "-"])
    print_standings(
        f"leaderboard of {board.contract} on chain {board.chain_id}, up to block {board.block}",
        ("place", "reward", *(["unconfirmed"] if pending else []), "rounds", "stages", "wins", "votes"),
        ("peer", "account"),
        rows,
    )


NOT_ADMITTED = " (not admitted)"  # the peer has neither a proof of work nor an invitation


def show_reports(directory: Path, order: Order, top: int, as_json: bool) -> int:
    """Print the standings of a swarm without a chain, and their problems. Returns the exit code."""
    if order in ("wins", "votes"):
        raise ConfigError(f"--sort {order}: a swarm without a chain has no votes", "Sort by reward or rounds")
    boards = read_boards(directory)
    problems = boards.problems
    ranked = sorted(boards.standings, key=lambda row: (not row.admitted, -getattr(row, order), row.peer))[:top]
    if as_json:
        told = {"swarm": boards.swarm, "round": boards.round, "standings": ranked}
        print_json(told | {"problems": problems, "partial": boards.partial})
    else:
        rows = []
        for place, row in enumerate(ranked, 1):
            name = row.name + ("" if row.admitted else NOT_ADMITTED)
            rows.append([str(place), f"{row.reward:.3f}", str(row.rounds), str(row.last_round), name, row.peer])
        columns = ("place", "reward", "rounds", "last")
        print_standings(f"leaderboard after round {boards.round}", columns, ("name", "peer"), rows)
        for problem in problems:
            typer.echo(f"wrong: {problem}")
        if boards.partial:
            partial = count_noun(boards.partial, "round")
            typer.echo(f"{partial} could not be added up: the record had no room for all reports")
        if not boards.rounds:
            typer.echo("as the coordinator told it; only the coordinator's log has the signed reports that it adds up")
        elif not problems:
            reports, rounds = count_noun(boards.reports, "signed report"), count_noun(boards.rounds, "round")
            typer.echo(f"these standings are the sum of {reports} of {rounds}")
    return ExitCode.DIFFERENCE if problems else ExitCode.OK
