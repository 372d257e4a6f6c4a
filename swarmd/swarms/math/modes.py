"""What `fixed` and `compat` do differently with the same questions and peers: choosing, showing and scoring."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from swarmd.plugin import Outcome, Source
from swarmd.swarms.math.questions import Item

COLUMNS = ("agent_answers_", "agent_opinion_")  # upstream's, which break ties between peers
Parts = dict[str, float]


class PeerCompletion(msgspec.Struct, frozen=True):
    """A peer's completion of an earlier stage, found again here; without an outcome where there was no answer."""

    source: Source
    text: str
    outcome: Outcome | None = None


class PosedQuestion(msgspec.Struct, frozen=True):
    """A question of a later stage: the user's message, and what its completions are held against."""

    prompt: str
    entry: dict[str, Any]


class Mode(abc.ABC):
    """One way of choosing, showing and scoring."""

    def __init__(self, students: int, shown_bytes: int) -> None:
        """
        Args:
            students: peers shown at most, and critics at most.
            shown_bytes: of each peer's text, where the mode cuts it.
        """
        self._students = students
        self._shown_bytes = shown_bytes

    @abc.abstractmethod
    def choose_answers(self, item: Item, answers: Sequence[Outcome], absent: Sequence[str]) -> tuple[Source, ...]:
        """Whose answers a question of stage 1 shows. `absent` are peers that answered only other questions."""

    @abc.abstractmethod
    def choose_opinions(
        self, item: Item, answers: Sequence[Outcome], opinions: Sequence[Outcome], absent: Sequence[str]
    ) -> tuple[Source, ...]:
        """Whose answers and opinions a question of stage 2 shows; nothing where the answers are not known here."""

    @abc.abstractmethod
    def compare(self, item: Item, answers: Sequence[PeerCompletion]) -> PosedQuestion:
        """The question of stage 1."""

    @abc.abstractmethod
    def agree(self, item: Item, answers: Sequence[PeerCompletion], opinions: Sequence[PeerCompletion]) -> PosedQuestion:
        """The question of stage 2. Raises RecordRejected."""

    def shorten(self, entry: Mapping[str, Any]) -> PosedQuestion | None:
        """A question that `compare` or `agree` posed, with less of peers' texts; None where none can be cut."""
        return None

    @abc.abstractmethod
    def score(
        self, stage: int, entry: Mapping[str, Any], prompt: str, texts: Sequence[str]
    ) -> Sequence[tuple[Parts, float, float]]:
        """Parts of the reward, accuracy and form of each completion."""


def best_of(rewards: Mapping[str, float], stage: int, count: int) -> list[str]:
    """The `count` peers with the highest rewards, ties broken by the MD5 of upstream's column names; the best last."""

    def key(peer: str) -> tuple[float, int, str]:
        column = COLUMNS[stage] + peer
        return rewards[peer], int(hashlib.md5(column.encode(), usedforsecurity=False).hexdigest(), 16), column

    return sorted(rewards, key=key)[-count:]


def sources_of(stage: int, choices: Mapping[str, int]) -> tuple[Source, ...]:
    """Sources in the order in which they are shown: by peer id."""
    return tuple(Source(stage, peer, choices[peer]) for peer in sorted(choices))


def entry_of(item: Item, **more: Any) -> dict[str, Any]:
    """What a question of any stage keeps."""
    return {"question": item.text, "answer": item.answer, **more}
