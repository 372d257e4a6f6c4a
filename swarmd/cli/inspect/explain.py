"""`swarmd explain`: the story of a round or of a gap, in sentences, from the event log alone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmd.cli.options import ConfigFile
from swarmd.errors import ConfigError, ControlError, ExitCode
from swarmd.paths import NodeDirectory

if TYPE_CHECKING:
    from rich.console import RenderableType

    from swarmd.core.state import State
    from swarmd.eventlog.fold import Base
    from swarmd.observe.story import Story

ANSWER_S = 2.0  # longest wait for a daemon


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [ROUND]",
            help="The node's directory, by default the present one or ./data; and a round, by default now and the last "
            "gap.",
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the stories as JSON.")] = False,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Show who signed two different records for one place, and check both.")
    ] = False,
) -> int:
    """Tell what became of a round and why: trained, skipped and for which cause, or under way.

    Reads the log, and asks only whether the daemon is up; a copied directory does as well. With --evidence it exits
    with 1 where the log holds what proves nothing.
    """
    from rich.console import Console

    from swarmd.eventlog.export import to_json

    directory, round_ = read_words(words or [], config)
    if evidence:
        from swarmd.cli.inspect.evidence import show

        return show(directory, as_json)
    now = time.time() if has_daemon(directory) else None
    stories = tell_round(directory, round_, now) if round_ is not None else tell_latest(directory, now)
    if as_json:
        typer.echo(to_json(stories))
        return ExitCode.OK
    console = Console()
    for story in stories:
        console.print(picture_of(story))
    return ExitCode.OK


def read_words(words: list[str], config: Path | None) -> tuple[Path, int | None]:
    """The directory and the round that are meant. Raises ConfigError."""
    from swarmd.cli.locate import log_of

    numbers = [word for word in words if re.fullmatch(r"\d{1,18}", word)]
    places = [word for word in words if word not in numbers]
    example = "For example: swarmd explain data 12"
    if len(numbers) > 1:
        raise ConfigError(f"one round at most is explained, not {' and '.join(numbers)}", example)
    if len(places) > 1:
        wrong = next((place for place in places if not Path(place).exists()), places[-1])
        raise ConfigError(f"{wrong!r} is no round: rounds are numbers, from 0 on", example)
    place = Path(places[0]) if places else None
    return log_of(place, config), int(numbers[0]) if numbers else None


def has_daemon(directory: Path) -> bool:
    """Whether a daemon runs on this data directory, be it too busy to answer; on its events directory as well."""
    from swarmd.eventlog.segment import find_log
    from swarmd.observe.control import NoDaemon, ask

    try:
        ask(NodeDirectory(find_log(directory).parent).control, "status", ANSWER_S)
    except NoDaemon:
        return False
    except ControlError:
        return True
    return True


def tell_round(directory: Path, round_: int, now: float | None = None, points: Sequence[Base] = ()) -> list[Story]:
    """The story of one round.

    Args:
        directory: the node's.
        round_: which.
        now: POSIX seconds, where its daemon runs.
        points: at which the node had just joined a stage, where some are known: the last ones of the log.

    Raises:
        NotFoundError: there is no log.
        LogDamaged, OtherVersion: it cannot be read.
    """
    from swarmd.cli.inspect.replay import folded
    from swarmd.eventlog.segment import find_log
    from swarmd.observe.story import StoryTeller

    log = find_log(directory)
    teller = StoryTeller(round_)
    for base in bases_before(log, round_, points):
        teller = StoryTeller(round_)
        for applied in folded(log, None, progress=True, base=base):
            teller.apply(applied)
            if not teller.goes_on:
                break
        if teller.knows_before:
            break
    return [teller.story(now)]


def bases_before(log: Path, round_: int, points: Sequence[Base]) -> Iterator[Base]:
    """Points from which on a round may be told, the nearest first: a round or more before it, where the node had just
    joined a stage, then snapshots. The log is searched for the first where it is none of the `points`.
    """
    from swarmd.eventlog.fold import bases_where, nearer_base
    from swarmd.observe.story import joins_stage, reached

    def is_before(state: State) -> bool:
        return reached(state) < round_ - 1

    known = [point for point in points if is_before(point.state)]
    yield from known[-1:]
    bases = bases_where(log, is_before)
    first = next(bases)
    nearer = None if known else nearer_base(log, first, is_before, joins_stage)
    if nearer is not None:
        yield nearer
    yield first
    yield from bases


def tell_latest(directory: Path, now: float | None = None) -> list[Story]:
    """The last gap, if there is any, and the round that the node is at or trained last."""
    from swarmd.eventlog.fold import load_with_points
    from swarmd.eventlog.segment import find_log
    from swarmd.observe.story import joins_stage, reached

    state, points = load_with_points(find_log(directory), joins_stage)
    rounds = [state.skips[-1].first] if state.skips else []
    rounds.append(max(0, reached(state)))
    return [story for round_ in dict.fromkeys(rounds) for story in tell_round(directory, round_, now, points)]


def picture_of(story: Story) -> RenderableType:
    """A story for a person."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from swarmd.eventlog.export import clock

    colours = {"trained": "green", "skipped": "yellow", "missed": "red"}
    table = Table(box=None, padding=(0, 1), show_header=False)
    for style in ("dim", "dim"):
        table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    for each in story.sentences:
        table.add_row(clock(each.at), str(each.seq), Text(each.text + ".", "yellow" if each.trouble else ""))
    parts: list[RenderableType] = [Text(story.verdict, f"bold {colours.get(story.outcome, '')}".strip()), table]
    if story.cut:
        parts.append(Text(f"{story.cut} more sentences; `swarmd replay DIR --round {story.round}` has all events"))
    parts += [Text(f"→ {line}") for line in story.advice]
    return Group(*parts, "")
