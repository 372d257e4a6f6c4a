"""`swarmd local`: a swarm of real nodes on this machine, with a live table, and the rewards at the end.

swarmd.cli.local_swarm runs the nodes' daemons; this module shows them and ends the run.
"""

import io
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from swarmd.cli import local_swarm
from swarmd.cli.status import read_status
from swarmd.config import find_unknown_setting
from swarmd.errors import ConfigError, LocalSwarmFailed, PathUnusable
from swarmd.files import hold_directory_lock
from swarmd.observe.panel import NodeRow, held_out_table, node_line, progress_line, rewards_tables, swarm_table
from swarmd.observe.words import count_noun
from swarmd.worker.runtime import TimeSource

REFRESH_S = 0.5
SILENT_S = 4.0  # print a line at least this often without a terminal
LAGGARDS_S = 60.0  # time for the other nodes to finish after the first has
PICTURE_COLUMNS = 84
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Show = Callable[[str, tuple[NodeRow, ...]], None]


def local(
    rounds: Annotated[int, typer.Option(min=0, help="Further rounds; 0: until Ctrl-C.")] = 8,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes, the coordinator included.")] = 3,
    directory: Annotated[Path, typer.Option("--dir", help="The nodes' directory; run again to continue.")] = Path(
        ".swarmd"
    ),
    trained: Annotated[
        str, typer.Option("--kind", metavar="KIND|FILE", help="A kind of swarm, or a configuration file.")
    ] = "digits",
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps in a round.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, for every node.")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a picture of the run, as SVG.")
    ] = None,
) -> None:
    """Run a small swarm of real nodes on this machine.

    One coordinator and its followers, each a daemon with its own directory, joined through hivemind's DHT on loopback.
    A node that dies is started again. Run again to continue; Ctrl-C ends all of them.
    """
    chosen: dict[str, Any] = dict(local_swarm.parse_setting(setting) for setting in settings or [])
    for key in chosen:
        tables: dict[str, Any] = {}
        local_swarm.set_dotted_key(tables, key, "")
        if unknown := find_unknown_setting(tables):
            raise ConfigError(f"--set: {unknown[0]}", unknown[1])
    if steps is not None:
        chosen["training.steps"] = steps
    if svg is not None and not svg.absolute().parent.is_dir():  # fail now rather than after the last round
        raise PathUnusable(f"{svg} cannot be written: there is no directory {svg.parent}", "Name another file")
    swarm = local_swarm.LocalSwarm(directory, nodes)
    with lock_directory(
        directory
    ):  # held until the nodes have ended: another call would overwrite their files, or kill their workers
        swarm.refuse_running()
        swarm.prepare_nodes(rounds, chosen, trained)
        _run_swarm(swarm, rounds, directory, svg)


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Make a directory and lock it against other calls; remove it if it stays empty. Raises PathUnusable."""
    if directory.is_file():
        raise PathUnusable(
            f"{directory} is a file, not a directory",
            f"Move away what is at {directory}, or name another one with --dir",
        )
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with hold_directory_lock(directory):
            yield
    finally:
        if made:
            with suppress(OSError):  # it is not empty
                directory.rmdir()


def _run_swarm(swarm: local_swarm.LocalSwarm, rounds: int, directory: Path, svg: Path | None) -> None:
    """Run the nodes until the last round or a signal, and print a report. Raises LocalSwarmFailed."""
    console = Console()
    with catch_stop_signals() as ending:
        try:
            swarm.start()
            at_work = watch(swarm, ending, console)
        finally:
            begun = time.monotonic()
            ended_early = swarm.ended_daemons
            codes = swarm.stop()
    console.print(f"all nodes ended in {time.monotonic() - begun:.1f} s")
    print_report(swarm, directory, console)
    if svg is not None:
        save_picture(svg, [at_work, *make_result_tables(swarm)])
    check_exits(ended_early, codes, swarm.find_leftover_pids())
    if ending.signal and rounds:
        raise typer.Exit(128 + ending.signal)


class StopSignal(threading.Event):
    """Set by a signal to stop; `signal` is its number, 0 before."""

    signal = 0


@contextmanager
def catch_stop_signals() -> Iterator[StopSignal]:
    """Record signals to stop instead of dying from them."""
    ending = StopSignal()

    def record_signal(number: int, _: object) -> None:
        ending.signal = number
        ending.set()

    before = {number: signal.signal(number, record_signal) for number in ENDING_SIGNALS}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch(swarm: local_swarm.LocalSwarm, ending: StopSignal, console: Console) -> RenderableType:
    """Show the nodes and restart ended ones, until the last round, no round can come, or a signal. Returns the last
    live table that showed a node at work."""
    begun = time.monotonic()
    over_at = 0.0
    at_work: RenderableType = ""
    with open_row_display(console) as show:
        while True:
            for said in swarm.restart_ended_nodes():
                console.print(said, style="yellow", markup=False, highlight=False, soft_wrap=True)
            rows = swarm.rows()
            heading = make_title(swarm, rows, time.monotonic() - begun)
            show(heading, rows)
            at_work = swarm_table(rows, heading) if any(row.done for row in rows) else at_work
            over = swarm.are_rounds_over
            over_at = over_at or (time.monotonic() if any(over) else 0.0)
            late = over_at > 0 and time.monotonic() - over_at > LAGGARDS_S
            if not swarm.can_continue or all(over) or late or ending.wait(REFRESH_S):
                return at_work


@contextmanager
def open_row_display(console: Console) -> Iterator[Show]:
    """Show rows: in a live table on a terminal, elsewhere a line for each change, and for all nodes after a silence."""
    if not console.is_terminal:
        yield make_line_printer(console)
        return
    with Live(console=console, auto_refresh=False) as live:

        def update_table(heading: str, rows: tuple[NodeRow, ...]) -> None:
            live.update(swarm_table(rows, heading, "Ctrl-C ends it"), refresh=True)

        yield update_table


def make_title(swarm: local_swarm.LocalSwarm, rows: tuple[NodeRow, ...], elapsed_s: float) -> str:
    """Title of the live table: rounds done, of how many, and elapsed time."""
    done = max((row.round for row in rows if row.round is not None), default=0)
    of = f" of {swarm.rounds_max}" if swarm.rounds_max else ""
    rounds = f"{done}{of} rounds" if of else count_noun(done, "round")
    return f"{count_noun(len(rows), 'node')}, {rounds} done, {int(elapsed_s) // 60}:{int(elapsed_s) % 60:02d}"


def make_line_printer(console: Console, clock: TimeSource = time.monotonic) -> Show:
    """Print a line when a node changes in more than progress; after a silence, print every node's progress."""
    shown: dict[str, str] = {}
    said_at = clock()

    def print_changes(heading: str, rows: tuple[NodeRow, ...]) -> None:
        nonlocal said_at
        lines = {row.name: node_line(row) for row in rows}
        news = [line for name, line in lines.items() if shown.get(name) != line]
        shown.update(lines)
        if not news and clock() - said_at >= SILENT_S:
            news = [f"{heading}: {progress_line(rows)}"]
        for line in news:
            said_at = clock()
            console.print(line, highlight=False, soft_wrap=True)

    return print_changes


