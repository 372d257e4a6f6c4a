"""How a command reaches a swarm's contract: which endpoints, which account, and what the chain is."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import typer

from swarmd.chain.blocks import Blocks
from swarmd.chain.coordinator import Coordinator, chain_id_of
from swarmd.chain.endpoints import Rpc, check_url, name_of, read_urls
from swarmd.chain.keystore import load_account
from swarmd.chain.operator import Journal, OperatorTransactions
from swarmd.cli.node.directory import open_keystore
from swarmd.config import Config, FeesConfig, load_config
from swarmd.errors import ChainMismatch, ConfigError
from swarmd.manifest import Manifest, ManifestChain, read_manifest
from swarmd.paths import CONFIG, NodeDirectory

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

CALL_S = 15.0  # every call to an endpoint ends within this
LOCAL_CHAINS = (1337, 31337)  # of development nodes; their coins are worth nothing


class ReachedChain(NamedTuple):
    """A chain that answers."""

    rpc: Rpc
    chain_id: int
    genesis: str

    @property
    def is_local(self) -> bool:
        return self.chain_id in LOCAL_CHAINS


@asynccontextmanager
async def reach(
    urls: Sequence[str], chain_id: int | None = None, fees: FeesConfig | None = None
) -> AsyncIterator[ReachedChain]:
    """The chain behind endpoints, which must be `chain_id` where that is given.

    With `fees` something is to be signed: an endpoint that shows a head without a base fee has failed, unless they say
    that the chain has none.

    Raises:
        ChainMismatch: it is another chain.
        ChainError: no endpoint answers.
    """
    for url in urls:
        check_url(url)
    found = chain_id or await chain_id_of(urls)
    rpc = Rpc(urls, found, CALL_S)
    try:
        genesis = await Blocks(rpc, "", 1).at(0)
        rpc.has_base_fee = fees is not None and not fees.legacy
        if fees is not None:
            await rpc.learn_base_fee()
        yield ReachedChain(rpc, found, genesis.hash)
    finally:
        await rpc.close()


def confirm_chain(reached: ReachedChain, url: str, what: str, yes: bool) -> None:
    """Show the chain; ask before anything is paid for with coins that are worth something."""
    typer.echo(f"chain: {reached.chain_id} at {name_of(url)}")
    if reached.is_local or yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"chain {reached.chain_id} is not a local one: {what} costs real coins", "Add --yes")
    typer.confirm(f"{what} on chain {reached.chain_id}?", abort=True)


class Target(NamedTuple):
    """The swarm that a command is about, and what lies beside its manifest."""

    path: Path
    manifest: Manifest
    config: Config | None  # of the creator's own node, when the manifest lies in its directory

    @property
    def data(self) -> NodeDirectory:
        return NodeDirectory(self.path.parent / (self.config.data if self.config else "."))

    @property
    def chain(self) -> ManifestChain:
        """Raises ConfigError where the swarm has none."""
        if self.manifest.chain is None:
            raise ConfigError(
                f"the swarm {self.manifest.id} has no chain: its coordinator opens and closes the rounds",
                "`swarmd status` on the coordinator's node shows them",
            )
        return self.manifest.chain

    def urls(self, given: Sequence[str]) -> list[str]:
        """Endpoints: those given, else of the node beside the manifest, else the manifest's. Raises ConfigError."""
        if given:
            return list(given)
        if self.config is not None and self.config.chain is not None:
            return read_urls(self.config.chain.rpc, self.data.root)
        if not self.chain.rpc:
            raise ConfigError(
                "the manifest names no endpoint of the chain", f"Give --rpc URL of chain {self.chain.chain_id}"
            )
        return list(self.chain.rpc)

    def account(self, keystore: Path | None, passphrase: Path | None) -> LocalAccount:
        """The account that pays: the one given, else that of the node beside the manifest. Raises KeystoreError."""
        if keystore is not None:
            return open_keystore(keystore, passphrase)
        if self.config is None or self.config.chain is None:
            raise ConfigError("which account is to pay?", "Give --account KEYSTORE, and --passphrase-file FILE")
        chain = self.config.chain
        if passphrase is not None:
            chain = msgspec.structs.replace(chain, passphrase=str(passphrase.resolve()))
        return load_account(chain, self.data)


def find_target(path: Path) -> Target:
    """The manifest, and the configuration beside it if it is of the same swarm. Raises ManifestError, NotFoundError."""
    manifest = read_manifest(path)
    beside = path.parent / CONFIG
    config = load_config(beside) if beside.exists() else None
    return Target(path, manifest, config if config and config.swarm.id == manifest.id else None)


async def check_contract(rpc: Rpc, chain: ManifestChain, stages: int) -> Coordinator:
    """The swarm's contract. Raises ChainMismatch when there is none, or rounds there have other stages."""
    coordinator = Coordinator(rpc, chain.contract, chain.from_block)
    await coordinator.check()
    counted = await coordinator.stages()
    if counted != stages:
        raise ChainMismatch(
            f"the contract {chain.contract} has rounds of {counted} stages, the recipe has {stages}",
            "The manifest does not fit the contract: ask the swarm's creator",
        )
    return coordinator


def open_orders(
    reached: ReachedChain, key: LocalAccount, fees: FeesConfig, journal: Journal | None = None
) -> OperatorTransactions:
    """Orders of an account, told on stdout. Raises ChainMismatch when the journal is of another chain or account."""
    journal = journal or Journal()
    journal.begin(reached.chain_id, reached.genesis, str(key.address))
    return OperatorTransactions(reached.rpc, key, fees, journal, typer.echo)
