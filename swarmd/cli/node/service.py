"""`swarmd service`: make a node a service of systemd, take it away again, or say what its unit does and why."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmd.errors import ExitCode, NotFoundError, UnitError
from swarmd.paths import quoted

if TYPE_CHECKING:
    from swarmd.units.files import Planned
    from swarmd.units.plan import ServicePaths
    from swarmd.units.transfer import Transfer

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Run a node as a service of systemd.")

SYSTEMCTL_S = 120.0  # longest wait for systemctl, a stop of a node included
SYSTEMCTL_FIX = "See `systemctl status` and `journalctl -xe`; with --no-reload files are written and nothing else"

Instance = Annotated[
    str, typer.Option("--instance", metavar="NAME", help="One of several nodes: swarmd@NAME, /etc/swarmd/NAME.toml.")
]
User = Annotated[bool, typer.Option("--user", help="For yourself, without root: see `show --user` for what differs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Reload = Annotated[bool, typer.Option("--reload/--no-reload", help="Have systemd read the files.")]


@app.command()
def install(
    instance: Instance = "",
    user: User = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Copied to where the unit reads it; the node's data too."),
    ] = None,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--cpu", help="An accelerator's devices are left; else as the machine has one.")
    ] = None,
    programs: Annotated[
        bool | None,
        typer.Option("--programs/--no-programs", help="The sandbox for programs works; else as the swarm's kind asks."),
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Start the node, now and at every boot.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace changed files; copies are kept.")] = False,
    reload: Reload = True,
    dry_run: DryRun = False,
) -> None:
    """Write the unit and what belongs to it. Can be run again; a file that somebody changed is not overwritten."""
    from swarmd.units.files import put, refuse_changed, state_of
    from swarmd.units.plan import find_place, plan, plan_config, read_config
    from swarmd.units.program import find_command
    from swarmd.units.transfer import find_transfer, refuse_other_log

    place = find_place(instance, user)
    loaded = read_config(config or place.config)
    if config is not None and loaded is None:
        raise NotFoundError(f"there is no configuration file {config}", "`swarmd init` makes a node with one")
    if loaded is not None:
        refuse_other_log(config or place.config, loaded, place)
    files = plan(place, find_command(user=user), loaded, gpu, programs)
    transfer = None
    if config is not None and loaded is not None and config.resolve() != place.config:
        transfer = find_transfer(config, loaded, place)
        files.append(plan_config(place, config, loaded))
    if not force:
        refuse_changed(files)
    _drop_stale(place, files, dry_run)
    for planned in files:
        done = f"would be written ({state_of(planned)})" if dry_run else put(planned)
        typer.echo(f"{planned.path}: {planned.why}; {done}")
    if transfer is not None:
        _take_data(transfer, dry_run)
    if dry_run:
        return
    _make_directories(place)
    if reload:
        _systemctl(place, "daemon-reload")
    if now:
        _systemctl(place, "enable", "--now", place.unit)
        typer.echo(f"{place.unit}: started, now and at every boot")
    _tell_next(place, files, now)


def _take_data(transfer: Transfer, dry_run: bool) -> None:
    from swarmd.units.transfer import take_along

    source, target = transfer.source.root, transfer.target.root
    if transfer.there:
        typer.echo(f"{target}: the node's data is there; {source} stays as it is")
    elif dry_run:
        typer.echo(f"{target}: the node's data; would be copied from {source}, which would be closed")
    else:
        take_along(transfer)
        typer.echo(f"{target}: the node's data; copied from {source}, which is closed: no node starts there any more")


def _drop_stale(place: ServicePaths, files: list[Planned], dry_run: bool) -> None:
    """Drop-ins of an earlier install that asked for something else."""
    from swarmd.units.files import remove
    from swarmd.units.plan import OUR_DROP_INS

    wanted = {planned.path for planned in files}
    for unit in (place.unit, place.failure):
        for name in OUR_DROP_INS:
            path = place.drop_in(name, unit)
            if path not in wanted and path.exists():
                typer.echo(f"{path}: not needed any more; {'would go' if dry_run else remove(path)}")


def _make_directories(place: ServicePaths) -> None:
    try:
        place.etc.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not place.user:
            place.credentials.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UnitError(f"{error.filename}: {error.strerror}", "Run as root, or with --user") from error


def _tell_next(place: ServicePaths, files: list[Planned], started: bool) -> None:
    """What is left to the operator."""
    from swarmd.units.plan import credential_names, read_config

    loaded = read_config(place.config)
    if loaded is None:
        typer.echo(f"next: put the node's configuration at {place.config}, and run this again")
        return
    for name in credential_names(loaded):
        if not (place.credentials / name).exists():
            typer.echo(f"next: `install -m 600 FILE {quoted(place.credentials / name)}`: the configuration asks for it")
    if not started:
        typer.echo(f"next: `systemctl {'--user ' if place.user else ''}enable --now {place.unit}`")
    if place.user:
        typer.echo("next: `loginctl enable-linger`, or the node ends when you log out")


@app.command()
def uninstall(
    instance: Instance = "",
    user: User = False,
    force: Annotated[bool, typer.Option("--force", help="Remove changed files, too.")] = False,
    reload: Reload = True,
    dry_run: DryRun = False,
) -> None:
    """Stop and disable the node and remove what `install` wrote. Data, configuration and secrets stay."""
    from swarmd.units.files import remove
    from swarmd.units.plan import find_place, other_instances

    place = find_place(instance, user)
    others = other_instances(place) | (_active_instances(place) if reload else set())
    paths = [path for path in _written(place, others) if path.exists()]
    if not paths:
        raise NotFoundError(f"{place.unit} is not installed in {place.units}")
    if reload and not dry_run:
        _systemctl(place, "disable", "--now", place.unit)
    for path in paths:
        typer.echo(f"{path}: {'would be removed' if dry_run else remove(path, force)}")
    if reload and not dry_run:
        _systemctl(place, "daemon-reload")
    kept = place.config if place.user else f"{place.config}, /var/lib/swarmd{'-' * bool(instance)}{instance}"
    typer.echo(f"left as they are: {kept} and what lies beside them")


def _active_instances(place: ServicePaths) -> set[str]:
    """Instances beside this one that systemd runs, though nothing be left of their files."""
    states = "--state=active,activating,reloading,deactivating"
    listed = _systemctl(place, "list-units", "--plain", "--no-legend", "--full", states, "swarmd@*.service")
    return {line.split()[0] for line in listed.splitlines() if line.strip()} - {place.unit}


def _written(place: ServicePaths, others: set[str]) -> list[Path]:
    """Files of this node; with the last node of its kind go the template, and with the last of all the target."""
    from swarmd.units.plan import OUR_DROP_INS

    own = [place.drop_in(name, unit) for unit in (place.unit, place.failure) for name in OUR_DROP_INS]
    if place.instance and others:
        return own
    own += [place.units / place.template, place.units / place.failure_template]
    other_template = "swarmd.service" if place.instance else "swarmd@.service"
    return own if (place.units / other_template).exists() else [*own, place.units / "swarmd.target"]


@app.command()
def show(
    instance: Instance = "",
    user: User = False,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="DIR", help="Write the units as swarmd ships them, below DIR.")
    ] = None,
) -> int:
    """Print what the installed unit sets, where it stands and what it is for, and how it differs from swarmd's own."""
    from swarmd.units.plan import find_place
    from swarmd.units.reading import drift, effective, reasons
    from swarmd.units.writing import write_shipped

    if write is not None:
        for path in write_shipped(write):
            typer.echo(path)
        return ExitCode.OK
    place = find_place(instance, user)
    lines = effective(place)
    if not lines:
        raise NotFoundError(f"{place.unit} is not installed in {place.units}", "Run `swarmd service install --dry-run`")
    told = reasons()
    for line in lines:
        why = told.get((line.key, line.value)) or told.get((line.key, ""), "")
        typer.echo(f"{line.key}={line.value}  [{line.file.relative_to(place.units)}]")
        typer.echo(textwrap.indent(textwrap.fill(why, 112), "    ") if why else "    (set by somebody)")
    differences = drift(place)
    for difference in differences:
        typer.echo(
            f"{difference.file}: {difference.setting or 'the file'} is {difference.installed or 'missing'}, "
            f"swarmd writes {difference.expected or 'none'}. {difference.fix}",
            err=True,
        )
    return ExitCode.DIFFERENCE if differences else ExitCode.OK


def _systemctl(place: ServicePaths, *words: str) -> str:
    argv = ["systemctl", *(["--user"] if place.user else []), *words]
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=SYSTEMCTL_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnitError(f"{' '.join(argv)}: {error}", SYSTEMCTL_FIX) from error
    if ended.returncode:
        said = " ".join(ended.stderr.split())[:500]
        raise UnitError(f"{' '.join(argv)} failed with {ended.returncode}: {said}", SYSTEMCTL_FIX)
    return ended.stdout
