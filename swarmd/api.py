"""The public Python API, as `from swarmd import ...`: read a log, follow a swarm's DHT, run a node inside the program.

- Each part wraps what the commands themselves use. docs/PYTHON.md has an example of each.
- Importing this loads neither torch nor hivemind; `open_swarm` and `open_node` load what they need when called.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import anyio

from swarmd.config import Config, load_config
from swarmd.core.applied import AppliedEvent
from swarmd.core.state import State
from swarmd.core.values import Worker
from swarmd.errors import ExitCode, NetworkDown, NodeEnded, StopOverran, SwarmdError, single_error
from swarmd.eventlog.fold import base_upto, check_not_removed, fold_log, load_state, peer_id_of_log
from swarmd.eventlog.replay import VerifyResult, verify_log
from swarmd.eventlog.segment import find_segment_directory
from swarmd.paths import NodeDirectory

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from swarmd.daemon.service import Node
    from swarmd.observe.status import Status
    from swarmd.web.observer import DhtSwarmSource
    from swarmd.web.shapes import Curves, Gossip, SwarmView

__all__ = ["Log", "RunningNode", "Swarm", "open_log", "open_node", "open_swarm", "read_swarm"]

PathLike = str | os.PathLike[str]


# --- a log ---


def open_log(directory: PathLike) -> Log:
    """Open a node's event log for reading. `directory`: a data directory, its events directory, or a copy of either.

    A running node is not disturbed. Raises NotFoundError if there is no log.
    """
    return Log(find_segment_directory(Path(directory)))


class Log:
    """An event log. Each method reads the log from the start, up to its end at that time.

    Methods raise LogDamaged, LogForeign or OtherVersion where the log cannot be read further.

    Attributes:
        directory: holds the log's segments.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def peer(self) -> str:
        """Peer id of the node that wrote the log."""
        return peer_id_of_log(self.directory)

    def fold(self, last: int | None = None) -> Iterator[AppliedEvent]:
        """Each event in order, with the state before and after it and the commands it caused, up to seq `last`.

        A log whose beginning was removed is read from its oldest snapshot on.
        """
        applied = fold_log(self.directory)
        return applied if last is None else takewhile(lambda one: one.seq <= last, applied)

    def __iter__(self) -> Iterator[AppliedEvent]:
        return self.fold()

    def state(self, last: int | None = None) -> State:
        """The node's state after event `last`, by default after all events; the fold starts from a snapshot if there is
        one.

        Raises NotFoundError if that event was removed with the log's beginning.
        """
        if last is None:
            return load_state(self.directory)[0]
        check_not_removed(self.directory, last)
        base = base_upto(self.directory, last + 1)
        state = base.state
        for applied in takewhile(lambda one: one.seq <= last, fold_log(self.directory, base)):
            state = applied.after
        return state

    def verify(self) -> VerifyResult:
        """Replay the whole log and compare each commit's commands, and each snapshot, with what was recorded.

        Raises ReplayDifference at the first difference.
        """
        return verify_log(self.directory)


@contextlib.asynccontextmanager
async def _open_task_group() -> AsyncIterator[TaskGroup]:
    """A task group that raises a single error unwrapped; of several, it prefers a SwarmdError."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        alone = len(group.exceptions) == 1
        raise (group.exceptions[0] if alone else single_error(group)) from None


# --- a swarm ---


@contextlib.asynccontextmanager
async def open_swarm(
    manifest: PathLike, bootstrap: Sequence[str] = (), rpc: Sequence[str] = ()
) -> AsyncIterator[Swarm]:
    """Follow a swarm's DHT, and its contract if it has one, without taking part: nothing is written there.

    Args:
        manifest: the swarm's file, or the path of one.
        bootstrap: addresses of nodes beyond the manifest's.
        rpc: endpoints of the chain in place of the manifest's.

    Raises:
        NotFoundError, ManifestError: the manifest is not there, or not sound.
        ConfigError: an endpoint is not an URL, or the swarm has no chain.
    """
    from swarmd.web.observer import open_observer

    with open_observer(Path(manifest), bootstrap, rpc) as observed:
        async with _open_task_group() as tasks:
            tasks.start_soon(observed.run)
            yield Swarm(observed)
            tasks.cancel_scope.cancel()


class Swarm:
    """A swarm that is followed, see `open_swarm`. For asyncio's event loop."""

    def __init__(self, observed: DhtSwarmSource) -> None:
        self._observed = observed

    async def view(self) -> SwarmView:
        """The swarm's round and members, as far as they are known by now; `notes` says what could not be read yet."""
        return await self._observed.view()

    async def views(self) -> AsyncIterator[SwarmView]:
        """Yield the present view, then one after each change, without end. Changes close together share one view."""
        while True:
            version = self._observed.changes.version
            yield await self.view()
            await self._observed.changes.newer_than(version)

    async def curves(self, peers: Sequence[str] = ()) -> Curves:
        """Reward curves of these peers, by default of the first ten."""
        return await self._observed.curves(peers)

    async def gossip(self, since_round: int = -1) -> Gossip:
        """Messages that peers published since a round. The text is untrusted."""
        return await self._observed.gossip(since_round)


