"""What this node submits through: the key of an account, or a signer proxy that holds one.

A sender prepares attempts, sends them, and tells what became of them. It remembers nothing: what was tried stands in
the event log and comes back with every `Submit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from swarmd.chain.signer.budget import Budget
from swarmd.config import ChainConfig
from swarmd.core.commands import Submit
from swarmd.core.values import BlockRef, Prepared, Value

if TYPE_CHECKING:
    from swarmd.chain.endpoints.rpc import RpcCaller
    from swarmd.paths import DataPaths


class Mined(Value, frozen=True):
    """An attempt that a block has."""

    hash: str
    block: BlockRef
    succeeded: bool  # False: the contract reverted it, or it only took a withdrawn attempt's place


Fate = Mined | Literal["waiting", "gone"]  # gone: none of the attempts can be mined any more


class Sender(Protocol):
    """One way to the contract. Everything may raise ChainError, which passes."""

    @property
    def account(self) -> str:
        """The account that submissions come from, checksummed; empty while unknown."""

    @property
    def budget(self) -> Budget | None:
        """Of what the account signs for in a day; None where somebody else signs."""

    @property
    def repeatable(self) -> bool:
        """Whether sending an attempt twice is sending it once."""

    async def prepare(self, peer: str, command: Submit, attempts: Sequence[Prepared]) -> Prepared | None:
        """The next attempt after these; None where the bounds on fees allow none that would replace them.

        Raises:
            ContractRefused: the contract would revert it.
            ChainError: not now; the message says why.
        """

    async def withdraw(self, attempts: Sequence[Prepared]) -> Prepared | None:
        """An attempt that does nothing in the place of the last one; None where there can be none."""

    async def send(self, peer: str, command: Submit, prepared: Prepared) -> str | None:
        """Send an attempt; what it is called, or None where it was not taken for a reason that `trace` will tell.

        Raises:
            ContractRefused: the contract would revert it.
            ChainError: it was not sent; the message says why.
            EndpointFailed: it may have been sent.
        """

    async def trace(self, attempts: Sequence[Prepared]) -> Fate:
        """What became of the attempts, of which there is at least one."""

    async def is_known(self, prepared: Prepared) -> bool:
        """Whether the chain's nodes are seen to have this attempt."""

    async def explain(self, peer: str, command: Submit, mined: Mined) -> None:
        """Ask why a mined attempt was reverted. Raises ContractRefused where the contract says it."""


def make_sender(config: ChainConfig, data: DataPaths, caller: RpcCaller) -> Sender | None:
    """The sender that the configuration asks for, None where nothing is to be submitted.

    Raises:
        KeystoreError: the account's key or the proxy's token cannot be read.
    """
    if config.sender == "wallet":
        from swarmd.chain.submitting.wallet import open_wallet

        return open_wallet(config, data, caller)
    if config.sender == "proxy":
        from swarmd.chain.submitting.proxy import open_proxy

        return open_proxy(config, data, caller)
    return None
