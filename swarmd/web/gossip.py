"""Completions that peers shared, read from untrusted rollouts in the blob store.

Question, truth and reward are added once this node's trainer has generated the questions again and scored them.
"""

import hashlib
import math
import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from cachetools import FIFOCache

from swarmd.core.applied import AppliedEvent
from swarmd.core.events import RolloutsGathered, StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.errors import BlobError, NotFoundError, RecordRejected
from swarmd.eventlog.blobs import BlobStore
from swarmd.eventlog.fold import FoldBase
from swarmd.swarms.plan import ScoredGroup, decode_scored_groups
from swarmd.swarms.rollouts import BODY_BYTES_MAX, Group, Rollouts, check_origin, decode_rollouts
from swarmd.web.moments import redact_and_cut
from swarmd.web.shapes import GOSSIP_CHARACTERS_MAX, GOSSIP_KEPT, Message
from swarmd.web.swarm import PeerLedger

BODIES_WAITING_MAX = 64  # bodies not read yet, and likewise digests of scores; beyond that the oldest are dropped
PEERS_PER_STAGE = 20  # peers whose bodies are read per gathering, chosen by digest
MESSAGES_PER_BODY = 4
ID_CHARACTERS = 32


class UnreadBody(NamedTuple):
    """A body that an event names and that has not been read yet."""

    ref: RolloutsRef
    seq: int  # of the event that names it
    at: float
    swarm: str


class MessageEntry:
    """A message with the key under which its scores are found."""

    __slots__ = ("key", "message")

    def __init__(self, message: Message, key: tuple[str, int, int, str, int, int]) -> None:
        self.message, self.key = message, key


class GossipFeed:
    """A follower of the fold that reads bodies only when messages are asked for. `blobs`: the node's. `ledger`: for
    names."""

    def __init__(self, blobs: BlobStore, ledger: PeerLedger) -> None:
        self._blobs = blobs
        self._ledger = ledger
        self._lock = threading.Lock()
        self.restart(FoldBase())

    def restart(self, base: FoldBase) -> None:
        with self._lock:
            self._waiting: deque[UnreadBody] = deque(maxlen=BODIES_WAITING_MAX)
            self._kept: FIFOCache[str, MessageEntry] = FIFOCache(GOSSIP_KEPT)  # by the message's id
            self._news: deque[str] = deque(maxlen=GOSSIP_KEPT)  # ids of messages that came or were scored, newest last
            self._count = 0  # of all news so far
            self._scores: deque[str] = deque(maxlen=BODIES_WAITING_MAX)  # digests not read yet
            self._named: deque[UnreadBody] = deque(maxlen=BODIES_WAITING_MAX)  # latest bodies, read or not
            self._scored: deque[str] = deque(maxlen=BODIES_WAITING_MAX)  # latest digests of scores, read or not
            self._seen: deque[str] = deque(maxlen=4 * BODIES_WAITING_MAX)  # digests

    def apply(self, applied: AppliedEvent) -> None:
        event = applied.event
        if isinstance(event, RolloutsGathered):
            refs = sorted(event.rollouts, key=lambda ref: ref.digest)[:PEERS_PER_STAGE]
        elif isinstance(event, StageTrained):
            refs = [event.rollouts]
        else:
            return
        settings = applied.after.settings
        for ref in refs:
            if ref.digest not in self._seen:
                self._seen.append(ref.digest)
                waiting = UnreadBody(ref, applied.seq, applied.at, settings.swarm if settings else "")
                self._waiting.append(waiting)
                self._named.append(waiting)
        if isinstance(event, StageTrained) and event.scored:
            self._scores.append(event.scored)
            self._scored.append(event.scored)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode((list(self._named), list(self._scored), list(self._seen)))

    def restore(self, kept: bytes | memoryview) -> None:
        named, scored, seen = msgspec.msgpack.decode(kept, type=tuple[list[UnreadBody], list[str], list[str]])
        self.restart(FoldBase())
        with self._lock:  # bodies and scores are read again from the start
            for bodies in (self._waiting, self._named):
                bodies.extend(named)
            for scores in (self._scores, self._scored):
                scores.extend(scored)
            self._seen.extend(seen)

    def has_newer_than(self, count: int) -> bool:
        """Whether `messages_since(count)` may return anything."""
        return bool(self._waiting or self._scores) or self._count != count

    def messages_since(self, count: int) -> tuple[list[Message], int]:
        """Return the kept messages beyond the first `count` news, oldest first, and the number of news.

        A message is news when it comes, and again, with the same id, when it is scored. With -1 nothing is new. Reads
        files: not for an event loop.
        """
        with self._lock:
            while self._waiting:
                for kept in self._read_messages(self._waiting.popleft()):
                    self._add_message(kept)
            while self._scores:
                self._add_scores(self._scores.popleft())
            fresh = min(self._count - count, len(self._news)) if count >= 0 else 0
            ids = dict.fromkeys(list(self._news)[len(self._news) - fresh :])
            return [self._kept[each].message for each in ids if each in self._kept], self._count

    def latest(self, since_round: int) -> tuple[Message, ...]:
        """Messages of this round and later, newest first. Reads files: not for an event loop."""
        self.messages_since(-1)
        with self._lock:
            messages = (kept.message for kept in reversed([*self._kept.values()]))
            return tuple(message for message in messages if message.round >= since_round)

    def _add_message(self, kept: MessageEntry) -> None:
        if kept.message.id in self._kept:
            return  # an event names a body during a stage, and another again at its end
        self._kept[kept.message.id] = kept
        self._append_news(kept)

    def _append_news(self, kept: MessageEntry) -> None:
        self._news.append(kept.message.id)
        self._count += 1

    def _add_scores(self, digest: str) -> None:
        """Add the trainer's scores, stored under `digest`, to the messages."""
        try:
            scored = {group.key: group for group in decode_scored_groups(self._blobs.get(digest))}
        except (NotFoundError, BlobError, RecordRejected):
            return  # pruned or damaged: the messages are shown without scores
        for kept in self._kept.values():
            group = scored.get(kept.key)
            if group is not None:
                kept.message = add_scores_to_message(kept.message, group)
                self._append_news(kept)

    def _read_messages(self, waiting: UnreadBody) -> Iterator[MessageEntry]:
        ref = waiting.ref
        try:
            rollouts = read_rollouts_body(ref, self._blobs)
            check_origin(rollouts, ref, waiting.swarm)
        except (NotFoundError, BlobError, RecordRejected):
            return  # pruned, or refused: the node counts it as rejected
        account = self._ledger.accounts.get(ref.peer)
        name = account.name if account else ""
        for group in rollouts.groups[:MESSAGES_PER_BODY]:
            key = (rollouts.peer, rollouts.round, rollouts.stage, group.task, group.seed, group.index)
            yield MessageEntry(_make_message(rollouts, group, name, waiting), key)


