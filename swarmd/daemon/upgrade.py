"""Taking over the data directory of an older swarmd, so that the way back stays open.

Two numbers say what a data directory is: its *layout* (what lies where, in `layout.json`; without that file it is 1),
and the *rules* of its event log's last commit. Where either is older than this swarmd's, what is about to change goes
into `before-upgrade/` first, and the log; `swarmd rollback` puts it back. Segments of earlier lives are never written
again, so the copy of a log is hard links. There is one such copy at most; it goes when it is old, and when space runs
low. Putting it back may be cut off at any instant: a mark in the copy says so, and the next start, or the next
`swarmd rollback`, takes it to its end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from swarmd import __version__
from swarmd.bounds import DECODE_ERRORS
from swarmd.config import Config
from swarmd.core.step import RULES
from swarmd.errors import LogDamaged, LogNewer, NotFoundError, PathUnusable
from swarmd.eventlog.frame import read_frames
from swarmd.eventlog.lock import LOCK_NAME, take_lock
from swarmd.eventlog.segment import list_segments, read_header
from swarmd.eventlog.store import EventLog
from swarmd.files import copy_reason, open_regular, sync_directory, sync_tree, write_durably
from swarmd.observe.logging.logs import get_logger
from swarmd.paths import NodeDirectory, quoted

LAYOUT = 2  # of the data directories that this swarmd writes
COPY_KEPT_S = 30 * 86400.0  # the copy from before an upgrade is removed at the first start after so long
COPY_FORMAT = 1
NOTE = "note.json"
LOG = "events"
UNFINISHED = ".unfinished"
UNDOING = ".undoing"  # in the copy while it is put back: the paths that it held at first, as JSON

log = get_logger("swarmd.daemon")


class DataLayout(msgspec.Struct, frozen=True):
    """What `layout.json` says: how files lie in a data directory."""

    layout: int


class Copied(msgspec.Struct, frozen=True):
    """`note.json` of the copy: what lay there before the upgrade. Readable by all versions."""

    format: int
    made_at: float  # POSIX seconds
    version: str  # of the swarmd that made the copy, the newer one
    rules: int  # of the log before, 0 where there was none
    layout: int  # before
    paths: tuple[str, ...]  # that are in it, or were not there then; relative to the data directory


class Migration(msgspec.Struct, frozen=True):
    """One step up: makes layout `before + 1` of a data directory in layout `before`.

    `apply` changes files below the directory, only those in `touches`, and may be run again after a crash in its midst:
    what it touches is then as it was before.
    """

    before: int
    touches: tuple[str, ...]
    apply: Callable[[Path], None]


def _keep_network_apart(root: Path) -> None:
    """The network worker is let at its own files only, so they have a directory of their own."""
    place = root / "network"
    place.mkdir(mode=0o700, exist_ok=True)
    for name in ("peers.json", "records.bin"):
        if (root / name).exists():
            (root / name).replace(place / name)
    sync_directory(place)
    sync_directory(root)


MIGRATIONS = (Migration(1, ("peers.json", "records.bin", "network"), _keep_network_apart),)  # in their order


def take_over(
    data: NodeDirectory, migrations: Sequence[Migration] = MIGRATIONS, layout: int = LAYOUT, rules: int = RULES
) -> None:
    """Make a data directory this swarmd's, before anything else reads it.

    Raises:
        LogNewer: it has a newer layout.
        LogDamaged: `layout.json` cannot be read; a restore into it was cut off; or its log is gone.
        LogInUse: a node runs on it, and there is something to change.
        SwarmdError: a step failed; everything is as it was before.
    """
    _refuse_half_restored(data)
    if is_undoing(data):
        with hold_log(data):
            put_back(data)
    _refuse_unfit(data, layout)
    if not data.events.is_dir():
        _write_layout(data, layout)
        return
    if _is_older(data, layout, rules):
        with hold_log(data):
            _undo_unfinished(data, layout)
            _upgrade(data, migrations, layout, rules)
    else:
        _drop_old_copy(data)
    if not data.layout.exists():
        _write_layout(data, layout)


def refuse_start(data: NodeDirectory, layout: int = LAYOUT) -> None:
    """Raise LogNewer or LogDamaged as `take_over` would before it changes anything."""
    _refuse_half_restored(data)
    if not is_undoing(data):  # which a start brings to its end
        _refuse_unfit(data, layout)


def _refuse_unfit(data: NodeDirectory, layout: int) -> None:
    if not data.events.is_dir():
        _refuse_lost_log(data)
    elif read_layout(data) > layout:
        raise LogNewer(
            f"the data directory {data.root} has layout {read_layout(data)}, this swarmd knows layouts up to {layout}",
            way_back(data),
        )


@contextlib.contextmanager
def hold_log(data: NodeDirectory) -> Iterator[None]:
    """Nobody else writes the log meanwhile. Raises LogInUse."""
    with _locked(data.events):
        yield


@contextlib.contextmanager
def _locked(events: Path) -> Iterator[None]:
    if not events.is_dir():
        yield
        return
    lock = take_lock(events)
    try:
        yield
    finally:
        os.close(lock)


def _refuse_half_restored(data: NodeDirectory) -> None:
    if data.restoring.exists():
        raise LogDamaged(
            f"a restore into {data.root} was cut off, or goes on",
            f"Let it end; if it was cut off, run it again: `swarmd restore FILE {quoted(data.root)}`",
        )


def _refuse_lost_log(data: NodeDirectory) -> None:
    """A new directory has no copy from before an upgrade: its log was taken away, and must not begin again at 0."""
    if read_copied(data) is not None:
        raise LogDamaged(
            f"the event log {data.events} is gone, but {data.before_upgrade} holds one from before an upgrade",
            f"Bring it back from a copy; or go back to the older one: `swarmd rollback {quoted(data.root)}`",
        )


def _is_older(data: NodeDirectory, layout: int, rules: int) -> bool:
    return (
        read_layout(data) < layout or 0 < last_rules(data.events) < rules or (data.before_upgrade / UNFINISHED).exists()
    )


def last_rules(events: Path) -> int:
    """Rules of a log's last commit, however new they are; 0 for none. Raises LogDamaged where none can be told."""
    for path in reversed(list_segments(events)):
        try:
            last = _last_frame(path)
            if last is not None:
                return int(msgspec.msgpack.decode(last)[2])
        except OSError as error:
            raise LogDamaged(f"{path} cannot be read: {error.strerror}") from error
    return 0


