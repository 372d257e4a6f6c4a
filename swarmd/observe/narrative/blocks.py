"""What the contract said in a block, in one line: stage changes and a node's own rewards by name, the rest counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from swarmd.core.events import (
    AnyChainLog,
    ChainBlock,
    OtherLog,
    PolicyLog,
    RegistrationLog,
    RewardLog,
    StageLog,
    VoteLog,
)

_ONE_OF = {RegistrationLog: "registration", RewardLog: "reward", VoteLog: "vote"}
OTHERS_NAMED_MAX = 4  # distinct names of other events in a line


def block_words(event: ChainBlock, peer: str) -> str:
    """The line for a block, seen from the node with this peer id."""
    said = [*_named(event.logs, peer), *_counted(event.logs, peer)]
    words = f"block {event.block.number}"
    return f"{words}: {', '.join(said)}" if said else words


def _named(logs: tuple[AnyChainLog, ...], peer: str) -> Iterator[str]:
    stages = [log for log in logs if isinstance(log, StageLog)]
    if stages:
        yield f"round {stages[-1].round} stage {stages[-1].stage} is open"
    for log in logs:
        if isinstance(log, PolicyLog):
            yield f"the policy is {log.min_submissions} submissions or {log.max_stage_s} s"
        elif isinstance(log, _OWNED) and log.peer == peer:
            yield f"own {_own_words(log)}"


_OWNED = (RegistrationLog, RewardLog, VoteLog)


def _own_words(log: RegistrationLog | RewardLog | VoteLog) -> str:
    if isinstance(log, RewardLog):
        return f"reward of round {log.round} stage {log.stage}: {log.reward}"
    if isinstance(log, VoteLog):
        return f"vote of round {log.round}"
    return f"registration by {log.account}"


def _counted(logs: tuple[AnyChainLog, ...], peer: str) -> Iterator[str]:
    others = Counter(_ONE_OF[type(log)] for log in logs if isinstance(log, _OWNED) and log.peer != peer)
    for word, times in others.items():
        yield f"{times} {word}" if times == 1 else f"{times} {word}s"
    names = Counter(log.name for log in logs if isinstance(log, OtherLog))
    yield from (f"{times} x {name}" for name, times in names.most_common(OTHERS_NAMED_MAX))
