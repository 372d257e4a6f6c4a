"""Names of v0.4's keys, and the subkey of a question."""

from __future__ import annotations

import hashlib

CLOCK = "rl_swarm_rs"  # a plain value; the others are dictionaries, except the leaderboard
QUESTION_LENGTH = 32  # of a question's subkey; versions before 0.3 have the question itself in its place


def rewards(round: int, stage: int) -> str:
    """What each peer's stage has brought so far, by peer id."""
    return f"rl_swarm_rewards_{round}_{stage}"


def outputs(peer: str, round: int, stage: int) -> str:
    """What a peer answered, by question."""
    return f"rl_swarm_outputs_{peer}_{round}_{stage}"


def leaderboard(round: int, stage: int) -> str:
    """The coordinator's list of rewards."""
    return f"rl_swarm_leaderboard_{round}_{stage}"


def question_key(question: str) -> str:
    """The subkey of a question: its md5, in hex."""
    return hashlib.md5(question.encode(), usedforsecurity=False).hexdigest()


def hashed(subkey: str) -> str:
    """A subkey as v0.3 and later have it; older peers' raw questions are hashed on reading."""
    return subkey if len(subkey) == QUESTION_LENGTH else question_key(subkey)