def print_report(swarm: local_swarm.LocalSwarm, directory: Path, console: Console) -> None:
    """Print the results of all rounds so far from the nodes' logs, and commands that show more."""
    for table in make_result_tables(swarm):
        console.print(table)
    for place in swarm.places:
        for skip in local_swarm.read_training_history(place.events).skips:
            console.print(f"{place.name} skipped rounds {skip.first} to {skip.last}: {skip.cause}")
        learning = read_status(place).learning if place.events.exists() else None
        if learning is not None and learning.cause not in (None, "right"):  # never healthy: no daemon runs any more
            console.print(f"{place.name}: {learning.state}: {learning.reason}", markup=False)
    first = shlex.quote(str(directory / swarm.places[0].name))
    for line in (
        f"event logs:   {directory}/node-*/events",
        f"daemons' own: {directory}/node-*/daemon.log",
        f"replay one:   {swarmd_command()} replay {first}",
        f"explain one:  {swarmd_command()} explain {first}",
        f"see one:      {swarmd_command()} dashboard {first}",
        "continue:     the same command again",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_result_tables(swarm: local_swarm.LocalSwarm) -> list[RenderableType]:
    """Tables of rewards and held-out accuracy of all rounds so far; empty before the first."""
    histories = swarm.histories()
    return [*rewards_tables(histories), held_out_table(histories)] if any(histories.values()) else []


def save_picture(path: Path, pictures: Sequence[RenderableType]) -> None:
    """Save the terminal's output as an SVG, without rich's links to web fonts."""
    console = Console(width=PICTURE_COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    for picture in pictures:
        console.print(picture)
        console.print()
    drawn = console.export_svg(title="make run", unique_id="run")
    path.write_text(re.sub(r"@font-face {.*?}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")


def swarmd_command() -> str:
    """The command that runs swarmd from this directory, for pasting."""
    if shutil.which("swarmd"):
        return "swarmd"
    script = Path(sys.argv[0])
    here = Path.cwd()
    near = script.is_absolute() and script.is_relative_to(here)
    return shlex.quote(str(script.relative_to(here) if near else script))


def check_exits(
    ended_early: tuple[local_swarm.DaemonProcess, ...], codes: dict[str, int], leftovers: list[int]
) -> None:
    """Raise LocalSwarmFailed unless all nodes stopped on request, with code 0, and left no process. A node killed by
    SIGTERM while Python was still starting is fine."""
    for daemon in ended_early:
        name, said = daemon.place.name, "\n  ".join(daemon.last_errors())
        raise LocalSwarmFailed(
            f"{name} {local_swarm.describe_exit(codes[name])} and stayed down; it said last:\n  {said}",
            f"Read {daemon.place.output}",
        )
    wrong = [f"{name}: {code}" for name, code in codes.items() if code not in (0, -signal.SIGTERM)]
    if wrong:
        raise LocalSwarmFailed(
            f"not every node ended in order; exit codes {', '.join(wrong)}", "See each node's daemon.log for the reason"
        )
    if leftovers:
        raise LocalSwarmFailed(f"processes were left behind: {', '.join(map(str, leftovers))}", "End them with kill")
