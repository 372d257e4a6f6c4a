"""A node's data directory: its layout, swarm, restore and move notes, identity, and free space.

- `layout.json` has the layout's number; a directory with another one is refused.
- A directory belongs to one node of one swarm, which its log names; every command that starts, creates or moves a node
  compares the swarm before it writes anything.
- A note says that the directory was restored from a backup, or that its node was moved away.
- An identity is made once, in a new directory, and never by accident.
- A node that runs low on disk space removes what it can do without, then pauses, and continues when there is space
  again. `SpaceBounds` has three thresholds of free bytes: below the first it pauses, above the second it continues, and
  below the third it ends while its log can still be written.
"""

import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio
import msgspec
from anyio import to_thread

from swarmd import errors
from swarmd.bounds import DECODE_ERRORS
from swarmd.config import Config, StorageConfig, contract_name, make_core_settings
from swarmd.core.events import SpaceFreed, SpaceLow, StopRequested
from swarmd.core.state import State
from swarmd.dht.identity.identity import Identity, create_identity, load_identity, read_identity
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.segment import list_segments
from swarmd.files import make_write_error, sync_directory, write_durably
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory, quote_for_shell
from swarmd.shell.loop import ObserveEvent
from swarmd.training.checkpoint_files import measure_newest_checkpoint

if TYPE_CHECKING:
    from swarmd.manifest import Manifest


LAYOUT = 1


def write_layout_if_absent(data: NodeDirectory) -> None:
    """Write `layout.json` if there is none, before anything else reads the directory. Raises as `check_may_start`."""
    check_may_start(data)
    if not data.layout.exists():
        write_durably(data.layout, msgspec.json.encode({"layout": LAYOUT}) + b"\n")


def check_may_start(data: NodeDirectory) -> None:
    """Check that a node may start in a data directory. Raises OtherVersion for another layout, LogDamaged after an
    interrupted restore or if `layout.json` cannot be read."""
    if data.restoring.exists():
        raise errors.LogDamaged(
            f"a restore into {data.root} was cut off, or goes on",
            f"Let it end; if it was cut off, run it again: `swarmd restore FILE {quote_for_shell(data.root)}`",
        )
    check_layout(data)


def check_layout(data: NodeDirectory) -> None:
    """Raise OtherVersion for a data directory of another layout, LogDamaged if `layout.json` cannot be read."""
    layout = read_layout(data)
    if layout != LAYOUT:
        raise errors.OtherVersion.from_numbers(f"the data directory {data.root}", "layout", layout, LAYOUT)


def read_layout(data: NodeDirectory) -> int:
    """The directory's layout number. Raises LogDamaged."""
    try:
        return msgspec.json.decode(data.layout.read_bytes(), type=dict[str, int])["layout"]
    except FileNotFoundError:
        return LAYOUT
    except (OSError, KeyError, *DECODE_ERRORS) as error:
        raise errors.LogDamaged(
            f"{data.layout} cannot be read: {error}", f'In this version its content is {{"layout": {LAYOUT}}}'
        ) from error


NOTE_BYTES_MAX = 64 * 1024
Note = TypeVar("Note", "RestoreNote", "MoveNote")


class RestoreNote(msgspec.Struct, frozen=True):
    """Says that the directory was restored from a backup; the next start logs this and removes the note."""

    at: float  # POSIX seconds of the restore
    made_at: float  # POSIX seconds at which the backup was made
    from_round: int = 0  # first round to take part in; 0: unknown


class MoveNote(msgspec.Struct, frozen=True):
    """Says that the node's data was moved elsewhere."""

    at: float
    archive: str = ""  # the archive for another host
    to: str = ""  # the new directory on this host


def write_note(path: Path, note: RestoreNote | MoveNote) -> None:
    """Write a note durably. Raises NoSpaceLeft or LogWriteFailed."""
    write_durably(path, msgspec.json.format(msgspec.json.encode(note), indent=1) + b"\n")


def read_restore_note(data: NodeDirectory) -> RestoreNote | None:
    """The restore note, if there is one. Raises LogDamaged."""
    return _read_note(data.restored, RestoreNote)


def remove_restore_note(data: NodeDirectory) -> None:
    """Remove the restore note, once it is in the event log. Raises NoSpaceLeft or LogWriteFailed."""
    try:
        if data.restored.exists():
            data.restored.unlink(missing_ok=True)
            sync_directory(data.root)
    except OSError as error:
        raise make_write_error(error, data.restored, "removal") from error


