"""What lies under v0.4's keys, typed: the clock, rewards and outputs; the leaderboard is only written.

Writers make plain values for `values.encode`; readers take encoded ones from anybody and raise nothing but
`RecordRejected`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from swarmd.config_checks import LEGACY_STAGES
from swarmd.dht.legacy import keys
from swarmd.dht.legacy.values import amount, decode, number, pair_in, reward, text
from swarmd.errors import RecordRejected
from swarmd.swarms.rollouts import COMPLETION_CHARACTERS_MAX, QUOTED_CHARACTERS_MAX

LIFE_S = 14400.0  # of every record, from its last writing
TEXT_KEYS = ("agent_answers", "agent_opinion", "final_agent_decision")  # by stage
PROMPT_KEYS = ("", "stage2_prompt", "stage3_prompt")
ROWS_MAX = 8192  # of a leaderboard: half of what fits into a value; rewards under invented names cost nothing


class Output(msgspec.Struct, frozen=True):
    """What a peer answered to one question at one stage."""

    made_at: float  # POSIX seconds, as the peer says
    question: str
    answer: str  # the truth, as the peer says; empty where it knows none
    prompt: str  # the user's message, empty at the first stage
    completion: str


def read_place(encoded: bytes) -> tuple[int, int]:
    """(round, stage) of a clock. Raises RecordRejected."""
    first, second = pair_in(encoded)
    round, stage = number(first), number(second)
    if stage >= LEGACY_STAGES:
        raise RecordRejected("malformed", f"stage {stage}")
    return round, stage


def read_reward(encoded: bytes) -> float:
    """A peer's reward. Raises RecordRejected."""
    return reward(decode(encoded))


def leaderboard_of(rewards: Mapping[str, float]) -> list[tuple[str, float]]:
    """The coordinator's list: highest reward first, of equal ones the greater peer id; the first `ROWS_MAX`."""
    return sorted(rewards.items(), key=lambda row: (row[1], row[0]), reverse=True)[:ROWS_MAX]


def outputs_of(stage: int, peer: str, output: Output) -> tuple[float, dict[str, Any]]:
    """The value of an output, its keys in v0.4's order."""
    fields: dict[str, Any] = {"question": output.question, "answer": output.answer}
    if PROMPT_KEYS[stage]:
        fields[PROMPT_KEYS[stage]] = output.prompt
    fields[TEXT_KEYS[stage]] = {peer: output.completion}
    return output.made_at, fields


def read_output(stage: int, peer: str, subkey: str, encoded: bytes) -> Output:
    """A peer's output.

    Args:
        stage: 0 to 2; each has its own keys, and exactly those count.
        peer: under whose key it lies; it must speak for that peer and for nobody else.
        subkey: under which it lies: the question's hash, or the question itself.

    Raises:
        RecordRejected: "malformed", "oversized", "nested", "non-finite", "wrong-keys", "unowned" or "wrong-key".
    """
    made_at, fields = pair_in(encoded)
    prompt_key, text_key = PROMPT_KEYS[stage], TEXT_KEYS[stage]
    wanted = {"question", "answer", text_key} | ({prompt_key} if prompt_key else set())
    if not isinstance(fields, dict) or fields.keys() != wanted:
        raise RecordRejected("wrong-keys", f"an output of stage {stage} with other keys than it has")
    question = text(fields["question"], QUOTED_CHARACTERS_MAX)
    if keys.hashed(subkey) != keys.question_key(question):
        raise RecordRejected("wrong-key", "an output lies under another question's hash")
    return Output(
        made_at=amount(made_at),
        question=question,
        answer="" if fields["answer"] is None else text(fields["answer"], QUOTED_CHARACTERS_MAX),
        prompt=text(fields[prompt_key], QUOTED_CHARACTERS_MAX) if prompt_key else "",
        completion=_own_text(fields[text_key], peer),
    )


def _own_text(said: object, peer: str) -> str:
    if not isinstance(said, dict):
        raise RecordRejected("malformed", "what peers said is no map")
    if list(said) != [peer]:
        raise RecordRejected("unowned", f"an output of {peer} that speaks for others, or not for itself")
    return text(said[peer], COMPLETION_CHARACTERS_MAX)
