"""The simulated contract: who may say what and when, as docs/CONTRACT.md has it. A block can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import msgspec

from swarmd.core.events import AnyChainLog, RegistrationLog, RewardLog, StageLog, VoteLog

Kind = Literal["register", "reward", "winners", "advance", "allow", "bar", "idle"]
Undo = list[tuple[Hashable, Any]]

_NOTHING = object()


class Call(msgspec.Struct, frozen=True):
    """What a transaction asks of the contract; an idle one asks nothing."""

    kind: Kind
    account: str
    peer: str = ""
    round: int = 0
    stage: int = 0
    reward: int = 0
    winners: tuple[str, ...] = ()


class Rules(msgspec.Struct, frozen=True):
    """What a contract was made with; `manager` moves the swarm on without a policy, empty for none."""

    stages: int
    min_submissions: int
    max_stage_s: int
    manager: str = ""


class View:
    """What the contract says and would take, at some block.

    Args:
        rules: the contract's.
        get: the value of a key at that block, or the second argument where there is none.
    """

    def __init__(self, rules: Rules, get: Callable[[Hashable, Any], Any]) -> None:
        self.rules = rules
        self._get = get

    # --- what it says ---

    @property
    def place(self) -> tuple[int, int]:
        """Round and stage."""
        place: tuple[int, int] = self._get("place", (0, 0))
        return place

    @property
    def opened_at(self) -> float:
        """When the stage began, by the time of its block."""
        return float(self._get("opened_at", 0.0))

    def account_of(self, peer: str) -> str:
        """`getEoa`: the account that a peer is registered to, empty for none."""
        return str(self._get(("account", peer), ""))

    def reward_block(self, round: int, stage: int, peer: str) -> int | None:
        """Number of the block that has the reward of a peer, None where there is none."""
        block: int | None = self._get(("reward", round, stage, peer), None)
        return block

    def vote_block(self, round: int, peer: str) -> int | None:
        """Number of the block that has the vote of a peer, None where there is none."""
        block: int | None = self._get(("vote", round, peer), None)
        return block

    def votes(self, round: int, peer: str) -> tuple[str, ...]:
        """`getVoterVotes`: whom a peer voted for."""
        return tuple(self._get(("winners", round, peer), ()))

    def registration_block(self, peer: str) -> int | None:
        """Number of the block in which a peer was registered."""
        block: int | None = self._get(("registered", peer), None)
        return block

    def is_barred(self, peer: str) -> bool:
        """Whether the allow-list leaves a peer out."""
        return bool(self._get(("barred", peer), False))

    def nonce_of(self, account: str) -> int:
        """Transactions of an account that the chain has."""
        return int(self._get(("nonce", account), 0))

    # --- what it takes ---

    def refusal(self, call: Call, at: float) -> str:
        """Name of the error that a call would meet in a block of this time, empty where it would be taken."""
        if call.kind == "register":
            taken = "PeerIdAlreadyRegistered" if self.account_of(call.peer) else ""
            return taken or ("PeerNotAllowed" if self.is_barred(call.peer) else "")
        if call.kind == "reward":
            return self._refuse_reward(call)
        if call.kind == "winners":
            return self._refuse_vote(call)
        if call.kind == "advance":
            return "" if self._may_advance(call.account, at) else "AdvanceNotAllowed"
        return ""

    def _refuse_reward(self, call: Call) -> str:
        round, stage = self.place
        if call.round > round:
            return "InvalidRoundNumber"
        if call.stage > (stage if call.round == round else self.rules.stages):
            return "InvalidStageNumber"
        if self.reward_block(call.round, call.stage, call.peer) is not None:
            return "RewardAlreadySubmitted"
        return self._refuse_peer(call)

    def _refuse_vote(self, call: Call) -> str:
        if call.round > self.place[0]:
            return "InvalidRoundNumber"
        if self.vote_block(call.round, call.peer) is not None:
            return "WinnerAlreadyVoted"
        return self._refuse_peer(call)

    def _refuse_peer(self, call: Call) -> str:
        if self.account_of(call.peer) != call.account:
            return "InvalidVoterPeerId"
        return "PeerNotAllowed" if self.is_barred(call.peer) else ""

    def _may_advance(self, account: str, at: float) -> bool:
        rules = self.rules
        enough = 0 < rules.min_submissions <= self._get("submissions", 0)
        late = rules.max_stage_s > 0 and at >= self.opened_at + rules.max_stage_s
        return enough or late or (rules.manager != "" and account == rules.manager)


class SimContract(View):
    """The contract at the newest block, and what changes it.

    Attributes:
        undo: what to put back, in reverse, to take the present block's changes back.
    """

    def __init__(self, rules: Rules, at: float) -> None:
        self.undo: Undo = []
        self._book: dict[Hashable, Any] = {"place": (0, 0), "opened_at": at, "submissions": 0}
        super().__init__(rules, self._book.get)

    def before(self, undone: Sequence[Undo]) -> View:
        """The contract as it was before the newest blocks, given what each of them changed, oldest first."""

        def get(key: Hashable, default: Any) -> Any:
            for undo in undone:
                for changed, value in undo:
                    if changed == key:
                        return default if value is _NOTHING else value
            return self._book.get(key, default)

        return View(self.rules, get)

    def count(self, account: str) -> None:
        """A transaction of an account is in the block, whether the contract took it or not."""
        self._put(("nonce", account), self.nonce_of(account) + 1)

    def take(self, call: Call, block: int, at: float, transaction: str, index: int) -> AnyChainLog | None:
        """A call that is not refused; what it makes the contract say."""
        round, stage, peer = call.round, call.stage, call.peer
        if call.kind == "register":
            self._put(("account", peer), call.account)
            self._put(("registered", peer), block)
            return RegistrationLog(index, transaction, call.account, peer)
        if call.kind == "reward":
            self._put(("reward", round, stage, peer), block)
            if (round, stage) == self.place:
                self._put("submissions", self._book["submissions"] + 1)
            return RewardLog(index, transaction, call.account, peer, round, stage, str(call.reward))
        if call.kind == "winners":
            self._put(("vote", round, peer), block)
            self._put(("winners", round, peer), call.winners)
            return VoteLog(index, transaction, call.account, peer, round, call.winners)
        if call.kind == "advance":
            return self._advance(at, transaction, index)
        if call.kind in ("bar", "allow"):
            self._put(("barred", peer), call.kind == "bar")
        return None

    def _advance(self, at: float, transaction: str, index: int) -> StageLog:
        round, stage = self.place
        after = (round, stage + 1) if stage + 1 < self.rules.stages else (round + 1, 0)
        self._put("place", after)
        self._put("opened_at", at)
        self._put("submissions", 0)
        return StageLog(index, transaction, *after)

    def _put(self, key: Hashable, value: Any) -> None:
        self.undo.append((key, self._book.get(key, _NOTHING)))
        self._book[key] = value

    def take_back(self, undo: Undo) -> None:
        """Undo the changes of the last block."""
        for key, before in reversed(undo):
            if before is _NOTHING:
                del self._book[key]
            else:
                self._book[key] = before
