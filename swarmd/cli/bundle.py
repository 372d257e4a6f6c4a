"""`swarmd bundle`: a support archive without secrets, whose log can be replayed elsewhere.

- It has the log, status, stories, findings, configuration and journal. A part that cannot be made is left out, and a
  note in the archive says why.
- Every file is searched for the node's secrets before it is written, and anything that looks like one is redacted.
- Opening a bundle folds its log, which must give the same state as where the bundle was made.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from swarmd.backup.archive import check_target
from swarmd.backup.bundle import open_bundle, write_bundle
from swarmd.cli.explain import latest_stories
from swarmd.cli.options import ConfigFile, NodeDir, encode_json, find_log_of_node, locate_node
from swarmd.cli.status import read_status
from swarmd.config import Config, load_config
from swarmd.errors import ConfigError, SwarmdError
from swarmd.eventlog.export import to_json
from swarmd.observe.redaction import SECRET_CHARACTERS_MIN, Redactor, known_secrets, redact_field
from swarmd.paths import NodeDirectory, quote_for_shell
from swarmd.units import find_service_of_data

MIB = 1024 * 1024
JOURNAL_LINES_MAX = 20_000
JOURNAL_BYTES_MAX = 16 * MIB
JOURNAL_S = 30.0
CREDENTIALS = "CREDENTIALS_DIRECTORY"  # environment variable, see systemd.exec(5)
UNCONFIGURED = "the configuration is not in it, and secrets that it names were not looked for: give it with --config"


def bundle(
    directory: NodeDir = None,
    config: ConfigFile = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The archive to make.")] = None,
    log_mib: Annotated[int, typer.Option("--log-mib", min=1, help="Most of the log to include, newest first.")] = 64,
    unit: Annotated[str, typer.Option(help="Include this unit's journal; empty: none.")] = "swarmd",
    opened: Annotated[
        Path | None, typer.Option("--open", metavar="FILE", help="Unpack a bundle, check it and replay it instead.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Where --open unpacks to.")] = None,
) -> None:
    """Make a support archive: log, status, stories, findings, configuration and journal, with the secrets left out.

    Every file is searched for each secret that the configuration names; if one is found, nothing is made. DIR comes
    before the configuration's own data directory, as for a service. With --open, the log in it is folded and must give
    the state that it gave where it was made.
    """
    if opened is not None:
        _unpack_bundle(opened, to)
        return

    target = out or Path(f"swarmd-bundle-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    check_target(target)
    node = locate_node(directory, config)
    place, log = node.data, find_log_of_node(node, directory is None and config is None)
    service = find_service_of_data(place)
    config = node.config or (service.config if service is not None else None)
    loaded = load_config(config) if config is not None else None
    with _use_service_credentials(config):
        secrets = known_secrets(loaded, place, signing=True) | _find_passphrases(place)
    texts, notes = _collect_texts(place, config, loaded, unit, Redactor(secrets))
    made = write_bundle(log, target, texts, secrets, log_mib * MIB, notes, _print_progress)
    typer.echo(f"{target}: {target.stat().st_size / MIB:.1f} MiB, events {made.first_seq} to {made.next_seq - 1}")
    typer.echo(f"whoever gets it looks at it with: swarmd bundle --open {quote_for_shell(target.name)} --to DIR")


@contextlib.contextmanager
def _use_service_credentials(config: Path | None) -> Iterator[None]:
    """Read a service's credentials from the directory of its configuration; systemd passes them only to the service."""
    kept = config.parent / "credentials" if config is not None else None
    if kept is None or not kept.is_dir() or CREDENTIALS in os.environ:
        yield
        return
    os.environ[CREDENTIALS] = str(kept)
    try:
        yield
    finally:
        del os.environ[CREDENTIALS]


