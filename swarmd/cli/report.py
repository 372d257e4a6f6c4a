"""`swarmd report`: the results of training, from event logs alone: a picture, JSON, or the model's card."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from swarmd.cli.leaderboard import printable_text
from swarmd.cli.options import RULE, find_log_directory, node_directories
from swarmd.errors import ConfigError, NotFoundError
from swarmd.eventlog.export import to_builtins_with_defaults, to_json
from swarmd.observe.words import count_noun
from swarmd.results.card import CardSubject, describe_accuracy, make_card
from swarmd.results.history import TrainingHistory, read_history, skills_summary

OUT = Path("report.png")
WAITING = "`swarmd status` says what the node waits for, `swarmd doctor` what is wrong"
TASKS_TOLD = 8  # tasks listed for a node


def report(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR...]", help=f"{RULE} Several, or a directory of several."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help=f"The picture, .png or .svg.  [default: {OUT}]")
    ] = None,
    svg: Annotated[bool, typer.Option("--svg", help="Write the picture as SVG too, beside the other.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    card: Annotated[bool, typer.Option("--card", help="Print the model card of one node.")] = False,
) -> None:
    """Show reward and held-out accuracy (pass@1) by round, in all and by task, skipped rounds and restarts.

    Reads logs, with daemons up or down.

    Writes a picture. With --json or --card it prints instead, and a picture is written only where --out names one.
    """
    if as_json and card:
        raise ConfigError("--json and --card both print", "Choose one")
    files = picture_files(out, svg, wanted=not (as_json or card))
    histories = read_histories(directories or [find_log_directory(None).parent])
    if card:
        if len(histories) != 1:
            raise ConfigError(f"--card is of one node, and these are {len(histories)}", "Name one data directory")
        if not histories[0].stages:
            raise NotFoundError(f"{histories[0].label} has trained no stage: there is no model to describe", WAITING)
        typer.echo(make_card(histories[0], CardSubject()), nl=False)
    elif as_json:
        print_histories_json(histories)
    else:
        print_summary(histories)
    write_pictures(histories, files, quiet=as_json or card)


def picture_files(out: Path | None, svg: bool, wanted: bool) -> list[Path]:
    """The picture files to write. Raises ConfigError for a suffix other than .png or .svg."""
    from swarmd.results.picture import SUFFIXES

    if out is None and not wanted and not svg:
        return []
    first = out or OUT
    if first.suffix not in SUFFIXES:
        raise ConfigError(f"--out {first}: {first.suffix or 'no suffix'} is not a kind of picture", "Use .png or .svg")
    return list(dict.fromkeys([first, first.with_suffix(".svg")] if svg else [first]))


def read_histories(directories: Sequence[Path]) -> list[TrainingHistory]:
    """The training history in each log, in the given order. Raises NotFoundError if there is no node; ConfigError if
    two logs belong to one node; LogDamaged if a log cannot be read."""
    places = [place for directory in directories for place in node_directories(directory)]
    histories = [read_history(place) for place in places]
    seen: dict[str, Path] = {}
    for place, history in zip(places, histories, strict=True):
        if history.peer in seen:
            raise ConfigError(f"{seen[history.peer]} and {place} are logs of one node, {history.peer}", "Name one")
        seen[history.peer] = place
    return histories


def print_histories_json(histories: Sequence[TrainingHistory]) -> None:
    nodes = [
        {
            **{name: getattr(history, name) for name in history.__struct_fields__},
            "label": history.label,
            "rounds": history.rounds,
            "skills": [msgspec.structs.asdict(curve) for curve in history.skills],
        }
        for history in histories
    ]
    typer.echo(msgspec.json.format(to_json(to_builtins_with_defaults({"nodes": nodes})), indent=2))


def print_summary(histories: Sequence[TrainingHistory]) -> None:
    for history in histories:
        rounds = history.rounds
        reward = f"reward {rounds[-1].reward:.3f} in round {rounds[-1].round}" if rounds else "nothing trained"
        typer.echo(
            f"{printable_text(history.label)}: {count_noun(len(rounds), 'round')} trained, "
            f"{history.rounds_skipped} skipped, "
            f"{count_noun(len(history.restarts), 'restart')}; {reward}; held-out accuracy {describe_accuracy(history)}"
        )
        if said := skills_summary(history.skills, TASKS_TOLD):
            typer.echo(f"  by task: {printable_text(said)}")


def write_pictures(histories: Sequence[TrainingHistory], files: Sequence[Path], quiet: bool) -> None:
    """Draw the pictures, and print their paths; `quiet`: on stderr."""
    from swarmd.results.picture import NODES_MAX, draw

    if files and not any(history.stages for history in histories):
        typer.echo(f"no picture: no stage has been trained. {WAITING}", err=True)
        return
    for file in files:
        draw(histories, file)
        typer.echo(f"{file}: written", err=quiet)
    if files and len(histories) > NODES_MAX:
        typer.echo(f"the picture shows the first {NODES_MAX} of {len(histories)} nodes", err=True)
