"""`swarmd log`: print, follow, verify, export or compact an event log.

All but compacting can be done while the daemon runs.
"""

import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from swarmd.cli.options import LogDir, check_event_range, find_log_directory, refuse_existing
from swarmd.eventlog.export import event_json, export_json_lines, format_event
from swarmd.eventlog.frame import Commit
from swarmd.eventlog.reader import end_seq_of_log, follow_commits, read_commits
from swarmd.eventlog.replay import check_log
from swarmd.eventlog.store import compact_event_log
from swarmd.observe.words import count_noun

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Print, follow, verify, export or compact an event log."
)

FOLLOW_S = 0.2  # how often `tail -f` looks for new events
TAIL_EVENTS = 10

Text = Annotated[bool, typer.Option("--text", "-t", help="Short lines instead of JSON.")]


@app.command()
def cat(
    directory: LogDir = None,
    first: Annotated[int, typer.Option("--from", metavar="SEQ", min=0, help="First event.")] = 0,
    last: Annotated[int | None, typer.Option("--to", metavar="SEQ", min=0, help="Last event.")] = None,
    text: Text = False,
) -> None:
    """Print events, one JSON line each: seq, at (POSIX seconds), type, and the event's fields; NaN is a string."""
    _print_events(read_commits(find_log_directory(directory), check_event_range(first, last)), first, last, text)


@app.command()
def tail(
    directory: LogDir = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is appended, until Ctrl-C.")] = False,
    count: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last events.")] = TAIL_EVENTS,
    text: Text = False,
) -> None:
    """Print the last events, and with -f the coming ones."""
    log = find_log_directory(directory)
    first = max(0, end_seq_of_log(log) - count)
    commits = follow_commits(log, first, _wait_for_poll) if follow else read_commits(log, first)
    _print_events(commits, first, None, text)


@app.command()
def verify(directory: LogDir = None) -> None:
    """Check every byte: frames, sequence, the chain of segments, snapshots. Commands: `swarmd replay --verify`."""
    log = find_log_directory(directory)
    found = check_log(log)
    typer.echo(
        f"{directory or log.parent}: sound: {count_noun(found.events, 'event')} (seq {found.from_seq} to "
        f"{found.next_seq - 1}) in {count_noun(found.commits, 'commit')}, {count_noun(found.segments, 'segment')}, "
        f"{count_noun(found.snapshots, 'snapshot')}; node {found.node}"
    )
    if found.torn_bytes:
        typer.echo(
            f"its last {found.torn_bytes} bytes are an unfinished append, which the next start of the node removes"
        )


@app.command()
def export(
    jsonl: Annotated[Path, typer.Option("--jsonl", metavar="OUT", help="Write JSON lines.")], directory: LogDir = None
) -> None:
    """Write the whole log to a new file, for jq, DuckDB and others."""
    refuse_existing(jsonl, "a file")
    log = find_log_directory(directory)
    typer.echo(f"{jsonl}: {export_json_lines(read_commits(log), jsonl)} events")


@app.command("compact")
def compact_log(
    directory: LogDir = None,
    keep_bytes: Annotated[
        int, typer.Option(metavar="BYTES", min=0, help="Remove no more than it takes to get down to this.")
    ] = 0,
) -> None:
    """Make a stopped node's log smaller: snapshot its end, and remove the oldest segments. They are gone for good."""
    log = find_log_directory(directory)
    done = compact_event_log(log, keep_bytes)
    typer.echo(
        f"{directory or log.parent}: {count_noun(done.segments, 'segment')} removed, {done.before_bytes} bytes before, "
        f"{done.after_bytes} bytes now"
    )


def _wait_for_poll() -> bool:
    """Wait before the next poll. Ctrl-C interrupts the wait."""
    sys.stdout.flush()
    threading.Event().wait(FOLLOW_S)
    return True


def _print_events(commits: Iterable[Commit], first: int, last: int | None, text: bool) -> None:
    out = sys.stdout.buffer
    for commit in commits:
        for envelope in commit.envelopes():
            if envelope.seq < first:
                continue
            if last is not None and envelope.seq > last:
                return
            row = (envelope.seq, envelope.at, envelope.event)
            out.write((format_event(*row).encode() if text else event_json(*row)) + b"\n")
