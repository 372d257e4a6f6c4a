"""Bodies of rollouts and leaderboards: small ones are inside their record, larger ones are fetched from the owner.

- A body counts only if its size and sha256 are those that the signed record states.
- A leaderboard's body contains the signed reports of its round, so anyone can check that its standings are their sums.
"""

import hashlib
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from swarmd.bounds import is_bounded
from swarmd.core.coordination import reports_bytes_max
from swarmd.core.values import Standing
from swarmd.dht.wire import names, records
from swarmd.dht.wire.msgpack_guard import DECODE_ERRORS, check_plain_msgpack
from swarmd.errors import RecordRejected
from swarmd.files import write_durably

INLINE_TOTAL_BYTES_MAX = 3 * 512 * 1024  # of all members under one key, which is read as one message
# Sent by all replicas of a key together if all members ask at once: a good half of what `swarmd.dht.p2p.limits.ANSWERS`
# allows at some eight replicas to members that share an address.
SHOWN_AT_ONCE_BYTES_MAX = 64 * 1024 * 1024

ROOM_BYTES = 4096  # a leaderboard that has less room left may lack reports, see `swarmd.core.coordination`
TOLERANCE = 1e-6  # of a reward sum: the order of additions is not prescribed


class BodySource(Protocol):
    """Contents by their SHA-256, to be served to peers."""

    def has(self, digest: str) -> bool:
        """Is there a content with this digest?"""

    def get(self, digest: str) -> bytes:
        """The content. Raises SwarmdError or OSError if it is not there."""


