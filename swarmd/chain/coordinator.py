"""Typed reads of a swarm's contract, for every version of it, and the standings computed from its logs.

- Versions 0.4.2, 0.4.3, 0.5 and 0.6 of the upstream contract have different views. Missing ones are detected by calling
  them (docs/CONTRACT.md).
- Standings are added up from the contract's logs and compared with the contract's own sums.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from swarmd.chain.blocks import RANGE_BLOCKS, RpcBlockReader, group_by_block
from swarmd.chain.contract import call_view, check_contract_exists
from swarmd.chain.endpoints import CHECK_ENDPOINTS, RpcPool, make_endpoint, read_endpoint_chain_id
from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.fees import parse_quantity
from swarmd.chain.logs import PEER_CHARS_MAX, PLACE_MAX, STAGE_TOPIC, decode_log_entry, parse_block_time
from swarmd.chain.ports import BlockNotFound, RoundPolicy
from swarmd.chain.standings import ChainStandings
from swarmd.core.events import ChainBlock, StageLog
from swarmd.core.values import BlockRef
from swarmd.errors import ChainError, ChainMismatch, ContractRefused, EndpointFailed, RpcRefused

NOBODY = "0x" + 40 * "0"
NUMBER_MAX = 2**32 - 1  # of each of a policy's two numbers
BY_PEER = "hasSubmittedRoundStageReward(uint256,uint256,string)"
BY_ACCOUNT = "hasSubmittedRoundStageReward(uint256,uint256,address)"  # the only form up to 0.4.2
# Views of every contract that has extensions.
EXTENDED = ("roundPolicy()", "stageStartedAt()", "membershipOpen()", "isMember(string[])", BY_PEER)
BOARD_MAX = 100  # places in one answer of the contract
SEARCH_RANGES_MAX = 500  # ranges of logs read backwards to find the beginning of a stage


class CoordinatorContract:
    """Reads one contract: a `swarmd.chain.ports.ContractReader`, with more for the command line and the observer."""

    def __init__(self, rpc: RpcPool, contract: str, from_block: int = 0, range_blocks: int = RANGE_BLOCKS) -> None:
        self._chain = EthereumClient(rpc)
        self._from_block = from_block
        self.blocks = RpcBlockReader(rpc, contract, range_blocks)
        self._extensions = 0
        self.contract = contract

    async def check_contract(self) -> None:
        await check_contract_exists(self._chain, self.contract)
        await self.round_and_stage()
        await self.stage_count()

    async def round_and_stage(self, block: str = "latest") -> tuple[int, int]:
        return await self._call_number_view("currentRound()", block), await self._call_number_view(
            "currentStage()", block
        )

    async def stage_count(self, block: str = "latest") -> int:
        return await self._call_number_view("stageCount()", block)

    async def extensions_version(self) -> int:
        """Return `extensionsVersion()`: 0 for a contract without round policy and membership. 0 is not cached, because
        a single endpoint's empty answer must not count for ever."""
        if self._extensions == 0:
            found = await self._call_optional_view("extensionsVersion()", ["uint256"])
            if found:  # otherwise another task may have found them meanwhile
                self._extensions = min(found[0], PLACE_MAX)
        return self._extensions

    async def round_policy(self, block: str = "latest") -> RoundPolicy:
        found = await self._call_optional_view("roundPolicy()", ["uint256", "uint256"], block=block)
        return RoundPolicy(*(min(each, NUMBER_MAX) for each in found)) if found else RoundPolicy()

    async def submission_count(self, block: str = "latest") -> int | None:
        found = await self._call_optional_view("stageSubmissionCount()", ["uint256"], block=block)
        return min(found[0], PLACE_MAX) if found else None

    async def can_advance(self, block: str = "latest") -> bool:
        """Return whether anyone may advance the swarm now."""
        found = await self._call_optional_view("canAdvance()", ["bool"], block=block)
        return bool(found and found[0])

    async def stage_opened_at(self, block: str = "latest") -> float:
        """Return when the current stage began, in POSIX seconds by the chain's clock.

        If the contract does not say: the time of the block that last advanced it or created it or, if that is very far
        back, of the oldest block that was searched.
        """
        found = await self._call_optional_view("stageStartedAt()", ["uint256"], block=block)
        if found:
            return parse_block_time(hex(found[0]))
        return await find_last_advance_time(self.blocks, self._from_block, block)

    async def account_of_peer(self, peer: str, block: str = "latest") -> str:
        (accounts,) = await self._call_view("getEoa(string[])", ["address[]"], [peer], block=block)
        return accounts[0] if accounts and accounts[0] != NOBODY else ""

    async def has_reward(self, round: int, stage: int, peer: str, account: str = "", block: str = "latest") -> bool:
        """Return whether the peer has reported a reward for a stage; up to 0.4.2, whether any of the account's has."""
        found = await self._call_optional_view(BY_PEER, ["bool"], round, stage, peer, block=block)
        if found:  # not cached, see `extensions_version`
            return bool(found[0])
        account = account or await self.account_of_peer(peer, block)
        return bool(account) and bool(
            (await self._call_view(BY_ACCOUNT, ["bool"], round, stage, account, block=block))[0]
        )

    async def votes(self, round: int, peer: str, block: str = "latest") -> tuple[str, ...]:
        (winners,) = await self._call_view("getVoterVotes(uint256,string)", ["string[]"], round, peer, block=block)
        return tuple(winners)

    async def total_rewards(self, peers: Sequence[str], block: str = "latest") -> dict[str, int]:
        """Return the sum of each peer's rewards, in several calls if there are many peers."""
        totals: dict[str, int] = {}
        for at in range(0, len(peers), PEERS_A_CALL):
            asked = list(peers[at : at + PEERS_A_CALL])
            (sums,) = await self._call_view("getTotalRewards(string[])", ["int256[]"], asked, block=block)
            if len(sums) != len(asked):
                raise ChainError(f"the contract was asked for the rewards of {len(asked)} peers and gave {len(sums)}")
            totals |= zip(asked, sums, strict=True)
        return totals

    async def winner_leaderboard(self, block: str = "latest") -> tuple[str, ...]:
        """Return the peers with the most votes in all rounds; empty if the contract keeps no such board."""
        types = ["string[]", "uint256[]"]
        found = await self._call_optional_view("winnerLeaderboard(uint256,uint256)", types, 0, BOARD_MAX, block=block)
        return tuple(peer for peer in found[0][:BOARD_MAX] if len(peer) <= PEER_CHARS_MAX) if found else ()

    async def bootnodes(self, block: str = "latest") -> tuple[str, ...]:
        """Return the addresses through which new nodes join."""
        (addresses,) = await self._call_view("getBootnodes()", ["string[]"], block=block)
        return tuple(addresses)

    async def is_membership_open(self, block: str = "latest") -> bool:
        """Return whether anyone may take part; True if the contract has no membership."""
        found = await self._call_optional_view("membershipOpen()", ["bool"], block=block)
        return found is None or bool(found[0])

    async def are_members(self, peers: Sequence[str], block: str = "latest") -> tuple[bool, ...]:
        """Return for each of these peers whether it may take part."""
        found = await self._call_optional_view("isMember(string[])", ["bool[]"], list(peers), block=block)
        return tuple(found[0]) if found else (True,) * len(peers)

    async def _call_view(self, signature: str, types: Sequence[str], *arguments: Any, block: str) -> tuple[Any, ...]:
        return await call_view(self._chain, self.contract, signature, types, *arguments, block=block)

    async def _call_optional_view(
        self, signature: str, types: Sequence[str], *arguments: Any, block: str = "latest"
    ) -> tuple[Any, ...] | None:
        """Return the result of a view; None if this version of the contract lacks it. Raises ChainError if this
        contract is known to have it: an endpoint that does not know the view must not open a closed swarm."""
        try:
            return await self._call_view(signature, types, *arguments, block=block)
        except ContractRefused as error:
            if self._extensions > 0 and signature in EXTENDED:
                raise ChainError(f"an endpoint does not know what the contract has: {error.message}") from None
            return None

    async def _call_number_view(self, signature: str, block: str) -> int:
        found = await self._call_optional_view(signature, ["uint256"], block=block)
        if found is None or found[0] > PLACE_MAX:
            raise ChainMismatch(
                f"the contract {self.contract} is not a swarm coordinator: it has no {signature}",
                "Check chain.contract: it is the address of the swarm's proxy",
            )
        return int(found[0])


