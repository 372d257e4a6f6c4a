"""`swarmd doctor`: finds what is wrong with a node or its machine before it costs a round.

The checks are in swarmd.doctor; this module selects what to examine, prints the findings and sets the exit code.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from swarmd.cli.options import RULE, ConfigFile, DataDir, config_of_node, holds_log, print_json, resolve_directory
from swarmd.doctor.examination import Check, DoctorReport, Finding, Severity, Subject, examine
from swarmd.errors import NotFoundError
from swarmd.paths import CONFIG

COLOURS: dict[Severity, str] = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
RUNNING_SHOWN = 3  # running checks named in the progress line


def doctor(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help=f"{RULE} Without a node, only the machine.")
    ] = None,
    config: ConfigFile = None,
    data: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Contact no peers or endpoints.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="Only this check; may be repeated.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the checks.")] = False,
) -> int:
    """Examine a node and its machine: every finding with evidence and what to do about it.

    Exits with 0 when nothing is worse than a note, with 1 when there are warnings, with 2 when there are errors. It
    changes nothing, and may be run while the node runs.
    """
    from swarmd.doctor.checks import CHECKS, choose_checks

    if listing:
        for check in CHECKS:
            typer.echo(f"{check.name:10} {check.group:8} {(check.run.__doc__ or '').splitlines()[0]}")
        return 0
    checks = choose_checks(only or ())
    place = resolve_directory(directory)
    if data is None and config is not None:
        data = directory
    elif data is None and holds_log(place) and (place / CONFIG).is_file():
        data = place  # overrides the data directory named in the configuration
    subject = Subject(find_config(directory, config), data, offline)
    report = run_checks_with_progress(subject, checks, quiet=as_json)
    if as_json:
        print_json(report)
    else:
        print_report(report)
    return report.exit_code


def find_config(directory: Path | None, config: Path | None) -> Path | None:
    """The configuration to examine; None if none was named and the default place has none. Raises NotFoundError if the
    named file or directory is missing, or has no configuration."""
    if config is not None and not config.is_file():
        raise NotFoundError(f"there is no configuration file {config}", "`swarmd init` makes a node")
    if directory is None and config is None and not (resolve_directory(None) / CONFIG).is_file():
        return None
    return config_of_node(directory, config)


def run_checks_with_progress(subject: Subject, checks: Sequence[Check], quiet: bool = False) -> DoctorReport:
    """Run the checks; on a terminal, show the running ones on stderr."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return asyncio.run(examine(subject, checks))
    under_way: dict[str, None] = {}
    with console.status("examining") as line:

        def show_progress(name: str, ended: bool) -> None:
            under_way.pop(name, None) if ended else under_way.setdefault(name)
            shown = ", ".join(list(under_way)[:RUNNING_SHOWN])
            line.update(f"examining: {shown}{' ...' if len(under_way) > RUNNING_SHOWN else ''}")

        return asyncio.run(examine(subject, checks, show_progress))


def print_report(report: DoctorReport, brief: bool = False) -> None:
    """Print the findings, worst first; `brief` leaves out passed and skipped checks."""
    console = Console(highlight=False, soft_wrap=True)
    for finding in report.findings:
        if not (brief and finding.severity == "ok"):
            _print_finding(console, finding)
    left_out: dict[str, list[str]] = {}
    for skipped in () if brief else report.skipped:
        left_out.setdefault(skipped.reason, []).append(skipped.check)
    for reason, names in left_out.items():
        console.print(f"left out, {reason}: {', '.join(names)}", style="dim", markup=False)
    counts = {word: sum(each.severity == word for each in report.findings) for word in ("error", "warning", "note")}
    told = ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for word, count in counts.items() if count)
    console.print(f"\n{told or 'nothing to object to'}", style=COLOURS[report.verdict], markup=False)


def _print_finding(console: Console, finding: Finding) -> None:
    console.print(f"{finding.severity:8}", style=COLOURS[finding.severity], end="")
    if finding.severity == "ok":
        console.print(f"{finding.check}: {finding.evidence}", markup=False)
        return
    console.print(f"{finding.title} ({finding.id})", markup=False)
    console.print(f"        {finding.evidence}", markup=False)
    if finding.fix:
        console.print(f"        fix: {finding.fix}", markup=False)