def deflate(body: bytes, members: int, to_fetch: bool = True) -> bytes:
    """The compressed body to put into a record; empty if it is too large for that. `members`: peers that share the key;
    the more there are, the less room each has. What is sent if all of them ask grows with their square. `to_fetch`:
    whether peers could fetch the body instead."""
    packed = zlib.compress(body, 6)
    room = min(records.INLINE_BYTES_MAX, INLINE_TOTAL_BYTES_MAX // max(members, 1))
    if to_fetch:
        room = min(room, SHOWN_AT_ONCE_BYTES_MAX // max(members, 1) ** 2)
    return packed if len(packed) <= room else b""


def inflate(packed: bytes, size_bytes: int) -> bytes:
    """Decompress the body in a record. Raises RecordRejected("malformed"): no zlib, or not the stated size."""
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(packed, size_bytes + 1)
    except zlib.error as error:
        raise RecordRejected("malformed", f"the body is not a zlib stream: {error}") from error
    if len(body) != size_bytes or not stream.eof or stream.unused_data:
        raise RecordRejected("malformed", f"the body does not have the stated {size_bytes} bytes")
    return body


def check_body(body: bytes, digest: str, size_bytes: int) -> None:
    """Raise RecordRejected unless this is the announced body, and plain msgpack."""
    if len(body) != size_bytes or size_bytes > records.BODY_BYTES_MAX:
        raise RecordRejected("oversized", f"{len(body)} bytes instead of {size_bytes}")
    if hashlib.sha256(body).hexdigest() != digest:
        raise RecordRejected("wrong-digest", "the body is not the one that was announced")
    check_plain_msgpack(body)


class LeaderboardBody(msgspec.Struct, frozen=True):
    """Standings after a round, and the signed reports of that round."""

    round: int
    standings: tuple[Standing, ...]
    reports: tuple[bytes, ...] = ()


def encode_leaderboard(board: LeaderboardBody) -> bytes:
    return msgspec.msgpack.encode(board)


def decode_leaderboard(body: bytes) -> LeaderboardBody:
    """Decode what `encode_leaderboard` made. Raises RecordRejected("malformed")."""
    try:
        board = msgspec.msgpack.decode(body, type=LeaderboardBody)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"not a leaderboard: {error}") from error
    if not is_bounded(board):
        raise RecordRejected("malformed", "a leaderboard with a number out of bounds")
    return board


class SavedStandings(msgspec.Struct, frozen=True):
    """The latest standings that a node has read."""

    swarm: str
    round: int
    standings: tuple[Standing, ...]


def save_standings(path: Path, swarm: str, board: LeaderboardBody) -> None:
    """Write standings over earlier ones. Raises NoSpaceLeft, LogWriteFailed."""
    write_durably(path, msgspec.msgpack.encode(SavedStandings(swarm, board.round, board.standings)))


def read_standings(path: Path, swarm: str) -> SavedStandings | None:
    """The standings that were kept of this swarm; None if there are none that can be read."""
    try:
        if path.stat().st_size > records.BODY_BYTES_MAX:
            return None
        kept = msgspec.msgpack.decode(path.read_bytes(), type=SavedStandings)
    except (OSError, *DECODE_ERRORS):
        return None
    return kept if kept.swarm == swarm else None


class LeaderboardCheck:
    """Adds up standings from signed reports, leaderboard by leaderboard.

    Attributes:
        standings: sums of the reports so far, by peer.
        problems: what is wrong, a sentence each.
        partial: number of leaderboards that had no room for all reports, whose standings are taken as given.
    """

    def __init__(self, before: Iterable[Standing] = ()) -> None:
        self.standings = {standing.peer: standing for standing in before}
        self.problems: list[str] = []
        self.partial = 0

    def add_leaderboard(self, board: LeaderboardBody, swarm: str) -> None:
        """Add the next round's."""
        reports = _verified_reports(board, swarm, self.problems)
        if not has_room_left(board):
            self.partial += 1
            self.standings = {standing.peer: standing for standing in board.standings}
            return
        for report in reports:
            self.standings[report[0]] = _add_report(self.standings.get(report[0]), *report)
        _compare_standings(board, self.standings, self.problems)


def _verified_reports(board: LeaderboardBody, swarm: str, problems: list[str]) -> list[tuple[str, int, float]]:
    """(peer, round, reward) of each genuine report of the board, in the order of their stages."""
    found: dict[tuple[str, int], float] = {}
    for number, encoded in enumerate(board.reports):
        try:
            signed, report = decode_report(encoded, swarm)
        except RecordRejected as error:
            problems.append(f"round {board.round}, report {number}: {error.reason}: {error.message}")
            continue
        place = (signed.owner, report.stage)
        if report.round != board.round:
            problems.append(f"round {board.round}, report {number}: it is of round {report.round}")
        elif place in found:
            problems.append(f"round {board.round}, report {number}: a second one of {signed.owner}")
        else:
            found[place] = report.reward
    ordered = sorted(found, key=lambda place: (place[1], place[0]))
    return [(peer, board.round, found[peer, stage]) for peer, stage in ordered]


def decode_report(encoded: bytes, swarm: str) -> tuple[records.SignedRecord, records.ReportRecord]:
    """Decode and verify a signed report, which may have expired. Raises RecordRejected."""
    signed = records.decode_signed(encoded)
    content = records.decode_payload(signed.payload)
    if not isinstance(content, records.ReportRecord) or content.swarm != swarm:
        raise RecordRejected("wrong-key", "not a report of this swarm")
    if not records.is_signature_valid(signed, names.key_id(content.key)):
        raise RecordRejected("bad-signature", f"not signed by {signed.owner}")
    return signed, content


def has_room_left(board: LeaderboardBody) -> bool:
    """Whether there was room for one more report, so that none was left out."""
    return sum(map(len, board.reports)) + ROOM_BYTES <= reports_bytes_max(board.standings)


def _add_report(standing: Standing | None, peer: str, round: int, reward: float) -> Standing:
    if standing is None:
        return Standing(peer, "", reward, 1, round)
    rounds = standing.rounds + (standing.last_round != round)
    return Standing(peer, standing.name, standing.reward + reward, rounds, round)


def _compare_standings(board: LeaderboardBody, expected: dict[str, Standing], problems: list[str]) -> None:
    given = {standing.peer: standing for standing in board.standings}
    for peer in sorted(expected.keys() | given.keys()):
        stated, counted = given.get(peer), expected.get(peer)
        if stated is None or counted is None:
            what = "has reports but no standing" if stated is None else "has a standing but no reports"
            problems.append(f"round {board.round}: {peer} {what}")
        elif (stated.rounds, stated.last_round) != (counted.rounds, counted.last_round) or not math.isclose(
            stated.reward, counted.reward, rel_tol=TOLERANCE, abs_tol=TOLERANCE
        ):
            problems.append(
                f"round {board.round}: {peer} is given {stated.reward:g} in {stated.rounds} rounds, "
                f"the reports add up to {counted.reward:g} in {counted.rounds}"
            )
