"""Who gossips too many hints, or none, is refused; who is punished for it is whoever must have written them."""

from __future__ import annotations

import msgspec

from swarmd.dht.limits.door import REFUSALS_MAX, RequestLimits
from swarmd.dht.limits.hint_limits import HINTS_BURST
from swarmd.dht.pubsub.hints import HINT_BYTES_MAX, Hint, HintGossip
from tests.dht.pubsub.topic import Topic

SENT = 4 * (REFUSALS_MAX + int(HINTS_BURST))
HINT = msgspec.msgpack.encode(Hint("report", "key", 60.0, "alice"))


class Listener:
    """A node that hears hints."""

    def __init__(self) -> None:
        self.topic, self.refused, self.hints = Topic(), list[str](), list[str]()
        self.door = RequestLimits(lambda peer, reason, detail: self.refused.append(reason))
        everybody = lambda peer: True  # noqa: E731
        hinted = lambda key, owner, expiration: self.hints.append(owner)  # noqa: E731
        HintGossip(self.topic, self.door, "me", everybody, everybody, hinted)  # type: ignore[arg-type]

    def hear(self, message: bytes, times: int) -> None:
        for _ in range(times):
            self.topic.take("alice", message)


def test_a_peer_whose_hints_somebody_repeats_is_not_disconnected_for_it() -> None:
    listener = Listener()
    listener.door.leave_call(listener.door.caller("alice"), 0, 0.0)
    listener.hear(HINT, SENT)
    assert len(listener.hints) < 2 * HINTS_BURST and set(listener.refused) == {"hints"}
    assert not listener.door.unwanted and listener.door.is_served("alice")


def test_whoever_writes_what_is_no_hint_is_disconnected() -> None:
    listener = Listener()
    listener.hear(b"x" * (HINT_BYTES_MAX + 1), REFUSALS_MAX)
    assert listener.refused == ["oversized"] * REFUSALS_MAX and not listener.hints
    assert listener.door.unwanted == {"alice"}