def _unpack_bundle(file: Path, to: Path | None) -> None:
    if to is None:
        raise ConfigError("--open needs a place", "Give --to DIR, a directory that is new or empty")
    made = open_bundle(file, to, _print_progress)
    typer.echo(f"{to}: {made.next_seq - made.first_seq} events of {made.peer} in swarm {made.swarm}")
    typer.echo("the log folds to the state that the node had when the bundle was made")
    place = quote_for_shell(to)
    for note in made.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"look further with: swarmd explain {place} · swarmd replay {place} · swarmd replay --web {place}")


def _print_progress(what: str) -> None:
    typer.echo(what, err=True)


# --- what goes in beside the log ---


def _collect_texts(
    place: Path, file: Path | None, config: Config | None, unit: str, cover: Redactor
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Files by name, and notes about those that could not be made."""
    makers: list[tuple[str, Callable[[], bytes]]] = [
        ("status.json", lambda: encode_json(read_status(NodeDirectory(place)))),
        ("stories.json", lambda: to_json(latest_stories(place))),
        ("files.json", lambda: _list_files(place)),
        ("findings.json", lambda: _run_doctor(place, file)),
    ]
    if config is not None:
        makers.append(("config.json", lambda: _render_config(config, cover)))
    if unit and shutil.which("journalctl"):
        makers.append(("journal.jsonl", lambda: _read_journal(unit, cover)))
    texts: dict[str, bytes] = {}
    notes: list[str] = [] if config is not None else [UNCONFIGURED]
    if config is None:
        _print_progress(UNCONFIGURED)
    for name, make in makers:
        _print_progress(f"making {name}")
        try:
            texts[name] = make()
        except (SwarmdError, OSError, subprocess.SubprocessError) as error:
            notes.append(f"{name} is not in it: {error}")
    return texts, tuple(notes)


def _render_config(config: Config, cover: Redactor) -> bytes:
    """The effective configuration, with secrets redacted."""
    plain = cover.redact_known(msgspec.to_builtins(config))
    return json.dumps({name: redact_field(name, value) for name, value in plain.items()}, indent=1).encode()


def _list_files(place: Path) -> bytes:
    """Names, sizes, modes and ages of all files, without contents. A running node may remove some meanwhile."""
    rows: list[tuple[str, int, str, int]] = []
    for directory, inner, names in os.walk(place):
        for path in (Path(directory, name) for name in (*inner, *names)):
            with contextlib.suppress(FileNotFoundError):
                told = path.lstat()
                rows.append((path.relative_to(place).as_posix(), told.st_size, oct(told.st_mode), int(told.st_mtime)))
    return json.dumps(sorted(rows)).encode()


def _run_doctor(place: Path, config: Path | None) -> bytes:
    """Doctor's offline findings, from a child process, so that a hang cannot block this one."""
    of = ["--config", str(config), "--data", str(place)] if config is not None else [str(place)]
    call = [sys.executable, "-m", "swarmd", "doctor", *of, "--offline", "--json"]
    done = subprocess.run(call, capture_output=True, timeout=120, check=False)
    if not done.stdout.lstrip().startswith(b"{"):
        raise OSError(f"doctor ended with {done.returncode}")
    return done.stdout


def _read_journal(unit: str, cover: Redactor) -> bytes:
    """The newest journal lines of the unit, with secrets redacted."""
    call = ["journalctl", "--no-pager", "--output=short-iso", f"--unit={unit}", f"--lines={JOURNAL_LINES_MAX}"]
    done = subprocess.run(call, capture_output=True, timeout=JOURNAL_S, check=False)
    text = done.stdout[-JOURNAL_BYTES_MAX:].decode("utf-8", "replace")
    return "\n".join(map(cover, text.splitlines())).encode()


def _find_passphrases(place: Path) -> frozenset[str]:
    """The account's passphrase, if it lies in the data directory. Keys need no search: they are encrypted or binary."""
    try:
        text = NodeDirectory(place).passphrase.read_text().strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    return frozenset([text]) if len(text) >= SECRET_CHARACTERS_MIN else frozenset()
