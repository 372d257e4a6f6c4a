"""What the chain must be like for this node to follow it, and how the swarm stands there."""

from __future__ import annotations

from swarmd.chain.ports import BlockReader, ContractReader, NotThere
from swarmd.config import ChainConfig
from swarmd.core.events import ChainUp
from swarmd.core.values import BlockRef
from swarmd.errors import ChainError, ChainMismatch, ConfigError


class ChainRequirements:
    """One node's expectations of a chain and a contract.

    Args:
        config: of the chain.
        stages: that a round must have.
        peer: this node's peer id.
        coordinator: the contract.

    Attributes:
        extensions: of the contract, as they were told last; None before.
    """

    def __init__(self, config: ChainConfig, stages: int, peer: str, coordinator: ContractReader) -> None:
        self._config = config
        self._stages = stages
        self._peer = peer
        self.coordinator = coordinator
        self.blocks = coordinator.blocks
        self.extensions: int | None = None

    async def check(self, genesis: str) -> str:
        """Make sure that it is the chain with this first block, empty for any, and the contract on it.

        Returns:
            the hash of the first block.

        Raises:
            ChainMismatch: it is another chain or contract.
            ConfigError: the contract's rounds have another number of stages than the configuration says.
            ChainError: it cannot be told yet.
        """
        found = (await self.blocks.at(0)).hash
        if genesis and found != genesis:
            raise ChainMismatch(
                f"the chain was reset: its first block is {found}, it was {genesis} before",
                "Start with an empty data directory if this is meant to be a new chain, else correct chain.rpc",
            )
        await self._check_synced()
        await self.coordinator.check()
        await self._check_stages()
        return found

    async def _check_synced(self) -> None:
        """Raise ChainError while the endpoint does not have the contract's first block: it would seem to be missing."""
        syncing = await self.blocks.is_syncing()
        head = await self.blocks.head()
        if syncing or head.number < self._config.from_block:
            raise ChainError(
                f"the endpoint is still at block {head.number}, and the contract's first block comes later"
            )

    async def _check_stages(self) -> None:
        stages = await self.coordinator.stages()
        if stages != self._stages:
            raise ConfigError(
                f"swarm.stages is {self._stages}, the contract {self._config.contract} has rounds of {stages} stages",
                "Set swarm.stages to what the contract says, or correct chain.contract",
            )

    async def standing(self, head: BlockRef, genesis: str, account: str) -> ChainUp:
        """How the swarm stands at a block.

        Raises:
            NotThere: another block took its place meanwhile, so that some of the answers may be of that one.
            ChainError: it cannot be told now.
        """
        block, contract = hex(head.number), self.coordinator
        extensions = await contract.extensions()  # first, for what the others must know follows from it
        round, stage = await contract.place(block)
        policy = await contract.policy(block)
        up = ChainUp(
            chain_id=self._config.chain_id,
            contract=contract.contract,
            genesis=genesis,
            head=head,
            stages=self._stages,
            round=round,
            stage=stage,
            opened_at=await contract.opened_at(block),
            account=account,
            registered_to=await contract.eoa(self._peer, block),
            extensions=extensions,
            min_submissions=policy.min_submissions,
            max_stage_s=policy.max_stage_s,
        )
        await check_unreplaced(self.blocks, head)
        self.extensions = extensions
        return up


async def check_unreplaced(blocks: BlockReader, block: BlockRef) -> None:
    """Raise NotThere when the chain has another block of this number by now: what was read by number may be of both."""
    if (await blocks.at(block.number)).hash != block.hash:
        raise NotThere(f"block {block.number} was replaced while the contract was read")
