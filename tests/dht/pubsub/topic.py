"""A gossip topic without p2pd."""

from __future__ import annotations

from typing import Any


class Topic:
    """Keeps who listens, so that a test can bring it messages."""

    take: Any = None

    def listen(self, take: Any) -> None:
        self.take = take
