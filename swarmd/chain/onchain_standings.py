"""A contract's standings read from the chain itself, and compared with the sums that the contract keeps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from swarmd.chain.contract import check_code, read_call
from swarmd.chain.endpoints.endpoint import endpoint_of
from swarmd.chain.endpoints.rpc import Rpc, chain_id_at
from swarmd.chain.ethereum import Ethereum
from swarmd.chain.fees import quantity
from swarmd.chain.ports import NotThere
from swarmd.chain.standings import ChainStandings, PeerStanding
from swarmd.chain.watching.blocks import Blocks, by_block
from swarmd.chain.watching.logs import decode_entry
from swarmd.core.events import ChainBlock
from swarmd.core.values import BlockRef
from swarmd.errors import ChainError, ContractRefused, EndpointFailed, RpcRefused

RANGE_BLOCKS = 50_000  # asked for at once; an endpoint that refuses is asked for fewer
CALL_S = 30.0  # every call ends within this
READS_MAX = 3  # of the whole, when blocks change meanwhile
PEERS_A_CALL = 64
NOT_UTF8 = re.compile(r"\\x[0-9a-f]{2}")  # how bytes that are no text are shown; such a peer cannot be asked for


class OnchainStandings(msgspec.Struct, frozen=True):
    """What was read up to a block."""

    chain_id: int
    head: BlockRef
    standings: ChainStandings
    whole: bool  # nothing that the contract said before the first block read is missing
    rejected: dict[str, int]  # entries that were left out, by reason
    differences: tuple[str, ...] | None  # from the contract's own sums, a sentence each; None where it keeps none


async def read_out(urls: Sequence[str], contract: str, from_block: int) -> OnchainStandings:
    """Read what the contract said since a block.

    Raises:
        ConfigError: a URL is none.
        ChainMismatch: there is no contract at the address.
        ChainError: no endpoint answers, or the chain changes all the time.
    """
    rpc = Rpc(urls, await chain_id_of(urls), CALL_S)
    try:
        await check_code(Ethereum(rpc), contract)
        for _ in range(READS_MAX):
            with suppress(NotThere):  # a block was replaced meanwhile
                return await _read(rpc, contract, from_block)
    finally:
        await rpc.close()
    raise ChainError("the chain was reorganised whenever it was read")


async def chain_id_of(urls: Sequence[str]) -> int:
    """The chain that the first endpoint which answers serves. Raises EndpointFailed where none does."""
    failures: list[str] = []
    for url in urls:
        endpoint = endpoint_of(url, CALL_S)
        try:
            return await chain_id_at(endpoint)
        except EndpointFailed as error:
            failures.append(error.message)
        finally:
            await endpoint.close()
    raise EndpointFailed("; ".join(failures), "Check the endpoints' addresses and keys, or name another one")


async def _read(rpc: Rpc, contract: str, from_block: int) -> OnchainStandings:
    blocks = Blocks(rpc, contract, RANGE_BLOCKS)
    head = await blocks.head()
    standings, rejected = ChainStandings(), Counter[str]()
    async for span in blocks.spans(from_block, head.number):
        for number, entries in by_block(span.entries):
            logs = [log for entry in entries if (log := decode_entry(entry, rejected)) is not None]
            standings.apply(ChainBlock(BlockRef(number, entries[0].block_hash), tuple(logs)))
    whole = await _nothing_before(Ethereum(rpc), contract, from_block)
    differences = await compare(Ethereum(rpc), contract, standings, head.number) if whole else None
    if (await blocks.at(head.number)).hash != head.hash:
        raise NotThere(f"block {head.number} changed while the chain was read")
    chain_id = quantity(await rpc.ask("eth_chainId", [], str), "chain id")
    return OnchainStandings(chain_id, head, standings, whole, dict(rejected), differences)


async def _nothing_before(chain: Ethereum, contract: str, from_block: int) -> bool:
    """Whether the contract is younger than this; where no endpoint remembers, that is taken for granted."""
    if from_block == 0:
        return True
    try:
        return not await chain.has_code(contract, from_block - 1)
    except RpcRefused:
        return True


async def compare(chain: Ethereum, contract: str, standings: ChainStandings, block: int) -> tuple[str, ...] | None:
    """Where the contract's own sums at a block are others, a sentence each; None where it keeps none."""
    counted = standings.standings()
    peers = sorted(peer for peer in counted if not NOT_UTF8.search(peer))
    found: list[str] = []
    for at in range(0, len(peers), PEERS_A_CALL):
        asked = peers[at : at + PEERS_A_CALL]
        try:
            (sums,) = await read_call(
                chain, contract, "getTotalRewards(string[])", ("int256[]",), asked, block=hex(block)
            )
        except ContractRefused:
            return None
        if len(sums) != len(asked):
            raise ChainError(f"the contract was asked for the rewards of {len(asked)} peers and gave {len(sums)}")
        found += [
            _difference(counted[peer], kept)
            for peer, kept in zip(asked, sums, strict=True)
            if kept != counted[peer].reward
        ]
    return tuple(found)


def _difference(counted: PeerStanding, kept: int) -> str:
    return f"{counted.peer} has {kept} in the contract, its events add up to {counted.reward}"
