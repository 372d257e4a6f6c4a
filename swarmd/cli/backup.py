"""`swarmd backup` makes or checks a backup of a node, `swarmd restore` restores a node's directory from one, and
`swarmd fork` makes a node with a new identity from another's log."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from swarmd.backup.backup import BackupManifest, BackupPlan, check_backup, make_backup, restore_backup
from swarmd.backup.fork import fork_node
from swarmd.cli import options
from swarmd.errors import ConfigError
from swarmd.observe.words import format_duration
from swarmd.paths import NodeDirectory, quote_for_shell

MIB = 1024 * 1024


class BackupGroup(TyperGroup):
    """Makes `swarmd backup DIR OUT` mean `swarmd backup make DIR OUT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["make", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=BackupGroup,
    no_args_is_help=True,
    add_completion=False,
    help="Make a backup of a node (`swarmd backup DIR OUT.tar.gz`), or check one.",
)


@app.command()
def make(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="[DIR] OUT", help=f"{options.RULE} It may run. And the new file, .tar.gz or .tar."),
    ],
    passphrase_file: options.BackupPassphraseFile = None,
    without_keys: Annotated[bool, typer.Option("--without-keys", help="Leave out secrets.")] = False,
    without_checkpoints: Annotated[
        bool,
        typer.Option("--without-checkpoints", help="Leave out the model; the node then begins from the first one."),
    ] = False,
    config: options.ConfigFile = None,
    for_move: Annotated[
        bool,
        typer.Option("--for-move", help="The stopped node moves to another host and will not start here."),
    ] = False,
) -> None:
    """Make a backup of a node: log up to a commit, rollouts in use, newest checkpoint, keys and configuration."""
    node, out = _parse_backup_arguments(places, config)
    directory = node.data
    outside = node.config is not None and node.config.parent.resolve() != directory.resolve()
    secret = (
        None if without_keys else options.read_passphrase(passphrase_file, "Passphrase of the new backup", twice=True)
    )
    data = NodeDirectory(directory)
    manifest = make_backup(
        data, out, BackupPlan(secret, not without_checkpoints, node.config if outside else config, for_move)
    )
    _print_backup(out, manifest)
    if secret is None or not data.identity.exists():
        typer.echo("the identity is not in it: `swarmd identity backup` keeps that", err=True)
    else:
        options.record_backup(data.identity, manifest.peer, manifest.made_at, out)
    if for_move:
        typer.echo(f"{directory} is closed: a node started there ends with code 79. Next, on the new host:")
        typer.echo(f"swarmd restore {quote_for_shell(out.name)} DIR --moved")


def _parse_backup_arguments(places: list[Path], config: Path | None) -> tuple[options.LocatedNode, Path]:
    """Parse the node and the output file from the arguments. Raises ConfigError, NeverStarted, NotFoundError."""
    if len(places) > 2:
        raise ConfigError(
            f"`swarmd backup` takes one node and one file, not {' '.join(map(str, places))}",
            "Write `swarmd backup DIR OUT.tar.gz`",
        )
    *named, out = places
    if not named and (out.is_dir() or not out.name.endswith((".tar.gz", ".tar"))):
        raise ConfigError(f"{out} is not a file for a backup", "Name one: `swarmd backup DIR OUT.tar.gz`")
    node = options.locate_node(named[0] if named else None, config)
    options.find_log_of_node(node, not named and config is None)
    return node, out


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup.")],
    passphrase_file: options.BackupPassphraseFile = None,
) -> None:
    """Check a backup's contents, with the passphrase also its keys."""
    secret = options.read_passphrase(passphrase_file, "Passphrase of the backup") if passphrase_file else None
    manifest = check_backup(file, secret)
    _print_backup(file, manifest)
    if manifest.sealed:
        typer.echo("its keys open" if secret else "whether its keys open was not tried: give --passphrase-file")


def _print_backup(file: Path, manifest: BackupManifest) -> None:
    size = sum(member.size_bytes for member in manifest.members) / MIB
    made = f"made {options.utc(manifest.made_at, '%H:%M:%S')} by swarmd {manifest.version}"
    typer.echo(f"{file}: {manifest.peer} of swarm {manifest.swarm}, {made}")
    checkpoint = f"checkpoint {manifest.checkpoint}" if manifest.checkpoint else "no checkpoint"
    keys = "keys sealed" if manifest.sealed else "no keys"
    events = f"events {manifest.from_seq} to {manifest.next_seq - 1}"
    typer.echo(f"{events}, {checkpoint}, {keys}, {len(manifest.members)} files, {size:.1f} MiB")
    marks = manifest.marks
    submitted = max(marks.reward[0], marks.vote)
    done = [f"trained up to round {marks.done[0]}" if marks.done[0] >= 0 else "nothing trained yet"]
    typer.echo(", ".join(done + [f"submitted up to round {submitted}"] * (submitted >= 0)))
    if manifest.missing:
        typer.echo(f"{len(manifest.missing)} rollouts of the stage in hand were not there", err=True)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup that `swarmd backup` made.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory to make; new or empty.")],
    passphrase_file: options.BackupPassphraseFile = None,
    without_keys: Annotated[bool, typer.Option("--without-keys", help="Do not restore keys.")] = False,
    moved: Annotated[bool, typer.Option("--moved", help="Continue a node backed up with --for-move.")] = False,
    from_round: Annotated[int, typer.Option(min=0, metavar="ROUND", help="First round to take part in or open.")] = 0,
) -> None:
    """Restore a node from a backup. First make sure that the old node runs nowhere."""
    sealed = check_backup(file).sealed and not without_keys
    secret = options.read_passphrase(passphrase_file, "Passphrase of the backup") if sealed else None
    manifest, verified = restore_backup(file, directory, secret, moved, from_round)
    typer.echo(f"{directory}: {manifest.peer}, {verified.events} events replayed, all commands as they were")
    if secret is None:
        typer.echo("keys and configuration are to be put there: `swarmd identity restore` for the key", err=True)
    if not moved:
        age = format_duration(time.time() - manifest.made_at)
        typer.echo(
            f"the backup was made {age} ago. What this node signed since is not in it: it will take part from the "
            "round after the first one that it sees opening",
            err=True,
        )


def fork(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The first node's directory, which is only read.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The directory to make; new or empty.")],
    at: Annotated[
        int | None, typer.Option(min=0, metavar="EVENT", help="The last event to keep; by default the newest.")
    ] = None,
    round: Annotated[
        int | None, typer.Option(min=0, metavar="ROUND", help="Instead: keep all up to the end of training this round.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Other settings; else the first node's.")
    ] = None,
) -> None:
    """Make a node with a new identity from another's log up to an event, for experiments.

    It begins with the weights that the first node had trained by then, and takes part from the next round on. It can
    never sign as the first one: a new key is made, and no account, passphrase, token or invitation is copied. Of the
    settings, those are left out that are the first node's own, and are named. The first node may be running.
    """
    node = options.locate_node(directory)
    options.find_log_of_node(node)
    if at is not None and round is not None:
        raise ConfigError("--at and --round exclude each other", "Give one of them")
    settings = config or node.config
    if settings is None:
        raise ConfigError(f"{directory} has no configuration beside its log", "Name one with --config FILE")
    made = fork_node(NodeDirectory(node.data), settings, new, at, round)
    typer.echo(f"{new}: {made.peer}, a fork of {made.parent} after its event {made.event}")
    typer.echo(f"it begins with checkpoint {made.checkpoint}" if made.checkpoint else "nothing was trained by then")
    if made.left_out:
        typer.echo(f"left out of its settings: {', '.join(made.left_out)}")
    if made.role == "coordinator":
        typer.echo("as a coordinator it opens rounds of a swarm of its own")
    else:
        options.warn("it joins the swarm that its settings name, beside the first node")
    typer.echo(f"next: `swarmd run {quote_for_shell(new)}`")
