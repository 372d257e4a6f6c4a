"""Rollouts on the wire: what a node publishes for a stage and what it accepts from others.

- A group identifies its question by (task, config digest, seed, index) and, if the question shows peers' texts of
  earlier stages, by these sources. The receiver generates question and truth itself.
- Completions are text, so that nodes with different models and tokenizers understand each other.
"""

import itertools
from typing import Annotated

import msgspec

from swarmd.bounds import DECODE_ERRORS, Count
from swarmd.config import GENERATIONS_MAX
from swarmd.core.values import RolloutsRef, Value
from swarmd.errors import RecordRejected

VERSION = 1  # format version of a body
BODY_BYTES_MAX = 1024 * 1024  # a larger body is refused unread
GROUPS_MAX = 256
COMPLETIONS_MAX = GENERATIONS_MAX  # of a group
COMPLETION_CHARACTERS_MAX = 16384
NAME_CHARACTERS_MAX = 128
SEED_MAX = 2**31 - 1  # numpy takes 32 bits, and tasks add the index to the seed
INDEX_MAX = 2**31 - 1
SOURCES_MAX = 64  # peers' completions shown in one question
TURNS_MAX = 64  # of the model in one completion

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
Turns = Annotated[tuple[Count, ...], msgspec.Meta(max_length=2 * TURNS_MAX)]
Completion = Annotated[str, msgspec.Meta(max_length=COMPLETION_CHARACTERS_MAX)]


class Source(Value, frozen=True, forbid_unknown_fields=True):
    """A completion shown in a question: by `peer`, at an earlier stage of the round, for the same base question."""

    stage: Annotated[int, msgspec.Meta(ge=0, le=63)]
    peer: Name
    choice: Annotated[int, msgspec.Meta(ge=0, lt=COMPLETIONS_MAX)] = 0  # index in the peer's group


class Reference(Value, frozen=True, forbid_unknown_fields=True):
    """Identifies a question so that anyone with the same task and configuration can generate it."""

    task: Name  # one of the plan's tasks
    config_digest: Name  # of everything that determines the questions: settings and code version
    seed: Annotated[int, msgspec.Meta(ge=0, le=SEED_MAX)]  # of the stage and peer
    index: Annotated[int, msgspec.Meta(ge=0, le=INDEX_MAX)]  # index of the question for that seed
    sources: Annotated[tuple[Source, ...], msgspec.Meta(max_length=SOURCES_MAX)] = ()  # completions shown

    @property
    def base(self) -> "Reference":
        """The reference without sources, as at the first stage."""
        return Reference(self.task, self.config_digest, self.seed, self.index)


class Group(Value, frozen=True, forbid_unknown_fields=True):
    """One question and the completions that a node gave to it."""

    task: Name
    config_digest: Name
    seed: Annotated[int, msgspec.Meta(ge=0, le=SEED_MAX)]
    index: Annotated[int, msgspec.Meta(ge=0, le=INDEX_MAX)]
    completions: Annotated[tuple[Completion, ...], msgspec.Meta(max_length=COMPLETIONS_MAX)]
    cut: Annotated[tuple[Count, ...], msgspec.Meta(max_length=COMPLETIONS_MAX)] = ()  # hit the token limit
    sources: Annotated[tuple[Source, ...], msgspec.Meta(max_length=SOURCES_MAX)] = ()
    # For conversations: in each completion, the character offsets at which the environment's answers begin and end, in
    # turn.
    turns: Annotated[tuple[Turns, ...], msgspec.Meta(max_length=COMPLETIONS_MAX)] = ()

    @property
    def reference(self) -> Reference:
        return Reference(self.task, self.config_digest, self.seed, self.index, self.sources)


class Rollouts(Value, frozen=True, forbid_unknown_fields=True):
    """A peer's published rollouts of one stage."""

    version: Count
    swarm: Name
    peer: Name
    round: Count
    stage: Count
    groups: Annotated[tuple[Group, ...], msgspec.Meta(max_length=GROUPS_MAX)]


class _RolloutsVersion(msgspec.Struct):
    version: Count


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Rollouts)
_version_decoder = msgspec.msgpack.Decoder(_RolloutsVersion)
_reference_decoder = msgspec.msgpack.Decoder(Reference)


def find_reference_fault(reference: Reference) -> str:
    """Why peers would refuse groups with this reference; empty if they would not."""
    try:
        _reference_decoder.decode(_encoder.encode(reference))
    except (
        *DECODE_ERRORS,
        TypeError,
        ValueError,
        OverflowError,
    ) as error:  # the last three: it cannot be encoded at all
        return str(error)
    return ""


def encode_rollouts(rollouts: Rollouts) -> bytes:
    """Encode for the blob store; the last groups are dropped until it fits into `BODY_BYTES_MAX`."""
    body = _encoder.encode(rollouts)
    while len(body) > BODY_BYTES_MAX and rollouts.groups:
        rollouts = msgspec.structs.replace(rollouts, groups=rollouts.groups[: len(rollouts.groups) * 3 // 4])
        body = _encoder.encode(rollouts)
    return body


def decode_rollouts(body: bytes) -> Rollouts:
    """Decode an untrusted body. Raises RecordRejected: `oversize`, `malformed`, `version`, `group-size` (a group
    without completions, or with cut marks or turns that do not fit them) or `duplicate` (a question occurs twice)."""
    if len(body) > BODY_BYTES_MAX:
        raise RecordRejected("oversize", f"a rollouts body has {len(body)} bytes, the limit is {BODY_BYTES_MAX}")
    try:
        version = _version_decoder.decode(body).version
        if version != VERSION:
            raise RecordRejected("version", f"a rollouts body has version {version}, this node reads {VERSION}")
        rollouts = _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"a rollouts body cannot be read: {error}") from error
    _check_groups(rollouts)
    return rollouts


def _check_groups(rollouts: Rollouts) -> None:
    seen = set()
    for group in rollouts.groups:
        count = len(group.completions)
        if not count or any(index >= count for index in group.cut) or not _has_possible_turns(group):
            raise RecordRejected("group-size", f"{rollouts.peer} sent a group whose completions do not add up")
        key = (group.task, group.seed, group.index)
        if key in seen:
            raise RecordRejected("duplicate", f"{rollouts.peer} sent the question {key} twice")
        seen.add(key)


def _has_possible_turns(group: Group) -> bool:
    """Whether turn offsets are within the texts and ascending, with an end for each beginning."""
    if not group.turns:
        return True
    return len(group.turns) == len(group.completions) and all(
        len(ends) % 2 == 0 and list(ends) == sorted(ends) and ends[-1:] <= (len(text),)
        for ends, text in zip(group.turns, group.completions, strict=True)
    )


def split_turns(text: str, turns: tuple[int, ...]) -> list[str]:
    """Split a completion into the model's turns and the answers between them; first and last are the model's."""
    ends = [0, *turns, len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


def check_origin(rollouts: Rollouts, ref: RolloutsRef, swarm: str) -> None:
    """Raise RecordRejected(`swarm` or `origin`) unless the body matches the swarm, and the peer and stage in `ref`."""
    if rollouts.swarm != swarm:
        raise RecordRejected("swarm", f"rollouts of swarm {rollouts.swarm!r} reached swarm {swarm!r}")
    if (rollouts.peer, rollouts.round, rollouts.stage) != (ref.peer, ref.round, ref.stage):
        raise RecordRejected("origin", f"rollouts of {rollouts.peer} were published under {ref.peer}")