def _last_frame(path: Path) -> bytes | None:
    """The payload of a segment's last frame that is whole. Raises OSError, LogDamaged."""
    last = None
    with open_regular(path) as file:
        opening = read_header(file, path)
        for _, payload in read_frames(file, opening.size_bytes, opening.seed):
            last = payload
    return last


def read_layout(data: NodeDirectory) -> int:
    """The directory's layout. Raises LogDamaged."""
    try:
        return msgspec.json.decode(data.layout.read_bytes(), type=DataLayout).layout
    except FileNotFoundError:
        return 1
    except (OSError, *DECODE_ERRORS) as error:
        raise LogDamaged(
            f"{data.layout} cannot be read: {error}", f'Of this version it holds {{"layout": {LAYOUT}}}'
        ) from error


def _write_layout(data: NodeDirectory, layout: int) -> None:
    write_durably(data.layout, msgspec.json.encode(DataLayout(layout)) + b"\n")


def _upgrade(data: NodeDirectory, migrations: Sequence[Migration], layout: int, rules: int) -> None:
    """Keep what is there, then take the steps that there are."""
    found, written = read_layout(data), last_rules(data.events)
    if found == layout and not 0 < written < rules:
        return
    steps = [step for step in migrations if found <= step.before < layout]
    keep_copy(data, written, found, tuple(dict.fromkeys(path for step in steps for path in step.touches)))
    unfinished = data.before_upgrade / UNFINISHED
    write_durably(unfinished, b"")
    try:
        for step in steps:
            _take_step(data, step)
    except BaseException:
        put_back(data)
        raise
    unfinished.unlink()
    sync_directory(data.before_upgrade)
    log.warning(
        "the data directory of an older swarmd is taken over",
        rules=written,
        layout=found,
        copy=str(data.before_upgrade),
    )