def read_rollouts_body(ref: RolloutsRef, blobs: BlobStore) -> Rollouts:
    """Decode the rollouts that a reference names. Raises NotFoundError, BlobError, RecordRejected."""
    if ref.size_bytes > BODY_BYTES_MAX:
        raise RecordRejected("oversize", f"rollouts of {ref.size_bytes} bytes")
    return decode_rollouts(blobs.get(ref.digest))


def add_scores_to_message(message: Message, group: ScoredGroup) -> Message:
    """The message with the question, truth and rewards that this node's trainer found."""
    rewards = [reward for reward in group.rewards if math.isfinite(reward)]
    return msgspec.structs.replace(
        message,
        question=redact_and_cut(group.question, GOSSIP_CHARACTERS_MAX) or message.question,
        truth=redact_and_cut(group.truth, GOSSIP_CHARACTERS_MAX),
        reward=group.rewards[0] if group.rewards else None,
        right=group.right[0] if group.right else None,
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
    )


def _make_message(rollouts: Rollouts, group: Group, name: str, waiting: UnreadBody) -> Message:
    place = f"{rollouts.peer}_{rollouts.round}_{rollouts.stage}_{group.task}_{group.seed}_{group.index}"
    return Message(
        id=hashlib.blake2b(place.encode("utf-8", "replace")).hexdigest()[:ID_CHARACTERS],
        peer=redact_and_cut(rollouts.peer, 128),
        name=name,
        round=rollouts.round,
        stage=rollouts.stage,
        task=group.task,
        question="",
        text=group.completions[0][:GOSSIP_CHARACTERS_MAX],
        at=waiting.at,
        seq=waiting.seq,
        completions=len(group.completions),
    )
