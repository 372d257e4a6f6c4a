"""The identity: is it there, whole, private, the right one, kept elsewhere too, and this node's alone?"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil

from swarmd.daemon.process import TAG_VARIABLE
from swarmd.dht.identity.backup import last_backup, note_of
from swarmd.dht.identity.identity import FILE_BYTES_MAX, Identity, parse_identity
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import SwarmdError
from swarmd.eventlog.fold import node_of
from swarmd.files import read_start
from swarmd.paths import NodeDirectory, quoted

KEY_NAMES = ("identity.key", "swarm.pem")
NEIGHBOURS_MAX = 256  # directories beside the data directory that are searched for the same key
SERVICE_DIRECTORY = Path("/var/lib")

KEY_NEW = FindingKind(
    "identity.new",
    "note",
    "There is no identity yet",
    "The first start makes one in the new data directory.",
    "Make a copy of it after the first start: `swarmd identity backup`",
)
KEY_LOST = FindingKind(
    "identity.lost",
    "warning",
    "The identity seems to be lost",
    "A node was here, and its key is not. The next start makes a new one: another node, without the standing of this "
    "one.",
    "Bring it back with `swarmd identity restore BACKUP FILE` before the next start",
)
KEY_MISSING = FindingKind(
    "identity.missing",
    "error",
    "The identity is missing",
    "The node refuses to start: a new key would be another node, without the standing of this one.",
    "Bring it back with `swarmd identity restore BACKUP FILE`, or name the right data directory",
)
KEY_MODE = FindingKind(
    "identity.mode",
    "error",
    "Others may read the identity",
    "Whoever has the key file is the peer. The node refuses to start with it (code 77).",
    "Run `chmod 600 FILE`; if others can have copied it, begin with a new identity",
)
KEY_OWNER = FindingKind(
    "identity.owner",
    "error",
    "The identity belongs to another user",
    "The node cannot read it and ends with code 77.",
    "Run the node as that user, or give the file away with `chown`",
)
KEY_DAMAGED = FindingKind(
    "identity.damaged",
    "error",
    "The identity is damaged or no key",
    "The node ends with code 65.",
    "Bring it back with `swarmd identity restore BACKUP FILE`",
)
KEY_OTHER = FindingKind(
    "identity.other",
    "error",
    "The identity is another peer's",
    "The node refuses to run under a peer id that the configuration or the log does not have.",
    "Put the right key there (`swarmd identity restore`), or correct dht.peer if the other one is meant",
)
KEY_REUSED = FindingKind(
    "identity.reused",
    "error",
    "Another node on this machine has the same identity",
    "One identity runs one node: the second one ends with code 79, and both together harm each other's records.",
    "Keep one of them; make the other a new identity in a data directory of its own",
)
KEY_EXPOSED = FindingKind(
    "identity.exposed",
    "warning",
    "Others may replace the identity",
    "Its directory may be written to by others, who could put another key in its place.",
    "Run `chmod go-w` on the directory",
)
KEY_UNPINNED = FindingKind(
    "identity.unpinned",
    "note",
    "The identity is not pinned",
    "With a wrong path or an unmounted disk a node with a new data directory would make itself a new identity.",
)
KEY_UNSAVED = FindingKind(
    "identity.backup",
    "note",
    "No backup of the identity is known",
    "Rewards and registrations belong to the peer id, and no one can make a lost key again.",
)
KEY_SAVED_ELSEWHERE = FindingKind(
    "identity.backup-same-disk",
    "note",
    "The backup lies on the same disk as the identity",
    "Both are lost with the disk.",
    "Copy the backup to another machine",
)


async def check_identity(subject: Subject) -> list[Finding]:
    """Everything about the key file."""
    return await in_thread(lambda: list(_examine(subject)))


def _examine(subject: Subject) -> Iterator[Finding]:
    path = subject.key
    if not (path.exists() or path.is_symlink()):
        yield _absent(subject, path)
        return
    bad = list(_examine_file(path, subject.user))
    yield from bad
    try:
        identity = _read(path)
    except (OSError, SwarmdError) as error:
        if not bad:
            reason = error.message if isinstance(error, SwarmdError) else f"{path}: {error.strerror}"
            yield KEY_DAMAGED.found(reason, f"Bring it back with `swarmd identity restore BACKUP {quoted(path)}`")
        return
    unfit = [*_examine_peer(subject, identity), *_examine_copies(subject, path, identity)]
    yield from unfit
    if not bad and not unfit:
        yield well("identity", "Identity", f"{path}: {identity.peer_id} ({identity.kind}), whole and private")
    yield from _examine_care(subject, path, identity)


def _absent(subject: Subject, path: Path) -> Finding:
    """Whatever became of the key, the first thing to try is its backup."""
    config, data = subject.whole
    saved = last_backup(path)
    restore = f"`swarmd identity restore {quoted(saved.file) if saved else 'BACKUP'} {quoted(path)}`"
    if config.dht.peer:
        return KEY_MISSING.found(f"{path} is not there, and dht.peer pins {config.dht.peer}", restore)
    if subject.begun:
        return KEY_MISSING.found(f"{path} is not there, but {data.events} holds a node's log", restore)
    if not path.resolve().is_relative_to(data.root.resolve()):
        fix = f"{restore}; only for a node that never had one: `swarmd identity new {quoted(path)}`"
        return KEY_MISSING.found(f"{path}, which dht.identity names, is not there", fix)
    traces = [place.name for place in (note_of(path), data.checkpoints, data.network, data.blobs) if place.exists()]
    if traces:
        return KEY_LOST.found(f"{path} is not there, but in {data.root} are {', '.join(traces)}", restore)
    return KEY_NEW.found(f"{path} is not there", f"After the first start: `swarmd identity backup {quoted(path)} OUT`")


def _examine_file(path: Path, user: int) -> Iterator[Finding]:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        yield KEY_DAMAGED.found(f"{path} is not a regular file", "Put the key file itself there, not a link to it")
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        yield KEY_MODE.found(f"{path} has mode {mode:04o}", f"Run `chmod 600 {quoted(path)}`")
    if status.st_uid != user:
        yield KEY_OWNER.found(
            f"{path} belongs to user {status.st_uid}, the node runs as {user}", f"Run `chown {user} {quoted(path)}`"
        )
    directory = path.parent.stat().st_mode
    if directory & 0o022 and not directory & stat.S_ISVTX:
        yield KEY_EXPOSED.found(
            f"{path.parent} has mode {stat.S_IMODE(directory):04o}", f"Run `chmod go-w {quoted(path.parent)}`"
        )


def _read(path: Path) -> Identity:
    """The key, whoever's it is. Raises IdentityError, OSError."""
    identity = parse_identity(read_start(path, FILE_BYTES_MAX), str(path))
    if not identity.is_whole():
        raise SwarmdError(f"{path} is damaged: its public key does not belong to its secret")
    return identity


