"""The network worker: `python -m swarmd.dht.worker`, which the daemon talks to over frames (`swarmd.worker`).

`swarmd.dht.agent` carries out its commands. The process ends by itself only for errors that no retry can fix: another
node with the same identity, an address in use, a wrong configuration.
"""

import logging
import os
from contextlib import ExitStack
from pathlib import Path

import anyio

from swarmd.config import Config, decode
from swarmd.dht.agent import NetworkAgent
from swarmd.dht.identity.identity import Identity, load_identity, lock_identity
from swarmd.dht.membership import Members
from swarmd.dht.p2p.hivemind_api import use_hivemind_log_handler
from swarmd.dht.p2p.memory_watch import COLLECTED, FILES_MAX, P2PD_SHARE, set_open_files_limit
from swarmd.dht.p2p.p2pd import find_p2pd
from swarmd.dht.p2p.sockets import make_socket_directory
from swarmd.dht.session import Session
from swarmd.errors import IdentityDamaged, IdentityInUse, single_error
from swarmd.eventlog.blobs import BlobStore
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.sandbox.confinement import AllowedAccess, confine
from swarmd.worker.child import Inbox, Outbox, log_lines_to_stderr, run_worker
from swarmd.worker.messages import StartMessage, StopMessage

HOLD_S = 5.0  # time for an ending predecessor to release the identity

log = get_logger(__name__)


async def run_agent(session: Session, inbox: Inbox) -> None:
    """Pass the daemon's commands to the agent until `StopMessage`; then announce that this node leaves."""
    members = Members(session.view, session.store, session.publisher, session)
    weights = session.make_weights_fetcher(members.require_member)
    parts = (session.view, session.store, session.publisher, session.gossip, session.bodies)
    agent = NetworkAgent(*parts, session, members, weights)
    agent.start()
    async for message in inbox:
        if isinstance(message, StopMessage):
            break
        agent.start_command(message.command)
    await members.leave()


def confine_process(start: StartMessage) -> None:
    """Confine this process to the network's part of the data directory, and to p2pd as a program (docs/adr/0019)."""
    config = decode(start.config)
    log_to_stderr(config)
    paths = NodeDirectory(Path(start.data_dir))
    own = (paths.network, paths.blobs)
    for directory in (*own, paths.weights):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    changes = (*own, make_socket_directory(paths.sockets))
    bounds = AllowedAccess(
        reads=(paths.root / config.dht.identity, paths.weights), changes=changes, runs=(find_p2pd(),)
    )
    for what in confine(bounds, paths.root):
        log.warning("not confined: %s", what)


async def main(start: StartMessage, outbox: Outbox, inbox: Inbox) -> None:
    """Run the network worker, for `serve`. Raises SwarmdError if a restart cannot help; the exit code says so."""
    config = decode(start.config)
    os.environ.setdefault("GOLOG_LOG_LEVEL", "error")  # for p2pd, which warns of every peer that it cannot reach
    os.environ.setdefault("GOMEMLIMIT", str(int(config.dht.memory_bytes_max * P2PD_SHARE * COLLECTED)))
    set_open_files_limit(FILES_MAX)
    paths = NodeDirectory(Path(start.data_dir))
    outbox.report_progress("connecting")
    try:
        with ExitStack() as held:
            identity = await _load_and_lock_identity(paths.root / config.dht.identity, start.peer, held)
            session = Session(config, paths, identity, BlobStore(paths.blobs), outbox.report_event)
            await session.run(lambda: run_agent(session, inbox))
    except BaseExceptionGroup as errors:
        raise single_error(errors) from None


async def _load_and_lock_identity(path: Path, peer: str, held: ExitStack) -> Identity:
    """Load the key and lock it for this process, waiting up to `HOLD_S` for an ending predecessor. Raises
    IdentityError: it cannot be used, or it is not the key of `peer`, whose log the daemon writes; IdentityInUse:
    another process on this host holds it."""
    identity = load_identity(path)
    if peer and identity.peer_id != peer:
        fix = f"Restore the key of {peer}; a key is not exchanged while its node runs"
        raise IdentityDamaged(f"the identity {path} is that of {identity.peer_id}, the node runs as {peer}", fix)
    deadline = anyio.current_time() + HOLD_S
    while True:
        try:
            held.enter_context(lock_identity(path))
            return identity
        except IdentityInUse:
            if anyio.current_time() > deadline:
                raise
        await anyio.sleep(0.1)


def log_to_stderr(config: Config) -> None:
    """Log to stderr, without hivemind's own handler and its complaints about a dead p2pd."""
    use_hivemind_log_handler("nowhere")
    log_lines_to_stderr(config.logs.level)
    logging.getLogger("hivemind").setLevel(logging.ERROR)
    logging.getLogger("asyncio").addFilter(_is_worth_logging)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return False for asyncio's complaint about a task's unretrieved error: hivemind leaves such tasks."""
    return "never retrieved" not in record.getMessage()


if __name__ == "__main__":
    anyio.run(run_worker, main, confine_process)
