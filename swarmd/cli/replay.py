"""`swarmd replay`: fold an event log offline, to list events and commands, step through them, verify or compare them.

- It needs only the log, and starts from the latest snapshot before the first requested event.
- `--verify` compares every commit's commands with the digest in the log; `--against` folds the same events under other
  charts or settings, and shows where the results diverge.
"""

import difflib
import re
import sys
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, get_args

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from swarmd.cli.dashboard import PageOptions, serve_log
from swarmd.cli.local_swarm import parse_setting
from swarmd.cli.options import LogDir, check_event_range, find_log_directory
from swarmd.core.applied import AppliedEvent
from swarmd.core.chart import NAMES, load_charts
from swarmd.core.events import Event, RoundsSkipped, tag_of
from swarmd.core.step import StateFold, step
from swarmd.errors import ConfigError, ExitCode, NotFoundError
from swarmd.eventlog import export
from swarmd.eventlog.fold import (
    FoldBase,
    base_upto,
    check_not_removed,
    commits_from,
    fold_commits,
    newest_base,
    oldest_base,
)
from swarmd.eventlog.frame import Commit
from swarmd.eventlog.reader import end_seq_of_log
from swarmd.eventlog.replay import (
    CommitDiffers,
    ReplayComparison,
    SettingsOverride,
    StepOutcome,
    compare_replays,
    verify_log,
)

FILTERS = "Show only"
MODES = "What to do (by default, list events and commands)"
INDENT = " " * 10


def replay(
    directory: LogDir = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Events of this type.", rich_help_panel=FILTERS)
    ] = None,
    round_: Annotated[
        int | None, typer.Option("--round", min=0, help="Events of this round.", rich_help_panel=FILTERS)
    ] = None,
    stage: Annotated[
        int | None, typer.Option("--stage", min=0, help="Events of this stage.", rich_help_panel=FILTERS)
    ] = None,
    first: Annotated[
        int, typer.Option("--from", metavar="SEQ", min=0, help="First event.", rich_help_panel=FILTERS)
    ] = 0,
    last: Annotated[
        int | None, typer.Option("--to", metavar="SEQ", min=0, help="Last event; the fold ends there.")
    ] = None,
    state: Annotated[bool, typer.Option("--state", help="Print the state at the end.", rich_help_panel=MODES)] = False,
    step: Annotated[
        bool,
        typer.Option(
            "--step",
            help="Event by event: event, changed fields, commands; waits for a key on a terminal.",
            rich_help_panel=MODES,
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare every commit's commands with the log; exit 3 and the first difference if not.",
            rich_help_panel=MODES,
        ),
    ] = False,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHARTDIR|KEY=VALUE",
            help="The same events under other charts, or with round.behind=abandon: where they part; exit 3 if so.",
            rich_help_panel=MODES,
        ),
    ] = None,
    web: Annotated[
        bool, typer.Option("--web", help="Show it in a browser, event by event.", rich_help_panel=MODES)
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> None:
    """Replay an event log: list what happened and what came of it, step through it, verify it, or try others.

    Others are charts and settings (--against). Needs only the log: no model, network or key; a running daemon's
    directory is fine.
    """
    if state + step + verify + web + bool(against) > 1:
        raise typer.BadParameter("--state, --step, --verify, --against and --web exclude each other: give one of them")
    if (state or verify or against or web) and (types or first or round_ is not None or stage is not None):
        raise typer.BadParameter("--type, --round, --stage and --from choose what is listed; here only --to counts")

    log = find_log_directory(directory)
    if last is not None:
        check_not_removed(log, last)
    if web:  # on the usual port, or any free one
        serve_log(log.parent, PageOptions(else_any=True), archive=log)
    elif verify:
        show_verification(directory or log.parent, log, last, json)
    elif against:
        show_comparison(log, against, last, json)
    elif state:
        show_state(log, last, json)
    else:
        show_events(log, Filter(types or [], round_, stage, first), last, Display(steps=step, json=json))


# --- what is folded and what is shown ---


class Filter:
    """Selects the events to show, from `first` on; others are only folded."""

    def __init__(self, types: list[str], round_: int | None, stage: int | None, first: int) -> None:
        self._types = frozenset(map(resolve_event_type, types))
        self._round = round_
        self._stage = stage
        self.first = first

    def matches(self, applied: AppliedEvent) -> bool:
        event = applied.event
        if applied.seq < self.first or (self._types and tag_of(event) not in self._types):
            return False
        if self._stage is not None and getattr(event, "stage", None) != self._stage:
            return False
        if self._round is None:
            return True
        if isinstance(event, RoundsSkipped):
            return event.first <= self._round <= event.last
        return getattr(event, "round", None) == self._round


def resolve_event_type(name: str) -> str:
    """Resolve an event type from its tag or its class name."""
    tags = sorted(str(kind.__struct_config__.tag) for kind in get_args(Event))
    tag = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if tag in tags:
        return tag
    near = difflib.get_close_matches(tag, tags, n=3)
    fix = f"Did you mean {' or '.join(near)}?" if near else f"The types are {', '.join(tags)}"
    raise ConfigError(f"--type: there are no events of type {name!r}", fix).with_exit_code(ExitCode.USAGE)


def commits_upto(commits: Iterator[Commit], last: int | None) -> Iterator[Commit]:
    return commits if last is None else takewhile(lambda commit: commit.seq <= last, commits)


def fold_log(log: Path, last: int | None, progress: bool, base: FoldBase) -> Iterator[AppliedEvent]:
    commits = commits_from(log, base)
    applied = fold_commits(with_progress(log, commits, last) if progress else commits_upto(commits, last), base.state)
    return applied if last is None else takewhile(lambda one: one.seq <= last, applied)


def find_fold_start(log: Path, seq: int | None) -> FoldBase:
    """The latest base for a fold that shows event `seq`; the log's newest for None."""
    if first := oldest_base(log).seq:
        typer.echo(f"events before seq {first} were removed; a snapshot stands for them", err=True)
    return newest_base(log) if seq is None else base_upto(log, seq)


def with_progress(log: Path, commits: Iterator[Commit], last: int | None) -> Iterator[Commit]:
    """Commits up to `last`, with a progress bar on stderr if that is a terminal."""
    commits = commits_upto(commits, last)
    return _with_progress_bar(log, commits, last) if sys.stderr.isatty() else commits


def _with_progress_bar(log: Path, commits: Iterator[Commit], last: int | None) -> Iterator[Commit]:
    with progress_bar(log, last) as bar:
        shown = 0
        for commit in commits:
            if commit.seq - shown >= 1000:
                bar.update(bar.task_ids[0], completed=(shown := commit.seq))
            yield commit


def progress_bar(log: Path, last: int | None) -> Progress:
    """A bar on stderr that counts events up to `last`, or to the log's end."""
    end = end_seq_of_log(log)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=end if last is None else min(end, last + 1))
    return bar