async def find_last_advance_time(blocks: RpcBlockReader, from_block: int, block: str) -> float:
    """Return the time of the last block that advanced the swarm, or else of the oldest block searched."""
    last = (await blocks.get_block(int(block, 16) if block.startswith("0x") else block)).number
    oldest, ranges = last, 0
    async for span in blocks.iter_log_ranges(from_block, last, [[[STAGE_TOPIC]]], backwards=True):
        oldest, ranges = span.first, ranges + 1
        moved = [entry for entry in span.entries if isinstance(decode_log_entry(entry), StageLog)]
        if moved:
            oldest = int(moved[-1].block_number, 16)
        if moved or ranges >= SEARCH_RANGES_MAX:
            break
    return (await blocks.get_block(oldest)).at


RANGE_READ_BLOCKS = 50_000  # blocks in one request for standings; fewer if an endpoint refuses
CALL_S = 30.0  # timeout for each call
READS_MAX = 3  # attempts to read everything, if blocks change meanwhile
PEERS_A_CALL = 64
NOT_UTF8 = re.compile(r"\\x[0-9a-f]{2}")


class OnchainStandings(msgspec.Struct, frozen=True):
    """Standings up to a block."""

    chain_id: int
    head: BlockRef
    standings: ChainStandings
    whole: bool  # whether all of the contract's logs were read: it did not exist before the first block
    rejected: dict[str, int]  # number of omitted entries, by reason
    differences: tuple[str, ...] | None  # one sentence per difference from the contract's sums; None if it keeps none


