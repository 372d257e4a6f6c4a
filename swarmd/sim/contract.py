"""The simulated contract: who may say what and when, as docs/CONTRACT.md has it. A block can be taken back."""

from __future__ import annotations

from collections.abc import Hashable
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


class Contract:
    """State and rules.

    Attributes:
        undo: what to put back, in reverse, to take the present block's changes back.
    """

    def __init__(self, stages: int, min_submissions: int, max_stage_s: int, manager: str, at: float) -> None:
        self.stages = stages
        self.min_submissions = min_submissions
        self.max_stage_s = max_stage_s
        self.manager = manager  # account that moves the swarm on without a policy, empty for none
        self.undo: Undo = []
        self._book: dict[Hashable, Any] = {"place": (0, 0), "opened_at": at, "submissions": 0}

    # --- what it says ---

    @property
    def place(self) -> tuple[int, int]:
        """Round and stage."""
        return self._book["place"]  # type: ignore[no-any-return]

    @property
    def opened_at(self) -> float:
        """When the stage began, by the time of its block."""
        return self._book["opened_at"]  # type: ignore[no-any-return]

    def account_of(self, peer: str) -> str:
        """`getEoa`: the account that a peer is registered to, empty for none."""
        return self._book.get(("account", peer), "")  # type: ignore[no-any-return]

    def reward_block(self, round: int, stage: int, peer: str) -> int | None:
        """Number of the block that has the reward of a peer, None where there is none."""
        return self._book.get(("reward", round, stage, peer))

    def vote_block(self, round: int, peer: str) -> int | None:
        """Number of the block that has the vote of a peer, None where there is none."""
        return self._book.get(("vote", round, peer))

    def registration_block(self, peer: str) -> int | None:
        """Number of the block in which a peer was registered."""
        return self._book.get(("registered", peer))

    def is_barred(self, peer: str) -> bool:
        """Whether the allow-list leaves a peer out."""
        return bool(self._book.get(("barred", peer)))

    def nonce_of(self, account: str) -> int:
        """Transactions of an account that the chain has."""
        return self._book.get(("nonce", account), 0)  # type: ignore[no-any-return]

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
        if call.stage > (stage if call.round == round else self.stages):
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
        enough = 0 < self.min_submissions <= self._book["submissions"]
        late = self.max_stage_s > 0 and at >= self.opened_at + self.max_stage_s
        return enough or late or (self.manager != "" and account == self.manager)

    # --- what changes it ---

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
            return VoteLog(index, transaction, call.account, peer, round, call.winners)
        if call.kind == "advance":
            return self._advance(at, transaction, index)
        if call.kind in ("bar", "allow"):
            self._put(("barred", peer), call.kind == "bar")
        return None

    def _advance(self, at: float, transaction: str, index: int) -> StageLog:
        round, stage = self.place
        after = (round, stage + 1) if stage + 1 < self.stages else (round + 1, 0)
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