def refuse_moved(data: NodeDirectory) -> None:
    """Raise IdentityInUse if the node has moved to another directory or host."""
    moved = _read_note(data.moved, MoveNote)
    if moved is not None:
        day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moved.at))
        # where the node is now, and the fix
        where, fix = f"to {moved.to}", "Run it there. Only if nothing is left of it there"
        if not moved.to:
            where = f"in {moved.archive}"
            fix = "Run it where it was restored. Only if that archive was never restored anywhere"
        raise errors.IdentityInUse(
            f"the node in {data.root} was moved away on {day}, {where}; here too, it would run twice",
            f"{fix}: remove {data.moved}",
        )


def _read_note(path: Path, kind: type[Note]) -> Note | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(NOTE_BYTES_MAX), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, *DECODE_ERRORS) as error:
        fix = "`swarmd restore`, `backup --for-move` and `service install` write it; bring it back from a copy"
        raise errors.LogDamaged(f"the note {path} cannot be read: {error}", fix) from error


class SwarmIdentity(msgspec.Struct, frozen=True):
    """What identifies a swarm. Unknown parts are not compared."""

    id: str
    kind: str = ""  # what it trains; empty: unknown
    contract: str | None = None  # "CHAIN_ID:address"; "" without a chain; None: unknown

    def __str__(self) -> str:
        kind = f"kind {self.kind}" if self.kind else ""
        where = {None: "", "": "no chain"}.get(self.contract, f"contract {self.contract}")
        known = ", ".join(part for part in (kind, where) if part)
        return f"{self.id} ({known})" if known else self.id

    def differs_from(self, other: "SwarmIdentity") -> bool:
        """Whether the known parts show that these are different swarms."""
        kinds = self.kind and other.kind and self.kind != other.kind
        contracts = None not in (self.contract, other.contract) and self.contract != other.contract
        return self.id != other.id or bool(kinds) or contracts


def swarm_of_config(config: Config) -> SwarmIdentity:
    settings = make_core_settings(config, "")
    return SwarmIdentity(settings.swarm, settings.kind, settings.contract)


def swarm_of_manifest(manifest: "Manifest") -> SwarmIdentity:
    chain = manifest.chain
    contract = "" if chain is None else contract_name(chain.chain_id, chain.contract)
    return SwarmIdentity(manifest.id, manifest.recipe.kind, contract)


def swarm_of_state(state: State) -> SwarmIdentity | None:
    """The swarm of the node's last start; None if it was never started."""
    settings, chain = state.settings, state.chain
    if settings is None:
        return None
    if settings.kind:
        return SwarmIdentity(settings.swarm, settings.kind, settings.contract)
    followed = contract_name(chain.chain_id, chain.contract) if chain is not None and chain.contract else None
    return SwarmIdentity(settings.swarm, "", followed)


def swarm_of_log(data: NodeDirectory) -> SwarmIdentity | None:
    """The swarm of a data directory's log; None if there is none. Raises LogDamaged, LogForeign, OtherVersion."""
    if not data.events.is_dir() or not list_segments(data.events):
        return None
    return swarm_of_state(load_state(data.events)[0])


def refuse_other_swarm(data: NodeDirectory, asked: SwarmIdentity, fix: str = "") -> None:
    """Raise SwarmMismatch if a data directory's log belongs to another swarm than `asked`.

    `fix`: advice, by default to use another directory. Raises LogDamaged, LogForeign or OtherVersion if the log cannot
    be read.
    """
    refuse_other_logged_swarm(data, swarm_of_log(data), asked, fix)


def refuse_other_logged_swarm(
    data: NodeDirectory, logged: SwarmIdentity | None, asked: SwarmIdentity, fix: str = ""
) -> None:
    """Like `refuse_other_swarm`, for the swarm of a log that was already read."""
    if logged is not None and logged.differs_from(asked):
        raise errors.SwarmMismatch(
            f"{data.root} holds the log of a node of the swarm {logged}; what is asked for is the swarm {asked}",
            fix or advise_other_directory(data),
        )


def advise_other_directory(data: NodeDirectory) -> str:
    """Advice to join another swarm from another directory, optionally with the same identity."""
    return (
        "Choose another directory with --dir: a node belongs to one swarm. The identity may be used there, while no "
        f"node runs here: `swarmd join MANIFEST --dir NEW --identity {quote_for_shell(data.identity)}`"
    )


log = get_logger("swarmd.daemon")


