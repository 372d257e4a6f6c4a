"""What peers wrote, out of the rollouts that a node gathered: bodies in the blob store, which are hostile."""

from __future__ import annotations

import hashlib
import threading
from collections import deque

from swarmd.core.events import OutputsMade, RolloutsGathered, StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.errors import BlobError, NotFoundError, RecordRejected
from swarmd.eventlog.blobs import Blobs
from swarmd.eventlog.fold import Applied, Base
from swarmd.swarms.rollouts import BODY_BYTES_MAX, Group, Rollouts, check_origin, decode_rollouts
from swarmd.web.ledger import Ledger
from swarmd.web.moments import shown_text
from swarmd.web.shapes import GOSSIP_CHARACTERS_MAX, GOSSIP_KEPT, Message

BODIES_WAITING_MAX = 64  # not looked at yet; the oldest are forgotten
PEERS_PER_STAGE = 20  # of those gathered at once, drawn by their digests
MESSAGES_PER_BODY = 4
ID_CHARACTERS = 32


class Waiting:
    """A body that was named by the log and not looked at yet."""

    __slots__ = ("at", "ref", "swarm")

    def __init__(self, ref: RolloutsRef, at: float, swarm: str) -> None:
        self.ref, self.at, self.swarm = ref, at, swarm


class GossipFeed:
    """Follows the fold; bodies are read when somebody asks.

    Args:
        blobs: the node's.
        ledger: for names.
    """

    def __init__(self, blobs: Blobs, ledger: Ledger) -> None:
        self._blobs = blobs
        self._ledger = ledger
        self._lock = threading.Lock()
        self.begin(Base())

    def begin(self, base: Base) -> None:
        with self._lock:
            self._waiting: deque[Waiting] = deque(maxlen=BODIES_WAITING_MAX)
            self._messages: deque[Message] = deque(maxlen=GOSSIP_KEPT)
            self._count = 0
            self._seen: deque[str] = deque(maxlen=4 * BODIES_WAITING_MAX)  # digests

    def take(self, applied: Applied) -> None:
        event = applied.event
        if isinstance(event, RolloutsGathered):
            refs = sorted(event.rollouts, key=lambda ref: ref.digest)[:PEERS_PER_STAGE]
        elif isinstance(event, StageTrained | OutputsMade):
            refs = [event.rollouts]
        else:
            return
        settings = applied.after.settings
        for ref in refs:
            if ref.digest not in self._seen:
                self._seen.append(ref.digest)
                self._waiting.append(Waiting(ref, applied.at, settings.swarm if settings else ""))

    def has_beyond(self, count: int) -> bool:
        """Whether `since` may have more than the first `count`."""
        return bool(self._waiting) or self._count != count

    def since(self, count: int) -> tuple[list[Message], int]:
        """Messages beyond the first `count`, oldest first, as far as they are kept, and how many there were in all.

        Of -1 nothing is new. Reads files: not for an event loop.
        """
        with self._lock:
            while self._waiting:
                fresh = self._messages_of(self._waiting.popleft())
                self._messages.extend(fresh)
                self._count += len(fresh)
            fresh_count = min(self._count - count, len(self._messages)) if count >= 0 else 0
            return list(self._messages)[len(self._messages) - fresh_count :], self._count

    def latest(self, since_round: int) -> tuple[Message, ...]:
        """Newest first. Reads files."""
        self.since(-1)
        with self._lock:
            return tuple(message for message in reversed(self._messages) if message.round >= since_round)

    def _messages_of(self, waiting: Waiting) -> list[Message]:
        ref = waiting.ref
        try:
            rollouts = self._body(ref)
            check_origin(rollouts, ref, waiting.swarm)
        except (NotFoundError, BlobError, RecordRejected):
            return []  # pruned, or what the node refused as well and counts among its rejections
        account = self._ledger.accounts.get(ref.peer)
        name = account.name if account else ""
        return [_message(rollouts, group, name, waiting.at) for group in rollouts.groups[:MESSAGES_PER_BODY]]

    def _body(self, ref: RolloutsRef) -> Rollouts:
        if ref.size_bytes > BODY_BYTES_MAX:
            raise RecordRejected("oversize", f"rollouts of {ref.size_bytes} bytes")
        return decode_rollouts(self._blobs.get(ref.digest))


def _message(rollouts: Rollouts, group: Group, name: str, at: float) -> Message:
    choice = group.quoted.choice if group.quoted and group.quoted.choice < len(group.completions) else 0
    place = f"{rollouts.peer}_{rollouts.round}_{rollouts.stage}_{group.task}_{group.seed}_{group.index}"
    return Message(
        id=hashlib.blake2b(place.encode("utf-8", "replace")).hexdigest()[:ID_CHARACTERS],
        peer=shown_text(rollouts.peer, 128),
        name=name,
        round=rollouts.round,
        stage=rollouts.stage,
        task=group.task,
        question=group.quoted.question[:GOSSIP_CHARACTERS_MAX] if group.quoted else "",
        text=group.completions[choice][:GOSSIP_CHARACTERS_MAX],
        at=at,
    )
