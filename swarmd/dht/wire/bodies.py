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

INLINE_TOTAL_BYTES_MAX = 3 * 512 * 1024  # of all members' records under one key, which is read as one message
# Sent by all replicas of a key together if all members ask at once: somewhat more than half of what
# `swarmd.dht.p2p.limits.ANSWERS` allows at some eight replicas to members that share an address.
SHOWN_AT_ONCE_BYTES_MAX = 64 * 1024 * 1024

ROOM_BYTES = 4096  # a leaderboard with less space left may lack reports, see `swarmd.core.coordination`
TOLERANCE = 1e-6  # relative error allowed in a reward sum: the order of additions is not prescribed


class BodySource(Protocol):
    """Content addressed by its SHA-256, served to peers."""

    def has(self, digest: str) -> bool:
        """Return whether content with this digest exists."""

    def get(self, digest: str) -> bytes:
        """Return the content. Raises SwarmdError or OSError if it is missing."""


def deflate(body: bytes, members: int, to_fetch: bool = True) -> bytes:
    """Return the compressed body to put into a record, empty if too large. `members` is the number of peers that share
    the key: each gets less space the more there are, because the total sent if all of them read the key grows with
    their square. `to_fetch`: whether peers could fetch the body instead."""
    packed = zlib.compress(body, 6)
    room = min(records.INLINE_BYTES_MAX, INLINE_TOTAL_BYTES_MAX // max(members, 1))
    if to_fetch:
        room = min(room, SHOWN_AT_ONCE_BYTES_MAX // max(members, 1) ** 2)
    return packed if len(packed) <= room else b""


def inflate(packed: bytes, size_bytes: int) -> bytes:
    """Decompress the body in a record. Raises RecordRejected("malformed"): not zlib, or not of the stated size."""
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
    """Decode the output of `encode_leaderboard`. Raises RecordRejected("malformed")."""
    try:
        board = msgspec.msgpack.decode(body, type=LeaderboardBody)
    except DECODE_ERRORS as error:
        raise RecordRejected("malformed", f"not a leaderboard: {error}") from error
    if not is_bounded(board):
        raise RecordRejected("malformed", "a leaderboard with a number out of bounds")
    return board


class SavedStandings(msgspec.Struct, frozen=True):
    """The latest standings that a node has read, as saved on disk."""

    swarm: str
    round: int
    standings: tuple[Standing, ...]


def save_standings(path: Path, swarm: str, board: LeaderboardBody) -> None:
    """Replace the saved standings. Raises NoSpaceLeft, LogWriteFailed."""
    write_durably(path, msgspec.msgpack.encode(SavedStandings(swarm, board.round, board.standings)))


def read_standings(path: Path, swarm: str) -> SavedStandings | None:
    """Return the saved standings of this swarm; None if there are none or they cannot be read."""
    try:
        if path.stat().st_size > records.BODY_BYTES_MAX:
            return None
        kept = msgspec.msgpack.decode(path.read_bytes(), type=SavedStandings)
    except (OSError, *DECODE_ERRORS):
        return None
    return kept if kept.swarm == swarm else None


class LeaderboardCheck:
    """Checks standings against the sums of signed reports, leaderboard by leaderboard.

    Attributes:
        standings: sums of the reports so far, by peer.
        problems: one sentence for each discrepancy.
        partial: number of leaderboards that could not hold all reports; their standings are accepted unchecked.
    """

    def __init__(self, before: Iterable[Standing] = ()) -> None:
        self.standings = {standing.peer: standing for standing in before}
        self.problems: list[str] = []
        self.partial = 0

    def add_leaderboard(self, board: LeaderboardBody, swarm: str) -> None:
        """Add the next round's leaderboard."""
        reports = _verified_reports(board, swarm, self.problems)
        if not has_room_left(board):
            self.partial += 1
            self.standings = {standing.peer: standing for standing in board.standings}
            return
        for report in reports:
            self.standings[report[0]] = _add_report(self.standings.get(report[0]), *report)
        _compare_standings(board, self.standings, self.problems)


def _verified_reports(board: LeaderboardBody, swarm: str, problems: list[str]) -> list[tuple[str, int, float]]:
    """Return (peer, round, reward) of each report with a valid signature, ordered by stage."""
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
    """Return whether one more report would have fit, so that none was left out."""
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
