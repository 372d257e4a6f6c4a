"""Rollouts on the wire: what a node publishes of a stage and what it accepts from others.

A group names its question by (task, config digest, seed, index) and, where it was made of what peers wrote at earlier
stages, by these sources; the receiver generates question and truth again by itself. Completions are text, so that nodes
with different models and tokenizers understand each other.

A body of version 2 also has the log-probabilities under which completions were drawn, for readers of the same
tokenizer. One without is written as version 1, byte for byte as nodes wrote it that know of no other.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec

from swarmd.bounds import DECODE_ERRORS, Count
from swarmd.config import GENERATIONS_MAX
from swarmd.core.values import RolloutsRef, Value
from swarmd.errors import RecordRejected

TOKEN_BYTES = 2
UNITS = 2048  # of one nat
UNITS_MAX = 2**16 - 1
LOWEST = -UNITS_MAX / UNITS


def pack_logprobs(values: Sequence[float]) -> bytes:
    """Natural logarithms of probabilities, each rounded to a unit; above 0 they count as 0.

    Raises:
        ValueError: one is no number.
    """
    if any(math.isnan(value) for value in values):
        raise ValueError("a log-probability is no number")
    units = [round(-min(max(value, LOWEST), 0.0) * UNITS) for value in values]
    return struct.pack(f"<{len(units)}H", *units)


def unpack_logprobs(packed: bytes) -> list[float]:
    """What `pack_logprobs` wrote, up to `ERROR_MAX`. The length of `packed` is even."""
    return [-unit / UNITS for unit in struct.unpack(f"<{len(packed) // TOKEN_BYTES}H", packed)]


VERSION = 1  # of a body of text alone
LOGPROBS_VERSION = 2  # of one with log-probabilities
BODY_BYTES_MAX = 1024 * 1024  # a larger body is refused unread
GROUPS_MAX = 256
COMPLETIONS_MAX = GENERATIONS_MAX  # of a group
COMPLETION_CHARACTERS_MAX = 16384
NAME_CHARACTERS_MAX = 128
SEED_MAX = 2**31 - 1  # numpy takes 32 bits, and tasks add the index to the seed
INDEX_MAX = 2**31 - 1
SOURCES_MAX = 64  # peers' completions in one question
LOGPROB_BYTES_MAX = TOKEN_BYTES * (4 * COMPLETION_CHARACTERS_MAX + 1)  # a token for each byte of the text, and the end

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
Completion = Annotated[str, msgspec.Meta(max_length=COMPLETION_CHARACTERS_MAX)]
Logprobs = Annotated[bytes, msgspec.Meta(max_length=LOGPROB_BYTES_MAX)]


class Source(Value, frozen=True, forbid_unknown_fields=True):
    """A completion that a question shows: of `peer`, at an earlier stage of the round, to the same base question."""

    stage: Annotated[int, msgspec.Meta(ge=0, le=63)]
    peer: Name
    choice: Annotated[int, msgspec.Meta(ge=0, lt=COMPLETIONS_MAX)] = 0  # which completion of the peer's group


class Reference(Value, frozen=True, forbid_unknown_fields=True):
    """Names a question so that anyone with the same task and configuration can generate it.

    Attributes:
        task: one of the plan's tasks.
        config_digest: of everything that decides the plan's questions, its settings and the version of its code.
        seed: of a peer's stage, `SEED_MAX` at most.
        index: which question of that seed, `INDEX_MAX` at most.
        sources: the completions of earlier stages that it shows; none at a first stage.
    """

    task: Name
    config_digest: Name
    seed: Annotated[int, msgspec.Meta(ge=0, le=SEED_MAX)]
    index: Annotated[int, msgspec.Meta(ge=0, le=INDEX_MAX)]
    sources: Annotated[tuple[Source, ...], msgspec.Meta(max_length=SOURCES_MAX)] = ()

    @property
    def base(self) -> Reference:
        """The question that the sources are about, as the first stage has it."""
        return Reference(self.task, self.config_digest, self.seed, self.index)


class Group(Value, frozen=True, forbid_unknown_fields=True):
    """One question and the completions that a node gave to it.

    `logprobs` has, for each completion, those of its tokens under the policy and temperature that drew them, as
    `swarmd.swarms.rollouts` writes them; the tokens are those that the tokenizer makes of the text, with the end token
    unless it is cut. Empty bytes: not known.
    """

    task: Name
    config_digest: Name
    seed: Annotated[int, msgspec.Meta(ge=0, le=SEED_MAX)]
    index: Annotated[int, msgspec.Meta(ge=0, le=INDEX_MAX)]
    completions: Annotated[tuple[Completion, ...], msgspec.Meta(max_length=COMPLETIONS_MAX)]
    cut: Annotated[tuple[Count, ...], msgspec.Meta(max_length=COMPLETIONS_MAX)] = ()  # those that ran out of tokens
    sources: Annotated[tuple[Source, ...], msgspec.Meta(max_length=SOURCES_MAX)] = ()
    logprobs: Annotated[tuple[Logprobs, ...], msgspec.Meta(max_length=COMPLETIONS_MAX)] = ()

    @property
    def reference(self) -> Reference:
        return Reference(self.task, self.config_digest, self.seed, self.index, self.sources)


class Rollouts(Value, frozen=True, forbid_unknown_fields=True):
    """What one peer publishes of one stage."""

    version: Count
    swarm: Name
    peer: Name
    round: Count
    stage: Count
    groups: Annotated[tuple[Group, ...], msgspec.Meta(max_length=GROUPS_MAX)]
    tokenizer: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""  # digest of it, with `logprobs`

    @property
    def without_logprobs(self) -> Rollouts:
        """The text alone, as version 1 has it."""
        groups = tuple(msgspec.structs.replace(group, logprobs=()) for group in self.groups)
        return msgspec.structs.replace(self, version=VERSION, groups=groups, tokenizer="")


class _Version(msgspec.Struct):
    version: Count


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Rollouts)
_version_decoder = msgspec.msgpack.Decoder(_Version)
_reference_decoder = msgspec.msgpack.Decoder(Reference)


def find_fault(reference: Reference) -> str:
    """Why peers would refuse all that is published with a question of this name; empty where they would not."""
    try:
        _reference_decoder.decode(_encoder.encode(reference))
    except (*DECODE_ERRORS, TypeError, ValueError, OverflowError) as error:  # the last of what cannot be written
        return str(error)
    return ""


def encode_rollouts(rollouts: Rollouts) -> bytes:
    """The body as it lies in the blob store. Where it is larger than `BODY_BYTES_MAX`, log-probabilities are dropped,
    and then groups from the end until it fits."""
    body = _encoder.encode(rollouts)
    if len(body) > BODY_BYTES_MAX and rollouts.tokenizer:
        rollouts = rollouts.without_logprobs
        body = _encoder.encode(rollouts)
    while len(body) > BODY_BYTES_MAX and rollouts.groups:
        rollouts = msgspec.structs.replace(rollouts, groups=rollouts.groups[: len(rollouts.groups) * 3 // 4])
        body = _encoder.encode(rollouts)
    return body


def decode_rollouts(body: bytes) -> Rollouts:
    """Read a body from anyone.

    Raises:
        RecordRejected: `oversize`, `malformed`, `version`, `group-size` (a group without completions or with a cut mark
            that names none), `logprobs` (not one entry for each completion, half a token, or no tokenizer named) or
            `duplicate` (a question occurs twice).
    """
    if len(body) > BODY_BYTES_MAX:
        raise RecordRejected("oversize", f"a rollouts body has {len(body)} bytes, the limit is {BODY_BYTES_MAX}")
    try:
        version = _version_decoder.decode(body).version
        if version not in (VERSION, LOGPROBS_VERSION):
            raise RecordRejected(
                "version", f"a rollouts body has version {version}, this node reads {VERSION} and {LOGPROBS_VERSION}"
            )
        rollouts = _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"a rollouts body cannot be read: {error}") from error
    _check_groups(rollouts)
    return rollouts


def _check_groups(rollouts: Rollouts) -> None:
    seen = set()
    for group in rollouts.groups:
        if not group.completions or any(index >= len(group.completions) for index in group.cut):
            raise RecordRejected("group-size", f"{rollouts.peer} sent a group whose completions do not add up")
        if group.logprobs and not _fits(rollouts, group):
            raise RecordRejected("logprobs", f"{rollouts.peer} sent log-probabilities that do not go with completions")
        key = (group.task, group.seed, group.index)
        if key in seen:
            raise RecordRejected("duplicate", f"{rollouts.peer} sent the question {key} twice")
        seen.add(key)


def _fits(rollouts: Rollouts, group: Group) -> bool:
    """Whether log-probabilities are in a body that may have some, one entry for each completion, of whole tokens."""
    whole = all(len(each) % TOKEN_BYTES == 0 for each in group.logprobs)
    named = rollouts.version == LOGPROBS_VERSION and rollouts.tokenizer != ""
    return whole and named and len(group.logprobs) == len(group.completions)


def check_origin(rollouts: Rollouts, ref: RolloutsRef, swarm: str) -> None:
    """Raise RecordRejected(`swarm` or `origin`) unless the body is of this swarm and of the peer and stage in `ref`."""
    if rollouts.swarm != swarm:
        raise RecordRejected("swarm", f"rollouts of swarm {rollouts.swarm!r} reached swarm {swarm!r}")
    if (rollouts.peer, rollouts.round, rollouts.stage) != (ref.peer, ref.round, ref.stage):
        raise RecordRejected("origin", f"rollouts of {rollouts.peer} were published under {ref.peer}")
