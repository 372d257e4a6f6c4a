"""Support bundles: what another person needs to see what a node did, without its secrets.

- One archive of the newest part of the event log, texts about the node, and a manifest with the SHA-256 of the state
  that the log folds to, which is the same on any machine.
- Every file is searched for every known secret; if one is found, no bundle is made.
"""

import hashlib
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import msgspec

from swarmd import __version__
from swarmd.backup.archive import FORMAT, PART, Manifest, read_archive, unpack_atomically, write_archive
from swarmd.core.state import State
from swarmd.core.step import RULES
from swarmd.errors import ArchiveError, BundleHoldsSecret
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.replay import verify_log
from swarmd.eventlog.segment import first_seq_of, list_segments
from swarmd.eventlog.snapshot import encode_state, list_snapshots, snapshot_directory, snapshot_seq
from swarmd.eventlog.store import disk_bytes
from swarmd.files import open_regular

NOTES = "notes.txt"
CHUNK_BYTES = 1024 * 1024

Report = Callable[[str], None]


class BundleManifest(Manifest, frozen=True, kw_only=True):
    FILE: ClassVar[str] = "bundle.json"
    NOUN: ClassVar[str] = "support bundle"
    MAKE: ClassVar[str] = "swarmd bundle"
    NAMES: ClassVar[re.Pattern[str]] = re.compile(rf"(?:events/|events/snapshots/)?{PART}")
    BYTES_MAX: ClassVar[int] = 8 * 1024**3

    made_at: float
    version: str
    python: str
    platform: str
    peer: str
    swarm: str
    rules: int
    first_seq: int  # first event in it; its oldest snapshot stands for those before
    next_seq: int  # the number after its last event
    state_sha256: str  # of the folded state, in a snapshot's encoding
    notes: tuple[str, ...] = ()  # what is missing, and why


def write_bundle(
    log: Path,
    out: Path,
    texts: Mapping[str, bytes],
    secrets: Iterable[str],
    log_bytes_max: int,
    notes: tuple[str, ...] = (),
    report: Report = lambda _: None,
) -> BundleManifest:
    """Make a bundle of a log, whose daemon may be running.

    Args:
        texts: further files by name: configuration, status, findings, stories.
        secrets: texts that must not appear anywhere in it.
        log_bytes_max: bound on the log; if not all of it fits, the newest part goes in.

    Raises ArchiveError if it cannot be written, BundleHoldsSecret if a secret was found in one of the files, and
    LogDamaged or NotFoundError without a sound log. Then nothing is left behind.
    """
    with (
        write_archive(out) as archive,
        tempfile.TemporaryDirectory(prefix=".bundle-", dir=out.absolute().parent) as scratch,
    ):
        root = Path(scratch)
        segments, snapshots = select_log_files(log, log_bytes_max)
        report(f"copying {len(segments)} segments of the log")
        _copy(segments, snapshots, root / "events")
        for name, content in texts.items():
            (root / name).write_bytes(content)
        report("folding the copy")
        state, next_seq = load_state(root / "events")
        first_seq = first_seq_of(segments[0])
        if first_seq:
            notes += (f"events before {first_seq} are not in it; the oldest snapshot stands for them",)
        (root / NOTES).write_text("\n".join(notes))
        report("looking for secrets")
        refuse_secrets(root, secrets)
        for path in _files(root):
            archive.add_file(path.relative_to(root).as_posix(), path)
        settings = state.settings
        manifest = BundleManifest(
            format=FORMAT,
            members=tuple(archive.members),
            made_at=time.time(),
            version=__version__,
            python=platform.python_version(),
            platform=platform.platform(),
            peer=settings.peer if settings else "",
            swarm=settings.swarm if settings else "",
            rules=RULES,
            first_seq=first_seq,
            next_seq=next_seq,
            state_sha256=state_digest(state),
            notes=notes,
        )
        archive.finish(manifest)
    return manifest


def open_bundle(file: Path, into: Path, report: Report = lambda _: None) -> BundleManifest:
    """Unpack a bundle into a new directory, check every digest, and fold its log. Raises ArchiveError, also if the
    folded state differs from the one where the bundle was made; and whatever `verify_log` raises."""
    with unpack_atomically(into) as making:
        report("unpacking it")
        manifest, _ = read_archive(file, BundleManifest, making)
        (making / manifest.FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        report("folding the log")
        verify_log(making / "events")
        state, next_seq = load_state(making / "events")
        if (next_seq, state_digest(state)) != (manifest.next_seq, manifest.state_sha256):
            raise ArchiveError(
                f"the log in {file} folds to another state here ({next_seq} events) than where it was made "
                f"({manifest.next_seq} events, swarmd {manifest.version})",
                f"Replay it with swarmd {manifest.version}, and report the difference",
            )
    return manifest


def select_log_files(log: Path, bytes_max: int) -> tuple[list[Path], list[Path]]:
    """Choose segments and snapshots to copy: all if they fit into `bytes_max`, else those from the oldest snapshot that
    fits, or from the newest if none does."""
    segments, snapshots = list_segments(log), list_snapshots(log)
    part = (segments, snapshots)
    for index, path in enumerate(snapshots):
        if sum(map(disk_bytes, part[0])) <= bytes_max:
            break
        until = [each for each in segments if first_seq_of(each) <= snapshot_seq(path)]
        later = [each for each in segments if first_seq_of(each) > snapshot_seq(path)]
        part = ([*until[-1:], *later], snapshots[index:])
    return part


def _copy(segments: list[Path], snapshots: list[Path], to: Path) -> None:
    """Copy snapshots first, so that no copied snapshot includes an event that the copied segments lack."""
    snapshot_directory(to).mkdir(parents=True)
    copies = [(path, snapshot_directory(to)) for path in snapshots] + [(path, to) for path in segments]
    try:
        if sum(path.stat().st_size for path, _ in copies) > BundleManifest.BYTES_MAX:
            raise ArchiveError(
                f"the log's newest part has more than {BundleManifest.BYTES_MAX} bytes",
                "Run `swarmd log compact DIR` on the node first, which removes what a snapshot stands for",
            )
        for path, place in copies:
            with open_regular(path) as source, (place / path.name).open("xb") as copy:
                shutil.copyfileobj(source, copy)
    except FileNotFoundError as error:
        raise ArchiveError(f"{error.filename} was removed while the log was copied", "Try again") from error


def state_digest(state: State) -> str:
    return hashlib.sha256(encode_state(state)).hexdigest()


def refuse_secrets(root: Path, secrets: Iterable[str]) -> None:
    """Search every file for every secret, byte by byte. Raises BundleHoldsSecret, which names only the file."""
    wanted = [secret.encode() for secret in secrets]
    longest = max(map(len, wanted), default=0)
    for path in _files(root) if wanted else ():
        before = b""
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                window = before + chunk
                if any(secret in window for secret in wanted):
                    raise BundleHoldsSecret(
                        f"one of this node's secrets is in {path.relative_to(root)}: no bundle was made",
                        "Change that secret where it was given out. "
                        "`swarmd replay` shows the log here, without sending it",
                    )
                before = window[-longest:]


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())