def read_swarm(
    manifest: PathLike,
    bootstrap: Sequence[str] = (),
    rpc: Sequence[str] = (),
    within_s: float = 60.0,
    until: Callable[[SwarmView], bool] = lambda view: view.round >= 0 and view.total > 0,
) -> SwarmView:
    """The first view of a swarm that satisfies `until`, by default one with a round and a peer. Blocks.

    Raises:
        NetworkDown: there was none within `within_s`; says what was missing.
        NotFoundError, ManifestError, ConfigError: as `open_swarm` does.
        SwarmdError: an event loop runs in this thread.
    """

    async def wait_for_view() -> SwarmView:
        async with open_swarm(manifest, bootstrap, rpc) as swarm:
            view = await swarm.view()
            with anyio.move_on_after(within_s):
                async for view in swarm.views():
                    if until(view):
                        return view
            said = " ".join(view.notes) or "It was reached, but not what was waited for."
            raise NetworkDown(f"the swarm {view.swarm} was not read within {within_s:g} s: {said.rstrip('.')}")

    with contextlib.suppress(RuntimeError):  # none runs
        asyncio.get_running_loop()
        fix = "Use open_swarm there, or a thread: `await asyncio.to_thread(read_swarm, ...)`"
        raise SwarmdError("read_swarm blocks, and this thread has an event loop that runs, as Jupyter's do", fix)
    return asyncio.run(wait_for_view())


# --- a node ---


@contextlib.asynccontextmanager
async def open_node(
    config: PathLike, data: PathLike | None = None, programs: Mapping[Worker, Sequence[str]] | None = None
) -> AsyncIterator[RunningNode]:
    """Run a node in this event loop, as `swarmd run` does; leaving the block stops it in order.

    Signals stay the program's own. Workers are processes as ever.

    Args:
        config: the node's configuration file.
        data: the data directory, in place of the one the file names.
        programs: what to execute for a worker ("network", "trainer", "chain") in place of swarmd's own.

    Raises:
        NodeEnded: it ended by itself and not in order, while the block ran; `exit_code` is `swarmd run`'s.
        SwarmdError: as `swarmd run` would end: the configuration is wrong, the directory is in use, the log cannot be
            written, or an orderly stop did not come to its end.
    """
    from swarmd.swarms.registry import check_kind

    file = Path(config)
    loaded = load_config(file)
    check_kind(loaded.swarm)
    paths = NodeDirectory(Path(data) if data is not None else file.parent / loaded.data)
    ask, asked = anyio.create_memory_object_stream[signal.Signals](1)
    async with _open_task_group() as tasks:
        running: RunningNode = await tasks.start(_run_node_task, loaded, paths, programs or {}, ask, asked)
        try:
            yield running
        finally:
            with anyio.CancelScope(shield=True):
                await running.stop()


class RunningNode:
    """A node that runs in this program, see `open_node`. Its log, blobs and checkpoints lie in `data`."""

    def __init__(self, node: Node, data: NodeDirectory, ask: MemoryObjectSendStream[signal.Signals]) -> None:
        self.data = data
        self._node = node
        self._ask = ask
        self._over = anyio.Event()
        self._code = 0

    @property
    def state(self) -> State:
        """The node's state, the fold of its log up to now. The value does not change; ask again for a newer one."""
        return self._node.engine.state

    def status(self) -> Status:
        """What `swarmd status` shows."""
        return self._node.status()

    async def wait(self) -> int:
        """Wait until the node has stopped, by itself or on request. Returns its exit code (docs/OPERATING.md)."""
        await self._over.wait()
        return self._code

    async def stop(self) -> int:
        """Request an orderly stop and wait for it. A second call does not hurry it."""
        with contextlib.suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._ask.send_nowait(signal.SIGTERM)
            self._ask.close()
        return await self.wait()

    def _record_end(self, code: int) -> None:
        self._code = code
        self._over.set()


def _raise_overrun(code: int) -> NoReturn:
    raise StopOverran(
        "the node did not stop in order in time; its workers were killed", "Start it again: nothing is lost"
    )


async def _run_node_task(
    config: Config,
    paths: NodeDirectory,
    programs: Mapping[Worker, Sequence[str]],
    ask: MemoryObjectSendStream[signal.Signals],
    asked: MemoryObjectReceiveStream[signal.Signals],
    *,
    task_status: TaskStatus[RunningNode],
) -> None:
    """Run the node; `task_status` reports when it has started."""
    from swarmd.daemon.service import WORKER_PROGRAMS, serve_node

    runs: list[RunningNode] = []

    def on_begun(node: Node) -> None:
        runs.append(RunningNode(node, paths, ask))
        task_status.started(runs[0])

    code = ExitCode.FAILURE
    try:
        chosen = {**WORKER_PROGRAMS, **programs}
        code = await serve_node(config, paths, chosen, asked, begun=on_begun, end=_raise_overrun)
        if code != ExitCode.OK:
            raise NodeEnded(f"the node ended with code {code}: {runs[0].state.stop_reason}").with_exit_code(code)
    except BaseExceptionGroup as group:
        error = single_error(group)
        code = error.exit_code if isinstance(error, SwarmdError) else code
        raise error from None
    finally:
        for running in runs:
            running._record_end(code)
