"""What the chain's present state, or a refusal of the contract, means for a submission of this node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from swarmd.chain.ports import BlockReader, ContractReader, NotThere
from swarmd.chain.requirements import check_unreplaced
from swarmd.core.commands import Submit
from swarmd.core.values import BlockRef, SubmissionKind, Value
from swarmd.errors import ChainError, ContractRefused

DONE_ALREADY = ("PeerIdAlreadyRegistered", "RewardAlreadySubmitted", "WinnerAlreadyVoted")
TOO_EARLY = ("InvalidRoundNumber", "InvalidStageNumber")
REFUSED_ONCE_MAX = 64  # submissions; of an older one the first refusal is forgotten, and it is asked once more

Name = tuple[SubmissionKind, int, int]  # of a submission: kind, round, stage


class ContractRefusal(Value, frozen=True):
    """The contract will never take it, see `SubmissionRefused`."""

    code: str
    reason: str
    permanent: bool = False


class SubmissionResolver:
    """Decides what the chain's state, or a revert, means for a submission.

    Args:
        coordinator: the contract.
        blocks: of its chain.
        peer: this node's peer id.
        account: that submissions come from, empty while unknown: then what is there counts as ours.
    """

    def __init__(self, coordinator: ContractReader, blocks: BlockReader, peer: str, account: str) -> None:
        self._coordinator = coordinator
        self._blocks = blocks
        self._peer = peer
        self._account = account
        self._refused_once: dict[Name, BlockRef] = {}  # with the head at which it was not too early
        self._looks: dict[SubmissionKind, Callable[[Submit], Awaitable[bool | ContractRefusal]]] = {
            "register": self._registered,
            "reward": self._rewarded,
            "winners": self._voted,
            "advance": self._advanced,
        }

    async def look(self, command: Submit) -> bool | ContractRefusal:
        """Whether the chain has it; a refusal where it can never have it from us.

        Raises:
            ChainError: this cannot be told now.
        """
        return await self._looks[command.kind](command)

    async def _registered(self, command: Submit) -> bool | ContractRefusal:
        owner = await self._coordinator.eoa(self._peer)
        return self._ours(owner) if owner else False

    async def _rewarded(self, command: Submit) -> bool | ContractRefusal:
        found = await self._coordinator.has_reward(command.round, command.stage, self._peer, self._account)
        return await self._registered(command) if found else False

    async def _voted(self, command: Submit) -> bool | ContractRefusal:
        found = await self._coordinator.votes(command.round, self._peer)
        return await self._registered(command) if found else False

    async def _advanced(self, command: Submit) -> bool | ContractRefusal:
        """A step leaves no name behind: that the contract is further says only that somebody made it."""
        place = await self._place()
        if place < (command.round, command.stage):
            raise self._behind(command, place)
        if place > (command.round, command.stage):
            return ContractRefusal("moved-on", f"the contract is at round {place[0]} stage {place[1]} already")
        return False

    async def _place(self) -> tuple[int, int]:
        """Round and stage of the head."""
        return (await self._place_and_head())[0]

    async def _place_and_head(self) -> tuple[tuple[int, int], BlockRef]:
        """Round and stage of one block, and that block: read one after the other, they might be of two."""
        head = await self._blocks.head()
        place = await self._coordinator.place(hex(head.number))
        await check_unreplaced(self._blocks, head)
        return place, head

    def _ours(self, owner: str) -> bool | ContractRefusal:
        if not self._account or owner.lower() == self._account.lower():
            return True
        reason = (
            f"the peer id {self._peer} is registered to the account {owner}, this node submits from {self._account}"
        )
        return ContractRefusal("taken", reason, permanent=True)

    def _behind(self, command: Submit, place: tuple[int, int]) -> ChainError:
        return ChainError(
            f"the contract is at round {place[0]} stage {place[1]}, which is before round {command.round} stage "
            f"{command.stage}; a reorganisation may have taken it back"
        )

    async def judge(self, command: Submit, error: ContractRefused) -> bool | ContractRefusal:
        """As `look`, after the contract has refused it: either it is there, or never will be.

        Raises:
            ChainError: the reason may pass.
        """
        seen = await self.look(command)
        if seen:
            return seen
        if error.code == "InvalidVoterPeerId":
            return await self._judge_ownership(error)
        if error.code in TOO_EARLY:
            await self._judge_early(command, error)
        if error.code in (*DONE_ALREADY, "AdvanceNotAllowed", "Error", ""):
            raise ChainError(error.message, error.fix)
        return ContractRefusal(error.code, str(error))

    async def _judge_early(self, command: Submit, error: ContractRefused) -> None:
        """Of a round or stage that is not there: return where it never will be.

        The contract may have come to this very place since it refused, so the first refusal at a place that is not too
        early counts for nothing; nor does a second one, where the block with that place was replaced in between.

        Raises:
            ChainError: it is too early, or was a moment ago.
        """
        name = (command.kind, command.round, command.stage)
        place, head = await self._place_and_head()
        if place < (command.round, command.stage):
            raise self._behind(command, place)
        known = self._refused_once.pop(name, None)
        if known is None or not await self._is_on_chain(known):
            self._remember(name, head)
            where = f"round {place[0]} stage {place[1]}"
            raise ChainError(f"{error.message}; the contract is at {where} by now, so it is asked again")

    def _remember(self, name: Name, head: BlockRef) -> None:
        self._refused_once[name] = head
        if len(self._refused_once) > REFUSED_ONCE_MAX:
            del self._refused_once[next(iter(self._refused_once))]

    async def _is_on_chain(self, block: BlockRef) -> bool:
        try:
            return (await self._blocks.at(block.number)).hash == block.hash
        except NotThere:
            return False

    async def _judge_ownership(self, error: ContractRefused) -> bool | ContractRefusal:
        owner = await self._coordinator.eoa(self._peer)
        verdict = self._ours(owner) if owner else True
        if isinstance(verdict, ContractRefusal):
            return verdict
        raise ChainError(error.message, error.fix)
