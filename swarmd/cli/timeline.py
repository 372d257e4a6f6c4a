"""`swarmd timeline`: what happened between several nodes, from their logs, in causal order."""

import contextlib
import re
import tempfile
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from swarmd.backup.archive import read_archive
from swarmd.backup.backup import BackupManifest
from swarmd.backup.bundle import BundleManifest
from swarmd.cli.dashboard import LISTEN, PageOptions, prepare_page_access
from swarmd.cli.options import find_log_directory, node_directories, warn
from swarmd.errors import ArchiveError, ConfigError, NotFoundError
from swarmd.eventlog.export import format_time, to_json
from swarmd.eventlog.segment import find_segment_directory
from swarmd.file_kind import ARCHIVE, describe_file
from swarmd.observe import timeline_words
from swarmd.observe.deliveries import Rollouts, trace_rollouts
from swarmd.observe.layers import escape_control_characters
from swarmd.observe.node_log import MOMENTS_MAX, NOWHERE, LoggedEvent, NodeLog, RoundRange
from swarmd.observe.timeline import Timeline, TimelinePart, read_parts
from swarmd.observe.words import count_noun

LOGS_MAX = 64
BEFORE_ALL = NOWHERE - 1  # below every round, so that reading stops at the log's first commit
NAME_SHOWN_MAX = 24
DATE = 10  # length of an ISO date
UNDECIDED = ("not-yet", "nothing-sent")  # outcomes that are the same at all nodes
ARRIVED = {"clock": "heard by", "report": "report seen by", "weights": "weights fetched by"}  # wording by kind of arrow


def timeline(
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR|FILE...]",
            help="Directories of nodes, or one with several nodes' in it; backups and support bundles, too.",
        ),
    ] = None,
    rounds: Annotated[
        str | None,
        typer.Option("--round", metavar="N", help="A round, rounds as 3-7, or all; by default the last one trained."),
    ] = None,
    nodes: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="Only what this node did; may be repeated.")
    ] = None,
    of: Annotated[
        str | None, typer.Option("--of", metavar="NAME", help="Say what became of this node's rollouts at the others.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Show the newest rounds in a browser, and follow them, until Ctrl-C.")
    ] = False,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where --page listens.")] = LISTEN,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --page: bearer token; needed beyond this machine.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="With --page: open it in a browser.")] = False,
) -> None:
    """Show what happened between several nodes: who opened, trained, published, fetched and used what, and why not.

    Logs are put in the order of cause and effect, not by their clocks, which may be wrong; times are shown by the first
    node's clock. Nodes may run or not, and the more of a swarm's logs there are, the more is known.
    """
    wanted = parse_rounds(rounds)
    if (token_file or open_page) and not page:
        raise ConfigError("--token-file and --open are for the page", "Give --page with them")
    with contextlib.ExitStack() as stack:
        if page:
            if wanted or nodes or of or as_json:
                raise ConfigError("--page shows all nodes and the newest rounds", "Choose on the page, or leave it out")
            serve_lanes(places or [find_log_directory(None).parent], listen, token_file, open_page, stack)
            return
        logs = order_logs(open_logs(places or [find_log_directory(None).parent], wanted or RoundRange(), stack))
        parts = read_parts(logs, wanted) if wanted is not None else [read_last(logs, done=of is not None)]
        for number, part in enumerate(parts):
            reject_unknown(logs, wanted)
            if of is not None:
                show_rollouts(part, find_node(part.timeline, of), as_json)
                continue
            chosen = {find_node(part.timeline, name) for name in nodes or ()} or set(range(len(logs)))
            if as_json:
                print_json_lines(part, chosen, begins=number == 0)
            else:
                print_lines(
                    part, chosen, describe_rounds(wanted or RoundRange(part.first, part.last)) if number == 0 else ""
                )
        warn_of_left_out(logs)


def parse_rounds(given: str | None) -> RoundRange | None:
    """Parse --round; None for the last round. Raises ConfigError."""
    if given is None:
        return None
    if given == "all":
        return RoundRange(0)
    found = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", given)
    if found is None:
        raise ConfigError(f"--round {given!r} is not a round", "Write a number, two as in 3-7, or all")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise ConfigError(f"--round {given} ends before it begins", f"Write --round {last}-{first}")
    return RoundRange(first, last)


# --- the logs ---


def open_logs(places: Sequence[Path], wanted: RoundRange, stack: contextlib.ExitStack) -> list[NodeLog]:
    """Open the logs in directories and archives. Raises as `find_logs`."""
    logs = [NodeLog(number, events, wanted) for number, events in enumerate(find_logs(places, stack))]
    for log in logs:
        stack.callback(log.close)
    return logs