async def read_onchain_standings(urls: Sequence[str], contract: str, from_block: int) -> OnchainStandings:
    """Read the standings from the contract's logs since a block. Raises ConfigError: a URL is not valid; ChainMismatch:
    there is no contract at the address; ChainError: no endpoint answers, or the chain changed during every read."""
    rpc = RpcPool(urls, await read_chain_id(urls), CALL_S)
    try:
        await check_contract_exists(EthereumClient(rpc), contract)
        for _ in range(READS_MAX):
            with suppress(BlockNotFound):  # a block was replaced meanwhile
                return await _read_standings(rpc, contract, from_block)
    finally:
        await rpc.close()
    raise ChainError("the chain was reorganised during every read")


async def read_chain_id(urls: Sequence[str]) -> int:
    """Return the chain id of the first endpoint that answers. Raises EndpointFailed if none does."""
    failures: list[str] = []
    for url in urls:
        endpoint = make_endpoint(url, CALL_S)
        try:
            return await read_endpoint_chain_id(endpoint)
        except EndpointFailed as error:
            failures.append(error.message)
        finally:
            await endpoint.close()
    raise EndpointFailed("; ".join(failures), CHECK_ENDPOINTS)


async def _read_standings(rpc: RpcPool, contract: str, from_block: int) -> OnchainStandings:
    blocks = RpcBlockReader(rpc, contract, RANGE_READ_BLOCKS)
    head = await blocks.get_head()
    standings, rejected = ChainStandings(), Counter[str]()
    async for span in blocks.iter_log_ranges(from_block, head.number):
        for number, entries in group_by_block(span.entries):
            logs = [log for entry in entries if (log := decode_log_entry(entry, rejected)) is not None]
            standings.apply_event(ChainBlock(BlockRef(number, entries[0].block_hash), tuple(logs)))
    whole = await _was_created_since(EthereumClient(rpc), contract, from_block)
    differences = (
        await _compare_with_contract(CoordinatorContract(rpc, contract), standings, head.number) if whole else None
    )
    if (await blocks.get_block(head.number)).hash != head.hash:
        raise BlockNotFound(f"block {head.number} changed while the chain was read")
    chain_id = parse_quantity(await rpc.call("eth_chainId", [], str), "chain id")
    return OnchainStandings(chain_id, head, standings, whole, dict(rejected), differences)


async def _was_created_since(chain: EthereumClient, contract: str, from_block: int) -> bool:
    """Return whether the contract was created in or after a block; assumed if no endpoint has the earlier state."""
    if from_block == 0:
        return True
    try:
        return not await chain.has_code(contract, from_block - 1)
    except RpcRefused:
        return True


def is_text_peer_id(peer: str) -> bool:
    r"""Return False for an id that was not UTF-8, which `decode_log_entry` escapes as \xff: no call can name it."""
    return not NOT_UTF8.search(peer)


async def _compare_with_contract(
    contract: CoordinatorContract, standings: ChainStandings, block: int
) -> tuple[str, ...] | None:
    """Return one sentence for each difference from the contract's own sums at a block; None if it keeps none."""
    counted = standings.standings_by_peer()
    try:
        totals = await contract.total_rewards(sorted(filter(is_text_peer_id, counted)), hex(block))
    except ContractRefused:
        return None
    return tuple(
        f"{peer} has {kept} in the contract, its events add up to {counted[peer].reward}"
        for peer, kept in totals.items()
        if kept != counted[peer].reward
    )
