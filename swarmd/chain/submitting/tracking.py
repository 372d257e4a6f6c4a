"""One submission that is looked after: its attempts, and how far it has come in this process's life."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from swarmd.core.commands import Submit
from swarmd.core.values import BlockRef, Prepared

ATTEMPTS_MAX = 64  # remembered; the core remembers fewer, and gives them back after a restart


class TrackedSubmission:
    """State of one submission.

    Args:
        command: its order; the attempts that come with it are in the log, and may leave.
    """

    def __init__(self, command: Submit) -> None:
        self.command = command
        self.attempts: list[Prepared] = _each_once(command.prepared)
        self.block: BlockRef | None = None  # that has it
        self.hash = ""  # of the transaction, empty where the contract was seen to have it
        self.pushed_at: float | None = None  # when the last attempt was sent first, in the event loop's time
        self.was_alive = False  # an attempt could still be mined when this process looked
        self.withdrawn = False  # what is wanted now is only the end of its attempts
        self.dead_looks = 0
        self.is_unannounced = False
        self.needed_wei = 0  # that the account has to have before it is looked at again
        self.held_until = 0.0  # the day's budget is spent: not looked at before, in the event loop's time
        self.unwanted: set[str] = set()  # hashes of attempts that an endpoint did not take as they are signed
        self._prepared_at = 0.0
        self._in_log = {each.hash for each in command.prepared}
        self._sent: set[str] = set()

    def renew(self, command: Submit) -> None:
        """A new order: the attempts that it brings are in the log; what was prepared meanwhile stays.

        So do bytes that were made anew: after a confirmation the log keeps none, and may not have these yet.
        """
        anew = {each.hash for each in self.attempts if each.raw} - self._in_log
        logged = [each for each in command.prepared if each.raw or each.hash not in anew]
        brought = {each.hash for each in logged}
        self.command = command
        self.needed_wei, self.held_until = 0, 0.0
        self.attempts = _each_once([*logged, *(each for each in self.attempts if each.hash not in brought)])
        self._in_log |= brought
        self.is_unannounced = self.block is not None

    def add(self, prepared: Prepared, at: float) -> None:
        """The next attempt, which may not leave yet.

        It takes the place of one without bytes: the same transaction, signed again after its block was lost.
        """
        if not self._has_bytes(prepared.hash):
            self._in_log.discard(prepared.hash)
            self._put(prepared)
            self.pushed_at = None
        self.was_alive = True
        self._prepared_at = at

    def release(self, prepared: Prepared) -> None:
        """This attempt is in the log."""
        if not self._has_bytes(prepared.hash):
            self._put(prepared)
        self._in_log.add(prepared.hash)

    def _put(self, prepared: Prepared) -> None:
        others = [each for each in self.attempts if each.hash != prepared.hash]
        self.attempts = [*others, prepared][-ATTEMPTS_MAX:]

    def _has_bytes(self, hash: str) -> bool:
        return any(each.hash == hash and (each.raw or not hash) for each in self.attempts)

    def released(self) -> Prepared | None:
        """The newest attempt that may leave."""
        return next((each for each in reversed(self.attempts) if each.hash in self._in_log), None)

    def released_by_nonce(self) -> list[Prepared]:
        """Of each nonce the newest attempt that may leave and has its bytes, the lowest nonce first."""
        newest = {each.nonce: each for each in self.attempts if each.raw and each.hash in self._in_log}
        return [newest[nonce] for nonce in sorted(newest)]

    @property
    def submission(self) -> str:
        """The submission's id."""
        return self.command.submission

    @property
    def was_sent(self) -> bool:
        """Whether this process sent an attempt."""
        return bool(self._sent)

    @property
    def waits_for_log(self) -> bool:
        """Whether the newest attempt may not leave yet."""
        return self.attempts[-1].hash not in self._in_log

    def is_held_back(self, since: float) -> bool:
        """Whether the newest attempt has waited to be in the log for too long."""
        return self.waits_for_log and self._prepared_at <= since

    def is_stuck(self, since: float) -> bool:
        """Whether the newest attempt was sent so long ago."""
        return not self.waits_for_log and self.pushed_at is not None and self.pushed_at <= since

    def mark_sent(self, prepared: Prepared) -> bool:
        """Record an attempt as sent; true if this process had not sent it before."""
        first = prepared.hash not in self._sent
        self._sent.add(prepared.hash)
        return first

    def count_missing(self, looks: int) -> bool:
        """Count one more check without a live attempt; true after `looks` in a row, at once if there never was an
        attempt."""
        self.dead_looks += 1
        return not self.attempts or self.dead_looks >= looks

    def include(self, block: BlockRef, hash: str) -> None:
        """Record the block in which the submission was mined."""
        self.block, self.hash, self.is_unannounced, self.was_alive = block, hash, False, True

    def drop(self) -> None:
        """Forget the block: a reorganisation has replaced it."""
        self.block, self.hash, self.is_unannounced, self.dead_looks = None, "", False, 0
        self.pushed_at = None  # the same bytes are sent again


def list_replaced(following: TrackedSubmission) -> list[Prepared]:
    """The attempts that a new one replaces. Those that no endpoint took come without their bytes: nobody has to be
    outbid whose transaction is nowhere."""
    return [replace(each, raw=b"") if each.hash in following.unwanted else each for each in following.attempts]


def _each_once(attempts: Sequence[Prepared]) -> list[Prepared]:
    """In their order, each hash at its last place, with its bytes wherever they stood."""
    kept: dict[str, Prepared] = {}
    for each in attempts:
        known = kept.pop(each.hash, each)
        kept[each.hash] = each if each.raw else known
    return list(kept.values())