def _take_step(data: NodeDirectory, step: Migration) -> None:
    try:
        step.apply(data.root)
    except OSError as error:
        raise PathUnusable(
            f"the data directory {data.root} cannot be brought from layout {step.before} to {step.before + 1}: {error}",
            "See what lies there; then start the node again. Everything is as it was",
        ) from error
    _write_layout(data, step.before + 1)


def _undo_unfinished(data: NodeDirectory, layout: int) -> None:
    """A migration that was cut off begins again from what there was; one that had come to its end is left at that."""
    unfinished = data.before_upgrade / UNFINISHED
    if not unfinished.exists():
        return
    if read_layout(data) == layout:
        unfinished.unlink()
    else:
        put_back(data)


def keep_copy(data: NodeDirectory, rules: int, layout: int, touched: Sequence[str] = ()) -> None:
    """Keep the log, and copies of `touched`, in `before-upgrade/`, in the place of an earlier copy.

    Args:
        rules: of the log's last commit, 0 for none.
        layout: of the directory.
        touched: what will be changed, relative to the data directory. What is not there is noted, too: it goes again.

    Raises:
        PathUnusable: something cannot be copied, and an earlier copy is as it was; or that copy cannot be removed.
    """
    making = data.before_upgrade.with_name(data.before_upgrade.name + ".tmp")
    paths = tuple(dict.fromkeys((*touched, LOG)))
    try:
        _copy_all(data.root, making, paths, touched)
    except OSError as error:
        shutil.rmtree(making, ignore_errors=True)
        raise PathUnusable(
            f"what is there before the upgrade cannot be copied to {data.before_upgrade}: {copy_reason(error)}",
            f"See that there is room, and that all files in {data.root} are this user's; then start the node again",
        ) from error
    note = Copied(COPY_FORMAT, time.time(), __version__, rules, layout, paths)
    write_durably(making / NOTE, msgspec.json.encode(note))
    _discard(data.before_upgrade)
    try:
        making.rename(data.before_upgrade)
    except OSError as error:
        fix = "Remove it, then start the node again"
        raise PathUnusable(f"{data.before_upgrade} is in the way of another copy: {error.strerror}", fix) from error
    sync_directory(data.root)


def _copy_all(root: Path, making: Path, paths: Sequence[str], touched: Sequence[str]) -> None:
    """Copy what is there of some paths, durably. Raises OSError."""
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    for path in paths:
        if (root / path).exists():
            _copy(root / path, making / path, shutil.copy2 if path in touched else _link)
    sync_tree(making)  # before its note, by which it is taken for a copy


