"""`swarmd identity`: make, show, back up, restore and check a node's key, or import one from RL Swarm.

A key file is never overwritten. A backup is sealed with a passphrase, and records how far the node had come, so that a
restore can warn: a node that signs a round twice loses its place.
"""

import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from swarmd.animals import Words, animal_name, read_words
from swarmd.cli import options
from swarmd.dht.identity.backup import Backup, BackupProgress, open_backup, read_backup, read_progress, seal_backup
from swarmd.dht.identity.identity import (
    FILE_BYTES_MAX,
    Identity,
    create_identity,
    load_identity,
    parse_identity,
    write_private_file,
    write_rl_swarm_name,
)
from swarmd.errors import IdentityDamaged, IdentityError, NotFoundError, SwarmdError
from swarmd.files import advise_on_path_error, read_start
from swarmd.paths import NodeDirectory, quote_for_shell

NAME_FILES = ("hivemind_exp/name_utils.py", "rgym_exp/src/utils/name_utils.py")  # in RL Swarm, old and new
NAME_FILE_BYTES_MAX = 1 << 18

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Make, show, back up, restore, check or import a node's identity."
)

File = Annotated[Path, typer.Argument(help="The key file, usually DATA/identity.key.")]
BackupFile = Annotated[Path, typer.Argument(metavar="BACKUP", help="A file that `swarmd identity backup` wrote.")]


@app.command()
def new(path: File) -> None:
    """Make a new key (Ed25519, mode 0600) and print its peer id. An existing file is never overwritten."""
    typer.echo(create_identity(path).peer_id)


@app.command()
def show(path: File, as_json: options.PrintJson = False) -> None:
    """Check a key file and print its peer id, the node's fingerprint."""
    identity = _load_identity(path)
    if as_json:
        options.print_json({"file": str(path), "peer": identity.peer_id, "kind": identity.kind})
    else:
        typer.echo(identity.peer_id)


def _load_identity(path: Path) -> Identity:
    """Like `load_identity`, but report first if the file is not a key at all: then its mode does not matter."""
    with suppress(OSError):
        parse_identity(read_start(path, FILE_BYTES_MAX), str(path))
    return load_identity(path)


@app.command()
def backup(
    path: File,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The backup to write; it must not exist.")],
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The node's data directory, where the key does not lie in it.")
    ] = None,
    passphrase_file: options.KeyPassphraseFile = None,
) -> None:
    """Write the key into an encrypted file, with the node's progress for a warning at a restore."""
    identity = load_identity(path)
    options.refuse_existing(out, "it")
    marks = _marks_for_backup(path, data, identity.peer_id)
    passphrase = options.read_passphrase(passphrase_file, "Passphrase of the new backup", twice=True)
    made_at = time.time()
    write_private_file(out, seal_backup(Backup(identity.encode(), identity.peer_id, made_at, marks), passphrase))
    options.record_backup(path, identity.peer_id, made_at, out)
    at_round = f", at round {marks.highest_round}" if marks is not None and marks.highest_round >= 0 else ""
    typer.echo(f"{out}: backup of {identity.peer_id}{at_round}")


@app.command()
def restore(
    source: BackupFile,
    path: File,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The data directory it is for; by default the one that FILE lies in."),
    ] = None,
    passphrase_file: options.KeyPassphraseFile = None,
) -> None:
    """Restore a key from a backup. Nothing is overwritten."""
    options.refuse_existing(path, "it")
    raw = read_backup(source)
    opened = open_backup(raw, options.read_passphrase(passphrase_file, "Passphrase of the backup"), str(source))
    identity = opened.identity
    logged = read_progress(NodeDirectory(data or path.parent), identity.peer_id)
    write_private_file(path, identity.encode())
    typer.echo(identity.peer_id)
    for line in restore_warnings(opened, logged):
        options.warn(line)


@app.command()
def check(
    path: File,
    backup: Annotated[Path | None, typer.Option(metavar="BACKUP", help="Does it open, and hold this key?")] = None,
    passphrase_file: options.KeyPassphraseFile = None,
    as_json: options.PrintJson = False,
) -> int:
    """Check a key file, and a backup of it."""
    try:
        report = examine_key(path, backup, passphrase_file)
    except SwarmdError as error:
        if not as_json:
            raise
        options.print_json({"file": str(path), "sound": False, "problem": error.message, "fix": error.fix})
        return error.exit_code
    if as_json:
        options.print_json(report)
        return 0
    typer.echo(f"{path}: sound: {report['peer']} ({report['kind']}), mode {report['mode']}, user {report['owner']}")
    if backup is not None:
        typer.echo(f"{backup}: opens and holds this key, made {options.utc(report['backup']['made_at'])}")
    return 0


