"""swarmd's rollouts and v0.4's outputs, one made of the other."""

from __future__ import annotations

import time
from collections.abc import Iterable

from swarmd.dht.legacy import keys
from swarmd.dht.legacy.records import Output
from swarmd.errors import RecordRejected
from swarmd.swarms.rollouts import (
    BODY_BYTES_MAX,
    COMPLETION_CHARACTERS_MAX,
    INDEX_MAX,
    VERSION,
    Group,
    Quoted,
    Rollouts,
    decode_rollouts,
    encode_rollouts,
)

TEXT_BYTES_MAX = BODY_BYTES_MAX * 3 // 4  # of a peer's outputs; the rest of a body is for its form
TASK = CONFIG_DIGEST = "legacy"  # of questions that came in words


def outputs_in(body: Rollouts) -> dict[str, Output]:
    """What v0.4 is told of a stage's rollouts: for each question in words, the completion that is shown to others."""
    now = time.time()
    return {
        keys.question_key(group.quoted.question): _output_of(group, group.quoted, now)
        for group in body.groups
        if group.quoted is not None and group.quoted.choice < len(group.completions)
    }


def _output_of(group: Group, quoted: Quoted, now: float) -> Output:
    return Output(now, quoted.question, quoted.answer, quoted.prompt, group.completions[quoted.choice])


def rollouts_of(
    swarm: str, peer: str, round: int, stage: int, reward: float, outputs: Iterable[Output]
) -> tuple[Rollouts, bytes, list[RecordRejected]]:
    """A peer's outputs as a body like those that swarmd's nodes publish.

    Returns:
        The rollouts, their encoding, and the reason for each output that has no place in it: "duplicate", "oversized".

    Raises:
        RecordRejected: nobody could read the body.
    """
    groups: dict[int, Group] = {}
    refused: list[RecordRejected] = []
    size_bytes = 0
    for output in outputs:
        group = _group_of(output)
        size_bytes += _size_of(output)
        if group.index in groups:
            refused.append(RecordRejected("duplicate", f"{peer} has two outputs for one question"))
        elif size_bytes > TEXT_BYTES_MAX:
            refused.append(RecordRejected("oversized", f"the outputs of {peer} are too large together"))
        else:
            groups[group.index] = group
    body = Rollouts(VERSION, swarm, peer, round, stage, tuple(groups.values()), total=reward)
    encoded = encode_rollouts(body)
    return decode_rollouts(encoded), encoded, refused


def _size_of(output: Output) -> int:
    texts = (output.question, output.answer, output.prompt, output.completion)
    return sum(len(text.encode()) for text in texts)


def _group_of(output: Output) -> Group:
    assert len(output.completion) <= COMPLETION_CHARACTERS_MAX, "read_output checks it"
    return Group(
        task=TASK,
        config_digest=CONFIG_DIGEST,
        seed=0,
        index=int(keys.question_key(output.question)[:8], 16) & INDEX_MAX,
        completions=(output.completion,),
        quoted=Quoted(output.question, output.answer, output.prompt),
    )