# --- the modes ---


def show_verification(directory: Path, log: Path, last: int | None, json: bool) -> None:
    try:
        found = verify_log(log, partial(with_progress, log, last=last))
    except CommitDiffers as error:
        if json:
            typer.echo(export.to_json(error.difference))
        raise
    if json:
        typer.echo(export.to_json(found))
        return
    typer.echo(f"{directory}: all {found.commits} commits ({found.events} events) give the commands that the log has")
    if found.from_seq:
        typer.echo(f"the fold began at the snapshot of seq {found.from_seq}; events before it were removed")
    if found.snapshots:
        typer.echo(f"{found.snapshots} snapshots are what the fold gives")


def show_state(log: Path, last: int | None, json: bool) -> None:
    base = find_fold_start(log, last if last is None else last + 1)
    fold = StateFold(base.state)
    for commit in with_progress(log, commits_from(log, base), last):
        for envelope in commit.envelopes():
            if last is None or envelope.seq <= last:
                fold.apply(envelope)
    encoded = msgspec.json.encode(export.to_builtins_with_defaults(fold.state))
    typer.echo(encoded if json else msgspec.json.format(encoded, indent=2))


def show_events(log: Path, wanted: Filter, last: int | None, display: "Display") -> None:
    base = find_fold_start(log, check_event_range(wanted.first, last))
    before = base.seq - oldest_base(log).seq  # events that are not read
    events, shown, chart = before, 0, base.state.chart if before else ""
    for applied in fold_log(log, last, progress=not sys.stdout.isatty(), base=base):
        events += 1
        chart = applied.after.chart
        if wanted.matches(applied):
            shown += 1
            if not display.show(applied):
                return
    if not display.json:
        typer.echo(f"{events} events, {shown} shown; the node is in {chart or 'no state'}")