@app.command("import")
def import_key(
    source: Annotated[Path, typer.Argument(metavar="SWARM_PEM", help="RL Swarm's swarm.pem.")],
    path: File,
    names: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="RL Swarm's name_utils.py; by default that of the copy SWARM_PEM lies in."),
    ] = None,
) -> None:
    """Import RL Swarm's identity: check its RSA key, copy it with mode 0600, and print its peer id.

    Says what the node is called in RL Swarm, and how it keeps that name.
    """
    options.refuse_existing(path, "it")
    words = _read_rl_swarm_words(source, names)
    identity = parse_identity(_read_rl_swarm_key(source), str(source), "Name RL Swarm's swarm.pem")
    if identity.kind == "ed25519":
        raise IdentityDamaged(
            f"{source} is not RL Swarm's: its key is of another kind, as swarmd makes them",
            "Bring it here with `swarmd identity backup` and `swarmd identity restore`",
        )
    if not identity.has_valid_key_pair():
        raise IdentityDamaged(
            f"{source} is damaged: its public key does not belong to its secret", "Take another copy of it"
        )
    write_private_file(path, identity.encode())
    typer.echo(identity.peer_id)
    options.warn(f"do not run RL Swarm with {source} any more: one identity runs one node")
    typer.echo(_describe_kept_name(identity.peer_id, words), err=True)
    if words is None:
        return
    try:
        write_rl_swarm_name(path, identity.peer_id, animal_name(identity.peer_id, words=words))
    except OSError as error:
        options.warn(
            f"`swarmd join --identity {quote_for_shell(path)}` will not know this name: {error.filename}: "
            f"{error.strerror}"
        )


def _read_rl_swarm_words(source: Path, names: Path | None) -> Words | None:
    """Read RL Swarm's word lists; None if no file was named and RL Swarm's usual place has none. Raises IdentityError
    for a named file without them, NotFoundError if it is missing."""
    for file in [names] if names else [source.absolute().parent / place for place in NAME_FILES]:
        try:
            words = read_words(read_start(file, NAME_FILE_BYTES_MAX).decode(errors="replace"))
        except OSError as error:
            if names:
                raise NotFoundError(
                    f"{names} cannot be read: {error.strerror}", f"Name RL Swarm's {' or '.join(NAME_FILES)}"
                ) from error
            continue
        if words is not None:
            return words
    if names:
        raise IdentityDamaged(
            f"{names} does not hold RL Swarm's words for names", f"Name its {' or '.join(NAME_FILES)}"
        )
    return None


def _describe_kept_name(peer: str, words: Words | None) -> str:
    if words is None:
        return (
            "RL Swarm's names are made of other words than swarmd's: the node keeps the one it had there with "
            '`name = "..."` at the top of its configuration (`--names` says which, from RL Swarm\'s name_utils.py)'
        )
    name = animal_name(peer, words=words)
    return (
        f'In RL Swarm this node is called {name}. It keeps that with `name = "{name}"` at the top of its configuration'
    )


def _read_rl_swarm_key(path: Path) -> bytes:
    try:
        return read_start(path, FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no identity {path}", "Name RL Swarm's swarm.pem") from error
    except OSError as error:
        fix = advise_on_path_error(error, path) if isinstance(error, PermissionError) else "Name RL Swarm's swarm.pem"
        raise IdentityError(f"the identity {path} cannot be read: {error.strerror}", fix) from error


def _marks_for_backup(path: Path, data: Path | None, peer: str) -> BackupProgress | None:
    """The node's progress for a backup. If the log beside the key is unreadable, it only warns: the key is still backed
    up."""
    if data is not None:
        marks = read_progress(NodeDirectory(data), peer)
        if marks is None:
            raise NotFoundError(
                f"there is no event log in {data}", "Name the node's data directory, or leave --data out"
            )
        return marks
    try:
        marks = read_progress(NodeDirectory(path.parent), peer)
    except SwarmdError as error:
        options.warn(f"the backup does not say how far the node has come: {error.message}")
        return None
    if marks is None:
        options.warn("the backup does not say how far the node has come: no event log lies beside the key")
    return marks


def restore_warnings(opened: Backup, logged: BackupProgress | None) -> list[str]:
    """Warnings after a restore; `logged` is the progress according to the log in the directory."""
    lines = [
        f"the node that used this identity last {_describe_progress(opened.marks)} when the backup was made "
        f"({options.utc(opened.made_at)}), and may have gone on since: make sure that it does not run any more"
    ]
    if logged is None:
        lines.append("there is no event log here, so what that node has signed is not known")
    elif opened.marks is not None and logged.highest_round < opened.marks.highest_round:
        lines.append(f"the event log here is older than the backup: it {_describe_progress(logged)}")
    lines.append("the node will compare with the chain before it signs")
    return lines


def _describe_progress(marks: BackupProgress | None) -> str:
    if marks is None:
        return "was at a round that the backup does not tell"
    return f"was at round {marks.highest_round}" if marks.highest_round >= 0 else "had trained nothing yet"


def examine_key(path: Path, backup: Path | None, passphrase_file: Path | None) -> dict[str, Any]:
    """Examine a key for `swarmd identity check`. Raises SwarmdError for any fault."""
    identity = _load_identity(path)
    status = path.stat()
    report: dict[str, Any] = {
        "file": str(path),
        "sound": True,
        "peer": identity.peer_id,
        "kind": identity.kind,
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": status.st_uid,
    }
    if backup is not None:
        report["backup"] = _examine_backup(backup, identity, passphrase_file)
    return report


def _examine_backup(path: Path, identity: Identity, passphrase_file: Path | None) -> dict[str, Any]:
    raw = read_backup(path)
    opened = open_backup(raw, options.read_passphrase(passphrase_file, "Passphrase of the backup"), str(path))
    if opened.identity.encode() != identity.encode():
        raise IdentityDamaged(
            f"{path} is the backup of {opened.peer}, the key is that of {identity.peer_id}",
            "Make a new one with `swarmd identity backup`",
        )
    return {"file": str(path), "made_at": opened.made_at, "round": opened.marks.highest_round if opened.marks else None}