def read_or_make_identity(config: Config, data: NodeDirectory) -> Identity:
    """Read the key, or make one if the data directory is new and the configuration does not fix a peer id.

    Before a log begins under its peer id, the key is verified here; later the network worker does so. Raises
    NotFoundError if a new key would be a mistake, IdentityError for a wrong mode, owner, content or peer id.
    """
    path, pin = data.root / config.dht.identity, config.dht.peer
    begun = data.events.is_dir() and bool(list_segments(data.events))
    if path.exists() or path.is_symlink():
        identity = read_identity(path) if begun else load_identity(path)
        if pin and identity.peer_id != pin:
            raise errors.IdentityDamaged(
                f"the identity {path} is that of {identity.peer_id}, but dht.peer pins {pin}",
                f"Put the key of {pin} there (`swarmd identity restore`), or change dht.peer if the other is meant",
            )
        return identity
    _refuse_new_key(pin, path, data, begun)
    identity = create_identity(path)
    log.warning("a new identity was made; keep a copy of the file", peer=identity.peer_id, file=str(path))
    return identity


def _refuse_new_key(pin: str, path: Path, data: NodeDirectory, begun: bool) -> None:
    """Raise NotFoundError if making a new key would be a mistake."""
    if pin:
        raise errors.NotFoundError(
            f"the identity {path} of {pin}, which dht.peer pins, is missing",
            f"Bring it back with `swarmd identity restore BACKUP {quote_for_shell(path)}`; none is made in its place",
        )
    if begun:
        raise errors.NotFoundError(
            f"the identity {path} is missing, but {data.events} holds the log of a node",
            "Restore the key file from a backup; a new key would be another node",
        )
    if not path.resolve().is_relative_to(data.root.resolve()):
        raise errors.NotFoundError(
            f"there is no identity {path}",
            f"Bring it back with `swarmd identity restore BACKUP {quote_for_shell(path)}`; a new node's is made with "
            f"`swarmd identity new {quote_for_shell(path)}`",
        )


POLL_S = 5.0
MORE_TO_GO_ON = 1.25  # `wanted` / `low`: hysteresis between pausing and continuing
MIB = 1024 * 1024
FIX = "Free some space, then start the node again; nothing is lost. an eighth of storage.free_bytes_min is the limit"


class SpaceBounds(msgspec.Struct, frozen=True):
    """Free bytes: below `low` a node pauses, from `wanted` on it continues, below `stop` it ends."""

    low: int
    wanted: int
    stop: int


def make_space_bounds(storage: StorageConfig, checkpoint_bytes: int = 0) -> SpaceBounds:
    """The configured bounds, plus room for a checkpoint of `checkpoint_bytes`."""
    low = storage.free_bytes_min + checkpoint_bytes if storage.free_bytes_min else 0
    return SpaceBounds(low, int(low * MORE_TO_GO_ON), storage.free_bytes_min // 8)


def check_space(directory: Path, storage: StorageConfig) -> None:
    """Raise NoSpaceLeft if there is not even space for the log."""
    free, stop = shutil.disk_usage(directory).free, make_space_bounds(storage).stop
    if free < stop:
        raise errors.NoSpaceLeft(_describe_lack(directory, free, stop), FIX)


def _describe_lack(directory: Path, free: int, stop: int) -> str:
    return f"only {free / MIB:.1f} MiB are free for {directory}, the limit is {stop / MIB:.1f} MiB"


class SpaceGuard:
    """Monitors free space and emits events on changes; expects the next checkpoint to be as large as the newest.
    `make_room` removes dispensable files; its OSError ends the node."""

    def __init__(
        self,
        root: Path,
        checkpoints: Path,
        storage: StorageConfig,
        make_room: Callable[[], Awaitable[None]],
        observe: ObserveEvent,
    ) -> None:
        self._root = root
        self._checkpoints = checkpoints
        self._storage = storage
        self._make_room = make_room
        self._observe = observe
        self._paused = False

    async def watch(self, every_s: float = POLL_S) -> None:
        """Watch until space runs out and the node has to end."""
        while True:
            if not await self._measure_and_report():
                return
            await anyio.sleep(every_s)

    async def _measure_and_report(self) -> bool:
        """Measure once, and emit events on changes. Returns False after it asked the node to end with exit code 73."""
        free, bounds = await to_thread.run_sync(self._measure_free_space)
        if free < bounds.low and not self._paused:
            await self._make_room()
            free, bounds = await to_thread.run_sync(self._measure_free_space)
        if free < bounds.stop:
            await self._observe(
                StopRequested(_describe_lack(self._root, free, bounds.stop), errors.ExitCode.CANNOT_CREATE)
            )
            return False
        if free < bounds.low and not self._paused:
            self._paused = True
            await self._observe(SpaceLow(free, bounds.wanted))
        elif self._paused and free >= bounds.wanted:
            self._paused = False
            await self._observe(SpaceFreed(free))
        return True

    def _measure_free_space(self) -> tuple[int, SpaceBounds]:
        return shutil.disk_usage(self._root).free, make_space_bounds(
            self._storage, measure_newest_checkpoint(self._checkpoints)
        )
