"""`swarmd explain`: tells, from the event log alone, how a round went, or why rounds were skipped.

- In a long log, the fold starts from a snapshot before the round, or from an earlier one if it needs more events.
- `--evidence` shows peers that signed two different records for one stage, and checks the signatures offline.
"""

import base64
import re
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarmd.cli.options import ConfigFile, find_log_directory, utc
from swarmd.cli.replay import find_fold_start, fold_log, with_progress
from swarmd.core.events import Equivocated
from swarmd.dht.wire.evidence import decode_evidence
from swarmd.errors import ConfigError, ExitCode, RecordRejected
from swarmd.eventlog.export import format_time, to_json
from swarmd.eventlog.fold import bases_where, commits_from, load_state
from swarmd.eventlog.segment import find_segment_directory
from swarmd.observe.control import ask_status
from swarmd.observe.story import Story, StoryTeller, highest_known_round
from swarmd.paths import NodeDirectory, quote_for_shell

ANSWER_S = 2.0  # timeout of a daemon's answer


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [ROUND]",
            help="The node's directory (., or ./data), and a round (now and the last gap).",
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the stories as JSON.")] = False,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Show and check evidence of contradicting records.")
    ] = False,
) -> int:
    """Explain a round: trained, skipped with the cause, or under way.

    Reads the log, and asks only whether the daemon is up; a copied directory does as well. With --evidence it exits
    with 1 if some of it proves nothing.
    """
    directory, round_ = parse_directory_and_round(words or [], config)
    if evidence:
        return print_evidence(directory, as_json)
    now = time.time() if has_daemon(directory) else None
    stories = story_of_round(directory, round_, now) if round_ is not None else latest_stories(directory, now)
    if round_ is not None and stories[0].outcome == "ahead":
        raise _unknown_round_error(directory, round_)
    if as_json:
        typer.echo(to_json(stories))
        return ExitCode.OK
    console = Console()
    for story in stories:
        console.print(render_story(story))
    return ExitCode.OK


def _unknown_round_error(directory: Path, round_: int) -> ConfigError:
    last = highest_known_round(load_state(find_segment_directory(directory))[0])
    known = f"its rounds go up to {last}" if last >= 0 else "no round has opened yet"
    fix = f"`swarmd explain {quote_for_shell(directory)}` tells of the newest; `swarmd status` says where the swarm is"
    return ConfigError(f"round {round_} is not in the log in {directory}: {known}", fix)


def parse_directory_and_round(words: list[str], config: Path | None) -> tuple[Path, int | None]:
    """Parse directory and round from the arguments. Raises ConfigError."""
    numbers = [word for word in words if re.fullmatch(r"\d{1,18}", word)]
    places = [word for word in words if word not in numbers]
    example = "For example: swarmd explain data 12"
    if len(numbers) > 1:
        raise ConfigError(f"one round at most is explained, not {' and '.join(numbers)}", example)
    if len(places) > 1:
        wrong = next((place for place in places if not Path(place).exists()), places[-1])
        raise ConfigError(f"{wrong!r} is not a round: rounds are numbers, from 0 on", example)
    place = Path(places[0]) if places else None
    return find_log_directory(place, config), int(numbers[0]) if numbers else None


def has_daemon(directory: Path) -> bool:
    """Whether a daemon runs on a data directory or its events directory, even one too busy to answer."""
    return ask_status(NodeDirectory(find_segment_directory(directory).parent).control, ANSWER_S).is_running


def story_of_round(directory: Path, round_: int, now: float | None = None) -> list[Story]:
    """The story of one round. `now`: POSIX seconds if a daemon runs, else None."""
    log = find_segment_directory(directory)
    teller = StoryTeller(round_)
    for base in bases_where(log, lambda state: highest_known_round(state) < round_ - 1):
        teller = StoryTeller(round_)
        for applied in fold_log(log, None, progress=True, base=base):
            teller.apply(applied)
            if not teller.may_continue:
                break
        if teller.knows_before:
            break
    return [teller.story(now)]


