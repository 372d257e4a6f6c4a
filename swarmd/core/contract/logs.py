"""What a swarm's contract says in a block, entry by entry; `ChainBlock` holds them."""

from __future__ import annotations

from swarmd.core.values import Value


class ChainLog(Value, frozen=True, tag_field="log"):
    """Base of what the swarm's contract said in one log entry; accounts are checksummed addresses.

    `index` is the entry's place in its block, `transaction` the hash of the transaction that caused it.
    """

    index: int
    transaction: str


class StageLog(ChainLog, frozen=True, tag="stage"):
    """StageAdvanced: the swarm is at this stage now. A new round is told by its stage 0 alone."""

    round: int
    stage: int


class RegistrationLog(ChainLog, frozen=True, tag="registration"):
    """PeerRegistered."""

    account: str
    peer: str


class RewardLog(ChainLog, frozen=True, tag="reward"):
    """RewardSubmitted; `reward` is an int256 in decimal."""

    account: str
    peer: str
    round: int
    stage: int
    reward: str


class VoteLog(ChainLog, frozen=True, tag="vote"):
    """WinnerSubmitted."""

    account: str
    peer: str
    round: int
    winners: tuple[str, ...]


class PolicyLog(ChainLog, frozen=True, tag="policy"):
    """RoundPolicyChanged; 0 turns a condition off."""

    min_submissions: int
    max_stage_s: int


class OtherLog(ChainLog, frozen=True, tag="other"):
    """Any other event of the contract, by name: bootnodes, roles, membership, upgrades."""

    name: str


AnyChainLog = StageLog | RegistrationLog | RewardLog | VoteLog | PolicyLog | OtherLog
