"""What a stopped node left behind: processes, ports, sockets, locks, files, rounds. Findings are sentences."""

import fcntl
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from swarmd.core.events import Event, RoundsSkipped, StageTrained
from swarmd.core.state import State
from swarmd.daemon.process import GONE_S
from swarmd.eventlog.store import LOCK_NAME
from tests.e2e.audit import assert_clock_monotone, assert_rounds_accounted, assert_trained_once
from tests.soak.node import Process, SoakNode, can_be_bound, until

UNFINISHED = re.compile(r"^\.|\.(tmp|new)$")  # names of what is being written
# How many files there may be, where the node's own budgets hold; figures that nodes with QUICK settings cannot reach.
KEPT_MAX = {"events": 4096, "blobs": 16_384, "checkpoints": 64, "results": 600}
TORCH_CACHE = "torchinductor_"  # and the user's name: torch makes it once, and leaves it empty here
ALIKE_MAX = 3  # files elsewhere, with names that differ in digits only


def living(processes: Iterable[Process], within_s: float = GONE_S) -> list[str]:
    """Processes that are still there after `within_s`."""
    until(lambda: not any(process.lives for process in processes), within_s)
    return [f"process {process.pid} is left: {process.words}" for process in processes if process.lives]


def taken_ports(node: SoakNode) -> list[str]:
    """Ports at which a server that follows could not listen."""
    return [f"{whose}'s port {port} is taken" for whose, port in node.ports.items() if not can_be_bound(port)]


def sockets(*directories: Path) -> list[str]:
    """Unix sockets below directories."""
    return [f"the socket {path} is left" for path in _below(directories) if stat.S_ISSOCK(path.lstat().st_mode)]


def held_locks(*files: Path) -> list[str]:
    """Files that somebody holds locked."""
    return [f"{path} is locked" for path in files if path.exists() and _is_held(path)]


def locks_of(node: SoakNode) -> tuple[Path, ...]:
    """What a running node locks."""
    return (node.place.events / LOCK_NAME, node.place.identity)


def _is_held(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def temporary(scratch: Path) -> list[str]:
    """What is left in the directory that the node has for temporary files."""
    return [f"{path} is left" for path in _below((scratch,)) if not path.name.startswith(TORCH_CACHE)]


def unfinished(root: Path) -> list[Path]:
    """What somebody began to write in the data directory, and did not end."""
    return [path for path in _below((root,)) if UNFINISHED.search(path.name)]


def heaped_up(root: Path) -> list[str]:
    """Files that became more and more: beyond what the budgets allow, or elsewhere beyond a few of one kind."""
    files = [path.relative_to(root) for path in _below((root,)) if not path.is_dir()]
    places = Counter(path.parts[0] for path in files if path.parts[0] in KEPT_MAX)
    kinds = Counter(re.sub(r"\d+", "#", str(path)) for path in files if path.parts[0] not in KEPT_MAX)
    heaps = [f"{count} files in {place}" for place, count in places.items() if count > KEPT_MAX[place]]
    return heaps + [f"{count} files like {kind}" for kind, count in kinds.items() if count > ALIKE_MAX]


def _below(directories: Iterable[Path]) -> list[Path]:
    return [path for directory in directories for path in sorted(directory.rglob("*"))]


AUDITS: Sequence[Callable[[list[Event]], None]] = (assert_trained_once, assert_clock_monotone, assert_rounds_accounted)


def lost_rounds(events: list[Event], state: State) -> list[str]:
    """Rounds before the one in hand that were neither trained nor skipped; and what else a log must not have.

    Args:
        events: all of them.
        state: what they come to.
    """
    trained = {event.round for event in events if isinstance(event, StageTrained)}
    skipped = {at for skip in events if isinstance(skip, RoundsSkipped) for at in range(skip.first, skip.last + 1)}
    known = trained | skipped
    begun = state.work.round if state.work is not None else max(known, default=-1) + 1
    lost = sorted(set(range(begun)) - known)
    return [f"rounds {lost} were neither trained nor skipped"] * bool(lost) + [
        f"{audit.__name__}: {error}" for audit in AUDITS if (error := _error_of(audit, events)) is not None
    ]


def _error_of(audit: Callable[[list[Event]], None], events: list[Event]) -> AssertionError | None:
    try:
        audit(events)
    except AssertionError as error:
        return error
    return None