def find_logs(places: Sequence[Path], stack: contextlib.ExitStack) -> list[Path]:
    """Find the directories of segments, unpacking archives until `stack` is closed. Raises NotFoundError, ArchiveError;
    ConfigError for too many."""
    found: list[Path] = []
    for place in places:
        if place.is_file():
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swarmd-timeline-")))
            found.append(unpack_log(place, root))
        else:
            found += [find_segment_directory(each) for each in node_directories(place)]
    if len(found) > LOGS_MAX:
        raise ConfigError(f"these are {len(found)} logs, {LOGS_MAX} are shown at most", "Name fewer")
    return found


def unpack_log(file: Path, into: Path) -> Path:
    """Unpack a backup or a support bundle. Returns the directory of its log's segments. Raises ArchiveError."""
    refused: list[str] = []
    for kind in (BackupManifest, BundleManifest):
        root = into / kind.FILE.removesuffix(".json")
        root.mkdir()
        try:
            read_archive(file, kind, root)
            return find_segment_directory(root)
        except ArchiveError as error:
            refused.append(error.message)
    what, use = describe_file(file)
    if what != ARCHIVE:
        raise ConfigError(f"{file} is {what}: neither a node's directory nor a backup or a support bundle", use)
    raise ArchiveError(f"the log in {file} cannot be read: {refused[0]}; {refused[1]}", "Take another copy of it")


def order_logs(logs: Sequence[NodeLog]) -> list[NodeLog]:
    """Sort the logs, the coordinator's first. Raises ConfigError if two belong to one node, or to different swarms."""
    seen: dict[str, NodeLog] = {}
    for log in logs:
        log.read(past=BEFORE_ALL)  # reads the first commit, which has the settings
        if not log.peer:
            raise NotFoundError(f"the log in {log.place} is empty", "Its node was made and never started")
        if log.peer in seen:
            both = f"{seen[log.peer].place} and {log.place}"
            raise ConfigError(f"{both} are logs of one node, {log.peer}", "Name one of them")
        seen[log.peer] = log
    swarms = {log.settings.swarm: log for log in logs if log.settings is not None}
    if len(swarms) > 1:
        one, other = list(swarms.values())[:2]
        raise ConfigError(f"{one.place} and {other.place} are of two swarms", "Name the nodes of one swarm")
    ordered = sorted(logs, key=lambda log: log.settings is None or log.settings.coordination is None)
    for number, log in enumerate(ordered):
        log.renumber(number)
    return ordered


def read_last(logs: Sequence[NodeLog], done: bool) -> TimelinePart:
    """The last round that any node trained or, if `done`, that nodes have already moved on from."""
    for log in logs:
        log.read()
    together = Timeline(logs)
    trained, reached = max(log.trained for log in logs), max(log.reached for log in logs)
    last = max(min(trained, reached - 1) if done else trained, 0)
    return TimelinePart(together, last, last, list(together.merge()))


def reject_unknown(logs: Sequence[NodeLog], wanted: RoundRange | None) -> None:
    """Raise ConfigError if no log reaches the requested rounds."""
    reached = max(log.reached for log in logs)
    if wanted is not None and (wanted.first or 0) > max(reached, 0):
        known = f"they go up to round {reached}" if reached >= 0 else "no round has opened there"
        raise ConfigError(f"round {wanted.first} is in none of these logs: {known}", "Name another with --round")


def find_node(together: Timeline, name: str) -> int:
    """Index of a node by its name, its directory's name, or its peer id or the end of it. Raises ConfigError."""
    ways: list[list[int]] = [[], [], []]
    for log, shown in zip(together.logs, together.names, strict=True):
        ways[0] += [log.number] * (name in (shown, log.name, log.peer))
        ways[1] += [log.number] * (name == log.place.resolve().parent.name)
        ways[2] += [log.number] * (len(name) >= 4 and log.peer.endswith(name))
    for numbers in ways:
        if len(numbers) == 1:
            return numbers[0]
    known = ", ".join(together.names)
    raise ConfigError(f"{name!r} is not one of the nodes whose logs are here", f"They are {known}")


# --- showing it ---


def describe_rounds(asked: RoundRange) -> str:
    if asked.first == asked.last:
        return f"round {asked.first}"
    return "all rounds" if asked.last == RoundRange().last else f"rounds {asked.first} to {asked.last}"


def format_event(part: TimelinePart, chosen: Container[int]) -> Iterator[LoggedEvent]:
    """The events of the requested rounds and nodes."""
    return (each for each in part.moments if part.first <= each.near <= part.last and each.node in chosen)