def _copy(source: Path, target: Path, copy: Callable[[str, str], object]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        ignored = shutil.ignore_patterns(LOCK_NAME, "*.tmp")
        shutil.copytree(source, target, copy_function=copy, ignore=ignored)
    else:
        copy(str(source), str(target))


def _link(source: str, target: str) -> None:
    """A hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _drop_old_copy(data: NodeDirectory) -> None:
    copied = read_copied(data)
    if copied is not None and time.time() - copied.made_at > COPY_KEPT_S:
        drop_copy(data)


def read_copied(data: NodeDirectory) -> Copied | None:
    """What `before-upgrade/` holds; None where there is none, or none that is whole."""
    try:
        copied = msgspec.json.decode((data.before_upgrade / NOTE).read_bytes(), type=Copied)
    except (OSError, *DECODE_ERRORS):
        return None
    return copied if copied.format == COPY_FORMAT else None


def drop_copy(data: NodeDirectory) -> bool:
    """Remove the copy from before the last upgrade. False where there is none, or where it cannot be removed."""
    if not data.before_upgrade.exists() or (data.before_upgrade / UNFINISHED).exists():
        return False
    try:
        _discard(data.before_upgrade)
    except OSError:  # on a full disk even that may fail; the copy is whole then, and stays
        return False
    return True


def _discard(copy: Path) -> None:
    """Remove a copy. Its note goes before the files: what is half removed must not be taken for a copy."""
    for name in (UNFINISHED, NOTE):
        if (copy / name).exists():
            (copy / name).unlink()
            sync_directory(copy)
    shutil.rmtree(copy, ignore_errors=True)


def is_undoing(data: NodeDirectory) -> bool:
    """Whether the copy was being put back when something ended that."""
    return (data.before_upgrade / UNDOING).exists() and read_copied(data) is not None


def put_back(data: NodeDirectory) -> Copied:
    """Put the copy back in place; what it replaces stays in `after-upgrade/`. The copy is used up.

    Cut off anywhere, it goes on from there when it is called again. Whoever calls it holds the log.

    Raises:
        SwarmdError: there is no copy.
        LogDamaged: something came to lie, meanwhile, where the copy belongs.
        LogInUse: another process is at it.
    """
    copied = read_copied(data)
    if copied is None:
        raise NotFoundError(f"there is no copy from before an upgrade in {data.before_upgrade}", "Restore a backup")
    with _locked(data.before_upgrade / LOG):  # which is the log of the directory once it lies there
        held = _begin_undoing(data, copied)
        for path in copied.paths:
            _swap(data, path, path in held)
        _write_layout(data, copied.layout)
        _discard(data.before_upgrade)
    return copied


def _begin_undoing(data: NodeDirectory, copied: Copied) -> tuple[str, ...]:
    """Note durably that it began. Returns which paths the copy held then."""
    mark = data.before_upgrade / UNDOING
    if mark.exists():
        return _read_mark(mark)
    if data.events.exists() and data.after_upgrade.exists():  # without a log here, the only one may lie there
        shutil.rmtree(data.after_upgrade)
    data.after_upgrade.mkdir(exist_ok=True)
    sync_directory(data.root)
    held = tuple(path for path in copied.paths if (data.before_upgrade / path).exists())
    write_durably(mark, msgspec.json.encode(held))
    return held


def _read_mark(mark: Path) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(mark.read_bytes(), type=tuple[str, ...])
    except (OSError, *DECODE_ERRORS) as error:
        raise LogDamaged(f"{mark} cannot be read: {error}", "Restore a backup") from error


def _swap(data: NodeDirectory, path: str, held: bool) -> None:
    """Move what lies at `path` aside, and the copy there if it held one. May be run again after a crash."""
    place, copy, aside = data.root / path, data.before_upgrade / path, data.after_upgrade / path
    if held and not copy.exists():
        return  # it lies at its place already
    if place.exists() and not aside.exists():
        aside.parent.mkdir(parents=True, exist_ok=True)
        _move(place, aside)
    if held:
        if place.exists():
            fix = f"Move it elsewhere, then `swarmd rollback {quoted(data.root)}` again"
            raise LogDamaged(f"{place} was written anew while a rollback was unfinished", fix)
        _move(copy, place)


def _move(source: Path, target: Path) -> None:
    source.rename(target)
    sync_directory(target.parent)
    sync_directory(source.parent)


def open_log(config: Config, data: NodeDirectory, peer: str, run: str) -> EventLog:
    """The event log, open for writing; one that is too new says how to go back. Raises as `EventLog.open` does."""
    storage = config.storage
    try:
        return EventLog.open(data.events, peer, run, storage.segment_bytes, storage.log_bytes_max)
    except LogNewer as error:
        raise LogNewer(error.message, way_back(data)) from error


def way_back(data: NodeDirectory) -> str:
    """What to do about a directory that is too new for this swarmd."""
    copied = read_copied(data)
    if copied is None:
        return "Use the newer swarmd that wrote it"
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(copied.made_at))
    return (
        f"Use the newer swarmd that wrote it, or go back to what was there before the upgrade of {day}: "
        f"`swarmd rollback {quoted(data.root)}`"
    )
