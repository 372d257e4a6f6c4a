"""The chain worker: `python -m swarmd.chain.worker`, controlled over frames (`swarmd.worker`).

It follows the contract and submits for this node; it alone holds the account's key. It waits for failures to pass. The
process ends by itself only if no retry can help: another chain or contract than the node's, a key that cannot be read,
or a configuration that makes no sense.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from time import monotonic

import anyio

from swarmd.chain.blocks import Heads
from swarmd.chain.coordinator import Coordinator
from swarmd.chain.endpoints import Rpc, read_urls
from swarmd.chain.ethereum import Ethereum
from swarmd.chain.fees import Funds
from swarmd.chain.senders import make_sender
from swarmd.chain.submitter import ChainAgent, Submitter
from swarmd.chain.watcher import ChainRequirements, Reach, Watcher
from swarmd.config import ChainConfig, Config, decode
from swarmd.errors import ConfigError, single_error
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.sandbox.confinement import AllowedAccess, confine
from swarmd.secret_files import CREDENTIAL
from swarmd.worker.child import Inbox, Outbox, log_lines, serve
from swarmd.worker.messages import Start, Stop

PROGRESS_S = 1.0  # between two progress messages, at least

log = get_logger(__name__)


class ChainService:
    """Carries out the daemon's chain commands: watching and submitting."""

    def __init__(self, config: Config, chain: ChainConfig, start: Start, outbox: Outbox) -> None:
        paths = NodeDirectory(Path(start.data_dir))
        self._outbox = outbox
        self._reported_at = -PROGRESS_S  # monotonic
        self.rpc = Rpc(read_urls(chain.rpc, paths.root), chain.chain_id)
        self._heads = Heads(self.rpc, chain.contract, chain.poll_s)
        self._coordinator = Coordinator(self.rpc, chain.contract, chain.from_block)
        self._sender = sender = make_sender(chain, paths, self.rpc)
        terms = ChainRequirements(chain, config.swarm.stages, start.peer, self._coordinator)
        self.watcher = Watcher(
            chain,
            terms,
            self.rpc,
            self._heads,
            outbox.observe,
            lambda: sender.account if sender else "",
        )
        self.watcher.on_progress = self._report
        self._budget = sender.budget if sender is not None else None
        self.rpc.has_base_fee = self._budget is not None and not chain.fees.legacy  # this worker signs
        self._submitter: Submitter | None = None
        self.funds: Funds | None = None
        if sender is not None:
            accounts, confirmed = Ethereum(self.rpc), self.watcher.confirmed_number
            self._submitter = Submitter(
                chain, start.peer, self._coordinator, accounts, sender, confirmed, outbox.observe
            )
            if sender.account:
                self.funds = Funds(chain, config.swarm.stages, accounts, sender.account)

    async def run(self, inbox: Inbox) -> None:
        """Carry out commands until `Stop`."""
        try:
            async with anyio.create_task_group() as tasks:
                agent = ChainAgent(self.watcher, self._submitter, self._budget, self._outbox.observe, tasks.start_soon)
                agent.run()
                tasks.start_soon(self._heads.run)
                tasks.start_soon(self.watcher.watch_extensions)
                if self.funds is not None:
                    tasks.start_soon(self.funds.run)
                async for message in inbox:
                    if isinstance(message, Stop):
                        break
                    agent.take(message.command)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await self.rpc.close()

    def _report(self, reach: Reach) -> None:
        if monotonic() - self._reported_at < PROGRESS_S:
            return
        self._reported_at = monotonic()
        figures = {
            "head": float(reach.head),
            "tip": float(reach.tip),
            "lag_s": round(reach.lag_s, 1),
            "rejected": float(sum(self.watcher.reports.rejected.values())),
        }
        if self.funds is not None:
            figures |= self.funds.figures()
        if self._budget is not None:
            figures |= self._budget.figures()
        what = "following" if reach.up else "catching up"
        self._outbox.progress(what, reach.tip, reach.head, reach.endpoint, figures)


def prepare(start: Start) -> None:
    """Confine the process: no writing, no programs, only named files of the data directory (docs/adr/0019)."""
    config = decode(start.config)
    log_to_stderr(config)
    root = Path(start.data_dir)
    reads = [root / name for name in secret_files(config.chain)] if config.chain else []
    if credentials := os.environ.get("CREDENTIALS_DIRECTORY"):
        reads.append(Path(credentials))
    for what in confine(AllowedAccess(reads=tuple(reads)), root):
        log.warning("not confined: %s", what)


def secret_files(chain: ChainConfig) -> tuple[str, ...]:
    """Names of the files that the worker reads, as in the configuration."""
    files = tuple(url.removeprefix("file:") for url in chain.rpc if url.startswith("file:"))
    named = (chain.keystore, chain.passphrase, chain.proxy.token, *files)
    return tuple(name for name in named if name and not name.startswith(CREDENTIAL))


async def main(start: Start, outbox: Outbox, inbox: Inbox) -> None:
    """The chain worker's main loop, run by `serve`.

    Raises:
        SwarmdError: no restart can help, as its exit code says.
    """
    config = decode(start.config)
    if config.chain is None:
        raise ConfigError("this node has no chain: the configuration has no [chain]")
    outbox.progress("connecting")
    try:
        await ChainService(config, config.chain, start, outbox).run(inbox)
    except BaseExceptionGroup as errors:
        raise single_error(errors) from None


def log_to_stderr(config: Config) -> None:
    """Log to stderr; the libraries' own loggers, which show whole URLs, only from warnings on."""
    log_lines(config.logs.level)
    for name in ("aiohttp", "asyncio", "web3", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)


if __name__ == "__main__":
    anyio.run(serve, main, prepare)
