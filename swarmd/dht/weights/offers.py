"""The weights that members offer, as their memberships say."""

from __future__ import annotations

from collections.abc import Collection

from swarmd.dht.ports import RefusalCounter
from swarmd.dht.wire.records import Membership
from swarmd.errors import RecordRejected
from swarmd.weights.manifest import WeightsOffer, decode_offer


class MembersOffers:
    """What members offer now.

    Args:
        refused: counts offers that cannot be read.
    """

    def __init__(self, refused: RefusalCounter) -> None:
        self._refused = refused
        self._unread: dict[str, bytes] = {}  # of members, offers that cannot be read
        self.by_member: dict[str, WeightsOffer] = {}

    def hear(self, peer: str, content: Membership) -> None:
        """Take note of what a member offers; what cannot be read is counted and offers nothing."""
        self.by_member.pop(peer, None)
        if content.leaving or not content.weights:
            return
        try:
            self.by_member[peer] = decode_offer(content.weights)
        except RecordRejected as error:
            if self._unread.get(peer) != content.weights:  # once each, for memberships are read again and again
                self._refused(peer, error.reason, error.message)
            self._unread[peer] = content.weights

    def names(self, manifest: str) -> bool:
        """Whether a member offers the manifest of this digest now."""
        return any(offer.manifest.hex() == manifest for offer in self.by_member.values())

    def keep(self, members: Collection[str]) -> None:
        """Forget those of all others."""
        self._unread = {peer: packed for peer, packed in self._unread.items() if peer in members}
        self.by_member = {peer: offer for peer, offer in self.by_member.items() if peer in members}