class Display:
    def __init__(self, steps: bool, json: bool) -> None:
        self.json = json
        self._steps = steps
        self._asks = steps and not json and sys.stdin.isatty()
        self._until_seq = -1

    def show(self, applied: AppliedEvent) -> bool:
        """Print one event. Returns whether to continue."""
        if self.json:
            typer.echo(_applied_json(applied))
            return True
        for line in applied_lines(applied, every_change=self._steps):
            typer.echo(line)
        return not self._asks or applied.seq < self._until_seq or self._wait_for_operator(applied)

    def _wait_for_operator(self, applied: AppliedEvent) -> bool:
        """Wait for a key: Enter continues, a number continues to that event, s shows the state, q quits."""
        while True:
            typer.echo("Enter: next, SEQ: go on to it, s: state, q: quit > ", nl=False, err=True)
            answer = sys.stdin.readline()
            word = answer.strip()
            if not answer or word == "q":
                return False
            if word == "s":
                typer.echo(
                    msgspec.json.format(msgspec.json.encode(export.to_builtins_with_defaults(applied.after)), indent=2)
                )
                continue
            if re.fullmatch(r"[0-9]{1,18}", word):
                self._until_seq = int(word)
            return True


def applied_lines(applied: AppliedEvent, every_change: bool) -> Iterator[str]:
    """The event, the fields it changed (or only the chart states), and the commands it caused."""
    yield export.format_event(applied.seq, applied.at, applied.event)
    for change in export.changes_between(applied.before, applied.after):
        if every_change or change.path.endswith("chart"):
            yield typer.style(f"{INDENT}{export.format_change(change)}", dim=True)
    for command in applied.commands:
        yield typer.style(f"{INDENT}▶ {export.format_command(command)}", fg="cyan")


def _applied_json(applied: AppliedEvent) -> bytes:
    return export.to_json(
        {
            "seq": applied.seq,
            "at": applied.at,
            "event": applied.event,
            "changes": export.changes_between(applied.before, applied.after),
            "commands": applied.commands,
        }
    )


def show_comparison(log: Path, against: list[str], last: int | None, json: bool) -> None:
    """Print where the two replays diverge. Raises typer.Exit with 3 if they do."""
    charts = [Path(one) for one in against if "=" not in one or Path(one).is_dir()]
    if len(charts) > 1:
        raise typer.BadParameter("one CHARTDIR at a time, with KEY=VALUE beside it", param_hint="--against")
    if charts and not charts[0].is_dir():
        fix = f"Name one with {', '.join(NAMES)}.yaml, or a setting, as round.behind=abandon"
        raise NotFoundError(f"--against {charts[0]}: there is no such directory of charts", fix)
    supposed = SettingsOverride(dict(parse_setting(one) for one in against if Path(one) not in charts))
    other = partial(step, charts=load_charts(charts[0])) if charts else step
    found = compare_replays(log, other, partial(with_progress, log, last=last), supposed)
    if json:
        typer.echo(export.to_json(found))
    else:
        typer.echo("\n".join(comparison_lines(found, " and ".join(against))))
    if found.first:
        raise typer.Exit(ExitCode.DIFFERENCE)


def comparison_lines(found: ReplayComparison, against: str) -> Iterator[str]:
    """Where the replays diverge, how many commands of each kind each had, and how the final states differ."""
    first = found.first
    if first is None:
        yield f"{found.events} events go the same way under {against}"
        return
    yield f"here is the log, there {against}: they part at seq {first.seq}:"
    yield export.format_event(first.seq, first.at, first.event)
    yield from _outcome_lines("here", first.here)
    yield from _outcome_lines("there", first.there)
    yield f"at {found.decisions} of {found.events} events the commands differ; both sides are told what happened here"
    yield f"commands in {found.events} events:{'here':>14}{'there':>8}"
    for kind in sorted(found.here | found.there):
        yield f"  {kind:<30}{found.here.get(kind, 0):>6}{found.there.get(kind, 0):>8}"
    yield "the states at the end, here → there:" if found.changes else "the states at the end are the same"
    yield from (f"  {export.format_change(change)}" for change in found.changes)


def _outcome_lines(side: str, outcome: StepOutcome) -> Iterator[str]:
    if outcome.refused:
        yield f"  {side:<6}refused: {outcome.refused}"
        return
    for change in outcome.changes:
        yield f"  {side:<6}{export.format_change(change)}"
    for command in outcome.commands:
        yield f"  {side:<6}▶ {export.format_command(command)}"
    if not outcome.changes and not outcome.commands:
        yield f"  {side:<6}nothing changes"
