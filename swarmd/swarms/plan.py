"""What the engine needs from a swarm, and nothing more.

A plan is deterministic: the same (swarm, peer, round, stage) draws the same questions on every machine, and a question
is known by its `Reference`. The engine generates completions, asks the plan to score them, and publishes references;
it never sees how a question came about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

from swarmd.core.values import Value
from swarmd.swarms.rollouts import Reference

Split = Literal["train", "dev", "held-out"]
SPLIT_PARTS = 10  # of the questions of a task: 2 parts held out, 1 for development, 7 to train on


class Message(Value, frozen=True):
    """One chat message; `trusted` text may hold tags, other text is escaped before it is tokenized."""

    role: Literal["system", "user", "assistant"]
    content: str
    trusted: bool = False


class Question(Value, frozen=True):
    """A question that this node generated itself, with what scoring needs; the truth never leaves the node."""

    reference: Reference
    messages: tuple[Message, ...]
    entry: Mapping[str, Any]

    @property
    def task(self) -> str:
        return self.reference.task


class Score(Value, frozen=True):
    """Reward parts of one completion, each in [0, 1]."""

    accuracy: float
    format: float
    failed: bool = False  # the scorer raised or gave no number; counted as 0


class Plan(Protocol):
    """A swarm as the engine sees it."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks of the mixture."""

    def draw(self, peer: str, round: int, stage: int) -> Iterator[Question]:
        """Endless training questions of one node for one stage, each one once as long as the task has new ones."""

    def hold_out(self, task: str, count: int) -> list[Question]:
        """The same up to `count` questions on every node; `draw` never yields them and `regenerate` refuses them."""

    def regenerate(self, reference: Reference, peer: str, round: int, stage: int) -> Question:
        """The question that a peer answered. Raises RecordRejected where it is none that the peer could have drawn."""

    def score(self, question: Question, completion: str, stage: int) -> Score:
        """Score one completion, this node's own or a peer's; never raises."""


def hash_number(*parts: object, bits: int = 31) -> int:
    """A number from the parts, the same on every machine: the first bits of their SHA-256."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - bits)


def split_of(task: str, canonical: str) -> Split:
    """The side of the split on which a question lies, by the hash of its canonical form."""
    part = hash_number("split", task, canonical, bits=63) % SPLIT_PARTS
    return "held-out" if part < 2 else "dev" if part == 2 else "train"
