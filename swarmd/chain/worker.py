"""The chain worker: `python -m swarmd.chain.worker`, controlled over frames (`swarmd.worker`).

It follows the contract and submits for this node; it alone holds the account's key. It retries after failures. The
process ends by itself only if no retry can help: another chain or contract than the node's, a key that cannot be read,
or a contradictory configuration.
"""

import logging
import os
from pathlib import Path
from time import monotonic

import anyio

from swarmd.chain.blocks import HeadSubscription
from swarmd.chain.coordinator import CoordinatorContract
from swarmd.chain.endpoints import RpcPool, read_endpoint_urls
from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.fees import BalanceMonitor
from swarmd.chain.senders import make_sender
from swarmd.chain.submitter import ChainCommandDispatcher, Submitter
from swarmd.chain.watcher import ChainRequirements, ChainWatcher, ReadProgress
from swarmd.config import ChainConfig, Config, decode
from swarmd.errors import ConfigError, single_error
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.sandbox.confinement import AllowedAccess, confine
from swarmd.secret_files import CREDENTIAL
from swarmd.worker.child import Inbox, Outbox, log_lines_to_stderr, run_worker
from swarmd.worker.messages import StartMessage, StopMessage

PROGRESS_S = 1.0  # shortest interval between two progress messages

log = get_logger(__name__)


class ChainService:
    """Carries out the daemon's chain commands: watching and submitting."""

    def __init__(self, config: Config, chain: ChainConfig, start: StartMessage, outbox: Outbox) -> None:
        paths = NodeDirectory(Path(start.data_dir))
        self._outbox = outbox
        self._reported_at = -PROGRESS_S  # monotonic
        self.rpc = RpcPool(read_endpoint_urls(chain.rpc, paths.root), chain.chain_id)
        self._heads = HeadSubscription(self.rpc, chain.contract, chain.poll_s)
        self._coordinator = CoordinatorContract(self.rpc, chain.contract, chain.from_block)
        self._sender = sender = make_sender(chain, paths, self.rpc)
        terms = ChainRequirements(chain, config.swarm.stages, start.peer, self._coordinator)
        self.watcher = ChainWatcher(
            chain, terms, self.rpc, self._heads, outbox.report_event, lambda: sender.account if sender else ""
        )
        self.watcher.on_progress = self._report_progress
        self._budget = sender.budget if sender is not None else None
        self.rpc.has_base_fee = self._budget is not None and not chain.fees.legacy  # this worker signs
        self._submitter: Submitter | None = None
        self.funds: BalanceMonitor | None = None
        if sender is not None:
            accounts, confirmed = EthereumClient(self.rpc), self.watcher.confirmed_number
            self._submitter = Submitter(
                chain, start.peer, self._coordinator, accounts, sender, confirmed, outbox.report_event
            )
            if sender.account:
                self.funds = BalanceMonitor(chain, config.swarm.stages, accounts, sender.account)

    async def run(self, inbox: Inbox) -> None:
        """Carry out commands until `StopMessage`."""
        try:
            async with anyio.create_task_group() as tasks:
                agent = ChainCommandDispatcher(
                    self.watcher, self._submitter, self._budget, self._outbox.report_event, tasks.start_soon
                )
                agent.start_tasks()
                tasks.start_soon(self._heads.run)
                tasks.start_soon(self.watcher.watch_extensions)
                if self.funds is not None:
                    tasks.start_soon(self.funds.run)
                async for message in inbox:
                    if isinstance(message, StopMessage):
                        break
                    agent.handle_command(message.command)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await self.rpc.close()

    def _report_progress(self, reach: ReadProgress) -> None:
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
            figures |= self.funds.metrics()
        if self._budget is not None:
            figures |= self._budget.metrics()
        what = "following" if reach.up else "catching up"
        self._outbox.report_progress(what, reach.tip, reach.head, reach.endpoint, figures)


def confine_process(start: StartMessage) -> None:
    """Confine the process: no writing, no programs, only named files of the data directory (docs/adr/0019)."""
    config = decode(start.config)
    log_to_stderr(config)
    root = Path(start.data_dir)
    reads = [root / name for name in list_secret_files(config.chain)] if config.chain else []
    if credentials := os.environ.get("CREDENTIALS_DIRECTORY"):
        reads.append(Path(credentials))
    for what in confine(AllowedAccess(reads=tuple(reads)), root):
        log.warning("not confined: %s", what)


def list_secret_files(chain: ChainConfig) -> tuple[str, ...]:
    """Return the names of the files that the worker reads, as in the configuration."""
    files = tuple(url.removeprefix("file:") for url in chain.rpc if url.startswith("file:"))
    named = (chain.keystore, chain.passphrase, chain.proxy.token, *files)
    return tuple(name for name in named if name and not name.startswith(CREDENTIAL))


async def main(start: StartMessage, outbox: Outbox, inbox: Inbox) -> None:
    """Run the chain worker, for `serve`. Raises SwarmdError if a restart cannot help; the exit code says so."""
    config = decode(start.config)
    if config.chain is None:
        raise ConfigError("this node has no chain: the configuration has no [chain]")
    outbox.report_progress("connecting")
    try:
        await ChainService(config, config.chain, start, outbox).run(inbox)
    except BaseExceptionGroup as errors:
        raise single_error(errors) from None


def log_to_stderr(config: Config) -> None:
    """Log to stderr; the libraries' own loggers, which show whole URLs, only at warning level and above."""
    log_lines_to_stderr(config.logs.level)
    for name in ("aiohttp", "asyncio", "web3", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)


if __name__ == "__main__":
    anyio.run(run_worker, main, confine_process)
