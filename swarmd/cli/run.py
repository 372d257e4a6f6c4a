"""Runs a node: `swarmd run` in the foreground, `swarmd service` under systemd."""

import difflib
import subprocess
from typing import Annotated

import structlog
import typer

from swarmd import units
from swarmd.cli.options import ConfigFile, DataDir, NodeDir, config_of_node, locate_node
from swarmd.config import Config, load_config
from swarmd.daemon.service import run_node
from swarmd.errors import ExitCode, NotFoundError, SwarmdError, UnitError
from swarmd.files import make_path_error
from swarmd.host import check_host
from swarmd.observe.logs import log_fatal, set_up_logging
from swarmd.observe.redaction import known_secrets
from swarmd.paths import NodeDirectory, quote_for_shell
from swarmd.swarms.registry import check_code, check_kind
from swarmd.units import DROP_IN, ServicePaths, credential_names, find_service_paths

PROGRESS_S = 10.0  # between progress lines of the trainer on a terminal


def run(directory: NodeDir = None, config: ConfigFile = None, data: DataDir = None) -> int:
    """Run a node. SIGTERM or Ctrl-C stops it in order, a second one at once.

    With --config, DIR is the data directory.
    """
    file = config_of_node(directory, config)
    loaded = load_config(file)
    check_kind(loaded.swarm)
    paths = NodeDirectory(data or locate_node(directory, config).data)
    check_code(loaded.swarm, paths.root)
    secrets = known_secrets(loaded, paths.root, signing=True)
    is_watched = set_up_logging(loaded.logs.level, loaded.logs.format, secrets=secrets)
    try:
        check_host()
        return run_node(loaded, paths, progress_s=PROGRESS_S if is_watched else 0.0)
    except SwarmdError as error:
        log_fatal(error)
        return error.exit_code
    except Exception as error:  # logged, so that secrets in it are redacted
        refused = make_path_error(error)
        if refused is not None:
            log_fatal(refused)
        else:
            structlog.get_logger("swarmd").exception("the daemon met an error it does not know; please report it")
        return ExitCode.FAILURE


app = typer.Typer(no_args_is_help=True, add_completion=False, help="Run a node as a systemd service.")

SYSTEMCTL_S = 120.0  # timeout of systemctl, which includes a node's stop
SYSTEMCTL_FIX = "See `systemctl status` and `journalctl -xe`; with --no-reload files are written and nothing else"

Instance = Annotated[
    str, typer.Option("--instance", metavar="NAME", help="One of several nodes: swarmd@NAME, /etc/swarmd/NAME.toml.")
]
User = Annotated[bool, typer.Option("--user", help="For yourself, without root.")]
Reload = Annotated[bool, typer.Option("--reload/--no-reload", help="Reload systemd.")]


@app.command()
def install(
    instance: Instance = "",
    user: User = False,
    config: ConfigFile = None,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--cpu", help="Allow or hide accelerators; default: as the machine has one.")
    ] = None,
    programs: Annotated[
        bool | None,
        typer.Option("--programs/--no-programs", help="Allow the sandbox for programs; default: by the swarm's kind."),
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Start the node, now and at every boot.")] = False,
    reload: Reload = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")] = False,
) -> None:
    """Install the unit for systemd. Run it again after an upgrade.

    With --config, the configuration and the node's data are copied too.
    """
    place = units.find_service_paths(instance, user)
    source = config or place.config
    loaded = load_config(source) if config is not None or source.exists() else None
    files = units.plan_service_files(place, units.find_command(user=user), loaded, gpu, programs)
    transfer = None
    if loaded is not None:
        units.refuse_other_log(source, loaded, place)
        if source.resolve() != place.config:
            transfer = units.find_transfer(source, loaded, place)
            files[place.config] = units.config_text(place, source, loaded)
    if dry_run:
        for path, text in files.items():
            there = path.read_text(encoding="utf-8") if path.exists() else ""
            lines = there.splitlines(), text.splitlines()
            changed = list(difflib.unified_diff(*lines, str(path) if there else "/dev/null", str(path), lineterm=""))
            typer.echo("\n".join(changed) if changed else f"{path}: as it should be")
        if transfer is not None and not transfer.there:
            typer.echo(f"{transfer.target.root}: would be copied from {transfer.source.root}, which would be closed")
        return
    for path, text in files.items():
        private = user and path == place.config  # may contain secrets then
        typer.echo(f"{path}: {units.write_file(path, text, 0o600 if private else 0o644)}")
    if transfer is not None:
        old, new = transfer.source.root, transfer.target.root
        if transfer.there:
            typer.echo(f"{new}: the node's data is there; {old} stays as it is")
        else:
            units.copy_data(transfer)
            typer.echo(f"{new}: the node's data, copied from {old}, which is closed: no node starts there any more")
    _make_directories(place)
    if reload:
        _systemctl(place, "daemon-reload")
    if now:
        _systemctl(place, "enable", "--now", place.unit)
        typer.echo(f"{place.unit}: started, now and at every boot")
    _print_next_steps(place, loaded, now)


def _make_directories(place: ServicePaths) -> None:
    try:
        place.etc.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not place.user:
            place.credentials.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UnitError(f"{error.filename}: {error.strerror}", "Run as root, or with --user") from error


def _print_next_steps(place: ServicePaths, config: Config | None, started: bool) -> None:
    if config is None:
        typer.echo(f"next: put the node's configuration at {place.config}, and run this again")
        return
    for name in credential_names(config):
        if not (place.credentials / name).exists():
            typer.echo(
                f"next: `install -m 600 FILE {quote_for_shell(place.credentials / name)}`: the configuration "
                "asks for it"
            )
    if not started:
        typer.echo(f"next: `systemctl {'--user ' if place.user else ''}enable --now {place.unit}`")
    if place.user:
        typer.echo("next: `loginctl enable-linger`, or the node ends when you log out")


@app.command()
def uninstall(instance: Instance = "", user: User = False, reload: Reload = True) -> None:
    """Stop and disable the node and remove what `install` wrote. Data, configuration and secrets stay."""
    place = find_service_paths(instance, user)
    paths = list(place.drop_ins)
    # The template is kept for other instances, and the target for any other node.
    if not instance or not set(place.units.glob(f"swarmd@?*.service.d/{DROP_IN}")) - set(paths):
        paths += [place.units / name for name in place.templates]
        if not (place.units / ("swarmd.service" if instance else "swarmd@.service")).exists():
            paths.append(place.units / "swarmd.target")
    paths = [path for path in paths if path.exists()]
    if not paths:
        fix = "`systemctl list-unit-files 'swarmd*'` shows what is; one of your own is named with --user"
        raise NotFoundError(f"{place.unit} is not installed in {place.units}", fix)
    if reload:
        _systemctl(place, "disable", "--now", place.unit)
    for path in paths:
        path.unlink()
        if path.name == DROP_IN and not any(path.parent.iterdir()):
            path.parent.rmdir()
        typer.echo(f"{path}: removed")
    if reload:
        _systemctl(place, "daemon-reload")
    typer.echo(f"left as they are: {place.config}, {place.data}, and what lies beside them")


def _systemctl(place: ServicePaths, *words: str) -> None:
    argv = ["systemctl", *(["--user"] if place.user else []), *words]
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=SYSTEMCTL_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnitError(f"{' '.join(argv)}: {error}", SYSTEMCTL_FIX) from error
    if ended.returncode:
        said = " ".join(ended.stderr.split())[:500]
        raise UnitError(f"{' '.join(argv)} failed with {ended.returncode}: {said}", SYSTEMCTL_FIX)
