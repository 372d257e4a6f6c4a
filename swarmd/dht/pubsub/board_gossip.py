"""Which leaderboard was read, told by gossip: whoever has read another one of the round shows it; both are evidence.

Who has heard of the leaderboard that it read keeps quiet. So a word that is told early silences those who agree with it
and nobody else: whoever has read another one hears it too, and answers. What is told before one has read is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Protocol

import msgspec

from swarmd.dht.ports import Record, RecordJudge, as_signed
from swarmd.dht.pubsub.suppression import Suppression
from swarmd.dht.rounds.record_comparison import BOARDS_KEPT
from swarmd.dht.wire.records import ROUNDS_AHEAD, LeaderboardRecord, RecordPolicy, Round, SignedRecord, check_payload
from swarmd.errors import RecordRejected
from swarmd.worker.runtime import Runtime

DIGEST_LENGTH = 64
AGAIN_S = 30.0  # at least between two words of one leaderboard, so that two that are disputed do not go on and on
EARLY_KEPT = 8  # digests of one round that are remembered until its leaderboard was read here


class BoardRead(msgspec.Struct, frozen=True, gc=False, tag="board"):
    """The leaderboard of a round that a node has read, by its digest; whoever has another shows it."""

    round: Round
    digest: str


class BoardShown(msgspec.Struct, frozen=True, gc=False, tag="shown"):
    """The signed record of a leaderboard, because somebody has read another one."""

    record: SignedRecord


class BoardSink(Protocol):
    """Sends what is told of leaderboards."""

    def __call__(self, message: BoardRead | BoardShown, /) -> Awaitable[None]:
        """Send it to all, if the network is up. Raises nothing."""


class OwnBoard:
    """A leaderboard that this node has read.

    Attributes:
        round: of it.
        digest: of it.
        signed: of its records the one that expires last.
        told_at: when somebody told all of it last.
        is_told: whether somebody has, since others asked last.
        is_shown: whether somebody has shown it to all.
        is_settled: whether another one of the round was shown, so that both are evidence.
        is_telling: whether this node is about to tell of it.
        is_showing: whether it is about to show it.
    """

    def __init__(self, signed: SignedRecord, content: LeaderboardRecord) -> None:
        self.round = content.round
        self.digest = content.digest
        self.signed = signed
        self.told_at = -math.inf
        self.is_told = self.is_shown = self.is_settled = self.is_telling = self.is_showing = False

    def note_told(self, now: float) -> None:
        """Somebody has told all of it."""
        self.is_told, self.told_at = True, now


class BoardGossip:
    """Tells which leaderboards this node has read, and shows them where they are disputed.

    Args:
        send: tells all others.
        policy: the swarm, and where it is.
        judge: checks the records that others show.
        runtime: the clock.
        suppression: how long others are waited for.
    """

    def __init__(
        self, send: BoardSink, policy: RecordPolicy, judge: RecordJudge, runtime: Runtime, suppression: Suppression
    ) -> None:
        self._send = send
        self._policy = policy
        self._judge = judge
        self._runtime = runtime
        self._suppression = suppression
        self._own: dict[int, OwnBoard] = {}  # by round, the latest of them
        self._early: dict[int, dict[str, bool]] = {}  # round → digest that was told of before → whether it was shown

    def read(self, record: Record) -> None:
        """This node has read a leaderboard: tell which, if nobody else has told of the same."""
        signed = as_signed(record)
        content = signed.content
        assert isinstance(content, LeaderboardRecord), "it is a leaderboard"
        own = self._own.get(content.round)
        if own is not None:  # renewed; two that differ were compared when they were read
            if own.digest == content.digest and own.signed.expiration < signed.expiration:
                own.signed = signed
            return
        own = self._own[content.round] = OwnBoard(signed, content)
        while len(self._own) > BOARDS_KEPT:
            del self._own[min(self._own)]
        early = self._early.pop(content.round, {})
        if own.digest in early:
            own.is_shown = early[own.digest]
            own.note_told(self._runtime.now())
        else:
            self._tell_later(own)
        if early.keys() - {own.digest}:
            self._show_later(own)

    def hear(self, message: BoardRead) -> None:
        """Somebody has read a leaderboard; where this node has read another one of the round, it shows it.

        Raises:
            RecordRejected: "malformed" where it names none.
        """
        if len(message.digest) > DIGEST_LENGTH:
            raise RecordRejected("malformed", f"a digest of {len(message.digest)} characters")
        own = self._own.get(message.round)
        if own is None:
            self._remember(message.round, message.digest, shown=False)
        elif own.digest == message.digest:
            own.note_told(self._runtime.now())
        elif not own.is_shown:
            self._show_later(own)
        elif not own.is_settled:  # whoever asks may have come since it was shown
            own.is_told = False
            self._tell_later(own)

    def see(self, signed: SignedRecord) -> None:
        """Somebody shows a leaderboard; it is compared like any record that is seen first. Raises RecordRejected."""
        content = check_payload(signed.payload)
        if not isinstance(content, LeaderboardRecord):
            raise RecordRejected("malformed", "no leaderboard")
        self._judge.judge(content.key, signed)
        own = self._own.get(content.round)
        if own is None:
            self._remember(content.round, content.digest, shown=True)
        elif own.digest != content.digest:
            own.is_settled = True
        else:
            own.is_shown = True
            own.note_told(self._runtime.now())

    def _remember(self, round: int, digest: str, shown: bool) -> None:
        """For when this node will have read the leaderboard of that round itself."""
        reached = self._policy.round
        if reached is None:
            return
        rounds = range(reached - BOARDS_KEPT, reached + ROUNDS_AHEAD + 1)
        self._early = {each: digests for each, digests in self._early.items() if each in rounds}
        if round in rounds:
            digests = self._early.setdefault(round, {})
            if digest in digests or len(digests) < EARLY_KEPT:
                digests[digest] = digests.get(digest, False) or shown

    def _tell_later(self, own: OwnBoard) -> None:
        if not own.is_telling:
            own.is_telling = True
            self._runtime.start(self._tell(own, max(0.0, own.told_at + AGAIN_S - self._runtime.now())))

    async def _tell(self, own: OwnBoard, pause_s: float) -> None:
        await self._runtime.sleep(pause_s + self._suppression.delay_s())
        own.is_telling = False
        if not own.is_told:
            own.note_told(self._runtime.now())
            await self._send(BoardRead(own.round, own.digest))

    def _show_later(self, own: OwnBoard) -> None:
        if not own.is_showing:
            own.is_showing = True
            self._runtime.start(self._show(own))

    async def _show(self, own: OwnBoard) -> None:
        await self._runtime.sleep(self._suppression.delay_s())
        own.is_showing = False
        if not own.is_shown and self._policy.now() < own.signed.expiration:  # else nobody would take it
            own.is_shown = True
            own.note_told(self._runtime.now())
            await self._send(BoardShown(own.signed))