def print_lines(part: TimelinePart, chosen: set[int], rounds: str) -> None:
    """Print a line for each event, and below it its effects at other nodes; `rounds` heads the first part."""
    together = part.timeline
    if rounds:
        first = escape_control_characters(together.names[0])
        typer.echo(f"{rounds} of {count_noun(len(together.logs), 'node')}; times are by {first}'s clock")
        for line in timeline_words.describe_clock_gaps(together):
            typer.echo(escape_control_characters(line))
    width = min(max(map(len, together.names)), NAME_SHOWN_MAX)
    day = ""
    for moment in format_event(part, chosen):
        causes = {cause.node for cause in together.causes_of(moment)}
        if causes & chosen and timeline_words.is_shown_by_arrow(together, moment):
            continue
        at = format_time(together.estimate_time(moment))
        if at[:DATE] != day:
            day = at[:DATE]
            typer.echo(day)
        name = escape_control_characters(together.names[moment.node])[:width]
        typer.echo(
            f"{at[DATE + 1 :]}  {name:<{width}}  "
            f"{escape_control_characters(timeline_words.describe_moment(together, moment))}"
        )
        for line in arrow_lines(together, moment):
            typer.echo(f"{'':{DATE + 4 + width}}  {escape_control_characters(line)}")


def arrow_lines(together: Timeline, moment: LoggedEvent) -> Iterator[str]:
    """An event's effects: one line for all nodes that heard or saw it, and one for each node that rollouts went to."""
    arrows = timeline_words.list_arrows(together, moment)
    for kind, verb in ARRIVED.items():
        if told := [f"{each.node} after {each.after_s:.1f} s" for each in arrows if each.kind == kind]:
            yield f"→ {verb} {', '.join(told)}"
    rollouts = [each for each in arrows if each.kind == "rollouts"]
    for each in rollouts:
        if each.verdict not in UNDECIDED:
            yield f"{'→' if each.seq is not None else '✗'} {each.node}: {each.words}"
    yield from {each.words: None for each in rollouts if each.verdict in UNDECIDED}


def warn_of_left_out(logs: Sequence[NodeLog]) -> None:
    """Warn about events that were dropped because of the bound."""
    for log in logs:
        if log.left_out >= 0:
            warn(f"of {log.name} some events up to round {log.left_out} are left out: more than {MOMENTS_MAX} at once")


def print_json_lines(part: TimelinePart, chosen: set[int], begins: bool) -> None:
    """Print a JSON line for each event; if `begins`, first one for each node."""
    together = part.timeline
    if begins:
        for number in range(len(together.logs)):
            typer.echo(to_json(timeline_words.describe_node(together, number)))
    for moment in format_event(part, chosen):
        typer.echo(to_json(timeline_words.describe_event(together, moment)))


def show_rollouts(part: TimelinePart, sender: int, as_json: bool) -> None:
    """Print what happened to a node's rollouts, for each stage of the rounds."""
    together = part.timeline
    stages = max([log.settings.stages for log in together.logs if log.settings], default=1)
    reached = max(log.reached for log in together.logs)
    for round_ in range(part.first, min(part.last, reached) + 1):
        for stage in range(stages):
            traced = trace_rollouts(together, sender, (round_, stage))
            if as_json:
                typer.echo(to_json(rollouts_row(together, traced)))
            else:
                print_rollouts(together, traced)


def print_rollouts(together: Timeline, traced: Rollouts) -> None:
    typer.echo(escape_control_characters(" ".join(traced.sent)))
    for delivery in traced.deliveries:
        typer.echo(escape_control_characters(f"  {together.names[delivery.receiver]}: {delivery.text}"))


def rollouts_row(together: Timeline, traced: Rollouts) -> dict[str, Any]:
    rows = [{**each._asdict(), "receiver": together.names[each.receiver]} for each in traced.deliveries]
    return {**traced._asdict(), "sender": together.names[traced.sender], "deliveries": rows}


def serve_lanes(
    places: Sequence[Path], listen: str, token_file: Path | None, open_page: bool, stack: contextlib.ExitStack
) -> None:
    from swarmd.web.companion import serve_page
    from swarmd.web.lanes import LanesSource, make_lanes_app, rounds_kept

    found = find_logs(places, stack)
    logs = order_logs([NodeLog(number, log, RoundRange(), rounds_kept(len(found))) for number, log in enumerate(found)])
    token = str(token_file.absolute()) if token_file is not None else ""
    doors, endpoint = prepare_page_access(PageOptions(listen, token), Path.cwd())
    serve_page(make_lanes_app(LanesSource(logs), doors), endpoint, open_page)