def latest_stories(directory: Path, now: float | None = None) -> list[Story]:
    """The stories of the last skipped rounds, if any, and of the current or last trained round."""
    state, _ = load_state(find_segment_directory(directory))
    rounds = [state.skips[-1].first] if state.skips else []
    rounds.append(max(0, highest_known_round(state)))
    return [story for round_ in dict.fromkeys(rounds) for story in story_of_round(directory, round_, now)]


def render_story(story: Story) -> RenderableType:
    colours = {"trained": "green", "skipped": "yellow", "missed": "red"}
    table = Table(box=None, padding=(0, 1), show_header=False)
    for style in ("dim", "dim"):
        table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    for each in story.sentences:
        table.add_row(format_time(each.at), str(each.seq), Text(each.text + ".", "yellow" if each.trouble else ""))
    parts: list[RenderableType] = [Text(story.verdict, f"bold {colours.get(story.outcome, '')}".strip()), table]
    if story.cut:
        parts.append(Text(f"{story.cut} more sentences; `swarmd replay DIR --round {story.round}` has all events"))
    parts += [Text(f"→ {line}") for line in story.advice]
    return Group(*parts, "")


SHOWN = ("round", "stage", "reward", "digest", "size_bytes", "groups", "opened_at", "deadline_at", "final", "opening")


class EvidenceItem(msgspec.Struct, frozen=True):
    """Two contradicting records of one peer, as logged."""

    seq: int
    at: float
    kind: str
    peer: str
    round: int
    stage: int
    problem: str  # why it proves nothing; empty if it proves that `peer` signed both
    records: tuple[dict[str, str | int | float | bool], ...]  # content of each record
    signed: tuple[str, ...]  # in base64: the msgpack arrays [owner, payload, expiration, signature]


def print_evidence(directory: Path, as_json: bool) -> int:
    """Print all evidence in a node's log. Returns 1 if any of it proves nothing."""
    log = find_segment_directory(directory)
    exhibits = [
        make_evidence_item(event, seq, commit.at)
        for commit in with_progress(log, commits_from(log, find_fold_start(log, 0)), None)
        for seq, event in enumerate(commit.events, commit.seq)
        if isinstance(event, Equivocated)
    ]
    if as_json:
        typer.echo(to_json(exhibits))
    else:
        typer.echo(
            "\n\n".join(map(describe_evidence_item, exhibits))
            or "The log holds no evidence of two records for one place."
        )
    return ExitCode.FAILURE if any(each.problem for each in exhibits) else ExitCode.OK


def make_evidence_item(event: Equivocated, seq: int, at: float) -> EvidenceItem:
    """Decode an event's two records, and check whether they prove equivocation."""
    said = (event.kind, event.peer, event.round, event.stage)
    signed = tuple(base64.b64encode(each).decode() for each in (event.first, event.second))
    try:
        evidence, charge = decode_evidence(event.first, event.second)
    except RecordRejected as error:
        return EvidenceItem(seq, at, *said, f"{error.reason}: {error.message}", (), signed)
    problem = "" if charge == said else f"the records show something else: {charge}"
    records = tuple(
        {
            "expires": each.expiration,
            **{name: value for name, value in msgspec.structs.asdict(each.content).items() if name in SHOWN},
        }
        for each in (evidence.first, evidence.second)
    )
    return EvidenceItem(seq, at, *said, problem, records, signed)


def describe_evidence_item(exhibit: EvidenceItem) -> str:
    proved = f"it proves nothing: {exhibit.problem}" if exhibit.problem else "both signatures are genuine"
    head = f"{exhibit.peer}: two records of kind {exhibit.kind}, round {exhibit.round} stage {exhibit.stage}"
    lines = [f"{head} (event {exhibit.seq}, {utc(exhibit.at, '%H:%M:%S')}); {proved}"]
    for number, record in enumerate(exhibit.records, 1):
        lines.append(f"  {number}: " + ", ".join(f"{name} {value}" for name, value in record.items()))
    return "\n".join(lines)