def read_key(subject: Subject) -> str:
    """The peer id of the node's key, empty where it cannot be read."""
    try:
        return _read(subject.key).peer_id
    except (OSError, SwarmdError):
        return ""


def _examine_peer(subject: Subject, identity: Identity) -> Iterator[Finding]:
    config, data = subject.whole
    if config.dht.peer and config.dht.peer != identity.peer_id:
        yield KEY_OTHER.found(f"{subject.key} is the key of {identity.peer_id}, dht.peer pins {config.dht.peer}")
        return
    try:
        logged = node_of(data.events) if subject.begun else ""
    except SwarmdError:
        return  # the check of the log says so
    if logged and logged != identity.peer_id:
        yield KEY_OTHER.found(f"{subject.key} is the key of {identity.peer_id}, {data.events} is the log of {logged}")


def _examine_copies(subject: Subject, path: Path, identity: Identity) -> Iterator[Finding]:
    if subject.whole[1].moved.exists():
        return  # the node is elsewhere, with this key, as it should be; the check of the directory says so
    copies = [place for place in _neighbours(subject, path) if _holds(place, identity)]
    tags = [tag for tag in _tags(identity.peer_id) if tag != str(subject.whole[1].root.resolve())]
    if copies or tags:
        told = [f"{place} is the same key" for place in copies] + [f"a node runs with it in {tag}" for tag in tags]
        yield KEY_REUSED.found(f"{path}: {'; '.join(told)}")


def _neighbours(subject: Subject, path: Path) -> Iterator[Path]:
    """Key files in the directories beside this node's, one level and two levels down, and of services.

    No node starts in one that is closed.
    """
    root = subject.whole[1].root.resolve()
    own = path.resolve()
    homes = {root.parent, root.parent.parent, SERVICE_DIRECTORY} - {Path("/")}
    for home in sorted(homes):
        for place in _subdirectories(home):
            with contextlib.suppress(OSError):  # another user's
                if not NodeDirectory(place).moved.exists():
                    yield from (key for key in _keys_in(place) if key.resolve() != own)


def _keys_in(place: Path) -> list[Path]:
    keys = (place / name for name in KEY_NAMES)
    return [key for key in keys if key.is_file() and not key.is_symlink()]


def _subdirectories(home: Path) -> list[Path]:
    try:
        return sorted(place for place in home.iterdir() if place.is_dir() and not place.is_symlink())[:NEIGHBOURS_MAX]
    except OSError:
        return []


def _holds(place: Path, identity: Identity) -> bool:
    try:
        return _read(place).peer_id == identity.peer_id
    except (OSError, SwarmdError):
        return False


def _tags(peer: str) -> Iterator[str]:
    """Data directories of processes of nodes that run under this peer id."""
    seen = set()
    for process in psutil.process_iter():
        try:
            tag = process.environ().get(TAG_VARIABLE, "")
        except (psutil.Error, OSError):
            continue
        owner, _, place = tag.partition("@")
        if owner == peer and place not in seen:
            seen.add(place)
            yield place


def _examine_care(subject: Subject, path: Path, identity: Identity) -> Iterator[Finding]:
    """Advice for an identity that is well."""
    if not subject.whole[0].dht.peer:
        yield KEY_UNPINNED.found("dht.peer is empty", f'Write peer = "{identity.peer_id}" under [dht]')
    saved = last_backup(path, identity.peer_id)
    if saved is None:
        fix = f"`swarmd identity backup {quoted(path)} OUT`, and keep OUT elsewhere"
        yield KEY_UNSAVED.found(f"no backup of {path} was made on this machine", fix)
    elif _same_disk(Path(saved.file), path):
        yield KEY_SAVED_ELSEWHERE.found(f"{saved.file} and {path} are on one file system")


def _same_disk(one: Path, other: Path) -> bool:
    try:
        return os.stat(one).st_dev == os.stat(other).st_dev  # noqa: PTH116
    except OSError:  # it was moved away, as it should be
        return False
